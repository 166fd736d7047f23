package server

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/cloud/server/objects"
	"github.com/cmwa-project/cmwa/cloud/server/store"
)

// saveTestState replaces the state of a stack as an update with plain checkpoints does: the object, the row, and then
// the object before is deleted.
func (w *world) saveTestState(stack, content string) error {
	bucket, err := objects.Open(filepath.Join(w.directory, objectsDirectory))
	if err != nil {
		return err
	}
	key, sum, err := objects.Save(context.Background(), bucket, fmt.Sprintf("checkpoints/%s/%d-", stack,
		time.Now().UnixNano()), []byte(content))
	if err != nil {
		return err
	}
	var id, before string
	w.read([]any{&id, &before}, `SELECT s.id, COALESCE(object, '') FROM stacks s LEFT JOIN states ON stack = s.id
		WHERE name = ?`, stack)
	w.write(`INSERT OR REPLACE INTO states (stack, version, object, sha256, bytes) VALUES (?, 1, ?, ?, ?)`, id, key,
		sum[:], len(content))
	if before == "" {
		return nil
	}
	return bucket.Delete(context.Background(), before)
}

// backupOf returns a backup of a service with a deployment, a secret setting and a state.
func backupOf(t *testing.T) (w *world, file string) {
	t.Helper()
	w = newWorld(t)
	at := w.stack("a")
	const settings = `{"operationContext":{"environmentVariables":{"A":{"secret":"s3cret"}}}}`
	w.want(200, w.user, "PUT", at+"/settings", settings, nil)
	w.deploy(at, steps(1))
	if err := w.saveTestState("a", "state 1"); err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(t.TempDir(), "backup.tar")
	size, err := Backup(t.Context(), Options{Directory: w.directory}, file)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(file)
	if err != nil || info.Size() != size || info.Mode().Perm() != 0o600 {
		t.Errorf("the backup is %+v, %v, want %d bytes and mode 0600", info, err, size)
	}
	return w, file
}

// TestBackup takes a backup of a running service, changes the service, and restores the backup into another directory.
func TestBackup(t *testing.T) {
	w, file := backupOf(t)
	w.want(204, w.user, "DELETE", "/api/stacks/organization/project/a", nil, nil)
	w.stack("later")

	other := &world{t: t, directory: filepath.Join(t.TempDir(), "x", "restored")}
	if err := Restore(t.Context(), other.directory, "", file); err != nil {
		t.Fatal(err)
	}
	other.open()
	defer other.close()
	if other.user != w.user {
		t.Error("the restored service has another access token")
	}
	p := other.pool("p")
	if got := other.mustClaim(p).definition().Env["A"].Value.Reveal(); got != "s3cret" {
		t.Errorf("the secret of the restored deployment is %q", got)
	}
	other.want(404, other.user, "GET", "/api/stacks/organization/project/later", nil, nil)
	var sum []byte
	var key string
	other.read([]any{&key, &sum}, `SELECT object, sha256 FROM states JOIN stacks ON id = stack
		WHERE organization = 'organization' AND project = 'project' AND name = 'a'`)
	bucket, err := objects.Open(filepath.Join(other.directory, objectsDirectory))
	if err != nil {
		t.Fatal(err)
	}
	if content, err := objects.Load(t.Context(), bucket, key, sum); err != nil || string(content) != "state 1" {
		t.Errorf("the restored state is %q, %v", content, err)
	}

	// What the backup left behind.
	for _, directory := range []string{filepath.Dir(file), filepath.Join(w.directory, objectsDirectory)} {
		left, err := filepath.Glob(filepath.Join(directory, "*backup-*"))
		if err != nil || len(left) > 0 {
			t.Errorf("the backup has left %v", left)
		}
	}
	if _, err := os.Stat(filepath.Join(other.directory, restoring)); err == nil {
		t.Error("the restore has left its directory")
	}
}

