package journal

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/cmwa-project/cmwa/schema/secret"
)

// errForeign is wrapped by the error for a file that the journal did not write.
var errForeign = errors.New("it was not written by this agent")

// readFile returns the contents of a file of the journal, and the time of its last change. The
// error wraps errForeign if the journal cannot have written the file.
func readFile(path string) (contents []byte, changed time.Time, err error) {
	foreign := func(reason string) error { return fmt.Errorf("%w: %s", errForeign, reason) }
	// Do not follow a link, and do not wait for the writer of a pipe.
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	switch {
	case errors.Is(err, syscall.ELOOP):
		return nil, changed, foreign("it is a link")
	case errors.Is(err, os.ErrPermission):
		return nil, changed, foreign("its user or its permissions are different")
	case err != nil:
		return nil, changed, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, changed, err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.Mode().IsRegular():
		return nil, changed, foreign("it is not a regular file")
	case ok && int(stat.Uid) != os.Geteuid():
		return nil, changed, foreign("it belongs to another user")
	case ok && stat.Nlink != 1:
		return nil, changed, foreign("it has another name, too")
	case info.Size() > maxRecord:
		return nil, changed, foreign(fmt.Sprintf("it has %d bytes", info.Size()))
	case info.Mode().Perm() != 0o600:
		if err := file.Chmod(0o600); err != nil {
			return nil, changed, err
		}
	}
	contents, err = io.ReadAll(io.LimitReader(file, maxRecord+1))
	return contents, info.ModTime(), err
}

// writeFile replaces a file, or creates it. If sync is true, the change is durable when
// writeFile returns.
func writeFile(path string, contents []byte, sync bool) (err error) {
	file, err := os.OpenFile(path+newSuffix, os.O_CREATE|os.O_TRUNC|os.O_WRONLY|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(path + newSuffix) // a full disk needs the space
		}
	}()
	_, err = file.Write(contents)
	if err == nil && sync {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return err
	}
	if err := os.Rename(path+newSuffix, path); err != nil || !sync {
		return err
	}
	return secret.SyncDirectory(filepath.Dir(path))
}
