package pool

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
)

// leasedWork is the source of scans and policy evaluations that the service leases. A lease that
// is not carried out uses up one of the retries of the work.
type leasedWork struct {
	pool   *Pool
	leaser runtime.Leaser
}

func (l *leasedWork) limit() time.Duration { return acquireLimit }

// room returns the number of kinds that may be leased. It is 0 if something of an earlier lease is
// left, because it might still run.
func (l *leasedWork) room() int {
	if l.pool.spec.Leftover || l.pool.leftovers > 0 {
		return 0
	}
	return len(l.pool.leasableKinds())
}

// next makes the poll after the end of a job due at once, as polls.dueNow does for deployments.
func (l *leasedWork) next() runtime.NextPoll {
	next := l.leaser.NextLease()
	if l.pool.jobEnded && next.Reason == "" {
		next.At = time.Time{}
	}
	return next
}

func (l *leasedWork) claim(ctx context.Context) (runtime.Claim, error) {
	l.pool.mu.Lock()
	kinds := l.pool.leasableKinds()
	l.pool.jobEnded = false
	l.pool.mu.Unlock()
	return l.leaser.Acquire(ctx, kinds)
}

func (l *leasedWork) record(since time.Time, _ runtime.Claim, err error) {
	if p := l.pool; !p.spec.Tuning.ClaimsDeployments() {
		p.polls.end(since, err)
	}
}

// accept gives work back that cannot be started any more, because the pool ends.
func (l *leasedWork) accept(ctx context.Context, r *jobRun) bool {
	p := l.pool
	r.lease.leaser = l.leaser
	if p.draining || ctx.Err() != nil || p.runs[r.job.ID] != nil {
		p.jobs.Go(r.giveBack)
		return false
	}
	r.log().Info("lease acquired", "kind", string(r.job.Kind))
	return true
}

// leasableKinds returns the leased kinds whose limit is not reached. The caller holds the
// lock.
func (p *Pool) leasableKinds() []runtime.Kind {
	running := map[runtime.Kind]int{}
	for _, r := range p.runs {
		running[r.job.Kind]++
	}
	return slices.DeleteFunc(p.spec.Tuning.LeasedKinds(), func(kind runtime.Kind) bool {
		return running[kind] >= p.spec.Tuning.MaxLeased
	})
}

// giveBack completes the lease of work that is not started, so that the service leases the
// work again.
func (r *jobRun) giveBack() {
	ctx, cancel := context.WithTimeout(r.pool.finalCtx, giveBackLimit)
	defer cancel()
	if err := r.lease.leaser.Complete(ctx, r.job, runtime.LeaseRetry, "the agent stops"); err != nil {
		r.log().Warn("cannot give the lease back; it expires", "error", err)
		return
	}
	r.log().Info("lease given back, because the pool stops")
}

// leaseError is a reason to stop leased work without another report about it.
type leaseError string

func (e leaseError) Error() string { return string(e) }

// Is makes errors.Is report a leaseError as ErrCancelled: this agent must not continue the
// work.
func (e leaseError) Is(target error) bool { return target == runtime.ErrCancelled }

// Reasons to stop leased work.
const (
	errLeaseRefused leaseError = "the lease is lost: the service has ended it, or the work was cancelled"
	errLeaseExpires leaseError = "the lease could not be renewed, and another agent gets the work when it expires"
)

// lease is the lease of a job. The run's lock guards its times.
type lease struct {
	leaser runtime.Leaser // nil for a deployment
	until  time.Time      // when the lease expires
	wall   time.Time      // the same time without a monotonic reading
	span   time.Duration  // from the last renewal to the end of the lease
}

// left returns the time until the lease expires, by the clock that has less time left. On Linux the
// monotonic clock stops while the machine is suspended; the wall clock may be changed.
func (l lease) left() time.Duration {
	now := time.Now()
	return min(l.until.Sub(now), l.wall.Sub(now.Round(0)))
}

