package keys

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/cmwa-project/cmwa/schema/secret"
)

// Local is a master key in a file. A wrapped key is sealed by it: its first byte, which is the version of sealed
// data, is also the byte of this kind of master key.
type Local struct{ key Key }

// Wrap implements [Master].
func (l *Local) Wrap(_ context.Context, key []byte, purpose string) ([]byte, error) {
	return l.key.Seal(key, purpose), nil
}

// Unwrap implements [Master].
func (l *Local) Unwrap(_ context.Context, wrapped []byte, purpose string) ([]byte, error) {
	return l.key.Open(wrapped, purpose)
}

// CreateLocal makes a random master key and writes it to a file that only this user can read.
func CreateLocal(path string) error {
	raw := make([]byte, Size)
	rand.Read(raw)
	if err := secret.WriteFile(path, raw); err != nil {
		return fmt.Errorf("create the master key: %w", err)
	}
	return nil
}

// OpenLocal reads a master key from a file of exactly Size bytes, or from the only such file of a directory, such
// as a mounted Secret of Kubernetes. The error wraps [fs.ErrNotExist] if the path does not exist.
func OpenLocal(path string) (*Local, error) {
	info, err := os.Stat(path)
	if err == nil && info.IsDir() {
		path, err = onlyKeyFile(path)
	}
	if err != nil {
		return nil, fmt.Errorf("open the master key: %w", err)
	}
	file, info, err := secret.OpenRegular(path)
	if err != nil {
		return nil, fmt.Errorf("open the master key: %w", err)
	}
	raw, err := io.ReadAll(io.LimitReader(file, Size+1))
	if err := errors.Join(err, file.Close()); err != nil {
		return nil, fmt.Errorf("open the master key: %w", err)
	}
	if len(raw) != Size {
		return nil, fmt.Errorf("open the master key: %s has %d bytes and not %d", path, info.Size(), Size)
	}
	key, err := FromBytes(raw)
	return &Local{key}, err
}

// onlyKeyFile returns the path of the only file of a directory that has the size of a key.
func onlyKeyFile(directory string) (string, error) {
	entries, err := os.ReadDir(directory)
	if err != nil {
		return "", err
	}
	var found []string
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), "..") { // the directories of Kubernetes behind its links
			continue
		}
		path := filepath.Join(directory, entry.Name())
		info, err := os.Stat(path) // follows the links
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		if err == nil && info.Mode().IsRegular() && info.Size() == Size {
			found = append(found, path)
		}
	}
	if len(found) != 1 {
		return "", fmt.Errorf("%s has %d files of %d bytes: put the master key there alone",
			directory, len(found), Size)
	}
	return found[0], nil
}
