package runtime

import "time"

// Metrics records the work of all pools of a process. The value outlives the pools, so
// that the counters go on when a pool is replaced. Its methods do not block and are safe for
// concurrent use.
//
// A claimed job ends once: JobEnded is called after JobClaimed, unless the agent ends first
// and leaves the job to another agent. For an adopted job, only JobEnded is called, because
// an earlier process has recorded the claim.
type Metrics interface {
	// ServiceCall records one HTTP call to a service. Each retry is another call.
	ServiceCall(call ServiceCall)
	// Poll records one poll of a pool with its result.
	Poll(pool string, result PollResult)
	// JobClaimed records a claimed job of a pool. It is not called for a job that the
	// service hands out again while the pool runs it.
	JobClaimed(pool string, kind Kind)
	// JobStage records how long one stage of a job took, also if it failed. Target is the
	// deploy_target.
	JobStage(target string, stage Stage, took time.Duration)
	// JobStartFailed records a job that failed before its first step.
	JobStartFailed(target string, reason StartFailure)
	// JobEnded records a job of a pool, with its last state, and its outcome.
	JobEnded(pool string, job JobState, outcome Outcome)
	// JobRecovered records what a pool does with a journalled job of an earlier run of the
	// agent.
	JobRecovered(pool string, action RecoveryAction)
	// JournalFailed records that a claimed job of a pool could not be journalled.
	JournalFailed(pool string)
}

// RecoveryAction is what a pool does with a journalled job of an earlier run of the agent.
type RecoveryAction string

// The actions.
const (
	RecoveryResumed  RecoveryAction = "resumed"  // its instance is adopted
	RecoveryStarted  RecoveryAction = "started"  // it had not run, and is started again
	RecoveryReported RecoveryAction = "reported" // it is reported as failed
	RecoveryRemoved  RecoveryAction = "removed"  // the service knew its outcome
)

// ServiceCall is one HTTP call to a service.
type ServiceCall struct {
	Route string        // pattern of the path without ids, such as "GET /api/deployments/poll"
	Code  int           // HTTP status code; 0 for a call without a response
	Took  time.Duration // until the response, or the error
}

// PollResult is the result of a poll.
type PollResult string

// The results of a poll.
const (
	PollClaimed PollResult = "job"    // the poll claimed a job
	PollEmpty   PollResult = "empty"  // the service has no job for the pool
	PollFailed  PollResult = "failed" // the service did not answer, or refused
)

// Stage is a part of a job's time in the agent.
type Stage string

// The stages of a job. Executors measure pull, create and start, each if it applies
// ([Setup.Measure]). Report is recorded only if the agent reports the outcome in place
// of the runner. An adopted job has no claim and no first line.
const (
	StageClaim      Stage = "claim"      // the poll that returned the job
	StageDefinition Stage = "definition" // the definition is fetched
	StagePull       Stage = "pull"       // the image is pulled
	StageCreate     Stage = "create"     // the container, Pod or process group is created
	StageStart      Stage = "start"      // from the created instance to the received handoff
	StageFirstLine  Stage = "first_line" // from the received handoff to the runner's first report
	StageRun        Stage = "run"        // from the received handoff to the end of the runner
	StageReport     Stage = "report"     // the outcome is reported to the service
	StageRemove     Stage = "remove"     // the instance is removed
)

// Outcome is how a job ended, as far as the agent knows.
type Outcome string

// The outcomes of a job.
const (
	OutcomeSucceeded Outcome = "succeeded"
	OutcomeFailed    Outcome = "failed"    // a step failed, or the job could not be started
	OutcomeCancelled Outcome = "cancelled" // the service cancelled it, or an operator or the agent's end stopped it
	OutcomeLost      Outcome = "lost"      // the service no longer has the job, or its outcome is unknown
)

// NoMetrics implements [Metrics] and records nothing.
type NoMetrics struct{}

// ServiceCall implements [Metrics].
func (NoMetrics) ServiceCall(ServiceCall) {}

// Poll implements [Metrics].
func (NoMetrics) Poll(string, PollResult) {}

// JobClaimed implements [Metrics].
func (NoMetrics) JobClaimed(string, Kind) {}

// JobStage implements [Metrics].
func (NoMetrics) JobStage(string, Stage, time.Duration) {}

// JobStartFailed implements [Metrics].
func (NoMetrics) JobStartFailed(string, StartFailure) {}

// JobEnded implements [Metrics].
func (NoMetrics) JobEnded(string, JobState, Outcome) {}

// JobRecovered implements [Metrics].
func (NoMetrics) JobRecovered(string, RecoveryAction) {}

// JournalFailed implements [Metrics].
func (NoMetrics) JournalFailed(string) {}
