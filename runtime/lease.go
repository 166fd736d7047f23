package runtime

import (
	"context"
	"errors"
	"slices"
	"time"
)

// Times of the loop that leases work.
const (
	acquireLimit = 2 * time.Minute       // timeout of one attempt
	acquirePause = 50 * time.Millisecond // shortest wait of the loop
)

// leasing is the state of a pool's leased work. The pool's lock guards it.
type leasing struct {
	changed   chan struct{} // holds a token after a change that the loop has not seen
	acquiring bool          // a poll for leased work is under way
	leftovers int           // instances of earlier leases that are not removed yet
}

// leaseLoop leases work until ctx ends. The work runs with the context jobs.
//
// It runs concurrently with the loop that claims deployments, and has its own limit. Both
// loops share the slots of the process, the check of the executor, and the backoff after
// failed starts.
func (p *Pool) leaseLoop(ctx, jobs context.Context, leaser Leaser) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		// Acquire if that is allowed now.
		delay, waits, tuned := p.nextLease(leaser)
		if !waits && delay <= 0 {
			if delay = p.acquire(ctx, jobs, leaser); delay <= 0 {
				continue
			}
		}

		// Wait for the first event.
		var due <-chan time.Time
		if !waits {
			timer.Reset(max(delay, acquirePause))
			due = timer.C
		}
		select {
		case <-ctx.Done():
		case <-p.leasing.changed:
		case <-tuned:
		case <-due:
		}
	}
}

// nextLease returns the time until the pool may lease work. If waits is true, the pool must
// wait for an event instead. Tuned is closed when the settings change.
//
//  1. The pool must be configured for leased work, and neither drain nor be paused.
//  2. Nothing of an earlier lease may be left: it might still run.
//  3. A kind has not reached its limit. A single run is one deployment or one leased job.
//  4. The executor can start jobs, and the pool does not back off.
func (p *Pool) nextLease(leaser Leaser) (delay time.Duration, waits bool, tuned <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.spec.Tuning
	switch {
	case p.draining, t.Paused, p.spec.Leftover, len(t.LeasedKinds()) == 0: // 1.
		return 0, true, p.tuned
	case p.leasing.leftovers > 0: // 2.
		return 0, true, p.tuned
	case t.SingleRun && (len(p.runs) > 0 || p.ended > 0), len(p.leasableKinds()) == 0: // 3.
		return 0, true, p.tuned
	case t.SingleRun && !p.polls.since.IsZero():
		return time.Second, false, p.tuned
	case p.starts.failed > 0 && p.starting(): // 4.
		return 0, true, p.tuned
	case p.check.problem != nil:
		return checkRetry, false, p.tuned
	}
	now := time.Now()
	return max(0, leaser.NextLease().At.Sub(now), p.starts.hold.At.Sub(now)), false, p.tuned
}

// leasableKinds returns the leased kinds whose limit is not reached. The caller holds the
// lock.
func (p *Pool) leasableKinds() []Kind {
	running := map[Kind]int{}
	for _, r := range p.runs {
		running[r.job.Kind]++
	}
	return slices.DeleteFunc(p.spec.Tuning.LeasedKinds(), func(kind Kind) bool {
		return running[kind] >= p.spec.Tuning.MaxLeased
	})
}

// leasedRuns returns the number of leased jobs that run. The caller holds the lock.
func (p *Pool) leasedRuns() (count int) {
	for _, r := range p.runs {
		if r.job.Kind.Leased() {
			count++
		}
	}
	return count
}

