package reconcile

import (
	"context"
	"errors"
)

// Process prepares a change of the process: it opens the new listener and log, and
// touches nothing that is in use. One change is prepared at a time.
type Process func(ctx context.Context, from, to ProcessSpec) (Prepared, error)

// Prepared is a change that can be made at once. Exactly one of its functions is
// called.
type Prepared struct {
	Commit  func() // makes the change; cannot fail
	Discard func() // closes what was opened for the change
}

// processChange is a change of the process that a goroutine prepares.
type processChange struct {
	action SetProcess
	cancel context.CancelFunc
	done   chan struct{} // closed when the goroutine has ended; the rest is set then

	prepared  Prepared
	err       error
	cancelled bool // while it was prepared: err is no failure
}

// prepareChange prepares a change of the process in a goroutine of its own, unless one
// is being prepared already. The end of the goroutine wakes the loop.
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

// finishChange makes the change of the process that has been prepared, if it is still
// desired. One that is not is cancelled, and discarded when its goroutine has ended:
// the next plan then prepares what is desired.
func (l *Loop) finishChange() {
	change := l.change
	if change == nil {
		return
	}
	l.mu.Lock()
	desired := change.action.To == l.desired.Process
	l.mu.Unlock()

	// It is still being prepared, or it is not desired.
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

	// It failed, or can be made.
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
	l.log.Info(change.action.String())
}

// discard waits for the goroutine, and closes what was opened for the change.
func (c *processChange) discard() {
	<-c.done
	if c.err == nil {
		c.prepared.Discard()
	}
}
