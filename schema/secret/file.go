package secret

import (
	"errors"
	"io/fs"
	"os"
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
