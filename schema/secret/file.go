package secret

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// ErrNotRegular is what the error of [OpenRegular] wraps for a directory, a
// device, a pipe or a socket.
var ErrNotRegular = errors.New("not a regular file")

// OpenRegular opens a regular file for reading, through symbolic links, and
// returns what the open file is. The caller closes the file, and limits how much
// of it is read. It never blocks:
//
//  1. A device or a pipe is not opened. Opening one can block and can have
//     effects of its own, and reading one may never end.
//  2. A pipe that replaces the file after this check is opened without waiting
//     for a writer, and then closed.
//
// Every error is a [*fs.PathError].
func OpenRegular(path string) (*os.File, fs.FileInfo, error) {
	refuse := func() error { return &fs.PathError{Op: "read", Path: path, Err: ErrNotRegular} }

	// 1. Check before the file is opened.
	info, err := os.Stat(path)
	if err != nil {
		return nil, nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, nil, refuse()
	}

	// 2. Open without blocking, and check what was opened.
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	info, err = file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = refuse()
	}
	if err != nil {
		_ = file.Close()
		return nil, nil, err
	}
	return file, info, nil
}
