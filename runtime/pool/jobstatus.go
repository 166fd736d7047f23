package pool

import (
	"context"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
)

// pollStatus polls the status of the job at the status interval, and calls stop when the
// service has cancelled the job or no longer has it, or when the runner does not exit in
// its grace period.
//
//  1. A new interval counts from the last response.
//  2. A call that fails never stops a job.
//  3. For an adopted job, the status Gone is ignored until the service has returned another
//     status, because this pool's token may belong to a service or pool that never had the
//     job. Known is true if the service is known to have had the job; it is false at first
//     for an adopted job.
//  4. A runner that has reported the last status of the job has a grace period to exit.
func (r *jobRun) pollStatus(ctx context.Context, stop context.CancelCauseFunc, known bool) {
	var hung <-chan time.Time // set when the runner has to exit; nil blocks
	lastAnswer := time.Now()
	for {
		// 1. Wait for the next poll. Without an interval there is none.
		interval, tuned := r.pool.statusInterval()
		var due <-chan time.Time
		if interval > 0 {
			due = time.After(interval - time.Since(lastAnswer))
		}
		select {
		case <-ctx.Done():
			return
		case <-hung:
			stop(errRunnerHung)
			return
		case <-tuned:
			continue
		case <-due:
		}

		// 2. Poll. A call that fails stops nothing.
		status, err := r.pool.parts.Cloud.JobStatus(ctx, r.job)
		lastAnswer = time.Now()
		if err != nil {
			r.log().Debug("status poll failed", "error", err)
			continue
		}

		// 3. Stop a job that the service has cancelled or no longer has.
		var grace time.Duration
		switch {
		case status == runtime.Gone && !known:
			r.log().Debug("service does not know the adopted job; it continues")
		case status == runtime.Completing:
			grace = completeGrace
		case status == runtime.Cancelled && r.lastProgress().Status == runtime.Failed:
			grace = failGrace
		case status == runtime.Gone:
			stop(errJobGone)
			return
		case status == runtime.Cancelled:
			stop(runtime.ErrCancelled)
			return
		}
		if status != runtime.Gone && status != runtime.Unanswered {
			known = true
			r.pool.noteAnswer() // the call used the pool's token, so it is a response to the pool
		}

		// 4. Begin the grace period once.
		if grace > 0 && hung == nil {
			hung = time.After(grace)
		}
	}
}
