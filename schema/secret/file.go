package secret

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// ErrNotRegular is the error of [OpenRegular] for a directory, a device, a pipe or a
// socket, wrapped in a [*fs.PathError].
var ErrNotRegular = errors.New("not a regular file")

// OpenRegular opens a regular file for reading and returns the file and its FileInfo. It
// follows symbolic links. The caller closes the file, and limits how much it reads.
// OpenRegular never blocks:
//
//  1. It does not open a device or a pipe: opening one can block or have side effects,
//     and reading one may never end.
//  2. If a pipe replaces the file after this check, OpenRegular opens the pipe without
//     waiting for a writer, closes the pipe, and returns [ErrNotRegular].
//
// Every error is a [*fs.PathError].
func OpenRegular(path string) (*os.File, fs.FileInfo, error) {
	notRegular := func() error { return &fs.PathError{Op: "read", Path: path, Err: ErrNotRegular} }

	// 1. Check before the file is opened.
	info, err := os.Stat(path)
	if err != nil {
		return nil, nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, nil, notRegular()
	}

	// 2. Open without blocking, and check what was opened.
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	info, err = file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = notRegular()
	}
	if err != nil {
		_ = file.Close()
		return nil, nil, err
	}
	return file, info, nil
}

// MakeDirectory creates a directory that only this user can access. If the directory exists,
// MakeDirectory corrects its permissions. It returns an error for a link and for a directory
// of another user.
func MakeDirectory(path string) error {
	err := os.Mkdir(path, 0o700)
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.IsDir():
		return fmt.Errorf("%s: %w", path, syscall.ENOTDIR)
	case ok && int(stat.Uid) != os.Geteuid():
		return fmt.Errorf("%s belongs to another user", path)
	case info.Mode().Perm() != 0o700:
		return os.Chmod(path, 0o700)
	}
	return nil
}

// WriteFile creates or replaces a file that only this user can read. After a crash of the
// machine, the file has either its old or its new content. The new content is first written to a
// file with .part after the name, which replaces one that a crash has left. Calls for one path must
// not overlap.
func WriteFile(path string, content []byte) error {
	part := path + ".part"
	if err := os.Remove(part); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	file, err := os.OpenFile(part, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	err = errors.Join(err, file.Sync(), file.Close())
	if err == nil {
		err = os.Rename(part, path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(part))
	}
	return SyncDirectory(filepath.Dir(path))
}

// SyncDirectory makes new, renamed and removed names in a directory durable.
func SyncDirectory(path string) error {
	directory, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(directory.Sync(), directory.Close())
}
