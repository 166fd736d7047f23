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
	PoolPaused   PoolPhase = "paused"  // waits on purpose: see Until and Why
	PoolWaiting  PoolPhase = "waiting" // for one of the process's slots: see Why
	PoolDraining PoolPhase = "draining"
	PoolStopped  PoolPhase = "stopped"
)

// PoolState is a snapshot of a pool.
type PoolState struct {
	Spec    PoolSpec // in force
	Phase   PoolPhase
	Until   time.Time // end of a pause
	Why     string    // reason of a pause, or of the waiting
	Failing string    // why the last question for work failed; empty if it did not
	Jobs    []JobState
	Due     time.Time // latest time of the loop's next turn; zero while an event wakes it

	// AnsweredAt is when the service last answered the pool: a poll, with a job or
	// with none, or the question whether a job is wanted. Zero is never.
	AnsweredAt time.Time

	FailingSince time.Time // start of the first failed poll since then; zero if the last poll did not fail

	// PollingSince is when the poll that is under way began; zero if none is. With
	// its retries a poll may last for minutes.
	PollingSince time.Time

	// ExecutorProblem is why the executor cannot start jobs, in one line with the
	// cure. Empty if it can, and for a pool that claims nothing more. While there
	// is one the pool does not poll; its phase is paused, without an end.
	ExecutorProblem string

	Begun    bool  // it is past its start, see [Pool.Begun]
	Finished bool  // its single run is over: it stops, or has stopped, of its own will
	Err      error // why it stopped, when it should not have
}

// JobState is a snapshot of a job.
type JobState struct {
	ID      string
	Subject string
	Phase   Phase
	Since   time.Time // of the claim, or of the adoption
}

// Overdue returns how long ago the loop should have turned, 0 while its next turn is
// not due.
func (s PoolState) Overdue(now time.Time) time.Duration {
	if s.Due.IsZero() {
		return 0
	}
	return max(0, now.Sub(s.Due))
}

// State returns a snapshot.
func (p *Pool) State() PoolState {
	p.mu.Lock()
	defer p.mu.Unlock()
	state := PoolState{
		Spec:  p.spec,
		Phase: p.phase(),
		Due:   p.due,
		Begun: closed(p.begun),

		AnsweredAt: p.polls.answered, FailingSince: p.polls.failingSince, PollingSince: p.polls.since,

		Finished: p.err == nil && p.spec.Tuning.SingleRun && p.done > 0,
		Err:      p.err,
	}
	if p.polls.failing != nil {
		state.Failing = p.polls.failing.Error()
	}
	switch {
	case state.Phase == PoolPaused && p.check.problem != nil:
		state.Why = "the executor cannot start jobs, so the pool does not poll"
		state.ExecutorProblem = p.check.problem.Error()
	case state.Phase == PoolPaused:
		hold := p.hold()
		state.Until, state.Why = hold.At, hold.Reason
	}
	if state.Phase == PoolWaiting {
		state.Why = "each of the agent's places for a job is taken, by a job or by a pool that asks for work"
	}
	if state.Phase == PoolDraining && p.spec.Leftover {
		state.Why = "the pool is no longer configured, and has jobs of an earlier run of the agent"
	}
	for _, id := range slices.Sorted(maps.Keys(p.lives)) {
		state.Jobs = append(state.Jobs, p.lives[id].state())
	}
	return state
}

// phase says what the pool is doing. The caller holds the lock.
func (p *Pool) phase() PoolPhase {
	switch {
	case p.stopped:
		return PoolStopped
	case p.drain:
		return PoolDraining
	case !closed(p.begun):
		return PoolStarting
	case p.check.problem != nil, time.Now().Before(p.hold().At):
		return PoolPaused
	case p.waiting:
		return PoolWaiting
	default:
		return PoolPolling
	}
}

// hold returns the hold that ends last, of the Cloud or after failed starts. It may be
// past. The caller holds the lock.
func (p *Pool) hold() NextPoll {
	if p.polls.next.Reason != "" && p.polls.next.At.After(p.starts.hold.At) {
		return p.polls.next
	}
	return p.starts.hold
}
