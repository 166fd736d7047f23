package agentid

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// Check returns an error if an agent that runs with a configuration file cannot store its
// id in a state folder, because the folder is not writable or its file system does
// not support file locks. Check does not create a folder and does not reserve an agent
// number. If the folder does not exist, it checks the closest parent that exists. The result
// checked is the path of the checked folder. Check removes the files that it writes.
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

// checkLocks creates a file in a folder, locks it twice, and removes it. The second lock
// must fail.
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
		return fmt.Errorf("the file system of %s does not enforce file locks", folder)
	}
	return fmt.Errorf("lock a file in %s: %w", folder, err)
}