// runLeased runs leased work from the begin of its lease to the completion.
//
//  1. It reports the begin of the work to the service before anything of the work can run.
//  2. Another goroutine renews the lease until the instance is gone, also while the job is
//     stopped. If the lease is lost, or cannot be renewed in time, it stops the job.
//  3. It completes the lease when the instance is gone, or when the outcome of the job is known.
//     Otherwise the lease expires later. Nothing is reported of a job whose lease is lost.
func (r *jobRun) runLeased(ctx context.Context) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r.setLeaseEnd(r.job.Lease.Until)

	// 1. Begin.
	if err := r.extendLease(ctx, true); err != nil {
		r.log().Warn("leased work not started", "reason", err)
		outcome := runtime.OutcomeLost
		if !errors.Is(err, runtime.ErrCancelled) {
			outcome = runtime.OutcomeCancelled
			r.completeLease(runtime.LeaseRetry, "the agent stops")
		}
		r.setOutcome(outcome)
		return
	}

	// 2. Renew the lease while the job runs.
	renewing, stop := context.WithCancel(context.WithoutCancel(ctx))
	var renewals sync.WaitGroup
	renewals.Go(func() { r.renewLease(renewing, cancel) })
	gone := r.run(ctx)

	// 3. Complete the lease.
	if result, reason := r.leaseResult(ctx, gone); result != "" {
		r.completeLease(result, reason)
	}
	stop()
	renewals.Wait()
}

// renewLease renews the lease until ctx ends. It calls stopJob when the lease is lost or not
// renewed in time, or when the runner hangs. It makes no other call to the service.
func (r *jobRun) renewLease(ctx context.Context, stopJob context.CancelCauseFunc) {
	var finished time.Time // when this loop first saw that the last step has ended
	for {
		// Wait for a third of the time that is left. Timers stop while the machine is suspended, so
		// check the clocks meanwhile.
		left, _ := r.leaseLeft()
		for due := left - left/leaseRenewPart; left > due; left, _ = r.leaseLeft() {
			if !runtime.Sleep(ctx, nil, min(left-due, leaseCheck)) {
				return
			}
		}

		if err := r.extendLease(ctx, false); err != nil {
			if ctx.Err() == nil {
				r.log().Warn("leased work is stopped", "reason", err)
				stopJob(err)
				r.endReports(err) // the cause of the job's context may be an earlier one
			}
			return
		}

		switch last := r.lastProgress(); {
		case !last.Status.Final() || last.Status == runtime.Succeeded && last.Step < r.job.Definition.Steps-1:
		case finished.IsZero():
			finished = time.Now()
		case time.Since(finished) > completeGrace:
			stopJob(errRunnerHung)
		}
	}
}

// extendLease renews the lease, with retries until two thirds of the time that was left at
// its last renewal are over. The error is the reason to stop the job, or the cause of ctx.
func (r *jobRun) extendLease(ctx context.Context, begin bool) error {
	left, margin := r.leaseLeft()
	window := left - margin
	if window <= 0 {
		return errLeaseExpires
	}
	ctx, cancel := context.WithTimeoutCause(ctx, window, errLeaseExpires)
	defer cancel()
	failed := false
	backoff := runtime.Backoff{First: max(leaseRetryMin, window/30), Max: window / 5}
	for delay := backoff.First; ; delay = backoff.Next(delay) {
		started := time.Now()
		once, stop := context.WithTimeout(ctx, window/leaseAttempts)
		granted, err := r.lease.leaser.Renew(once, r.job, begin)
		stop()
		switch {
		case err == nil:
			r.setLeaseEnd(started.Add(granted))
			if failed {
				r.log().Info("lease renewed after failed attempts")
			}
			return nil
		case errors.Is(err, runtime.ErrLeaseLost):
			return errLeaseRefused
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !failed:
			failed = true
			r.log().Warn("cannot renew lease", "error", err, "expires_in", left.Round(time.Millisecond))
		}
		if !runtime.Sleep(ctx, nil, delay) {
			return context.Cause(ctx)
		}
		if left, _ = r.leaseLeft(); left <= margin { // the machine was suspended
			return errLeaseExpires
		}
	}
}

// setLeaseEnd sets when the lease expires.
func (r *jobRun) setLeaseEnd(until time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lease.until, r.lease.wall = until, until.Round(0)
	r.lease.span = r.lease.left()
}

// leaseLeft returns the time until the lease expires, and how long before that the work must be
// stopped.
func (r *jobRun) leaseLeft() (left, margin time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lease.left(), r.lease.span / leaseRenewPart
}

// leaseGrace returns the time between SIGTERM and SIGKILL when leased work is stopped. The
// work must have ended when its lease expires, and it gets half of the time that is left.
func (r *jobRun) leaseGrace() time.Duration {
	left, _ := r.leaseLeft()
	return max(0, min(runtime.StopGrace, left/2))
}
