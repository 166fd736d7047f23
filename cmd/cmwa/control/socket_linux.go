package control

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"

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
	// The errors are ignored: without the files, the user 65534 is not accepted.
	overflow, _ := os.ReadFile("/proc/sys/kernel/overflowuid")
	mapping, _ := os.ReadFile("/proc/self/uid_map")
	if !mayControl(int(peer.Uid), os.Geteuid(), string(overflow), string(mapping)) {
		return fmt.Errorf("user %d may not control the agent of user %d", peer.Uid, os.Geteuid())
	}
	return nil
}

// mayControl reports whether a user may control the agent of the user own. In a user namespace that
// does not map all users, the kernel shows every other user as overflow, usually 65534, so
// this number is not the number of one user. Overflow and mapping are the contents of
// /proc/sys/kernel/overflowuid and /proc/self/uid_map: see user_namespaces(7).
func mayControl(user, own int, overflow, mapping string) bool {
	const usual = "65534"
	ambiguous := strconv.Itoa(user) == cmp.Or(strings.TrimSpace(overflow), usual) &&
		!slices.Equal(strings.Fields(mapping), []string{"0", "0", "4294967295"})
	return user == 0 || user == own && !ambiguous
}
