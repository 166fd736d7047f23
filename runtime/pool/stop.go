package pool

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
)

// ForceStop shortens the cancel grace period of jobs that are stopped, now and later.
func (p *Pool) ForceStop() { p.forceStop() }

// StopJob stops a job as at the end of the agent, and reports it as failed. It returns at once, and reports whether the
// pool has the job. A job of an earlier run of the agent is stopped when the pool knows how it continues.
func (p *Pool) StopJob(id string) (found bool) {
	p.mu.Lock()
	r := p.runs[id]
	p.mu.Unlock()
	if r == nil || r.state().Phase == runtime.Done {
		return false
	}
	r.stopJob(errOperator)
	return true
}

// cancelGrace returns the cancel grace period in force, and a channel that is closed when
// the settings change.
func (p *Pool) cancelGrace() (time.Duration, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	grace := p.spec.Tuning.CancelGrace
	if p.spec.Leftover {
		grace = defaultCancelGrace
	}
	if closed(p.forced) {
		grace = min(grace, forcedGrace)
	}
	return grace, p.tuned
}

// awaitGrace blocks until the cancel grace period and a further time have passed since begin,
// or until one of the channels is closed. It reports whether the time has passed. The period
// may change meanwhile. A channel may be nil.
func (p *Pool) awaitGrace(begin time.Time, further time.Duration, first, second <-chan struct{}) (passed bool) {
	forced := (<-chan struct{})(p.forced)
	for {
		grace, tuned := p.cancelGrace()
		select {
		case <-time.After(time.Until(begin.Add(grace + further))):
			return true
		case <-tuned:
		case <-forced:
			forced = nil
		case <-first:
			return false
		case <-second:
			return false
		}
	}
}

// stop ends the instance in stages, and reports whether the instance is known to have ended.
// Cause is the reason to stop the job.
//
//  1. The runner interrupts its step, and has the cancel grace period to end. A change of
//     the period takes effect at once. This stage ends early when the step has ended.
//  2. The runner gets a SIGTERM, and a SIGKILL after StopGrace.
//
// Leased work has only the second stage, which ends before the lease does. The stages are
// combined if the executor is no [runtime.Interrupter], or if Interrupt fails. If the engine fails,
// stop retries until the pool has no time left; the job keeps its slot, because it may still
// run.
func (r *jobRun) stop(cause error, endedCh <-chan struct{}, children *sync.WaitGroup) (stopped bool) {
	r.setStopping(cause)
	r.log().Info("stopping job", "reason", cause)

	// 1. Interrupt.
	grace := runtime.StopGrace
	if period, _ := r.pool.cancelGrace(); period > 0 && !errors.Is(cause, errRunnerHung) && r.lease.leaser == nil {
		interrupter, ok := r.pool.parts.Executor.(runtime.Interrupter)
		if !ok || !r.interrupt(interrupter, endedCh) {
			grace += max(period, r.job.Tuning.CancelGrace)
		}
	}

	// 2. Remove the instance. When the removal or the wait for the end of the instance returns,
	// give the other up to waitGrace to return too.
	r.retryEngine(r.pool.finalCtx, endedCh, "cannot stop instance", func() (done bool, err error) {
		if closed(endedCh) {
			return true, nil
		}
		if r.lease.leaser != nil {
			grace = r.leaseGrace()
		}
		removed := make(chan error, 2)
		remove := func(grace time.Duration) { children.Go(func() { removed <- r.remove(grace) }) }
		remove(grace)
		forced := (<-chan struct{})(r.pool.forced)
		if grace <= runtime.StopGrace {
			forced = nil
		}
		for {
			select {
			case <-forced: // shorten the grace period
				forced, grace = nil, runtime.StopGrace
				remove(grace)
				continue
			case <-endedCh:
				select { // Remove may not have removed the ended instance yet
				case <-removed:
				case <-time.After(waitGrace):
				}
			case err := <-removed:
				if err != nil {
					return false, err
				}
				stopped = true
				select {
				case <-endedCh:
				case <-time.After(waitGrace):
				}
			}
			return true, nil
		}
	})
	return stopped || closed(endedCh)
}

// setStopping records that the job is stopped, and why.
func (r *jobRun) setStopping(cause error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.phase, r.active, r.ending.stopReason = runtime.Stopping, time.Now(), cause.Error()
}

// interrupt interrupts the step, and waits until the job has ended, its step has ended, or
// the cancel grace period is over. It returns false if the runner could not be interrupted.
func (r *jobRun) interrupt(interrupter runtime.Interrupter, endedCh <-chan struct{}) (ok bool) {
	begin := time.Now()
	ctx, cancel := context.WithTimeout(r.pool.finalCtx, interruptTimeout)
	err := interrupter.Interrupt(ctx, r.id)
	cancel()
	if err != nil && !errors.Is(err, runtime.ErrNoInstance) {
		r.log().Warn("cannot interrupt runner; it gets a SIGTERM instead", "instance", r.id, "error", err)
		return false
	}
	if r.pool.awaitGrace(begin, 0, endedCh, r.stepEnded) {
		r.log().Warn("job did not end within the cancel grace period; it is terminated",
			"after", time.Since(begin).Round(time.Second))
	}
	return true
}