// acquire leases work, if there is any, and starts it. It returns the time until the next
// attempt, or 0 if the Leaser decides.
//
//  1. The executor has just been checked and the pool has a slot, because a lease that is
//     not carried out uses up one of the retries of the work.
//  2. The end of ctx does not cancel the poll.
//  3. Work that cannot be started any more is given back.
func (p *Pool) acquire(ctx, jobs context.Context, leaser Leaser) (delay time.Duration) {
	// 1. Check the executor, take a slot, and check again if that took long.
	if !p.canStart(ctx) {
		return checkRetry
	}
	granted := p.waitForSlot(ctx, leaser)
	if granted == nil {
		return 0
	}
	started := false
	defer func() {
		if !started {
			granted.release()
		}
	}()
	if !p.canStart(ctx) {
		return checkRetry
	}
	kinds, before, tuned := p.startAcquire()
	if len(kinds) == 0 {
		return acquirePause
	}

	// 2. Poll.
	limited, cancel := context.WithTimeout(p.finalCtx, acquireLimit)
	defer cancel()
	slow := time.AfterFunc(slotGrace, granted.share)
	claim, err := leaser.Acquire(limited, kinds)
	slow.Stop()

	// 3. Start the work, or give it back.
	p.mu.Lock()
	p.leasing.acquiring = false
	p.wake()
	if err != nil || claim.Job == nil {
		p.mu.Unlock()
		return 0
	}
	job := claim.Job
	p.complement(job, before, closed(tuned))
	r := p.newRun(job, time.Now())
	r.log = r.log.With("lease", job.Lease.ID)
	if p.draining || ctx.Err() != nil || p.runs[job.ID] != nil {
		p.mu.Unlock()
		p.giveBack(r, leaser)
		return 0
	}
	defer p.mu.Unlock()
	p.parts.Recorder.JobClaimed(job.PoolName, job.Kind)
	r.log.Info("lease acquired", string(job.Kind), job.WorkflowID)
	if granted.keep() {
		r.log.Info("the response to a poll was late, and another pool uses the slot: " +
			"this job exceeds the limit of all pools")
	}
	r.leaser = leaser
	p.startRun(jobs, r, granted)
	started = true
	return 0
}

// startAcquire records that a poll for leased work begins, and returns the kinds that may be
// leased. It also returns the spec in force, and a channel that is closed when the spec
// changes. It returns no kinds if the pool drains, has reached the limit of each kind, or is
// a single run that has or had a job or polls for deployments.
func (p *Pool) startAcquire() (kinds []Kind, spec PoolSpec, tuned <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.draining || p.spec.Tuning.SingleRun && (len(p.runs) > 0 || p.ended > 0 || !p.polls.since.IsZero()) {
		return nil, PoolSpec{}, nil
	}
	if kinds = p.leasableKinds(); len(kinds) == 0 {
		return nil, PoolSpec{}, nil
	}
	p.leasing.acquiring = true
	return kinds, p.spec, p.tuned
}

// waitForSlot returns a slot, or nil if the pool may not lease work any more.
func (p *Pool) waitForSlot(ctx context.Context, leaser Leaser) *slot {
	place := p.parts.Slots.join(p)
	for {
		delay, waits, tuned := p.nextLease(leaser)
		if ctx.Err() != nil || waits || delay > 0 {
			place.release()
			return nil
		}
		select {
		case <-place.granted:
			return place
		default:
		}
		select {
		case <-place.granted:
			return place
		case <-ctx.Done():
		case <-tuned:
		case <-p.leasing.changed:
		}
	}
}

// giveBack completes the lease of work that is not started, so that the service leases the
// work again.
func (p *Pool) giveBack(r *jobRun, leaser Leaser) {
	ctx, cancel := context.WithTimeout(p.finalCtx, giveBackLimit)
	defer cancel()
	if err := leaser.Complete(ctx, r.job, LeaseRetry, "the agent stops"); err != nil {
		r.log.Warn("cannot give the lease back; it expires", "error", err)
		return
	}
	r.log.Info("lease given back, because the pool stops")
}

// leaseError is a reason to stop leased work without another report about it.
type leaseError string

func (e leaseError) Error() string { return string(e) }

// Is makes errors.Is report a leaseError as errCancelled: this agent must not continue the
// work.
func (e leaseError) Is(target error) bool { return target == errCancelled }

// Reasons to stop leased work.
const (
	errLeaseRefused leaseError = "the lease is lost: the service has ended it, or the work was cancelled"
	errLeaseExpires leaseError = "the lease could not be renewed, and another agent gets the work when it expires"
)

// Times of a lease.
const (
	// A lease is renewed when a third of its time is over. With two thirds over and no
	// renewal, the work is stopped, so that it has ended when the lease expires.
	leaseRenewPart = 3
	leaseAttempts  = 3 // number of attempts to renew for which there is time, even if each times out
	leaseRetryMin  = 50 * time.Millisecond

	completeLimit = time.Minute      // for completing a lease whose work has ended
	giveBackLimit = 15 * time.Second // for completing one whose work has not begun
)

