package agentid

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

const idBytes = 16

// errDamaged means that a file does not contain an id.
var errDamaged = errors.New("it does not contain an agent id")

// newID returns a random id.
func newID() string {
	var id [idBytes]byte
	_, _ = rand.Read(id[:]) // never fails, see crypto/rand
	return hex.EncodeToString(id[:])
}

// readID reads an id. The error wraps fs.ErrNotExist if the file is missing, and
// errDamaged if it has no id or is not a regular file.
func readID(path string) (string, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	switch {
	case errors.Is(err, syscall.ELOOP), errors.Is(err, syscall.ENXIO): // ELOOP: a link; ENXIO: a socket
		return "", errDamaged
	case err != nil:
		return "", err
	}
	defer file.Close()
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return "", errors.Join(err, errDamaged)
	}
	text, err := io.ReadAll(io.LimitReader(file, 2*idBytes+2))
	if err != nil {
		return "", err
	}
	id := strings.TrimSuffix(string(text), "\n")
	if len(id) != 2*idBytes || strings.Trim(id, "0123456789abcdef") != "" {
		return "", errDamaged
	}
	return id, nil
}

// writeID writes an id atomically: after a crash of the machine the file is complete or
// missing. The caller has locked the folder.
func writeID(folder, id string) error {
	part := filepath.Join(folder, "id.part")
	if err := os.Remove(part); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	file, err := os.OpenFile(part, os.O_CREATE|os.O_EXCL|os.O_WRONLY|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = file.WriteString(id + "\n")
	if err = errors.Join(err, file.Sync(), file.Close()); err != nil {
		return err
	}
	if err := os.Rename(part, filepath.Join(folder, "id")); err != nil {
		return err
	}
	return syncFolder(folder)
}

func syncFolder(folder string) error {
	dir, err := os.Open(folder)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// makeFolder creates a folder that only this user can access, unless it exists. It returns
// an error if the path is a link.
func makeFolder(path string) error {
	err := os.Mkdir(path, 0o700)
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	info, err := os.Lstat(path)
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("%s: %w", path, syscall.ENOTDIR)
	}
	return err
}

// lockFile locks a file without waiting. It creates the file if it is missing. The error is
// errHeld if the file is locked already. Closing the file releases the lock.
func lockFile(path string) (*os.File, error) {
	for {
		file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
		if err != nil {
			return nil, err
		}
		open, err := file.Stat()
		if err == nil && !open.Mode().IsRegular() {
			err = fmt.Errorf("%s is not a regular file", path)
		}
		if err == nil {
			err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		}
		if errors.Is(err, syscall.EWOULDBLOCK) {
			err = errHeld
		}
		if err != nil {
			_ = file.Close()
			return nil, err
		}
		// The folder may have been removed and created again since the file was opened. Then
		// the path does not lead to this file, and the new file must be locked.
		if named, err := os.Lstat(path); err == nil && os.SameFile(open, named) {
			return file, nil
		}
		_ = file.Close()
	}
}
