package pool

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
)

// startFailures is the number of failed starts in a row after which the pool backs off.
const startFailures = 2

// starts counts the jobs in a row that failed before their first step and not by their
// own fault. The reason for such a failure probably makes every queued job fail.
//
//  1. After the first failure, the pool claims a job only while no other job starts.
//  2. From the second failure on, the pool also backs off before each claim: five seconds,
//     and twice as long after each further failure, up to five minutes. The failure of a job
//     that was claimed before a backoff started does not extend the backoff.
//  3. When a job has started, the pool neither waits for other starts nor backs off. New
//     settings for jobs end only the backoff, because they may fix the reason.
//
// A job that fails by its own fault ([runtime.ErrJobFault]), or that is cancelled, counts as
// neither a failure nor a success.
type starts struct {
	failed  int              // in a row
	backoff time.Duration    // length of the last backoff; 0 before the first
	started time.Time        // of the last backoff
	hold    runtime.NextPoll // end and reason of the last backoff; the end may be past
}

// startFailed counts a job that failed before its first step.
func (p *Pool) startFailed(r *jobRun, reason error) {
	p.mu.Lock()
	defer p.mu.Unlock()

	// 1. From the first failure on, Pool.next waits while a job starts.
	p.check.ended = time.Time{} // the last check of the executor is outdated
	p.starts.failed++
	if p.starts.failed < startFailures || r.since.Before(p.starts.started) {
		return
	}

	// 2. From the second failure on, back off.
	now := time.Now()
	p.starts.started = now
	p.starts.backoff = startBackoff.Next(p.starts.backoff)
	p.starts.hold = runtime.NextPoll{
		At: now.Add(p.starts.backoff),
		Reason: fmt.Sprintf("%d jobs in a row failed before their first step, so one job is tried at a time: %v",
			p.starts.failed, reason),
	}
	p.log.Warn("polling paused: jobs fail before their first step",
		"failures", p.starts.failed, "retry_in", p.starts.backoff, "error", reason)
}

// startSucceeded records that a job has started. It has no effect if that is recorded already.
func (p *Pool) startSucceeded(r *jobRun) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r.startDone {
		return
	}
	r.startDone = true
	if p.starts.failed == 0 {
		return
	}
	if p.starts.failed >= startFailures {
		p.log.Info("polling resumed: a job has started", "job", r.job.ID)
	}
	p.starts = starts{} // 3.
	p.wake()
}

// retryStart ends the backoff after failed starts if the settings for new jobs differ from
// before. The pool still starts one job at a time until a job has started. The caller holds
// the lock.
func (p *Pool) retryStart(before runtime.Tuning) {
	if p.starts.failed == 0 || before.SameStart(p.spec.Tuning) {
		return
	}
	p.starts = starts{failed: 1} // 3.
	p.polls.dueNow()
}

// starting reports whether a job has not started yet. The caller holds the lock.
func (p *Pool) starting() bool {
	for _, r := range p.runs {
		if !r.startDone {
			return true
		}
	}
	return false
}

// countFailedStart counts a start that failed with err, unless the agent or the service ended the
// job. The pool does not back off after a start that failed by the job's own fault.
func (r *jobRun) countFailedStart(ctx context.Context, err error) {
	if ctx.Err() != nil || r.endedByService(err) {
		return
	}
	r.pool.parts.Metrics.JobStartFailed(r.job.Identity.Target, runtime.FailureOf(err))
	if !errors.Is(err, runtime.ErrJobFault) {
		r.pool.startFailed(r, err)
	}
}

// countEnd counts a job whose instance has ended. If the instance ended before the job's first
// step and the runner did not report the outcome, the job has failed to start: the runner is
// of another release, has no memory, or cannot reach the service.
func (r *jobRun) countEnd(ctx context.Context, end instanceEnd) {
	switch {
	case ctx.Err() != nil, r.hasStarted():
	case end.err == nil && (end.exit.Code == runtime.CodeSucceeded || end.exit.Code == runtime.CodeSucceededUnreported):
		r.pool.startSucceeded(r)
	case end.err == nil && (end.exit.Code == runtime.CodeFailed || end.exit.Code == runtime.CodeGone):
	default:
		r.pool.parts.Metrics.JobStartFailed(r.job.Identity.Target, runtime.FailureRunner)
		r.pool.startFailed(r, errors.New(describeExit(end.exit, end.err)))
	}
}

// hasStarted reports whether the runner has reported the end of step 0.
func (r *jobRun) hasStarted() bool {
	r.pool.mu.Lock()
	defer r.pool.mu.Unlock()
	return r.startDone
}
