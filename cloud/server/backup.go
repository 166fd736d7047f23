package server

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	stdhash "hash"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cmwa-project/cmwa/cloud/server/objects"
	"github.com/cmwa-project/cmwa/cloud/server/store"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// A backup is a tar archive of a data directory: the database, the objects to which it refers, the access token of the
// first start, and the master key, unless that key is kept in another place. So a reader of the archive can read
// everything, and the archive is a file that only its owner can read. The last entry is backupManifest: an
// archive without it is not complete.

// backupManifest is the name of the last entry of a backup.
const backupManifest = "backup.json"

// objectsDirectory is the directory of objects in the data directory.
const objectsDirectory = "objects"

// manifest is the last entry of a backup.
type manifest struct {
	Release string `json:"release"` // version of the program
	Files   int    `json:"files"`   // entries before this one
	SHA256  string `json:"sha256"`  // of these entries: see digest
}

// Backup writes a backup of a data directory to a new file, while another process may serve the directory. It returns
// the number of bytes. Of the options it uses Directory, Objects and Version. The backup has the state of one moment.
// It needs free space for a copy of the database.
func Backup(ctx context.Context, options Options, file string) (size int64, err error) {
	options = options.withDefaults()
	directory, bucket := options.Directory, options.Objects
	if _, err := os.Stat(filepath.Join(directory, store.File)); err != nil {
		return 0, fmt.Errorf("%s is not the data directory of a service: %w", directory, err)
	}
	if _, err := os.Lstat(file); err == nil {
		return 0, fmt.Errorf("%s exists: name a new file", file)
	}
	out, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+"-*") // mode 0600
	if err != nil {
		return 0, fmt.Errorf("write the backup: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, out.Close(), os.Remove(out.Name()))
		}
	}()

	if _, err := objects.Open(bucket); err != nil {
		return 0, err
	}
	if err := removeOldLinks(bucket); err != nil {
		return 0, err
	}
	// Links keep the objects until they are in the archive. They need the file system of the objects.
	links, err := os.MkdirTemp(bucket, "backup-*")
	if err != nil {
		return 0, fmt.Errorf("write the backup: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(links)) }()
	keys, err := copyDatabase(ctx, directory, bucket, links)
	if err != nil {
		return 0, err
	}

	archive := &archiveWriter{Writer: tar.NewWriter(out), digest: newDigest()}
	if err := archive.add(store.File, filepath.Join(links, store.File)); err != nil {
		return 0, err
	}
	for _, name := range []string{masterKeyFile, AccessTokenFile} {
		err := archive.add(name, filepath.Join(directory, name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return 0, err
		}
	}
	for i, key := range keys {
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
		if err := archive.add(path.Join(objectsDirectory, key), linkOf(links, i)); err != nil {
			return 0, err
		}
	}
	if err := archive.finish(options.Version); err != nil {
		return 0, err
	}
	if size, err = out.Seek(0, io.SeekCurrent); err == nil {
		err = errors.Join(out.Sync(), out.Close())
	}
	if err == nil {
		err = os.Rename(out.Name(), file)
	}
	if err == nil {
		err = secret.SyncDirectory(filepath.Dir(file))
	}
	if err != nil {
		return 0, fmt.Errorf("write the backup: %w", err)
	}
	return size, nil
}

// linkAge is the age of links that a crash of an earlier backup has left.
const linkAge = 24 * time.Hour

func removeOldLinks(bucket string) error {
	found, err := filepath.Glob(filepath.Join(bucket, "backup-*"))
	if err != nil {
		return fmt.Errorf("list the links of earlier backups: %w", err)
	}
	for _, links := range found {
		info, err := os.Stat(links)
		if err == nil && time.Since(info.ModTime()) > linkAge {
			err = os.RemoveAll(links)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // another backup has ended
			return fmt.Errorf("remove the links of an earlier backup: %w", err)
		}
	}
	return nil
}

// copyAttempts limits the copies of the database when an object is replaced between the read of its key and its link,
// which takes a millisecond.
const copyAttempts = 20

// copyDatabase copies the database to a directory, with a link to each object to which it refers. It returns the keys
// of the objects.
func copyDatabase(ctx context.Context, directory, bucket, links string) (keys []string, err error) {
	for range copyAttempts {
		err = store.Copy(ctx, directory, filepath.Join(links, store.File), func(found []string) error {
			keys = found
			for i, key := range found {
				if !filepath.IsLocal(key) {
					return fmt.Errorf("%q is not a key of an object", key)
				}
				_ = os.Remove(linkOf(links, i)) // of the attempt before
				if err := os.Link(filepath.Join(bucket, filepath.FromSlash(key)), linkOf(links, i)); err != nil {
					return fmt.Errorf("an object is missing: %w", err)
				}
			}
			return nil
		})
		if !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	return keys, err
}

// linkOf returns the link to an object.
func linkOf(links string, i int) string { return filepath.Join(links, fmt.Sprintf("%08d", i)) }

// digest is the hash of entries: of the name, a zero byte and the content of each.
type digest struct {
	stdhash.Hash
	files int
}

func newDigest() *digest { return &digest{Hash: sha256.New()} }

func (d *digest) begin(name string) {
	d.files++
	_, _ = io.WriteString(d, name+"\x00")
}

// archiveWriter writes a backup.
type archiveWriter struct {
	*tar.Writer
	digest *digest
}

func (w *archiveWriter) add(name, path string) error {
	file, info, err := secret.OpenRegular(path)
	if err != nil {
		return fmt.Errorf("write the backup: %w", err)
	}
	defer file.Close()
	header := &tar.Header{Name: name, Mode: 0o600, Size: info.Size(), ModTime: info.ModTime(), Format: tar.FormatPAX}
	if err := w.WriteHeader(header); err != nil {
		return fmt.Errorf("write the backup: %w", err)
	}
	w.digest.begin(name)
	if _, err := io.CopyN(io.MultiWriter(w, w.digest), file, info.Size()); err != nil {
		return fmt.Errorf("write the backup: %w", err)
	}
	return nil
}

func (w *archiveWriter) finish(release string) error {
	text, err := json.Marshal(manifest{release, w.digest.files, hex.EncodeToString(w.digest.Sum(nil))})
	if err == nil {
		err = w.WriteHeader(&tar.Header{Name: backupManifest, Mode: 0o600, Size: int64(len(text))})
	}
	if err == nil {
		_, err = w.Write(text)
	}
	if err = errors.Join(err, w.Close()); err != nil {
		return fmt.Errorf("write the backup: %w", err)
	}
	return nil
}

// restoring is the directory in the data directory in which Restore checks a backup.
const restoring = ".restore"

// Restore unpacks a backup into a data directory, which must be empty or missing. Before the data directory has a
// database, Restore checks every file, the pages of the database, every state, and the master key. MasterKey is
// as in [Options]. The states are then in the data directory, also if they were in another one.
func Restore(ctx context.Context, directory, masterKey, file string) (err error) {
	in, _, err := secret.OpenRegular(file)
	if err != nil {
		return fmt.Errorf("read the backup: %w", err)
	}
	defer in.Close()
	if err := os.MkdirAll(directory, 0o700); err != nil {
		return fmt.Errorf("create the data directory: %w", err)
	}
	lock, err := store.LockDirectory(directory)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	if err := checkEmpty(directory); err != nil {
		return err
	}
	if err := os.Chmod(directory, 0o700); err != nil {
		return fmt.Errorf("restrict access to the data directory: %w", err)
	}

	// 1. Unpack and check the files.
	part := filepath.Join(directory, restoring)
	if err := os.Mkdir(part, 0o700); err != nil {
		return fmt.Errorf("unpack the backup: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(part))
		}
	}()
	if err := unpack(part, in); err != nil {
		return err
	}
	// 2. Check what the files contain, with the code of the service.
	if err := checkRestored(ctx, part, masterKey); err != nil {
		return fmt.Errorf("check the backup: %w", err)
	}
	// 3. Move the files to their places, the database last.
	return moveRestored(directory, part)
}

// checkEmpty returns an error if a directory has files other than the lock and what a new file system has.
func checkEmpty(directory string) error {
	entries, err := os.ReadDir(directory)
	if err != nil {
		return fmt.Errorf("read the data directory: %w", err)
	}
	for _, entry := range entries {
		if entry.Name() != store.LockFile && entry.Name() != "lost+found" {
			return fmt.Errorf("%s is not empty: restore into a new directory", directory)
		}
	}
	return nil
}

// unpack unpacks a backup into a directory. It returns an error if an entry is not one of a backup, is
// missing or has changed.
func unpack(directory string, in io.Reader) error {
	root, err := os.OpenRoot(directory)
	if err != nil {
		return fmt.Errorf("unpack the backup: %w", err)
	}
	defer root.Close()
	archive, sum := tar.NewReader(in), newDigest()
	for {
		header, err := archive.Next()
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return errIncomplete
		case err != nil:
			return fmt.Errorf("the file is not a backup of this service: %w", err)
		}
		if header.Name == backupManifest {
			return checkManifest(archive, sum)
		}
		if header.Typeflag != tar.TypeReg || !inBackup(header.Name) {
			return fmt.Errorf("the file is not a backup of this service: it contains %q", header.Name)
		}
		sum.begin(header.Name)
		err = writeEntry(root, header.Name, io.TeeReader(archive, sum))
		switch {
		case errors.Is(err, io.ErrUnexpectedEOF):
			return errIncomplete
		case err != nil:
			return fmt.Errorf("unpack the backup: %w", err)
		}
	}
}

// errIncomplete is the error for a backup that was cut.
var errIncomplete = errors.New("the file is not a complete backup: its last part is missing")

// inBackup reports whether a backup can contain an entry with this name.
func inBackup(name string) bool {
	return slices.Contains([]string{store.File, masterKeyFile, AccessTokenFile}, name) ||
		strings.HasPrefix(name, objectsDirectory+"/") && filepath.IsLocal(name) && path.Clean(name) == name
}

func writeEntry(root *os.Root, name string, content io.Reader) error {
	if err := root.MkdirAll(path.Dir(name), 0o700); err != nil {
		return err
	}
	file, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, content)
	return errors.Join(err, file.Sync(), file.Close())
}

// maxManifest limits the last entry of a backup, in bytes.
const maxManifest = 64 << 10

// checkManifest compares the last entry with what was unpacked.
func checkManifest(in io.Reader, sum *digest) error {
	text, err := io.ReadAll(io.LimitReader(in, maxManifest))
	if err != nil {
		return fmt.Errorf("the file is not a complete backup: %w", err)
	}
	var want manifest
	if err := json.Unmarshal(text, &want); err != nil {
		return fmt.Errorf("the file is not a backup of this service: %s: %w", backupManifest, err)
	}
	if want.Files != sum.files || want.SHA256 != hex.EncodeToString(sum.Sum(nil)) {
		return errors.New("the backup is damaged: its content is not what was written: use another backup")
	}
	return nil
}

// checkRestored opens a data directory, as at the start of the service, and checks its content.
func checkRestored(ctx context.Context, directory, masterKey string) error {
	if _, err := os.Stat(filepath.Join(directory, store.File)); err != nil {
		return errors.New("it has no database")
	}
	s, err := Open(ctx, Options{Directory: directory, MasterKey: masterKey})
	if err != nil {
		return err
	}
	err = s.db.Check(ctx)
	if err == nil {
		err = s.db.Read(ctx, func(t *store.Tx) error {
			return t.States(func(key string, sum []byte) error {
				_, err := objects.Load(ctx, s.objects, key, sum)
				return err
			})
		})
	}
	return errors.Join(err, s.Close())
}

// moveRestored moves the files of a directory into the data directory.
func moveRestored(directory, part string) error {
	if err := os.Remove(filepath.Join(part, store.LockFile)); err != nil {
		return fmt.Errorf("unpack the backup: %w", err)
	}
	err := filepath.WalkDir(part, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			err = secret.SyncDirectory(path)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("unpack the backup: %w", err)
	}
	entries, err := os.ReadDir(part)
	if err != nil {
		return fmt.Errorf("unpack the backup: %w", err)
	}
	names := []string{}
	for _, entry := range entries {
		if entry.Name() != store.File {
			names = append(names, entry.Name())
		}
	}
	for _, name := range append(names, store.File) {
		if err := os.Rename(filepath.Join(part, name), filepath.Join(directory, name)); err != nil {
			return fmt.Errorf("unpack the backup: %w", err)
		}
		if err := secret.SyncDirectory(directory); err != nil {
			return fmt.Errorf("unpack the backup: %w", err)
		}
	}
	if err := os.Remove(part); err != nil {
		return fmt.Errorf("unpack the backup: %w", err)
	}
	return nil
}
