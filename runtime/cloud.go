package runtime

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cmwa-project/cmwa/schema/secret"
)

// Cloud is the client of a service, as a pool uses it. Implementations are safe for concurrent
// use and apply their own timeouts; a context bounds a call with its retries.
//
// A Cloud computes the schedule of polls from the polling interval, the Retry-After of the
// service, the retries of a poll that failed, and the circuit breaker. It logs polls
// that fail, and the first poll that succeeds after them.
type Cloud interface {
	// Claim polls once for a job. It has a side effect: the returned job belongs to the
	// caller, and a job is lost if the response is lost. So Claim never retries a request
	// that the service may have understood, and callers do not cancel it. Claim.Next is
	// filled in even if there is an error.
	Claim(ctx context.Context) (Claim, error)

	// Tune replaces the settings, and returns when the next poll is allowed with them. A
	// poll that is under way keeps its settings. Tune changes nothing if the settings are
	// equal to those in force.
	Tune(tuning Tuning) NextPoll

	// Retry ends the delay after a failed poll, unless the service requested this delay. It
	// returns when the next poll is allowed, and makes no request.
	Retry() NextPoll

	// Health returns the condition of the connection to the service. It does not block.
	Health() ServiceHealth

	// Definition fetches the definition of a job. It returns [ErrGone] if the service no
	// longer has the job.
	Definition(ctx context.Context, job *Job) (Definition, error)

	// JobStatus returns the status of a job. An error never means that the job is
	// cancelled.
	JobStatus(ctx context.Context, job *Job) (JobStatus, error)

	// Report sends a report of the agent about a step. It retries until ctx ends, and is safe to
	// repeat. It returns [ErrGone] if the service no longer accepts reports of the job.
	Report(ctx context.Context, job *Job, report Report) error
}

// Claim is the result of a poll.
type Claim struct {
	Job  *Job // nil if there is no job; the caller fills in the fields about its pool and agent
	Next NextPoll
}

// NextPoll is when a pool may poll again. If it has no reason, the pool waits only for the
// polling interval, and may poll earlier.
type NextPoll struct {
	At     time.Time // zero: at once
	Reason string    // text for people: why polling waits until At
}

// ServiceHealth is the condition of the connection between a pool and its service.
type ServiceHealth struct {
	BreakerOpen bool      // the circuit breaker has opened, and no poll has closed it since
	TokenExpiry time.Time // when the token of an OIDC exchange expires; zero without such a token
	LeasesNone  bool      // the last answer of the service, if it was not a single refusal, was that it leases no work
}

// JobStatus is the status of a job at the service.
type JobStatus string

// The statuses of a job.
const (
	Continue   JobStatus = "continue"   // the service has the job, and it may continue
	Unanswered JobStatus = "unanswered" // the service has no route for the status of this job: the job continues
	Completing JobStatus = "completing" // the outcome of the last step is reported: the runner is about to exit
	Cancelled  JobStatus = "cancelled"  // failed or skipped at the service: cancelled, unless the runner reported this
	Gone       JobStatus = "gone"       // the service no longer has the job
)

// Report is a report of the agent about one step: the setup, or a failure that the runner
// could not report. The status running is sent before the lines and counts as a heartbeat;
// a final status is sent after the lines, even if the lines were not accepted. A report
// without lines and status is only a heartbeat.
type Report struct {
	Step   int
	Offset int // index of the first of Lines within the step
	Lines  []Line
	Status Status // empty if only lines are reported
}

// Line is one line of a step's log, with its newline if it has one.
type Line struct {
	Time time.Time
	Text string
}

// Errors that a Cloud's errors may wrap.
var (
	// ErrGone is returned if the service no longer has the job.
	ErrGone = errors.New("the service no longer has this job")
	// ErrLogsDropped is returned if a report's lines were not accepted, but its status was.
	ErrLogsDropped = errors.New("log lines were not accepted")
	// ErrCancelled is the reason why a job ends that the service has cancelled.
	ErrCancelled = errors.New("the service cancelled the job")
	// ErrUnauthorized is returned if the service rejects the credentials of the pool.
	ErrUnauthorized = errors.New("the service rejects the token")
)

// OffsetError is wrapped with [ErrLogsDropped] if Report.Offset is not the number of lines of
// the step that the service has, and the service has reported this number. The numbers differ
// if an agent was killed before it recorded the last lines that it sent. If the report ends the
// step, there is no such error: the lines are sent again at the right offset.
type OffsetError struct{ Next int }

// Error returns the offset at which the log continues.
func (e *OffsetError) Error() string { return fmt.Sprintf("the log continues at offset %d", e.Next) }

// LeasedWork determines whether a pool leases scans and policy evaluations.
type LeasedWork string

// The values of [Tuning].LeasedWork.
const (
	LeasedAuto   LeasedWork = "auto" // if the service reports that it has leases
	LeasedAlways LeasedWork = "always"
	LeasedNever  LeasedWork = "never"
)

// Leased reports whether work of this kind is leased. Deployments are claimed instead.
func (k Kind) Leased() bool { return k == InsightsScan || k == PolicyEvaluation }

// ClaimsDeployments reports whether the pool may claim deployments. It is true without Kinds, as in a
// pool that only finishes jobs.
func (t Tuning) ClaimsDeployments() bool {
	return len(t.Kinds) == 0 || slices.Contains(t.Kinds, Deployment)
}

// Subject returns the noun for what a job of this kind works on, as Job.WorkflowID names it.
func (k Kind) Subject() string {
	if k.Leased() {
		return "activity"
	}
	return "deployment"
}

// LeasedKinds returns the kinds that the pool may lease.
func (t Tuning) LeasedKinds() (kinds []Kind) {
	if t.LeasedWork == LeasedNever || t.LeasedWork == "" {
		return nil
	}
	for _, kind := range t.Kinds {
		if kind.Leased() {
			kinds = append(kinds, kind)
		}
	}
	return kinds
}

// Leaser is an optional interface of a [Cloud] whose service leases scans and policy
// evaluations. Another agent gets leased work when its lease has expired. Methods are safe
// for concurrent use.
type Leaser interface {
	// Acquire polls once for work of these kinds, as far as the settings allow them. It makes
	// no request if the settings or the service allow no leases. Claim.Job has a Lease. If
	// the response is lost, the lease expires.
	Acquire(ctx context.Context, kinds []Kind) (Claim, error)

	// NextLease returns when Acquire may be called. It makes no request.
	NextLease() NextPoll

	// Renew renews a lease in one attempt, and returns the new duration of the lease, counted
	// from the beginning of the call. If begin is true, Renew also reports to the service that
	// the work starts. An error is temporary unless it wraps [ErrLeaseLost].
	Renew(ctx context.Context, job *Job, begin bool) (time.Duration, error)

	// Complete ends a lease whose work has ended, with retries until ctx ends.
	Complete(ctx context.Context, job *Job, result LeaseResult, reason string) error
}

// ErrLeaseLost is returned if the service has ended a lease.
var ErrLeaseLost = errors.New("the lease is lost")

// Lease is the lease of a job. It is empty for a deployment.
type Lease struct {
	ID    string
	Token secret.String // for calls about the lease only
	Until time.Time     // when it expires, unless it is renewed
}

// LeaseResult is how leased work has ended.
type LeaseResult string

// The results of leased work.
const (
	LeaseSucceeded LeaseResult = "succeeded"
	LeaseFailed    LeaseResult = "failed" // the work must not be leased again
	LeaseRetry     LeaseResult = "retry"  // the work may be leased again
)
