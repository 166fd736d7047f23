package reconcile

import (
	"context"
	"errors"
)

// Process prepares a change of the process: it opens the new listener and log, and does
// not affect the listener and log in use. One change is prepared at a time.
type Process func(ctx context.Context, from, to ProcessSpec) (Prepared, error)

// Prepared is a change that takes effect without delay. Exactly one of its functions is
// called.
type Prepared struct {
	Commit  func() // applies the change; cannot fail
	Discard func() // closes the new listener and log
}

// processChange is a change of the process that a goroutine prepares.
type processChange struct {
	action SetProcess
	cancel context.CancelFunc
	done   chan struct{} // closed when the goroutine has ended, and the fields below are set

	prepared  Prepared
	err       error
	cancelled bool // whether the preparation was cancelled, so that err is not a failure
}

// prepareChange prepares a change of the process in a goroutine, unless another one is in
// preparation. The end of the goroutine wakes the loop.
func (l *Loop) prepareChange(ctx context.Context, action SetProcess) {
	if l.change != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, buildLimit)
	change := &processChange{action: action, cancel: cancel, done: make(chan struct{})}
	l.change = change
	go func() {
		defer l.wake()
		defer close(change.done)
		defer cancel()
		change.prepared, change.err = l.process(ctx, action.From, action.To)
		change.cancelled = errors.Is(ctx.Err(), context.Canceled)
	}()
}

// finishChange applies a prepared change of the process if the change is still desired. A
// change that is no longer desired is cancelled, and discarded when its goroutine has ended;
// the next plan then contains the desired change.
func (l *Loop) finishChange() {
	change := l.change
	if change == nil {
		return
	}
	l.mu.Lock()
	desired := change.action.To == l.desired.Process
	l.mu.Unlock()

	// Keep a change that is in preparation; discard one that is not desired.
	select {
	case <-change.done:
	default:
		if !desired {
			change.cancel()
		}
		return
	}
	l.change = nil
	if !desired {
		change.discard()
		return
	}

	// Record the failure of the preparation, or apply the change.
	if change.err != nil {
		if !change.cancelled {
			l.failed(ProcessKey, change.err, l.log, "cannot change settings of the agent")
		}
		return
	}
	change.prepared.Commit()
	l.mu.Lock()
	l.inForce = change.action.To
	delete(l.failures, ProcessKey)
	l.mu.Unlock()
	l.log.Debug(change.action.String()) // the reload was logged
}

// discard waits for the end of the goroutine, and closes the new listener and log.
func (c *processChange) discard() {
	<-c.done
	if c.err == nil {
		c.prepared.Discard()
	}
}
