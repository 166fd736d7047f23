package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/cmwa-project/cmwa/schema/position"
)

// onDisk is a file that is going to be written, as it was found.
type onDisk struct {
	path    string      // as it was named
	name    string      // for people
	place   string      // with links followed
	content []byte      // nil if there is none
	info    fs.FileInfo // nil if there is none
}

var errNoFolder = errors.New("its folder is not there: make it, or name another")

// open finds a file and reads it, where there is one. Its folder must be there.
// Errors call it by the name for people.
func open(path, name string) (onDisk, error) {
	f := onDisk{path: path, name: name, place: path}
	refuse := func(err error) (onDisk, error) { return onDisk{}, fmt.Errorf("%s: %w", f.name, pathless(err)) }
	const most = 40 // links in a row, as systems have it
	for range most {
		info, err := os.Lstat(f.place)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			switch _, err := os.Stat(filepath.Dir(f.place)); {
			case errors.Is(err, fs.ErrNotExist):
				return refuse(errNoFolder)
			case err != nil:
				return refuse(errors.New("its folder cannot be used: name another"))
			}
			return f, nil
		case err != nil:
			return refuse(err)
		case info.Mode()&fs.ModeSymlink != 0:
			target, err := os.Readlink(f.place)
			if err != nil {
				return refuse(err)
			}
			if !filepath.IsAbs(target) {
				target = filepath.Join(filepath.Dir(f.place), target)
			}
			f.place = target
			continue
		case !info.Mode().IsRegular():
			return refuse(errors.New("is not a regular file"))
		}
		file, err := os.Open(f.place)
		if err != nil {
			return refuse(err)
		}
		defer file.Close()
		f.info = info
		if f.content, err = io.ReadAll(io.LimitReader(file, position.MaxFile+1)); err != nil {
			return refuse(err)
		}
		return f, nil
	}
	return refuse(syscall.ELOOP)
}

// pathless returns the cause of an error without the name of a file in it: the
// name is said once, or may not be said.
func pathless(err error) error {
	var path *fs.PathError
	var link *os.LinkError
	switch {
	case errors.As(err, &path):
		return path.Err
	case errors.As(err, &link):
		return link.Err
	default:
		return err
	}
}

// replace puts content in place of the file: all of it or, with an error, none.
// The file keeps its owner, and of its permissions those of the owner to read and
// write; a new one is for its owner alone. A file that is not as it was found any
// more is left alone. It returns what was done, in words.
func (f onDisk) replace(content []byte) (done string, err error) {
	now, err := open(f.path, f.name)
	if err != nil {
		return "", err
	}
	if now.place != f.place || (now.info == nil) != (f.info == nil) || !bytes.Equal(now.content, f.content) {
		return "", errors.New("it has been changed by another in the meantime: begin again")
	}
	mode := fs.FileMode(0o600)
	done = "wrote %s"
	if f.info != nil {
		tighter := now.info.Mode().Perm() & mode
		switch {
		case tighter != now.info.Mode().Perm():
			done = "wrote %s, which others cannot read or write any more"
		case bytes.Equal(content, f.content):
			return "left %s as it is, since it says so already", nil
		}
		mode = tighter
	}
	temp, err := os.CreateTemp(filepath.Dir(f.place), "."+filepath.Base(f.place)+".*")
	if err != nil {
		return "", pathless(err)
	}
	defer func() {
		if err != nil {
			_ = os.Remove(temp.Name())
		}
	}()
	_, err = temp.Write(content)
	if err == nil && f.info != nil {
		err = keepOwner(temp, now.info)
	}
	if err == nil {
		err = temp.Chmod(mode)
	}
	if err == nil {
		err = temp.Sync()
	}
	if err = errors.Join(err, temp.Close()); err != nil {
		return "", pathless(err)
	}
	if err = os.Rename(temp.Name(), f.place); err != nil {
		return "", pathless(err)
	}
	// The file is in place. A folder that cannot be synced is as it would be
	// without the attempt.
	if folder, err := os.Open(filepath.Dir(f.place)); err == nil {
		_ = folder.Sync()
		_ = folder.Close()
	}
	return done, nil
}

// keepOwner gives a new file the owner and group of the one it replaces.
func keepOwner(file *os.File, old fs.FileInfo) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}
	was, ok := old.Sys().(*syscall.Stat_t)
	is, okToo := info.Sys().(*syscall.Stat_t)
	if !ok || !okToo || was.Uid == is.Uid && was.Gid == is.Gid {
		return nil
	}
	if err := file.Chown(int(was.Uid), int(was.Gid)); err != nil {
		return errors.New("it belongs to another user or group: begin again as that user")
	}
	return nil
}

// undo takes back what replace has done.
func (f onDisk) undo() error {
	if f.info == nil {
		return os.Remove(f.place)
	}
	now, err := open(f.path, f.name)
	if err == nil {
		_, err = now.replace(f.content)
	}
	return err
}
