package runtime

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"
)

// MaxCancelGrace is the longest cancel grace period. A service declares a cancelled job failed
// immediately, and the log of the job may end there, although the job has not stopped yet. So a
// user should not cancel a job at the service if its operation needs longer than this to stop.
const MaxCancelGrace = time.Hour

// defaultCancelGrace is the cancel grace period of a pool that is not configured.
const defaultCancelGrace = 5 * time.Minute

const (
	forcedGrace      = 30 * time.Second // longest cancel grace period after a forced stop
	interruptTimeout = 10 * time.Second // of one request to interrupt a runner
)

// Interrupter is an optional interface of an [Executor] that can send a signal to a
// runner. With an executor that lacks it, the cancel grace period is part of the grace period
// of Remove, and the executor may use the period that was in force when the job started.
type Interrupter interface {
	// Interrupt sends the runner a SIGINT, and does not wait for the end of the runner. The
	// runner only interrupts its step; a later Remove stops the runner. Interrupt returns
	// [ErrNoInstance] if there is no instance, and nil if the runner has ended.
	Interrupt(ctx context.Context, id string) error
}

// ForceStop shortens the cancel grace period of jobs that are stopped, now and later.
func (p *Pool) ForceStop() { p.forceStop() }

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
// combined if the executor is no [Interrupter], or if Interrupt fails. If the engine fails,
// stop retries until the pool has no time left; the job keeps its slot, because it may still
// run.
func (r *jobRun) stop(cause error, endedCh <-chan struct{}, children *sync.WaitGroup) (stopped bool) {
	// 1. Interrupt.
	grace := StopGrace
	if period, _ := r.pool.cancelGrace(); period > 0 && !errors.Is(cause, errRunnerHung) && r.leaser == nil {
		interrupter, ok := r.pool.parts.Executor.(Interrupter)
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
		if r.leaser != nil {
			grace = r.leaseGrace()
		}
		removed := make(chan error, 2)
		remove := func(grace time.Duration) { children.Go(func() { removed <- r.remove(grace) }) }
		remove(grace)
		forced := (<-chan struct{})(r.pool.forced)
		if grace <= StopGrace {
			forced = nil
		}
		for {
			select {
			case <-forced: // shorten the grace period
				forced, grace = nil, StopGrace
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

// interrupt interrupts the step, and waits until the job has ended, its step has ended, or
// the cancel grace period is over. It returns false if the runner could not be interrupted.
func (r *jobRun) interrupt(interrupter Interrupter, endedCh <-chan struct{}) (ok bool) {
	begin := time.Now()
	ctx, cancel := context.WithTimeout(r.pool.finalCtx, interruptTimeout)
	err := interrupter.Interrupt(ctx, r.id)
	cancel()
	if err != nil && !errors.Is(err, ErrNoInstance) {
		r.log.Warn("cannot interrupt runner; it gets a SIGTERM instead", "instance", r.id, "error", err)
		return false
	}
	if r.pool.awaitGrace(begin, 0, endedCh, r.stepEnded) {
		r.log.Warn("job did not end within the cancel grace period; it is terminated",
			"after", time.Since(begin).Round(time.Second))
	}
	return true
}

// Pulumi is how pulumi ended in a step that was stopped.
type Pulumi string

// The ends of pulumi.
const (
	PulumiEnded      Pulumi = "ended"      // after the first signal: it has released the lock of the stack
	PulumiTerminated Pulumi = "terminated" // after the second signal: operations may be pending
	PulumiKilled     Pulumi = "killed"     // without a chance to release the lock
)

// maxStack is the longest name of a stack in messages, in bytes.
const maxStack = 150

// ValidStack reports whether a text can be the full name of a stack: organization, project
// and stack, separated by slashes.
func ValidStack(name string) bool {
	const valid = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-"
	parts := strings.Split(name, "/")
	for _, part := range parts {
		if part == "" || strings.Trim(part, valid) != "" {
			return false
		}
	}
	return len(parts) == 3 && len(name) <= maxStack
}

// PulumiCommands returns the commands that make a stack usable again after its pulumi was
// terminated or killed, each with its purpose. If stack is empty, they have a placeholder.
func PulumiCommands(stack string) []string {
	if stack == "" {
		stack = "ORGANIZATION/PROJECT/STACK"
	}
	return []string{
		"  pulumi cancel --yes --stack " + stack + "  # removes the lock",
		"  pulumi stack export --stack " + stack + " --file stack.json  # shows pending_operations",
		"  pulumi refresh --stack " + stack + "  # resolves them; or edit the file, and then:",
		"  pulumi stack import --stack " + stack + " --file stack.json",
	}
}
