//go:build linux || darwin

package process

import (
	"context"
	"errors"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
)

// Wait blocks until the runner has ended, also one that an earlier agent started.
// The code of a runner that was killed together with its supervisor is -1, and so is
// that of one whose files are damaged.
func (e *Executor) Wait(ctx context.Context, id string) (runtime.Exit, error) {
	farewell, stop := e.await(id)
	defer stop()
	var v *environment
	ticker := time.NewTicker(lookAgain)
	defer ticker.Stop()
	for {
		exit, err := runtime.Exit{}, error(nil)
		if v == nil {
			v, err = e.open(id)
		}
		if err == nil {
			exit, err = v.ended()
		}
		if err == nil {
			return exit, nil
		}
		select { // what Remove has seen is better than what it has left
		case exit := <-farewell:
			return exit, nil
		default:
		}
		switch {
		case mangled(err):
			return runtime.Exit{Code: unknownCode, Reason: err.Error()}, nil
		case !errors.Is(err, errRunning):
			return exit, err
		}
		select {
		case exit := <-farewell:
			return exit, nil
		case <-ticker.C:
		case <-ctx.Done():
			return runtime.Exit{}, context.Cause(ctx)
		}
	}
}

// await announces somebody who wants to hear from Remove how a job ended: the
// exit code stands in the folder, and Remove takes that away.
func (e *Executor) await(id string) (farewell <-chan runtime.Exit, stop func()) {
	heard := make(chan runtime.Exit, 1)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.waiting[id] == nil {
		e.waiting[id] = map[chan runtime.Exit]struct{}{}
	}
	e.waiting[id][heard] = struct{}{}
	return heard, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.waiting[id], heard)
		if len(e.waiting[id]) == 0 {
			delete(e.waiting, id)
		}
	}
}

// tell tells all who wait for a job how it ended.
func (e *Executor) tell(id string, exit runtime.Exit) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for heard := range e.waiting[id] {
		select {
		case heard <- exit:
		default: // it was told by another Remove
		}
	}
}
