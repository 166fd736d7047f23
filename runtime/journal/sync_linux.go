package journal

import (
	"os"

	"golang.org/x/sys/unix"
)

// syncData makes the contents of a file durable. Unlike Sync it does not write the time of
// the change, which would cost another write.
func syncData(file *os.File) error {
	for {
		err := unix.Fdatasync(int(file.Fd()))
		if err != unix.EINTR {
			return os.NewSyscallError("fdatasync", err)
		}
	}
}
