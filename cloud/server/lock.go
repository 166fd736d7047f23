package server

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// lockFolder makes sure that one process at a time serves a folder: what is
// kept in memory beside the database would otherwise be kept twice. The lock
// ends with the process, however that ends.
func lockFolder(folder string) (io.Closer, error) {
	file, err := os.OpenFile(filepath.Join(folder, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the data folder: %w", err)
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = fmt.Errorf("another process serves %s: stop it, or name another folder", folder)
		}
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}
