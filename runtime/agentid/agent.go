package agentid

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/cmwa-project/cmwa/schema/secret"
)

// Names of files in the state directory.
const (
	lockName     = "lock"
	idName       = "id"
	targetPrefix = "target-"
)

// ErrInUse means that another process has locked the state directory.
var ErrInUse = errors.New("another agent uses the state directory")

// Agent is the identity of this process. Its methods are safe for concurrent use.
type Agent struct {
	ID        string
	Directory string // empty for an id in memory

	// Warning is the reason why the id is new although an earlier agent used the directory. It
	// is nil if the directory is new, or if the stored id was read.
	Warning error

	lock *os.File

	mu   sync.Mutex
	used map[string]bool // targets of this process
}

// Temporary returns an agent whose id is not stored. After a restart the agent has
// another id.
func Temporary() *Agent { return &Agent{ID: newID(), used: map[string]bool{}} }

// Take returns the identity of the agent with a state directory. Config is the agent's
// configuration file, or empty. The identity belongs to the agent until Close, or until its
// process ends. The error wraps [ErrInUse] and names the other process if another agent
// uses the directory. Take returns other errors if the directory is not writable, or if its
// file system does not support file locks.
func Take(directory, config string) (*Agent, error) {
	if err := os.MkdirAll(directory, 0o700); err != nil {
		return nil, err
	}
	lock, err := lockFile(filepath.Join(directory, lockName))
	if errors.Is(err, errHeld) {
		owner, _ := OwnerOf(directory) // without it, the error only lacks a name
		return nil, fmt.Errorf("%w %s: %s: give one of the two agents another directory, with state_directory or "+
			"PULUMI_AGENT_STATE_DIRECTORY", ErrInUse, directory, owner)
	}
	if err != nil {
		return nil, err
	}
	writeOwner(lock, config)

	agent := &Agent{Directory: directory, lock: lock, used: map[string]bool{}}
	path := filepath.Join(directory, idName)
	agent.ID, err = readID(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errDamaged) {
		if errors.Is(err, errDamaged) || len(agent.Targets()) > 0 {
			agent.Warning = fmt.Errorf("read %s: %w", path, err)
		}
		agent.ID = newID()
		err = secret.WriteFile(path, []byte(agent.ID+"\n"))
	}
	if err != nil {
		agent.Close()
		return nil, err
	}
	return agent, nil
}

// Close releases the state directory. It may be called again, and on nil.
func (a *Agent) Close() {
	if a != nil && a.lock != nil {
		_ = a.lock.Close()
	}
}

// AddTarget records that this process uses a target, so that a restarted agent
// looks for instances there.
func (a *Agent) AddTarget(target string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.used[target] {
		return nil // recorded, or the failure was reported
	}
	a.used[target] = true
	if a.Directory == "" {
		return nil
	}
	file, err := os.OpenFile(a.targetPath(target), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return file.Close()
}

// RemoveTarget removes a target that has no instance left. It does nothing if this process
// uses the target.
func (a *Agent) RemoveTarget(target string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.Directory != "" && !a.used[target] {
		_ = os.Remove(a.targetPath(target))
	}
}

// Targets returns the targets that this process and earlier agents with this id
// have used, sorted.
func (a *Agent) Targets() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	targets := slices.Collect(maps.Keys(a.used))
	if a.Directory != "" {
		entries, _ := os.ReadDir(a.Directory)
		for _, entry := range entries {
			if target, ok := strings.CutPrefix(entry.Name(), targetPrefix); ok && !a.used[target] {
				targets = append(targets, target)
			}
		}
	}
	slices.Sort(targets)
	return targets
}

func (a *Agent) targetPath(target string) string {
	return filepath.Join(a.Directory, targetPrefix+target)
}
