package agentid

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	maxAgents   = 1000             // with one configuration file
	chooseLimit = 10 * time.Second // timeout for other agents to choose their numbers
	choosePoll  = 20 * time.Millisecond
)

// Names of files in the folder of an agent.
const (
	lockName      = "lock"
	idName        = "id"
	instancesName = "instances"
	targetPrefix  = "target-"
)

// errHeld means that another process holds a lock.
var errHeld = errors.New("another agent holds it")

// Agent is the identity of this process. Its methods are safe for concurrent use.
type Agent struct {
	ID     string
	Folder string // folder with the agent's number; empty for an id in memory

	// Warning is the reason why the id is new although the folder was in use before. It is
	// nil if the folder is new, or if the stored id was read.
	Warning error

	lock *os.File

	mu   sync.Mutex
	jobs int             // in flight
	past bool            // an earlier agent had jobs in flight, and they may still run
	used map[string]bool // targets of this process
}

// Temporary returns an agent whose id is not stored. After a restart the agent has
// another id.
func Temporary() *Agent { return &Agent{ID: newID()} }

// Take returns the identity of an agent that runs with a configuration file, or without
// one if config is empty. The identity belongs to the agent until Close, or until its
// process ends. Take returns an error if the folder is not writable, or if its file system
// does not support file locks.
//
//  1. Wait until no other agent with this configuration file chooses a number.
//  2. Skip numbers that other agents have locked.
//  3. Take the first free number whose last agent had jobs in flight, otherwise the first
//     free number, otherwise a new number.
//  4. Read the id of the number. If it is missing or damaged, store a new id.
func Take(ctx context.Context, folder, config string) (*Agent, error) {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, err
	}
	folder = filepath.Join(folder, folderOf(config))
	if err := makeFolder(folder); err != nil {
		return nil, err
	}

	// 1. Wait until no other agent chooses.
	choice, err := lockWithin(ctx, filepath.Join(folder, lockName), chooseLimit)
	if err != nil {
		return nil, err
	}
	defer choice.Close()

	// 2. and 3. Take a free number.
	agent, err := choose(folder)
	if err != nil {
		return nil, err
	}

	// 4. Read the id, or store a new one.
	agent.past = agent.marked()
	path := filepath.Join(agent.Folder, idName)
	agent.ID, err = readID(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errDamaged) {
		if errors.Is(err, errDamaged) || agent.past {
			agent.Warning = fmt.Errorf("read %s: %w", path, err)
		}
		agent.ID = newID()
		err = writeID(agent.Folder, agent.ID)
	}
	if err != nil {
		agent.Close()
		return nil, err
	}
	return agent, nil
}

// choose takes a free number and locks its folder. The caller has locked the choice.
func choose(folder string) (*Agent, error) {
	var chosen *Agent
	for n := 1; n <= maxAgents; n++ {
		path := filepath.Join(folder, strconv.Itoa(n))
		if _, err := os.Lstat(path); chosen != nil && errors.Is(err, fs.ErrNotExist) {
			return chosen, nil // all existing numbers are checked
		}
		agent, err := hold(path)
		switch {
		case errors.Is(err, errHeld):
			continue
		case err != nil && chosen != nil:
			continue // the folder may belong to another user
		case err != nil:
			return nil, err
		case agent.marked():
			chosen.Close()
			return agent, nil
		case chosen == nil:
			chosen = agent
		default:
			agent.Close()
		}
	}
	if chosen == nil {
		return nil, fmt.Errorf("%d agents run with this configuration file already", maxAgents)
	}
	return chosen, nil
}

// hold locks the folder of a number. It creates the folder if it is missing.
func hold(folder string) (*Agent, error) {
	if err := makeFolder(folder); err != nil {
		return nil, err
	}
	lock, err := lockFile(filepath.Join(folder, lockName))
	if err != nil {
		return nil, err
	}
	return &Agent{Folder: folder, lock: lock}, nil
}

// lockWithin locks a file. It waits up to limit until another process releases the lock.
func lockWithin(ctx context.Context, path string, limit time.Duration) (*os.File, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	ticker := time.NewTicker(choosePoll)
	defer ticker.Stop()
	for {
		file, err := lockFile(path)
		if !errors.Is(err, errHeld) {
			return file, err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
	}
}

// Close releases the number. It may be called again, and on nil.
func (a *Agent) Close() {
	if a != nil && a.lock != nil {
		_ = a.lock.Close()
	}
}

// Jobs adds delta to the number of jobs in flight. While it is positive, the folder has a
// mark that makes a restarted agent prefer this number. The mark is only a preference, so
// a failure to write it is not reported.
func (a *Agent) Jobs(delta int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	before := a.jobs > 0 || a.past
	a.jobs += delta
	a.mark(before)
}

// Empty records that no instance of an earlier agent with this id is left.
func (a *Agent) Empty() {
	a.mu.Lock()
	defer a.mu.Unlock()
	before := a.jobs > 0 || a.past
	a.past = false
	a.mark(before)
}

// mark creates or removes the mark if its state changes. Before reports whether the mark
// existed before the change. The caller holds mu.
func (a *Agent) mark(before bool) {
	now := a.jobs > 0 || a.past
	if a.Folder == "" || before == now {
		return
	}
	if now {
		_ = a.touch(instancesName)
	} else {
		_ = os.Remove(filepath.Join(a.Folder, instancesName))
	}
}

func (a *Agent) marked() bool {
	_, err := os.Lstat(filepath.Join(a.Folder, instancesName))
	return err == nil
}

// AddTarget records that this process uses a target, so that a restarted agent
// looks for instances there.
func (a *Agent) AddTarget(target string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.used[target] {
		return nil // recorded, or the failure was reported
	}
	if a.used == nil {
		a.used = map[string]bool{}
	}
	a.used[target] = true
	if a.Folder == "" {
		return nil
	}
	return a.touch(targetPrefix + target)
}

// RemoveTarget removes a target that has no instance left. It does nothing if this process
// uses the target.
func (a *Agent) RemoveTarget(target string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.Folder != "" && !a.used[target] {
		_ = os.Remove(filepath.Join(a.Folder, targetPrefix+target))
	}
}

// Targets returns the targets that this process and earlier agents with this id
// have used, sorted.
func (a *Agent) Targets() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	targets := slices.Collect(maps.Keys(a.used))
	if a.Folder != "" {
		entries, _ := os.ReadDir(a.Folder)
		for _, entry := range entries {
			if target, ok := strings.CutPrefix(entry.Name(), targetPrefix); ok && !a.used[target] {
				targets = append(targets, target)
			}
		}
	}
	slices.Sort(targets)
	return targets
}

// touch creates an empty file if it does not exist.
func (a *Agent) touch(name string) error {
	file, err := os.OpenFile(filepath.Join(a.Folder, name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return file.Close()
}
