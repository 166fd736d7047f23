package runner

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// InBubble runs a subtest in a bubble of synctest, whose time is virtual.
func InBubble(t *testing.T, name string, test func(t *testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
}

// Expire makes each time limit or grace period of this length expire after the function event
// returns, instead of after its time. The event is then never too late, however slow the
// machine is.
func (o *Options) Expire(limit time.Duration, event func()) {
	next := o.timeout
	if next == nil {
		next = context.WithTimeoutCause
	}
	o.timeout = func(ctx context.Context, length time.Duration, cause error) (context.Context, context.CancelFunc) {
		if length != limit {
			return next(ctx, length, cause)
		}
		limited, cancel := context.WithCancelCause(ctx)
		go func() {
			event()
			cancel(cause)
		}()
		return limited, func() { cancel(nil) }
	}
}
