//go:build linux || darwin

package process

import (
	"context"
	"errors"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
)

// Wait blocks until the runner has ended. An earlier agent may have started it. The exit
// code is -1 if it is lost: the supervisor was killed, the machine went down, or the files
// are damaged.
func (e *Executor) Wait(ctx context.Context, id string) (runtime.Exit, error) {
	exits, stop := e.addWaiter(id)
	defer stop()
	var inst *instance
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		// Return the exit from the file, or from Remove.
		exit, err := runtime.Exit{}, error(nil)
		if inst == nil {
			inst, err = e.open(id)
		}
		if err == nil {
			exit, err = inst.exitIfEnded()
		}
		if err == nil {
			return exit, nil
		}
		select { // prefer the exit that Remove has read
		case exit := <-exits:
			return exit, nil
		default:
		}

		// Return an error, or wait for the next check.
		switch {
		case isCorrupt(err):
			return runtime.Exit{Code: unknownCode, Reason: err.Error()}, nil
		case !errors.Is(err, errRunning):
			return exit, err
		}
		select {
		case exit := <-exits:
			return exit, nil
		case <-ticker.C:
		case <-ctx.Done():
			return runtime.Exit{}, context.Cause(ctx)
		}
	}
}

// addWaiter returns a channel on which Remove reports how the job ended. Wait needs it
// because Remove removes the file with the exit code.
func (e *Executor) addWaiter(id string) (exits <-chan runtime.Exit, stop func()) {
	c := make(chan runtime.Exit, 1)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.waiters[id] == nil {
		e.waiters[id] = map[chan runtime.Exit]struct{}{}
	}
	e.waiters[id][c] = struct{}{}
	return c, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.waiters[id], c)
		if len(e.waiters[id]) == 0 {
			delete(e.waiters, id)
		}
	}
}

// notifyWaiters reports to all calls of Wait how a job ended.
func (e *Executor) notifyWaiters(id string, exit runtime.Exit) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for c := range e.waiters[id] {
		select {
		case c <- exit:
		default: // another call of Remove has reported the exit
		}
	}
}
