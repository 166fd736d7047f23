package runtime

import (
	"time"
)

// Recorder counts the work of all pools of a process, for its metrics. The recorder
// outlives the pools, so that a replaced pool loses no count. Its methods do not block
// and are safe for concurrent use.
//
// A claimed job ends once: JobEnded is called after JobClaimed, unless the agent ends first
// and leaves the job to another agent. For an adopted job, only JobEnded is called, because
// an earlier process has recorded the claim.
type Recorder interface {
	// ServiceCall records one HTTP call to a service. Each retry is another call.
	ServiceCall(call ServiceCall)
	// Poll records one poll of a pool with its result.
	Poll(pool string, result PollResult)
	// JobClaimed records a claimed job of a pool. It is not called for a job that the
	// service hands out again while the pool runs it.
	JobClaimed(pool string, kind Kind)
	// JobStage records how long one stage of a job took, also if it failed.
	JobStage(stage Stage, took time.Duration)
	// JobEnded records the outcome of a job of a pool.
	JobEnded(pool string, kind Kind, outcome Outcome)
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
	Code  int           // HTTP status code; 0 for a call without an answer
	Took  time.Duration // until the answer, or the error
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
// of the runner.
const (
	StageDefinition Stage = "definition" // the definition is fetched
	StagePull       Stage = "pull"       // the image is pulled
	StageCreate     Stage = "create"     // the container, Pod or process group is created
	StageStart      Stage = "start"      // from the created instance to the received handoff
	StageRun        Stage = "run"        // the runner works
	StageReport     Stage = "report"     // the outcome is reported to the service
	StageRemove     Stage = "remove"     // the instance is removed
)

// Outcome is how a job ended, as far as the agent knows.
type Outcome string

// The outcomes of a job.
const (
	OutcomeSucceeded Outcome = "succeeded"
	OutcomeFailed    Outcome = "failed"    // a step failed, or the job could not be started
	OutcomeCancelled Outcome = "cancelled" // the service cancelled the job, or the agent stopped it at its own end
	OutcomeLost      Outcome = "lost"      // the service no longer has the job, or its outcome is unknown
)

// ServiceHealth is the condition of the connection between a pool and its service.
type ServiceHealth struct {
	BreakerOpen bool      // the circuit breaker has opened, and no poll has closed it since
	TokenExpiry time.Time // when the token of an OIDC exchange expires; zero without such a token
}

// ServiceHealthReporter is implemented by a [Cloud] that knows the condition of its
// connection. ServiceHealth does not block and is safe for concurrent use.
type ServiceHealthReporter interface {
	ServiceHealth() ServiceHealth
}

// NoRecorder is a Recorder that records nothing.
type NoRecorder struct{}

// ServiceCall implements [Recorder].
func (NoRecorder) ServiceCall(ServiceCall) {}

// Poll implements [Recorder].
func (NoRecorder) Poll(string, PollResult) {}

// JobClaimed implements [Recorder].
func (NoRecorder) JobClaimed(string, Kind) {}

// JobStage implements [Recorder].
func (NoRecorder) JobStage(Stage, time.Duration) {}

// JobEnded implements [Recorder].
func (NoRecorder) JobEnded(string, Kind, Outcome) {}

// JobRecovered implements [Recorder].
func (NoRecorder) JobRecovered(string, RecoveryAction) {}

// JournalFailed implements [Recorder].
func (NoRecorder) JournalFailed(string) {}

// Measure starts to measure a stage, and returns a function that ends and records the
// measurement.
func Measure(recorder Recorder, stage Stage) (end func()) {
	start := time.Now()
	return func() { recorder.JobStage(stage, time.Since(start)) }
}
