package agentid

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// Check returns why an agent that runs with a configuration file could not keep its
// id in a state folder: it cannot be written to, or its file system has no locks. It
// makes no folder and takes no number: for a folder that is not there yet, it checks
// the one that it would be made in, whose path it returns. What it writes it removes
// again.
func Check(folder, config string) (checked string, err error) {
	checked = filepath.Join(folder, folderOf(config))
	for {
		info, err := os.Stat(checked)
		switch {
		case err == nil && !info.IsDir():
			return checked, fmt.Errorf("%s: %w", checked, syscall.ENOTDIR)
		case err == nil:
			return checked, checkLocks(checked)
		case !errors.Is(err, os.ErrNotExist) || filepath.Dir(checked) == checked:
			return checked, err
		}
		checked = filepath.Dir(checked)
	}
}

// checkLocks makes a file in a folder, locks it twice, of which the second time must
// fail, and removes it.
func checkLocks(folder string) error {
	file, err := os.CreateTemp(folder, ".cmwa-check-")
	if err != nil {
		return err
	}
	path := file.Name()
	defer os.Remove(path)
	_ = file.Close()
	first, err := lockFile(path)
	if err != nil {
		return fmt.Errorf("lock a file in %s: %w", folder, err)
	}
	defer first.Close()
	second, err := lockFile(path)
	switch {
	case errors.Is(err, errHeld):
		return nil
	case err == nil:
		_ = second.Close()
		return fmt.Errorf("the file system of %s grants a lock twice", folder)
	}
	return fmt.Errorf("lock a file in %s: %w", folder, err)
}
