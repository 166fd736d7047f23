package runtime

import (
	"context"
	"time"
)

// Delays before the retries of a call to an engine.
const (
	retryMin = time.Second // before the first retry; doubles
	retryMax = 30 * time.Second
)

// retryEngine repeats call, which calls the engine, until it returns done or ctx ends: an
// engine may be restarted while its containers run. The delay between two calls doubles from
// retryMin to retryMax; wake ends a delay early. The first error is logged with the message.
func (r *jobRun) retryEngine(
	ctx context.Context, wake <-chan struct{}, message string, call func() (done bool, err error),
) {
	logged := false
	for delay := retryMin; ; delay = min(2*delay, retryMax) {
		done, err := call()
		switch {
		case done, ctx.Err() != nil:
			return
		case err != nil && !logged:
			logged = true
			r.warnRetry(message, err, delay)
		}
		sleep(ctx, wake, delay)
		if ctx.Err() != nil {
			return
		}
	}
}

// sleep blocks until the delay is over, or wake or ctx ends it.
func sleep(ctx context.Context, wake <-chan struct{}, delay time.Duration) {
	select {
	case <-wake:
	case <-ctx.Done():
	case <-time.After(delay):
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
