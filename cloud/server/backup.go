package server

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
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
// everything, and the archive is a file that only its owner can read. The SHA-256 hash of the archive is the end of the
// file: a file without it is not complete. Programs that read tar archives ignore it.

// objectsDirectory is the directory of objects in the data directory.
const objectsDirectory = "objects"

// Backup writes a backup of a data directory to a new file, while another process may serve the directory. It returns
// the number of bytes. Of the options it uses Directory and Objects. The backup has the state of one moment.
// It needs free space for a copy of the database.
func Backup(ctx context.Context, options Options, file string) (size int64, err error) {
	options = options.withDefaults()
	if _, err := os.Stat(filepath.Join(options.Directory, store.File)); err != nil {
		return 0, fmt.Errorf("%s is not the data directory of a service: %w", options.Directory, err)
	}
	if _, err := os.Lstat(file); err == nil {
		return 0, fmt.Errorf("%s exists: name a new file", file)
	}
	out, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+"-*") // mode 0600
	if err == nil {
		if err = writeBackup(ctx, options, out); err == nil {
			size, err = out.Seek(0, io.SeekCurrent)
		}
		err = errors.Join(err, out.Sync(), out.Close())
		if err == nil {
			err = os.Rename(out.Name(), file)
		}
		if err != nil {
			err = errors.Join(err, os.Remove(out.Name()))
		}
	}
	if err == nil {
		err = secret.SyncDirectory(filepath.Dir(file))
	}
	if err != nil {
		return 0, fmt.Errorf("write the backup: %w", err)
	}
	return size, nil
}

func writeBackup(ctx context.Context, options Options, out io.Writer) (err error) {
	if _, err := objects.Open(options.Objects); err != nil {
		return err
	}
	if err := removeOldLinks(options.Objects); err != nil {
		return err
	}
	// Links keep the objects until they are in the archive. They need the file system of the objects.
	links, err := os.MkdirTemp(options.Objects, "backup-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(links)) }()
	keys, err := copyDatabase(ctx, options.Directory, options.Objects, links)
	if err != nil {
		return err
	}

	sum := sha256.New()
	archive := tar.NewWriter(io.MultiWriter(out, sum))
	if err := addFile(archive, store.File, filepath.Join(links, store.File)); err != nil {
		return err
	}
	for _, name := range []string{masterKeyFile, AccessTokenFile} {
		err := addFile(archive, name, filepath.Join(options.Directory, name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	for i, key := range keys {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := addFile(archive, path.Join(objectsDirectory, key), linkOf(links, i)); err != nil {
			return err
		}
	}
	if err := archive.Close(); err != nil {
		return err
	}
	_, err = out.Write(sum.Sum(nil))
	return err
}

func addFile(archive *tar.Writer, name, path string) error {
	file, info, err := secret.OpenRegular(path)
	if err != nil {
		return err
	}
	defer file.Close()
	header := &tar.Header{Name: name, Mode: 0o600, Size: info.Size(), ModTime: info.ModTime(), Format: tar.FormatPAX}
	if err := archive.WriteHeader(header); err != nil {
		return err
	}
	_, err = io.CopyN(archive, file, info.Size())
	return err
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

// restoring is the directory in the data directory in which Restore checks a backup.
const restoring = ".restore"

// Restore unpacks a backup into a data directory, which must be empty or missing. Before the data directory has a
// database, Restore checks every file, the pages of the database, every state, and the master key. MasterKey is
// as in [Options]. The states are then in the data directory, also if they were in another one.
func Restore(ctx context.Context, directory, masterKey, file string) (err error) {
	in, info, err := secret.OpenRegular(file)
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
	if err := unpack(part, untilEnd{ctx, in}, info.Size()); err != nil {
		return cmp.Or(ctx.Err(), err)
	}
	// 2. Check what the files contain, with the code of the service.
	if err := checkRestored(ctx, part, masterKey); err != nil {
		return fmt.Errorf("check the backup: %w", err)
	}
	// 3. Move the files to their places, the database last.
	if err := moveRestored(directory, part); err != nil {
		return fmt.Errorf("unpack the backup: %w", err)
	}
	return nil
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

// untilEnd is a reader until ctx ends.
type untilEnd struct {
	ctx context.Context
	in  io.Reader
}

func (r untilEnd) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.in.Read(p)
}

// errDamaged is the error for a file that does not end with the hash of what is before.
var errDamaged = errors.New("the file is not a complete backup, or it is damaged: use another backup")

// unpack unpacks a backup of a size into a directory. It returns an error if an entry is not one of a backup, is
// missing or has changed.
func unpack(directory string, in io.Reader, size int64) error {
	root, err := os.OpenRoot(directory)
	if err != nil {
		return fmt.Errorf("unpack the backup: %w", err)
	}
	defer root.Close()
	sum := sha256.New()
	archive := io.TeeReader(io.LimitReader(in, size-sha256.Size), sum)
	if err := unpackEntries(root, tar.NewReader(archive)); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, archive) // the end of the archive
	want, readErr := io.ReadAll(in)
	if err := errors.Join(err, readErr); err != nil {
		return fmt.Errorf("read the backup: %w", err)
	}
	if !bytes.Equal(sum.Sum(nil), want) {
		return errDamaged
	}
	return nil
}

func unpackEntries(root *os.Root, archive *tar.Reader) error {
	for {
		header, err := archive.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, io.ErrUnexpectedEOF):
			return errDamaged
		case err != nil:
			return fmt.Errorf("the file is not a backup of this service: %w", err)
		case header.Typeflag != tar.TypeReg || !inBackup(header.Name):
			return fmt.Errorf("the file is not a backup of this service: it contains %q", header.Name)
		}
		err = writeEntry(root, header.Name, archive)
		switch {
		case errors.Is(err, io.ErrUnexpectedEOF):
			return errDamaged
		case err != nil:
			return fmt.Errorf("unpack the backup: %w", err)
		}
	}
}

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

// moveRestored moves the files of a directory into the data directory, the database last.
func moveRestored(directory, part string) error {
	if err := os.Remove(filepath.Join(part, store.LockFile)); err != nil {
		return err
	}
	err := filepath.WalkDir(part, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			err = secret.SyncDirectory(path)
		}
		return err
	})
	if err != nil {
		return err
	}
	for _, name := range []string{objectsDirectory, masterKeyFile, AccessTokenFile, store.File} {
		err := os.Rename(filepath.Join(part, name), filepath.Join(directory, name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := secret.SyncDirectory(directory); err != nil {
			return err
		}
	}
	return os.Remove(part)
}
