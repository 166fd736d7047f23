//go:build linux || darwin

package process

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
)

const (
	pollInterval = 20 * time.Millisecond // interval at which the files of a job are checked
	killTimeout  = 5 * time.Second       // for killed processes to end
	staleAfter   = 10 * time.Minute      // age at which a half created or half removed directory is removed
)

// Options are the options of [New].
type Options struct {
	Agent string // id of the agent; a label of jobs
	// Directory is the parent of the jobs' directories. It is created if it does not exist. The
	// default is cmwa-process-UID in the directory for temporary files.
	Directory string
	Environ   []string // environment of the agent; a job gets allowedVariables of it
}

// Executor runs jobs as process groups. It has no state that a restarted agent needs, and
// no goroutine. Several executors may share a directory.
type Executor struct {
	agent     string // id of the agent
	directory string
	environ   []string

	children sync.Map // *exec.Cmd of child supervisors that are not yet reaped, by id
	waiters  sync.Map // ids, by the chan runtime.Exit of a call of Wait
}

// New creates an executor. It removes incomplete directories that no process is creating, and
// directories whose removal has started.
func New(options Options) (*Executor, error) {
	directory, err := makeParent(options.Directory)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	if _, err := sweepDirectories(directory, now.Add(-staleAfter), now); err != nil {
		return nil, err
	}
	return &Executor{
		agent:     options.Agent,
		directory: directory,
		environ:   slices.Clone(options.Environ),
	}, nil
}

// Sweep implements [runtime.Executor]: it removes half created directories that no process is
// creating, half removed directories that have not changed for ten minutes, and the directories of
// other agents' jobs that ended a week ago. An agent removes the directories of its own jobs
// within minutes, unless its id is lost.
func (e *Executor) Sweep(ctx context.Context, _ []runtime.InstanceSpec) (removed []string, err error) {
	stale := time.Now().Add(-staleAfter)
	removed, err = sweepDirectories(e.directory, stale, stale)
	if err != nil {
		return nil, err
	}

	entries, err := os.ReadDir(e.directory)
	if err != nil {
		return removed, fmt.Errorf("list jobs: %w", err)
	}
	for _, entry := range entries {
		id := entry.Name()
		labels, labelsErr := readLabels(filepath.Join(e.directory, id))
		inst, openErr := e.open(id)
		if labelsErr != nil || openErr != nil || labels.Agent == e.agent {
			continue
		}
		if _, endErr := inst.exitIfEnded(); mayBeRunning(endErr) || time.Since(inst.endedAt()) < runtime.LeftoverAge {
			continue
		}
		if removeErr := e.Remove(ctx, id, 0); removeErr != nil {
			err = errors.Join(err, removeErr)
			continue
		}
		removed = append(removed, "directory "+inst.directory+" of job "+labels.Job)
	}
	return removed, err
}

// List returns the instances whose labels name the agent.
func (e *Executor) List(ctx context.Context, agent string) ([]runtime.Instance, error) {
	entries, err := os.ReadDir(e.directory)
	if err != nil {
		return nil, fmt.Errorf("list jobs: %w", err)
	}
	var all []runtime.Instance
	for _, entry := range entries {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		id := entry.Name()
		if !strings.HasPrefix(id, jobPrefix) {
			continue
		}

		labels, err := readLabels(filepath.Join(e.directory, id))
		switch {
		case isGone(err), isCorrupt(err):
			continue // being removed, or not created by this package
		case err != nil:
			return nil, fmt.Errorf("list jobs: %w", err)
		case labels.Agent != agent:
			continue
		}

		inst, err := e.open(id)
		switch {
		case errors.Is(err, runtime.ErrNoInstance), isCorrupt(err):
			continue
		case err != nil:
			return nil, fmt.Errorf("list jobs: %w", err)
		}
		identity := labels.Identity
		identity.Target = cmp.Or(identity.Target, "process") // the deploy_target of this executor
		found := runtime.Instance{
			ID:         id,
			Pool:       runtime.PoolSpec{Name: labels.PoolName, Identity: identity}.Key(),
			PoolName:   labels.PoolName,
			Identity:   identity,
			Job:        labels.Job,
			WorkflowID: labels.Subject,
			Kind:       labels.Kind,
			Work:       runtime.WorkOf(labels.Work),
			Generation: labels.Generation,
			Started:    labels.Started,
		}
		switch _, err := inst.exitIfEnded(); {
		case errors.Is(err, errRunning):
			found.Running = true
		case errors.Is(err, errUnknown):
			return nil, fmt.Errorf("list jobs: %w", err)
		default:
			found.Ended = inst.endedAt()
			if inst.neverStarted(labels) {
				found.Started = time.Time{}
			}
		}
		all = append(all, found)
	}
	return all, nil
}
