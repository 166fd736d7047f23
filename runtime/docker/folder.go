package docker

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// makeFolder makes a job's folder below shared_volume_directory, with the runner
// in it. The runner is a second name of the program where that can be, and a
// copy elsewhere; the job sees it read-only. Owner is written into the folder.
func makeFolder(parent, name, owner string, runner program) (string, error) {
	parent, err := filepath.Abs(parent)
	if err != nil {
		return "", fmt.Errorf("make the job's folder: %w", err)
	}
	folder := filepath.Join(parent, name)
	err = os.Mkdir(folder, 0o755)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", missingFolder(parent)
	case errors.Is(err, fs.ErrPermission):
		return "", lockedFolder(parent, err)
	case err != nil:
		return "", fmt.Errorf("make the job's folder: %w", err)
	}
	err = errors.Join(os.Chmod(folder, 0o755), os.WriteFile(filepath.Join(folder, ownerFile), []byte(owner), 0o644), place(runner.path, filepath.Join(folder, runnerName)))
	if err != nil {
		return "", errors.Join(fmt.Errorf("put the runner into the job's folder: %w", err), os.RemoveAll(folder))
	}
	return folder, nil
}

func missingFolder(parent string) error {
	return fmt.Errorf("shared_volume_directory: there is no directory %s: make it, under the same path for the agent and for the engine's machine", parent)
}

func lockedFolder(parent string, err error) error {
	return fmt.Errorf("shared_volume_directory: this user may not make folders in %s: %w", parent, err)
}

// place makes the program available at another path to every user.
func place(from, to string) error {
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	if info.Mode().Perm()&0o555 == 0o555 && os.Link(from, to) == nil {
		return nil
	}
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(target, source)
	return errors.Join(err, target.Chmod(0o755), target.Close())
}

// removeFolder removes a job's folder. Its path may come from a label, so what
// does not look like such a folder is left alone.
func removeFolder(folder string) error {
	if !filepath.IsAbs(folder) || !strings.HasPrefix(filepath.Base(folder), namePrefix) {
		return nil
	}
	if err := os.RemoveAll(folder); err != nil {
		return fmt.Errorf("remove the job's folder: %w", err)
	}
	return nil
}
