package pool

import (
	"maps"
	"slices"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
)

// State returns a snapshot of the pool.
func (p *Pool) State() runtime.PoolState {
	p.mu.Lock()
	defer p.mu.Unlock()

	// Copy the state of the pool, its polls and its service.
	state := runtime.PoolState{
		Spec:  p.spec,
		Phase: p.phase(),
		Due:   p.nextDue(),
		Ready: closed(p.ready),

		Service:    p.parts.Cloud.Health(),
		AnsweredAt: p.polls.answered, FailingSince: p.polls.failingSince, PollingSince: p.principal().polling,

		Completed: p.err == nil && p.spec.Tuning.SingleRun && (p.single.ended > 0 || p.single.idle),
		Err:       p.err,
	}
	if p.polls.failing != nil {
		state.PollError = p.polls.failing.Error()
	}

	// Add the reason why the pool does not poll, if it does not, and list the jobs.
	switch {
	case state.Phase == runtime.PoolPaused:
		state.Reason = "paused by cmwa pause"
	case state.Phase == runtime.PoolBackoff && p.check.problem != nil:
		state.Reason = "the executor cannot start jobs, so the pool does not poll"
		state.ExecutorProblem = p.check.problem.Error()
	case state.Phase == runtime.PoolBackoff:
		hold := p.hold()
		state.Until, state.Reason = hold.At, hold.Reason
	case state.Phase == runtime.PoolWaiting:
		state.Reason = "all job slots of the agent are in use, by jobs or by polls of other pools"
	case state.Phase == runtime.PoolDraining && p.spec.Leftover:
		state.Reason = "the pool is no longer configured, and finishes jobs of an earlier run of the agent"
	}
	if !p.spec.Tuning.ClaimsDeployments() {
		state.Unserved = unserved(p.spec.Tuning, state.Service)
	}
	state.ActiveAt = later(p.polls.answered, p.single.idleSince)
	for _, id := range slices.Sorted(maps.Keys(p.runs)) {
		job := p.runs[id].state()
		state.Jobs, state.ActiveAt = append(state.Jobs, job), later(state.ActiveAt, job.ActiveAt)
	}
	return state
}

// unserved returns why a pool that claims no deployments gets no leased work, or "".
func unserved(tuning runtime.Tuning, service runtime.ServiceHealth) string {
	switch {
	case len(tuning.LeasedKinds()) == 0:
		return "enabled_workflow_types has no deployment, and leased_work is never: the pool claims no work of any kind"
	case service.LeasesNone:
		return "the service leases no scans or policy evaluations, and enabled_workflow_types has no deployment: " +
			"the pool gets no work"
	}
	return ""
}

// later returns the later of two times.
func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// phase returns the phase of the pool. The caller holds the lock.
func (p *Pool) phase() runtime.PoolPhase {
	switch {
	case p.stopped:
		return runtime.PoolStopped
	case p.draining:
		return runtime.PoolDraining
	case !closed(p.ready):
		return runtime.PoolStarting
	case p.spec.Tuning.Paused:
		return runtime.PoolPaused
	case p.check.problem != nil, time.Now().Before(p.hold().At):
		return runtime.PoolBackoff
	case p.principal().queued:
		return runtime.PoolWaiting
	default:
		return runtime.PoolPolling
	}
}

// hold returns the hold of the Cloud or the hold after failed starts, the one that ends
// later. Its end may be past. The caller holds the lock.
func (p *Pool) hold() runtime.NextPoll {
	if next := p.principal().next(); next.Reason != "" && next.At.After(p.starts.hold.At) {
		return next
	}
	return p.starts.hold
}

// nextDue returns the earliest time at which a loop of the pool is due. The caller holds the lock.
func (p *Pool) nextDue() time.Time {
	due := p.due
	for _, s := range p.sources {
		if due.IsZero() || !s.due.IsZero() && s.due.Before(due) {
			due = s.due
		}
	}
	return due
}
