package pool

import (
	"context"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
)

// retryEngine repeats call, which calls the engine, with the delays of engineBackoff until it
// returns done or ctx ends. Wake ends a delay early. The first error is logged with the message.
func (r *jobRun) retryEngine(
	ctx context.Context, wake <-chan struct{}, message string, call func() (done bool, err error),
) {
	logged := false
	for delay := engineBackoff.First; ; delay = engineBackoff.Next(delay) {
		done, err := call()
		switch {
		case done, ctx.Err() != nil:
			return
		case err != nil && !logged:
			logged = true
			r.warnRetry(message, err, delay)
		}
		if !runtime.Sleep(ctx, wake, delay) {
			return
		}
	}
}

// warnRetry logs an error of a call to the engine that will be retried.
func (r *jobRun) warnRetry(message string, err error, delay time.Duration) {
	r.log().Warn(message, "instance", r.id, "error", err, "retry_in", delay)
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
