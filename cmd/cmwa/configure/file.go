package configure

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

// file is a file to write, in the state in which open found it.
type file struct {
	path     string      // as an option or a person named it
	name     string      // in messages
	resolved string      // with links followed
	content  []byte      // nil if the file does not exist
	info     fs.FileInfo // nil if the file does not exist
}

// maxLinks is the number of links in a row that are followed, as on Linux.
const maxLinks = 40

var errNoDirectory = errors.New("its directory does not exist: create it, or name another file")

// open reads a file, which need not exist. Its directory must exist. Errors contain
// the name for messages, and not the path.
func open(path, name string) (file, error) {
	f := file{path: path, name: name, resolved: path}
	refuse := func(err error) (file, error) { return file{}, fmt.Errorf("%s: %w", f.name, withoutPath(err)) }
	for range maxLinks {
		// Follow one link, or stop at a file that does not exist.
		info, err := os.Lstat(f.resolved)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			switch _, err := os.Stat(filepath.Dir(f.resolved)); {
			case errors.Is(err, fs.ErrNotExist):
				return refuse(errNoDirectory)
			case err != nil:
				return refuse(errors.New("its directory cannot be used: name another file"))
			}
			return f, nil
		case err != nil:
			return refuse(err)
		case info.Mode()&fs.ModeSymlink != 0:
			target, err := os.Readlink(f.resolved)
			if err != nil {
				return refuse(err)
			}
			if !filepath.IsAbs(target) {
				target = filepath.Join(filepath.Dir(f.resolved), target)
			}
			f.resolved = target
			continue
		case !info.Mode().IsRegular():
			return refuse(errors.New("is not a regular file"))
		}

		// Read the file.
		opened, err := os.Open(f.resolved)
		if err != nil {
			return refuse(err)
		}
		defer opened.Close()
		f.info = info
		if f.content, err = io.ReadAll(io.LimitReader(opened, position.MaxFile+1)); err != nil {
			return refuse(err)
		}
		return f, nil
	}
	return refuse(syscall.ELOOP)
}

// withoutPath returns the cause of an error without the name of a file, because the
// message contains the name already or must not show it.
func withoutPath(err error) error {
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

// replace replaces the file, or does not change it and returns an error. Done describes
// what was done: a format with one verb for the name of the file.
//
//  1. A file that changed since open is not replaced.
//  2. The file keeps its owner. It keeps the permissions of its owner to read and
//     write, and loses all others. A new file has the mode 0600.
//  3. The content is written to a new file in the same directory, which is synced and
//     renamed.
func (f file) replace(content []byte) (done string, err error) {
	// 1. Compare with the file as it is now.
	now, err := open(f.path, f.name)
	if err != nil {
		return "", err
	}
	if now.resolved != f.resolved || (now.info == nil) != (f.info == nil) || !bytes.Equal(now.content, f.content) {
		return "", errors.New("another program has changed the file since this command read it: " +
			"run the command again")
	}

	// 2. Choose the mode.
	mode := fs.FileMode(0o600)
	done = "wrote %s"
	if f.info != nil {
		tighter := now.info.Mode().Perm() & mode
		switch {
		case tighter != now.info.Mode().Perm():
			done = "wrote %s, and removed access for other users"
		case bytes.Equal(content, f.content):
			return "%s is unchanged", nil
		}
		mode = tighter
	}

	// 3. Write, sync, rename.
	temp, err := os.CreateTemp(filepath.Dir(f.resolved), "."+filepath.Base(f.resolved)+".*")
	if err != nil {
		return "", withoutPath(err)
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
		return "", withoutPath(err)
	}
	if err = os.Rename(temp.Name(), f.resolved); err != nil {
		return "", withoutPath(err)
	}
	// An error of the directory's sync is ignored, because the file is already replaced.
	if directory, err := os.Open(filepath.Dir(f.resolved)); err == nil {
		_ = directory.Sync()
		_ = directory.Close()
	}
	return done, nil
}

// keepOwner gives a new file the owner and group of the one that it replaces.
func keepOwner(created *os.File, old fs.FileInfo) error {
	info, err := created.Stat()
	if err != nil {
		return err
	}
	was, ok := old.Sys().(*syscall.Stat_t)
	is, okToo := info.Sys().(*syscall.Stat_t)
	if !ok || !okToo || was.Uid == is.Uid && was.Gid == is.Gid {
		return nil
	}
	if err := created.Chown(int(was.Uid), int(was.Gid)); err != nil {
		return errors.New("it belongs to another user or group: run this as that user")
	}
	return nil
}

// undo restores the content that the file had before replace, or removes a file that replace
// has created. It does not restore permissions that replace has removed.
func (f file) undo() error {
	if f.info == nil {
		return os.Remove(f.resolved)
	}
	now, err := open(f.path, f.name)
	if err == nil {
		_, err = now.replace(f.content)
	}
	return err
}
