package control

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
)

// socketName is the name of the socket in the directory of an agent.
const socketName = "control"

// maxPath is the longest path of a socket in bytes.
const maxPath = len(syscall.RawSockaddrUnix{}.Path) - 1

// address returns the address of the socket in a directory. A path that is too long for the
// kernel is replaced by a shorter one, which is valid until release is called.
func address(directory string) (_ *net.UnixAddr, release func(), err error) {
	path, release := filepath.Join(directory, socketName), func() {}
	if len(path) > maxPath {
		if path, release, err = shortPath(directory); err != nil {
			return nil, nil, err
		}
	}
	return &net.UnixAddr{Name: path, Net: "unix"}, release, nil
}

// errLongPath returns the error for a path that is too long, on a system without /proc/self/fd,
// which would shorten it.
func errLongPath(directory string) error {
	return fmt.Errorf("the path of the socket %s has more than %d bytes: set state_directory to a shorter one",
		filepath.Join(directory, socketName), maxPath)
}

// listen opens the socket in a directory that the agent has locked. It replaces the socket of an
// agent that has ended.
func listen(directory string) (*net.UnixListener, error) {
	path := filepath.Join(directory, socketName)
	info, err := os.Lstat(path)
	switch {
	case err == nil && info.Mode()&fs.ModeSocket == 0:
		return nil, fmt.Errorf("%s is not a socket: remove it", path)
	case err == nil:
		err = os.Remove(path)
	case errors.Is(err, fs.ErrNotExist):
		err = nil
	}
	if err != nil {
		return nil, err
	}

	at, release, err := address(directory)
	if err != nil {
		return nil, err
	}
	defer release()
	listener, err := net.ListenUnix("unix", at)
	if err != nil {
		return nil, fmt.Errorf("open the socket %s: %w", path, cause(err))
	}
	listener.SetUnlinkOnClose(false) // the path in at may not be valid any more
	if err := os.Chmod(path, 0o600); err != nil {
		_ = listener.Close()
		_ = os.Remove(path)
		return nil, err
	}
	return listener, nil
}

// cause returns the error of the kernel, without the path of the socket, which may be a
// temporary path.
func cause(err error) error {
	if number, ok := errors.AsType[syscall.Errno](err); ok {
		return number
	}
	return err
}
