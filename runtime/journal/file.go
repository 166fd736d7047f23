package journal

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// capacity is the initial size of a file in bytes. A larger record makes it grow.
const capacity = 16 << 10

// errForeign is wrapped by the error for a file that the journal did not write.
var errForeign = errors.New("it was not written by this agent")

// openFile opens a file of the journal and reads it. The error wraps errForeign if the
// journal cannot have written the file.
func openFile(path string) (_ *os.File, contents []byte, changed time.Time, err error) {
	foreign := func(reason string) error { return fmt.Errorf("%w: %s", errForeign, reason) }
	// Open the file, without following a link or waiting for a pipe.
	file, err := os.OpenFile(path, os.O_RDWR|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	switch {
	case errors.Is(err, syscall.ELOOP):
		return nil, nil, changed, foreign("it is a link")
	case errors.Is(err, syscall.EISDIR), errors.Is(err, syscall.ENXIO):
		return nil, nil, changed, foreign("it is not a regular file")
	case errors.Is(err, os.ErrPermission):
		return nil, nil, changed, foreign("its user or its permissions are different")
	case err != nil:
		return nil, nil, changed, err
	}
	defer func() {
		if err != nil {
			_ = file.Close()
		}
	}()

	// Check what was opened, and read it.
	info, err := file.Stat()
	if err != nil {
		return nil, nil, changed, err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.Mode().IsRegular():
		return nil, nil, changed, foreign("it is not a regular file")
	case ok && int(stat.Uid) != os.Geteuid():
		return nil, nil, changed, foreign("it belongs to another user")
	case ok && stat.Nlink != 1:
		return nil, nil, changed, foreign("it has another name, too")
	case info.Size() > maxRecord:
		return nil, nil, changed, foreign(fmt.Sprintf("it has %d bytes", info.Size()))
	case info.Mode().Perm() != 0o600:
		if err := file.Chmod(0o600); err != nil {
			return nil, nil, changed, err
		}
	}
	contents, err = io.ReadAll(io.LimitReader(file, maxRecord+1))
	return file, contents, info.ModTime(), err
}

// createFile creates a free file with zeros, so that its first record needs no further disk
// space.
func createFile(path string) (_ *os.File, err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = file.Close()
			_ = os.Remove(path)
		}
	}()
	if _, err := file.WriteAt(make([]byte, capacity), 0); err != nil {
		return nil, err
	}
	if err := file.Sync(); err != nil {
		return nil, err
	}
	return file, syncFolder(filepath.Dir(path))
}

// clearFile overwrites the first size bytes of a file with zeros.
func clearFile(file *os.File, size int) error {
	_, err := file.WriteAt(make([]byte, size), 0)
	return err
}

// shred overwrites a file that openFile accepts, and removes it. It removes anything else
// without overwriting it, and returns an error for a folder with files.
func shred(path string) error {
	if file, contents, _, err := openFile(path); err == nil {
		err = errors.Join(clearFile(file, len(contents)), syncData(file), file.Close())
		if err != nil {
			return err
		}
	}
	return os.Remove(path)
}

// makeFolder creates a folder that only this user can access. If the folder exists,
// makeFolder corrects its permissions. It returns an error for a link and for a folder of
// another user.
func makeFolder(path string) error {
	err := os.Mkdir(path, 0o700)
	if !errors.Is(err, os.ErrExist) {
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

func syncFolder(folder string) error {
	dir, err := os.Open(folder)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