// runLeased runs leased work from the begin of its lease to the completion.
//
//  1. It reports the begin of the work to the service before anything of the work can run.
//  2. Another goroutine renews the lease until the instance is gone, also while the job is
//     stopped. If the lease is lost, or cannot be renewed in time, it stops the job.
//  3. It completes the lease when the instance is gone, or when the outcome of the job is known.
//     Otherwise the lease expires later. Nothing is reported of a job whose lease is lost.
func (r *jobRun) runLeased(ctx context.Context, leaser Leaser) (gone bool) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r.setLeaseEnd(r.job.Lease.Until)

	// 1. Begin.
	if err := r.extendLease(ctx, leaser, true); err != nil {
		r.log.Warn("leased work not begun", "reason", err)
		outcome := OutcomeLost
		if !errors.Is(err, errCancelled) {
			outcome = OutcomeCancelled
			r.completeLease(leaser, LeaseRetry, "the agent stops")
		}
		r.pool.parts.Recorder.JobEnded(r.job.PoolName, r.job.Kind, outcome)
		return true
	}

	// 2. Renew the lease while the job runs.
	renewing, stop := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.renewLease(renewing, leaser, cancel)
	}()
	gone = r.run(ctx)

	// 3. Complete the lease.
	if result, reason := r.leaseResult(ctx, gone); result != "" {
		r.completeLease(leaser, result, reason)
	}
	stop()
	<-ended
	return gone
}

// renewLease renews the lease until ctx ends. It calls stopJob when the lease is lost or not
// renewed in time, or when the runner hangs. It makes no other call to the service.
func (r *jobRun) renewLease(ctx context.Context, leaser Leaser, stopJob context.CancelCauseFunc) {
	var finished time.Time // when this loop first saw that the last step has ended
	for {
		// Wait for a third of the time that is left.
		timer := time.NewTimer(time.Until(r.leaseEnd()) / leaseRenewPart)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}

		// Renew.
		if err := r.extendLease(ctx, leaser, false); err != nil {
			if ctx.Err() == nil {
				r.log.Warn("leased work is stopped", "reason", err)
				stopJob(err)
				r.endReports(err) // the cause of the job's context may be an earlier one
			}
			return
		}

		// Stop a runner that hangs.
		switch last := r.lastProgress(); {
		case !last.Status.final() || last.Status == Succeeded && last.Step < r.job.Definition.Steps-1:
		case finished.IsZero():
			finished = time.Now()
		case time.Since(finished) > completeGrace:
			stopJob(errRunnerHung)
		}
	}
}

// extendLease renews the lease, with retries until two thirds of the time that was left at
// its last renewal are over. The error is the reason to stop the job, or the cause of ctx.
func (r *jobRun) extendLease(ctx context.Context, leaser Leaser, begin bool) error {
	left := time.Until(r.leaseEnd())
	window := left - r.leaseMargin()
	if window <= 0 {
		return errLeaseExpires
	}
	ctx, cancel := context.WithTimeoutCause(ctx, window, errLeaseExpires)
	defer cancel()
	failed := false
	for delay := max(leaseRetryMin, window/30); ; delay = min(2*delay, window/5) {
		// Make an attempt.
		began := time.Now()
		once, stop := context.WithTimeout(ctx, window/leaseAttempts)
		granted, err := leaser.Renew(once, r.job, begin)
		stop()
		switch {
		case err == nil:
			r.setLeaseEnd(began.Add(granted))
			if failed {
				r.log.Info("lease renewed after failed attempts")
			}
			return nil
		case errors.Is(err, ErrLeaseLost):
			return errLeaseRefused
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !failed:
			failed = true
			r.log.Warn("cannot renew lease", "error", err,
				"expires_in", time.Until(r.leaseEnd()).Round(time.Millisecond))
		}

		// Wait before the next attempt.
		timer := time.NewTimer(delay)
		select {
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		case <-timer.C:
		}
	}
}

// setLeaseEnd sets when the lease expires.
func (r *jobRun) setLeaseEnd(until time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leaseUntil, r.leaseSpan = until, time.Until(until)
}

// leaseEnd returns when the lease expires.
func (r *jobRun) leaseEnd() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.leaseUntil
}

// leaseMargin returns how long before the end of the lease the work must be stopped.
func (r *jobRun) leaseMargin() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.leaseSpan / leaseRenewPart
}

// leaseGrace returns the time between SIGTERM and SIGKILL when leased work is stopped. The
// work must have ended when its lease expires, and it gets half of the time that is left.
func (r *jobRun) leaseGrace() time.Duration {
	return max(0, min(StopGrace, time.Until(r.leaseEnd())/2))
}
