package runtime

import (
	"context"
	"iter"
	"time"
)

// Backoff is the delay between two attempts: First, and twice as long after each attempt, up to
// Max.
type Backoff struct{ First, Max time.Duration }

// engineBackoff is for calls to an engine, which may be restarted while its containers run.
var engineBackoff = Backoff{First: time.Second, Max: 30 * time.Second}

// Attempts yields once for each attempt, until the caller breaks or ctx ends. The value is the
// delay after the attempt. It is waited for until wake, which may be nil, or ctx ends it early. The
// first attempt is made even if ctx has ended.
func (b Backoff) Attempts(ctx context.Context, wake <-chan struct{}) iter.Seq[time.Duration] {
	return func(attempt func(time.Duration) bool) {
		for delay := b.First; attempt(delay); delay = min(2*delay, b.Max) {
			timer := time.NewTimer(delay)
			select {
			case <-wake:
			case <-ctx.Done():
			case <-timer.C:
			}
			timer.Stop()
			if ctx.Err() != nil {
				return
			}
		}
	}
}

// retryEngine repeats call, which calls the engine, with the delays of engineBackoff until it
// returns done or ctx ends. Wake ends a delay early. The first error is logged with the message.
func (r *jobRun) retryEngine(
	ctx context.Context, wake <-chan struct{}, message string, call func() (done bool, err error),
) {
	logged := false
	for delay := range engineBackoff.Attempts(ctx, wake) {
		done, err := call()
		switch {
		case done, ctx.Err() != nil:
			return
		case err != nil && !logged:
			logged = true
			r.warnRetry(message, err, delay)
		}
	}
}

// warnRetry logs an error of a call to the engine that will be retried.
func (r *jobRun) warnRetry(message string, err error, delay time.Duration) {
	r.log.Warn(message, "instance", r.id, "error", err, "retry_in", delay)
}

// closed reports whether a channel is closed.
func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
