//go:build linux || darwin

package process

import (
	"context"
	"errors"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
)

// Wait blocks until the runner has ended. An earlier agent may have started it. The exit
// code is [runtime.CodeUnknown] if it is lost: the supervisor was killed, the machine went down,
// or the files are damaged.
func (e *Executor) Wait(ctx context.Context, id string) (runtime.Exit, error) {
	exits := make(chan runtime.Exit, 1) // Remove reports the exit there, because it removes the file
	e.waiters.Store(exits, id)
	defer e.waiters.Delete(exits)
	var inst *instance
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
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

		switch {
		case isCorrupt(err):
			return runtime.Exit{Code: runtime.CodeUnknown, Reason: err.Error()}, nil
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

// notifyWaiters reports to all calls of Wait how a job ended.
func (e *Executor) notifyWaiters(id string, exit runtime.Exit) {
	for exits, waitsFor := range e.waiters.Range {
		if waitsFor != id {
			continue
		}
		select {
		case exits.(chan runtime.Exit) <- exit:
		default: // another call of Remove has reported the exit
		}
	}
}
