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
	"github.com/cmwa-project/cmwa/schema/secret"
)

// file is a file to write, in the state in which open found it.
type file struct {
	path     string      // as an option or a person named it
	name     string      // in messages
	resolved string      // absolute, with symbolic links followed
	content  []byte      // nil if the file does not exist
	info     fs.FileInfo // nil if the file does not exist
}

var errNoDirectory = errors.New("its directory does not exist: create it, or name another file")

// open reads a file, which need not exist. Its directory must exist. Errors contain
// the name for messages, and not the path.
func open(path, name string) (file, error) {
	f := file{path: path, name: name}
	if err := f.read(); err != nil {
		return file{}, fmt.Errorf("%s: %w", name, withoutPath(err))
	}
	return f, nil
}

func (f *file) read() error {
	target, err := filepath.EvalSymlinks(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Lstat(f.path); err == nil {
			return errors.New("is a symbolic link to a file that does not exist: create that file, or remove the link")
		}
		directory, err := filepath.EvalSymlinks(filepath.Dir(f.path))
		if err != nil {
			return errNoDirectory
		}
		f.resolved, err = filepath.Abs(filepath.Join(directory, filepath.Base(f.path)))
		return err
	}
	if err != nil {
		return err
	}
	if f.resolved, err = filepath.Abs(target); err != nil {
		return err
	}
	opened, info, err := secret.OpenRegular(f.resolved)
	if err != nil {
		return err
	}
	defer opened.Close()
	f.info = info
	f.content, err = io.ReadAll(io.LimitReader(opened, position.MaxFile+1))
	return err
}

// withoutPath returns the cause of an error without the name of a file, because the
// message contains the name already or must not show it.
func withoutPath(err error) error {
	if path, ok := errors.AsType[*fs.PathError](err); ok {
		return path.Err
	}
	if link, ok := errors.AsType[*os.LinkError](err); ok {
		return link.Err
	}
	return err
}

// replace replaces the file, or does not change it and returns an error. Done describes
// what was done: a format with one verb for the name of the file.
//
//  1. A file that changed since open is not replaced.
//  2. The file keeps its owner. It keeps the permissions of its owner to read and
//     write, and loses all others. A new file has the mode 0600.
//  3. The previous content is kept in a file with .bak after the name and with the same mode and
//     owner, because it may contain a token.
func (f file) replace(content []byte) (done string, err error) {
	// 1.
	now, err := open(f.path, f.name)
	if err != nil {
		return "", err
	}
	if now.resolved != f.resolved || (now.info == nil) != (f.info == nil) || !bytes.Equal(now.content, f.content) {
		return "", errors.New("another program has changed the file since this command read it: " +
			"run the command again")
	}

	// 2.
	mode := fs.FileMode(0o600)
	done = "wrote %s"
	if now.info != nil {
		mode &= now.info.Mode().Perm()
		tighter, changed := mode != now.info.Mode().Perm(), !bytes.Equal(content, now.content)
		if !changed && !tighter {
			return "%s is unchanged", nil
		}
		if tighter {
			done += ", and removed access for other users"
		}

		// 3.
		if changed {
			if err := write(f.resolved+".bak", now.content, mode, now.info); err != nil {
				return "", fmt.Errorf("keep its content in a file with .bak after the name: %w", err)
			}
			done += "; the file with .bak after its name has the previous content"
		}
	}
	return done, write(f.resolved, content, mode, now.info)
}

// write replaces a file as a whole: it writes and syncs a new file in the same directory, and renames
// it. The new file belongs to the owner and group of old, unless old is nil.
func write(path string, content []byte, mode fs.FileMode, old fs.FileInfo) error {
	temp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return withoutPath(err)
	}
	_, err = temp.Write(content)
	if err == nil && old != nil {
		err = keepOwner(temp, old)
	}
	if err == nil {
		err = errors.Join(temp.Chmod(mode), temp.Sync())
	}
	if err = errors.Join(err, temp.Close()); err == nil {
		err = os.Rename(temp.Name(), path)
	}
	if err != nil {
		_ = os.Remove(temp.Name())
		return withoutPath(err)
	}
	// An error of the directory's sync is ignored, because the file is already replaced.
	_ = secret.SyncDirectory(filepath.Dir(path))
	return nil
}

// keepOwner gives a new file the owner and group of the one that it replaces.
func keepOwner(created *os.File, old fs.FileInfo) error {
	stat, ok := old.Sys().(*syscall.Stat_t)
	if ok && created.Chown(int(stat.Uid), int(stat.Gid)) != nil {
		return errors.New("it belongs to another user or group: run this as that user")
	}
	return nil
}
