package cloud

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// limitUnacked makes the kernel close a connection whose sent data is not acknowledged
// within unackedLimit (tcp(7), TCP_USER_TIMEOUT). It ignores the error of a kernel that
// does not have the option.
func limitUnacked(_, _ string, socket syscall.RawConn) error {
	return socket.Control(func(descriptor uintptr) {
		_ = unix.SetsockoptInt(int(descriptor), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT,
			int(unackedLimit.Milliseconds()))
	})
}
