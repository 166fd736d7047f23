package agentid

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
)

// maxOwner is the size limit of a lock file: two paths, each up to PATH_MAX and escaped.
const maxOwner = 64 << 10 // bytes

// errHeld means that another process holds a lock.
var errHeld = errors.New("another process holds the lock")

// Owner is the process that has locked a state directory, or the last one that had.
type Owner struct {
	Program string `json:"program"`
	PID     int    `json:"pid"`              // in a container: of the container
	Config  string `json:"config,omitempty"` // absolute path of the configuration file; empty without one
}

// String returns a description for people. Another user may have written the lock file, so
// names are quoted.
func (o Owner) String() string {
	switch {
	case o == Owner{}:
		return "a process that has not stored its name"
	case o.Config == "":
		return fmt.Sprintf("%q (pid %d), without a configuration file", o.Program, o.PID)
	}
	return fmt.Sprintf("%q (pid %d), with the configuration file %q", o.Program, o.PID, o.Config)
}

// RunsWith reports whether the process runs with a configuration file, or without one if
// config is empty. It is true for an owner that is not known.
func (o Owner) RunsWith(config string) bool { return o == Owner{} || o.Config == absolute(config) }

func absolute(config string) string {
	if path, err := filepath.Abs(config); err == nil && config != "" {
		return path
	}
	return config
}

// OwnerOf returns the process that has locked a state directory, or the last one that had.
// The result is empty if no process has stored its name.
func OwnerOf(directory string) (owner Owner, err error) {
	path := filepath.Join(directory, lockName)
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrNotExist) {
		return Owner{}, nil
	}
	if err != nil {
		return Owner{}, err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxOwner))
	if err != nil {
		return Owner{}, err
	}
	if json.Unmarshal(text, &owner) != nil {
		return Owner{}, nil
	}
	return owner, nil
}

// writeOwner stores the name of this process in its lock file. A failure, such as a full
// disk, is not reported: the agent works without it.
func writeOwner(lock *os.File, config string) {
	owner := Owner{PID: os.Getpid(), Config: absolute(config)}
	owner.Program, _ = os.Executable()
	text, err := json.Marshal(owner)
	if err == nil && lock.Truncate(0) == nil {
		_, _ = lock.WriteAt(append(text, '\n'), 0)
	}
}

// lockFile locks a file without waiting. It creates the file if it is missing. The error is
// errHeld if the file is locked already. Closing the file releases the lock.
func lockFile(path string) (*os.File, error) {
	for {
		file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
		if err != nil {
			return nil, err
		}
		open, err := file.Stat()
		if err == nil && !open.Mode().IsRegular() {
			err = fmt.Errorf("%s is not a regular file", path)
		}
		if err == nil {
			err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		}
		if errors.Is(err, syscall.EWOULDBLOCK) {
			err = errHeld
		}
		if err != nil {
			_ = file.Close()
			return nil, err
		}
		// The directory may have been removed and created again since the file was opened. Then
		// the path does not lead to this file, and the new file must be locked.
		if named, err := os.Lstat(path); err == nil && os.SameFile(open, named) {
			return file, nil
		}
		_ = file.Close()
	}
}
