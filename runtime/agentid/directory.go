package agentid

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Directory returns the state directory: the configured one, or else the first of
//
//   - $STATE_DIRECTORY, which systemd sets for a unit with StateDirectory=
//     (systemd.exec(5)); the first directory of its list
//   - $XDG_STATE_HOME/cmwa (XDG Base Directory Specification)
//   - /var/lib/cmwa for root
//   - $HOME/.local/state/cmwa
//
// A relative path in a variable is ignored, as the XDG specification requires.
func Directory(configured string, environ func(string) (string, bool), uid int) (string, error) {
	if configured != "" {
		return filepath.Abs(configured)
	}
	list, _ := environ("STATE_DIRECTORY")
	first, _, _ := strings.Cut(list, ":")
	state, _ := environ("XDG_STATE_HOME")
	home, _ := environ("HOME")
	switch {
	case filepath.IsAbs(first):
		return first, nil
	case filepath.IsAbs(state):
		return filepath.Join(state, "cmwa"), nil
	case uid == 0:
		return "/var/lib/cmwa", nil
	case filepath.IsAbs(home):
		return filepath.Join(home, ".local", "state", "cmwa"), nil
	}
	return "", errors.New("no state directory: " +
		"neither STATE_DIRECTORY, XDG_STATE_HOME nor HOME is set to an absolute path")
}

// Check returns an error if an agent cannot store its id in a state directory, because the
// directory is not writable or its file system does not support file locks. If the directory
// does not exist, Check does not create it, and checks the closest parent that exists. The
// result checked is the path of the checked directory. Check removes the files that it writes.
func Check(directory string) (checked string, err error) {
	for checked = directory; ; checked = filepath.Dir(checked) {
		info, err := os.Stat(checked)
		switch {
		case err == nil && !info.IsDir():
			return checked, fmt.Errorf("%s: %w", checked, syscall.ENOTDIR)
		case err == nil:
			return checked, checkLocks(checked)
		case !errors.Is(err, os.ErrNotExist) || filepath.Dir(checked) == checked:
			return checked, err
		}
	}
}

// checkLocks creates a file in a directory, locks it twice, and removes it. The second lock
// must fail.
func checkLocks(directory string) error {
	file, err := os.CreateTemp(directory, ".cmwa-check-")
	if err != nil {
		return err
	}
	path := file.Name()
	defer os.Remove(path)
	_ = file.Close()
	first, err := lockFile(path)
	if err != nil {
		return fmt.Errorf("lock a file in %s: %w", directory, err)
	}
	defer first.Close()
	second, err := lockFile(path)
	switch {
	case errors.Is(err, errHeld):
		return nil
	case err == nil:
		_ = second.Close()
		return fmt.Errorf("the file system of %s does not enforce file locks", directory)
	}
	return fmt.Errorf("lock a file in %s: %w", directory, err)
}
