package runner

import (
	"context"
	"time"

	"github.com/cmwa-project/cmwa/cloud"
)

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

// Hasten divides the waits between the retries of a call, and the time until a refusal is
// accepted, by the same number. The number of calls does not change.
func (o *Options) Hasten(by time.Duration) {
	o.editJobs = func(jobs *cloud.JobsOptions) {
		jobs.RetryWait, jobs.RetryMaxWait = retryWait/by, retryMaxWait/by
		jobs.RefusalTime = 30 * time.Second / by // the default is 30 seconds
	}
}
