package runtime

import (
	"maps"
	"slices"
	"time"
)

// PoolPhase is what a pool is doing.
type PoolPhase string

// The phases of a pool.
const (
	PoolStarting PoolPhase = "starting"
	PoolPolling  PoolPhase = "polling"
	PoolPaused   PoolPhase = "paused"  // does not poll: see Until and Reason
	PoolWaiting  PoolPhase = "waiting" // for one of the process's slots: see Reason
	PoolDraining PoolPhase = "draining"
	PoolStopped  PoolPhase = "stopped"
)

// PoolState is a snapshot of a pool.
type PoolState struct {
	Spec      PoolSpec // in force
	Phase     PoolPhase
	Until     time.Time // end of a pause
	Reason    string    // of a pause, of waiting, or of draining
	PollError string    // why the last poll failed; empty if it succeeded
	Jobs      []JobState
	Due       time.Time // latest time of a loop's next turn; zero while the loops wait for events

	// AnsweredAt is when the service last answered the pool: a poll, or a status poll of a
	// job. Zero is never.
	AnsweredAt time.Time

	// FailingSince is when the first of the current series of failed polls began; zero if the
	// last poll did not fail.
	FailingSince time.Time

	// PollingSince is when the poll that is under way began; zero without one. With its
	// retries a poll may take minutes.
	PollingSince time.Time

	// ExecutorProblem is one line with the reason why the executor cannot start jobs, and
	// the cure. It is empty if the executor can start jobs, and while the pool drains or is
	// paused by the operator. With a problem the pool does not poll: its phase is paused, and
	// Until is zero.
	ExecutorProblem string

	// These two are zero unless the Cloud is a [ServiceHealthReporter].
	BreakerOpen bool      // the circuit breaker has opened, and no poll has closed it since
	TokenExpiry time.Time // when the token of an OIDC exchange expires; zero without such a token

	Ready     bool  // the pool has started, see [Pool.Ready]
	Completed bool  // a single run has ended, after its job or after the idle timeout: the pool stops or has stopped
	Err       error // why the pool failed; nil if it was drained, stopped or completed
}

// JobState is a snapshot of a job.
type JobState struct {
	ID         string
	WorkflowID string
	Kind       Kind
	Phase      Phase
	Since      time.Time // of the claim, or when the instance of an adopted job was started
}

// Overdue returns the time since a loop's next turn was due, or 0 if it is not due.
func (s PoolState) Overdue(now time.Time) time.Duration {
	if s.Due.IsZero() {
		return 0
	}
	return max(0, now.Sub(s.Due))
}

// State returns a snapshot of the pool.
func (p *Pool) State() PoolState {
	p.mu.Lock()
	defer p.mu.Unlock()

	// Copy the state of the pool, its polls and its service.
	state := PoolState{
		Spec:  p.spec,
		Phase: p.phase(),
		Due:   p.nextDue(),
		Ready: closed(p.ready),

		AnsweredAt: p.polls.answered, FailingSince: p.polls.failingSince, PollingSince: p.deployments.polling,

		Completed: p.err == nil && p.spec.Tuning.SingleRun && (p.ended > 0 || p.idleEnd),
		Err:       p.err,
	}
	if reporter, ok := p.parts.Cloud.(ServiceHealthReporter); ok {
		health := reporter.ServiceHealth()
		state.BreakerOpen, state.TokenExpiry = health.BreakerOpen, health.TokenExpiry
	}
	if p.polls.failing != nil {
		state.PollError = p.polls.failing.Error()
	}

	// Add the reason why the pool does not poll, if it does not, and list the jobs.
	switch {
	case state.Phase == PoolPaused && p.spec.Tuning.Paused:
		state.Reason = "paused by cmwa pause"
	case state.Phase == PoolPaused && p.check.problem != nil:
		state.Reason = "the executor cannot start jobs, so the pool does not poll"
		state.ExecutorProblem = p.check.problem.Error()
	case state.Phase == PoolPaused:
		hold := p.hold()
		state.Until, state.Reason = hold.At, hold.Reason
	}
	if state.Phase == PoolWaiting {
		state.Reason = "all job slots of the agent are in use, by jobs or by polls of other pools"
	}
	if state.Phase == PoolDraining && p.spec.Leftover {
		state.Reason = "the pool is no longer configured, and finishes jobs of an earlier run of the agent"
	}
	for _, id := range slices.Sorted(maps.Keys(p.runs)) {
		state.Jobs = append(state.Jobs, p.runs[id].state())
	}
	return state
}

// phase returns the phase of the pool. The caller holds the lock.
func (p *Pool) phase() PoolPhase {
	switch {
	case p.stopped:
		return PoolStopped
	case p.draining:
		return PoolDraining
	case !closed(p.ready):
		return PoolStarting
	case p.spec.Tuning.Paused, p.check.problem != nil, time.Now().Before(p.hold().At):
		return PoolPaused
	case p.deployments.queued:
		return PoolWaiting
	default:
		return PoolPolling
	}
}

// hold returns the hold of the Cloud or the hold after failed starts, the one that ends
// later. Its end may be past. The caller holds the lock.
func (p *Pool) hold() NextPoll {
	if p.polls.next.Reason != "" && p.polls.next.At.After(p.starts.hold.At) {
		return p.polls.next
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
