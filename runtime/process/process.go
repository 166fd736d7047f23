//go:build linux || darwin

package process

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
)

// target is the deploy_target of this executor.
const target = "process"

const (
	lookAgain  = 20 * time.Millisecond // between two looks at a job's files
	killLimit  = 5 * time.Second       // for the kernel to end what was killed
	staleAfter = 10 * time.Minute      // for a folder that is half made or half removed
	oldEnded   = 7 * 24 * time.Hour    // time since its end from which another agent's job is removed
)

// Options is what an [Executor] is made of.
type Options struct {
	Agent   string   // id of the agent; jobs have it in their labels
	Folder  string   // parent of the jobs' folders, made if need be; empty is cmwa-process-<uid> in the directory for temporary files
	Environ []string // the agent's environment, of which a job sees little: see environ
	Log     *slog.Logger
}

// Executor runs jobs as process groups. It keeps nothing that a restarted agent
// would miss, and no goroutine. Several may share one folder.
type Executor struct {
	agent   string // id of the agent
	folder  string
	environ []string
	log     *slog.Logger

	mu       sync.Mutex
	children map[string]*exec.Cmd                      // own supervisors that are not yet reaped, by id
	waiting  map[string]map[chan runtime.Exit]struct{} // those in Wait, by id
}

// New makes an executor, and clears away what others that died in the middle of
// making or removing a folder have left. It warns that jobs are not isolated.
func New(options Options) (*Executor, error) {
	folder, err := parent(options.Folder)
	if err != nil {
		return nil, err
	}
	if _, err := sweep(folder, time.Now().Add(-staleAfter)); err != nil {
		return nil, err
	}
	options.Log.Warn("jobs run as processes of this machine: nothing isolates them from it or from each other", "agent", options.Agent, "folder", folder)
	return &Executor{
		agent:    options.Agent,
		folder:   folder,
		environ:  slices.Clone(options.Environ),
		log:      options.Log,
		children: map[string]*exec.Cmd{},
		waiting:  map[string]map[chan runtime.Exit]struct{}{},
	}, nil
}

// Sweep implements [runtime.Sweeper]: it removes folders that were half made or half
// removed ten minutes ago, and those of jobs of other agents that ended a week ago.
// An agent removes its own within minutes, unless its id is lost.
func (e *Executor) Sweep(ctx context.Context, _ []runtime.Place) (removed []string, err error) {
	removed, err = sweep(e.folder, time.Now().Add(-staleAfter))
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(e.folder)
	if err != nil {
		return removed, fmt.Errorf("look for jobs: %w", err)
	}
	for _, entry := range entries {
		id := entry.Name()
		labels, labelsErr := readLabels(filepath.Join(e.folder, id))
		if !strings.HasPrefix(id, jobPrefix) || labelsErr != nil || labels.Agent == e.agent {
			continue
		}
		v, openErr := e.open(id)
		if openErr != nil {
			continue
		}
		if _, endErr := v.ended(); unended(endErr) || time.Since(v.endedAt()) < oldEnded {
			continue
		}
		if removeErr := e.Remove(ctx, id, 0); removeErr != nil {
			err = errors.Join(err, removeErr)
			continue
		}
		removed = append(removed, "folder "+v.folder+" of job "+labels.Job)
	}
	return removed, err
}

// List returns the folders whose labels name the agent.
func (e *Executor) List(ctx context.Context, agent string) ([]runtime.Found, error) {
	entries, err := os.ReadDir(e.folder)
	if err != nil {
		return nil, fmt.Errorf("look for jobs: %w", err)
	}
	var all []runtime.Found
	for _, entry := range entries {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		id := entry.Name()
		if !strings.HasPrefix(id, jobPrefix) {
			continue
		}
		labels, err := readLabels(filepath.Join(e.folder, id))
		switch {
		case gone(err), mangled(err):
			continue // being removed this moment, or another's
		case err != nil:
			return nil, fmt.Errorf("look for jobs: %w", err)
		case labels.Agent != agent:
			continue
		}
		v, err := e.open(id)
		switch {
		case errors.Is(err, runtime.ErrNoEnvironment), mangled(err):
			continue
		case err != nil:
			return nil, fmt.Errorf("look for jobs: %w", err)
		}
		identity := labels.Identity
		identity.Target = cmp.Or(identity.Target, target)
		found := runtime.Found{
			ID:         id,
			Pool:       runtime.PoolSpec{Name: labels.PoolName, Identity: identity}.Key(),
			PoolName:   labels.PoolName,
			Identity:   identity,
			Job:        labels.Job,
			Subject:    labels.Subject,
			Generation: labels.Generation,
			Started:    labels.Started,
		}
		switch _, err := v.ended(); {
		case errors.Is(err, errRunning):
			found.Running = true
		case errors.Is(err, errUnclear):
			return nil, fmt.Errorf("look for jobs: %w", err)
		default:
			found.Ended = v.endedAt()
		}
		all = append(all, found)
	}
	return all, nil
}
