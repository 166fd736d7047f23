package runtime

import "time"

// PoolPhase is what a pool is doing.
type PoolPhase string

// The phases of a pool.
const (
	PoolStarting PoolPhase = "starting"
	PoolPolling  PoolPhase = "polling"
	PoolPaused   PoolPhase = "paused"  // by an operator: see Reason
	PoolBackoff  PoolPhase = "backoff" // after a failure, or at the service's request: see Until and Reason
	PoolWaiting  PoolPhase = "waiting" // for one of the process's slots: see Reason
	PoolDraining PoolPhase = "draining"
	PoolStopped  PoolPhase = "stopped"
)

// PoolState is a snapshot of a pool.
type PoolState struct {
	Spec      PoolSpec // in force
	Phase     PoolPhase
	Until     time.Time // end of a backoff; zero if it ends with its cause
	Reason    string    // of a pause, of a backoff, of waiting, or of draining
	PollError string    // why the last poll failed; empty if it succeeded
	Jobs      []JobState
	Due       time.Time // latest time of a loop's next turn; zero while the loops wait for events

	// AnsweredAt is when the service last answered the pool: a poll, or a status poll of a
	// job. Zero is never.
	AnsweredAt time.Time

	// ActiveAt is the last time at which the service answered the pool, the pool started, or a job
	// started, ended or made progress. Zero is never.
	ActiveAt time.Time

	// FailingSince is when the first of the current series of failed polls started; zero if the
	// last poll did not fail.
	FailingSince time.Time

	// PollingSince is when the poll that is under way started; zero without one. With its
	// retries a poll may take minutes.
	PollingSince time.Time

	// ExecutorProblem is one line with the reason why the executor cannot start jobs, and
	// the hint. It is empty if the executor can start jobs, and while the pool drains or is
	// paused by the operator. With a problem the pool does not poll: its phase is backoff, and
	// Until is zero.
	ExecutorProblem string

	// Unserved is why the pool gets no work of any kind that it may claim: all of them are leased,
	// and the service leases none. It is empty if the pool may get work.
	Unserved string

	Service ServiceHealth

	Ready     bool  // the pool has started, see [Pool.Ready]
	Completed bool  // a single run has ended, after its job or after the idle timeout: the pool stops or has stopped
	Err       error // why the pool failed; nil if it was drained, stopped or completed
}

// JobState is a snapshot of a job.
type JobState struct {
	ID         string
	WorkflowID string
	Kind       Kind
	Work       Work // empty until the definition is known
	Phase      Phase
	Instance   string    // id of the job's container, Pod or directory; empty before the start
	Since      time.Time // of the claim, or when the instance of an adopted job was started
	ActiveAt   time.Time // of the last change of the phase, or the last progress; zero before either

	Stages []StageTime // that have ended, in the order of their ends
}

// StageTime is when a stage of a job started and ended.
type StageTime struct {
	Stage      Stage
	Start, End time.Time
}

// StepTime is when a step of a job started and ended, as the runner's progress has shown.
type StepTime struct {
	Step       int
	Name       string // from the job's definition; empty while the step runs
	Status     Status
	Start, End time.Time // End is zero while the step runs
}

// Overdue returns the time since a loop's next turn was due, or 0 if it is not due.
func (s PoolState) Overdue(now time.Time) time.Duration {
	if s.Due.IsZero() {
		return 0
	}
	return max(0, now.Sub(s.Due))
}
