package control

import (
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// shortPath returns a short path of the socket in a directory, through an open file descriptor
// of the directory. Release closes this descriptor.
func shortPath(directory string) (path string, release func(), err error) {
	dir, err := os.OpenFile(directory, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return "", nil, err
	}
	path = fmt.Sprintf("/proc/self/fd/%d", dir.Fd())
	if _, err := os.Stat(path); err != nil {
		_ = dir.Close()
		return "", nil, errLongPath(directory)
	}
	return path + "/" + socketName, func() { _ = dir.Close() }, nil
}

// checkPeer returns an error unless the program at the other end of a connection belongs
// to the user of this process, or to root.
func checkPeer(conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var peer *unix.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) {
		peer, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err := errors.Join(err, failed); err != nil {
		return err
	}
	if peer.Uid != 0 && int(peer.Uid) != os.Geteuid() {
		return fmt.Errorf("user %d may not control the agent of user %d", peer.Uid, os.Geteuid())
	}
	return nil
}
