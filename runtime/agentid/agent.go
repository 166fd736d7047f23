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
	chooseLimit = 10 * time.Second // for other agents to choose their numbers
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
	Folder string // with the agent's number; empty for an id in memory

	// Warning is why the id is new although the folder was used before; nil if it
	// was not, or the id is the one that was stored.
	Warning error

	lock *os.File

	mu   sync.Mutex
	jobs int             // in flight
	past bool            // an earlier agent had jobs in flight, and they may still run
	used map[string]bool // targets of this process
}

// Temporary returns an agent whose id nothing keeps: after a restart it has
// another.
func Temporary() *Agent { return &Agent{ID: newID()} }

// Take returns the identity of an agent that runs with a configuration file, which
// is empty if there is none. The agent holds it until Close, or the end of its
// process. The error says that the folder cannot be used: it cannot be written to,
// or its file system has no locks.
//
//  1. One agent at a time chooses, for each configuration file.
//  2. A number that another agent holds is left alone.
//  3. Of the others the first one that had jobs in flight is taken, otherwise the
//     first one; a new one if there is none.
//  4. The number's id is read; if there is none, or it is damaged, a new one is
//     stored.
func Take(ctx context.Context, folder, config string) (*Agent, error) {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, err
	}
	folder = filepath.Join(folder, folderOf(config))
	if err := makeFolder(folder); err != nil {
		return nil, err
	}

	// 1. Wait for other agents that choose.
	choice, err := lockWithin(ctx, filepath.Join(folder, lockName), chooseLimit)
	if err != nil {
		return nil, err
	}
	defer choice.Close()

	// 2. and 3. Take a number.
	agent, err := choose(folder)
	if err != nil {
		return nil, err
	}

	// 4. Read the id.
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

// choose locks the folder of one number.
func choose(folder string) (*Agent, error) {
	var chosen *Agent
	for n := 1; n <= maxAgents; n++ {
		path := filepath.Join(folder, strconv.Itoa(n))
		if _, err := os.Lstat(path); chosen != nil && errors.Is(err, fs.ErrNotExist) {
			return chosen, nil // every number in use was looked at
		}
		agent, err := hold(path)
		switch {
		case errors.Is(err, errHeld):
			continue
		case err != nil && chosen != nil:
			continue // another user's, perhaps
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

// hold makes the folder of one number if need be, and takes its lock.
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

// lockWithin takes a lock, and waits up to limit for another process to release it.
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

// Close gives the number back. It can be repeated, and called on nil.
func (a *Agent) Close() {
	if a != nil && a.lock != nil {
		_ = a.lock.Close()
	}
}

// Jobs notes that so many jobs more, or fewer, are in flight. While there are any,
// a mark in the folder makes a restarted agent prefer this number. The mark is no
// more than that preference, so a failure to write it is not reported.
func (a *Agent) Jobs(delta int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	before := a.jobs > 0 || a.past
	a.jobs += delta
	a.mark(before)
}

// Empty notes that no instance of an earlier agent with this id is left.
func (a *Agent) Empty() {
	a.mu.Lock()
	defer a.mu.Unlock()
	before := a.jobs > 0 || a.past
	a.past = false
	a.mark(before)
}

// mark sets or removes the mark if what it says has changed. The caller holds mu.
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
		return nil // recorded, or reported that it cannot be
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

// RemoveTarget forgets a target at which no instance is left. It does nothing for
// one that this process uses.
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

// touch makes an empty file, if it is not there.
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