// TestBackupConsistent takes backups while states are replaced.
func TestBackupConsistent(t *testing.T) {
	w := newWorld(t)
	var all sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	for _, name := range []string{"a", "b"} {
		w.stack(name)
		if err := w.saveTestState(name, "first"); err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				if err := w.saveTestState(name, strings.Repeat(fmt.Sprint(i), 1000)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for i := range 10 {
		file, directory := filepath.Join(t.TempDir(), "backup"), filepath.Join(t.TempDir(), "data")
		if _, err := Backup(t.Context(), Options{Directory: w.directory}, file); err != nil {
			t.Errorf("backup %d: %v", i, err)
			continue
		}
		if err := Restore(t.Context(), directory, "", file); err != nil {
			t.Errorf("restore %d: %v", i, err)
		}
	}
	stop()
	all.Wait()
}

// TestBackupMasterKey keeps the master key in another place than the data directory.
func TestBackupMasterKey(t *testing.T) {
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, bytes.Repeat([]byte{7}, 32), 0o600); err != nil {
		t.Fatal(err)
	}
	w := newEmptyWorld(t, func(o *Options) { o.MasterKey = key })
	file := filepath.Join(t.TempDir(), "backup")
	if _, err := Backup(t.Context(), Options{Directory: w.directory}, file); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(file)
	if err != nil || bytes.Contains(content, bytes.Repeat([]byte{7}, 32)) {
		t.Errorf("the backup contains the master key, or: %v", err)
	}
	directory := filepath.Join(t.TempDir(), "data")
	err = Restore(t.Context(), directory, "", file)
	if err == nil || !strings.Contains(err.Error(), "master.key is missing") {
		t.Errorf("a restore without the key: %v", err)
	}
	if err := Restore(t.Context(), directory, key, file); err != nil {
		t.Errorf("a restore with the key: %v", err)
	}
}

// TestBackupLeftovers removes what a crash of an earlier backup has left, but not what a running one uses.
func TestBackupLeftovers(t *testing.T) {
	w, file := backupOf(t)
	bucket := filepath.Join(w.directory, objectsDirectory)
	old, running := filepath.Join(bucket, "backup-1"), filepath.Join(bucket, "backup-2")
	past := time.Now().Add(-2 * linkAge)
	if err := errors.Join(os.Mkdir(old, 0o700), os.Mkdir(running, 0o700), os.Chtimes(old, past, past)); err != nil {
		t.Fatal(err)
	}
	if _, err := Backup(t.Context(), Options{Directory: w.directory}, file+"2"); err != nil {
		t.Fatal(err)
	}
	left, err := filepath.Glob(filepath.Join(bucket, "backup-*"))
	if err != nil || len(left) != 1 || left[0] != running {
		t.Errorf("the directory has %v, %v, want %s", left, err, running)
	}
}

func TestBackupRefused(t *testing.T) {
	w, file := backupOf(t)
	running := Options{Directory: w.directory}
	if _, err := Backup(t.Context(), running, file); err == nil || !strings.Contains(err.Error(), "exists") {
		t.Errorf("a backup over a file: %v", err)
	}
	if _, err := Backup(t.Context(), Options{Directory: t.TempDir()}, file+"2"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a backup of another directory: %v", err)
	}
	if err := os.RemoveAll(filepath.Join(w.directory, objectsDirectory, "checkpoints")); err != nil {
		t.Fatal(err)
	}
	_, err := Backup(t.Context(), Options{Directory: w.directory}, file+"2")
	if err == nil || !strings.Contains(err.Error(), "an object is missing") {
		t.Errorf("a backup without an object: %v", err)
	}
	if _, err := os.Stat(file + "2"); err == nil {
		t.Error("a failed backup has left a file")
	}
}

func TestRestoreRefused(t *testing.T) {
	w, file := backupOf(t)
	good, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	entries := func(t *testing.T) (all []*tar.Header, contents [][]byte) {
		t.Helper()
		archive := tar.NewReader(bytes.NewReader(good))
		for {
			header, err := archive.Next()
			if errors.Is(err, io.EOF) {
				return all, contents
			}
			content, readErr := io.ReadAll(archive)
			if err := errors.Join(err, readErr); err != nil {
				t.Fatal(err)
			}
			all, contents = append(all, header), append(contents, content)
		}
	}
	// changed returns the archive after change, which returns false for an entry that is left out.
	changed := func(t *testing.T, change func(*tar.Header, []byte) ([]byte, bool)) []byte {
		t.Helper()
		var out bytes.Buffer
		archive := tar.NewWriter(&out)
		headers, contents := entries(t)
		for i, header := range headers {
			content, keep := change(header, contents[i])
			if !keep {
				continue
			}
			header.Size = int64(len(content))
			_ = archive.WriteHeader(header)
			_, _ = archive.Write(content)
		}
		_ = archive.Close()
		sum := sha256.Sum256(out.Bytes())
		return append(out.Bytes(), sum[:]...)
	}
	renamed := func(to string) func(*tar.Header, []byte) ([]byte, bool) {
		return func(header *tar.Header, content []byte) ([]byte, bool) {
			if header.Name == masterKeyFile {
				header.Name = to
			}
			return content, true
		}
	}
	flipped := slices.Clone(good)
	flipped[len(good)/2] ^= 1 // in the database, which is most of the archive
	cases := map[string]struct {
		content []byte
		want    string
	}{
		"an empty file":         {nil, "not a complete backup"},
		"a part of a header":    {good[:300], "not a complete backup"},
		"another kind of file":  {[]byte(strings.Repeat("text ", 1000)), "not a backup of this service"},
		"half of a backup":      {good[:len(good)/2], "not a complete backup"},
		"an archive of nothing": {make([]byte, 1024), "not a complete backup"},
		"no hash":               {good[:len(good)-sha256.Size], "not a complete backup"},
		"more after the hash":   {append(slices.Clone(good), 0), "not a complete backup"},
		"a path above":          {changed(t, renamed("../evil")), `it contains "../evil"`},
		"a path in objects":     {changed(t, renamed("objects/../../evil")), `it contains "objects/../../evil"`},
		"an absolute path":      {changed(t, renamed("/tmp/evil")), `it contains "/tmp/evil"`},
		"a file of another use": {changed(t, renamed("lock")), `it contains "lock"`},
		"a file twice":          {changed(t, renamed(AccessTokenFile)), "file exists"},
		"a link": {changed(t, func(header *tar.Header, content []byte) ([]byte, bool) {
			if header.Name == masterKeyFile {
				header.Typeflag, header.Linkname = tar.TypeSymlink, "/etc/passwd"
				return nil, true
			}
			return content, true
		}), `it contains "master.key"`},
		"a changed byte": {flipped, "it is damaged"},
		"no database": {changed(t, func(header *tar.Header, content []byte) ([]byte, bool) {
			return content, header.Name != store.File
		}), "it has no database"},
		"a missing object": {changed(t, func(header *tar.Header, content []byte) ([]byte, bool) {
			return content, !strings.HasPrefix(header.Name, objectsDirectory)
		}), "no such file"},
		"another master key": {changed(t, func(header *tar.Header, content []byte) ([]byte, bool) {
			if header.Name == masterKeyFile {
				content = make([]byte, len(content))
			}
			return content, true
		}), "master key"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			above := t.TempDir()
			file, directory := filepath.Join(above, "backup"), filepath.Join(above, "data")
			if err := os.WriteFile(file, c.content, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := Restore(t.Context(), directory, "", file); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
			left, err := os.ReadDir(directory)
			if err != nil || len(left) != 1 || left[0].Name() != store.LockFile {
				t.Errorf("the directory has %v, %v, want only the lock", left, err)
			}
			if _, err := os.Stat(filepath.Join(above, "evil")); err == nil {
				t.Error("a file was written above the directory")
			}
		})
	}

	cut := filepath.Join(t.TempDir(), "cut")
	if err := os.WriteFile(cut, good[:len(good)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Restore(ctx, t.TempDir(), "", cut); !errors.Is(err, context.Canceled) {
		t.Errorf("a restore that is cancelled before the end of its file: %v", err)
	}
	if err := Restore(t.Context(), w.directory, "", file); err == nil ||
		!strings.Contains(err.Error(), "another process serves") {
		t.Errorf("a restore into the directory of a running service: %v", err)
	}
	w.close()
	err = Restore(t.Context(), w.directory, "", file)
	if err == nil || !strings.Contains(err.Error(), "is not empty") {
		t.Errorf("a restore into a directory with data: %v", err)
	}
	if err := Restore(t.Context(), t.TempDir(), "", file+"2"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing backup: %v", err)
	}
}
