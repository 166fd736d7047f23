package runtime

import (
	"context"
	"fmt"
	"time"
)

// Cloud is what a pool asks of a service. Implementations are safe for
// concurrent use and limit each call in time themselves; a context bounds the
// whole of a call, its retries included.
//
// A Cloud owns the schedule of polls: the polling interval, the Retry-After of the
// service, the retries of a poll that failed, and the circuit breaker. It logs polls
// that fail, and the first that succeeds again.
type Cloud interface {
	// Claim polls once for a job. It has a side effect: what it returns belongs to
	// the caller, and an answer that gets lost is a job that gets lost. So it
	// never repeats a request that may have been understood, and callers do not
	// cancel it. Claim.Next is filled in also when there is an error.
	Claim(ctx context.Context) (Claim, error)

	// Tune replaces the settings, and returns when the next poll is allowed under
	// them. A poll that is under way keeps its settings. With the settings in force
	// it changes nothing.
	Tune(tuning Tuning) NextPoll

	// Definition fetches what the job is made of. [ErrGone] when the service no
	// longer has the job.
	Definition(ctx context.Context, job *Job) (Definition, error)

	// Wanted asks whether the job shall go on. An error never means no.
	Wanted(ctx context.Context, job *Job) (Verdict, error)

	// Report says the agent's own word about a step. It is safe to repeat.
	// [ErrGone] when the service wants to hear no more of the job.
	Report(ctx context.Context, job *Job, report Report) error
}

// PollRetrier is an optional interface of a [Cloud].
type PollRetrier interface {
	// Retry ends the wait after a failed poll, except for what the service asked
	// for, and returns when the next poll is allowed. It makes no request.
	Retry() NextPoll
}

// Claim is the outcome of a poll.
type Claim struct {
	Job  *Job // nil when there is nothing to do; the caller fills in what is its own
	Next NextPoll
}

// NextPoll is when a pool may poll again. Without a reason it is only the polling
// interval, which a pool may cut short.
type NextPoll struct {
	At     time.Time // zero: at once
	Reason string    // why polling is held until At, for people
}

// Verdict is a service's answer to whether a job shall go on.
type Verdict string

// The verdicts.
const (
	CarryOn    Verdict = "carry on"   // the service knows the job and wants it
	Unanswered Verdict = "unanswered" // the service has no call that answers for this job: it carries on
	Finishing  Verdict = "finishing"  // the last step is reported: the runner is about to end
	Ended      Verdict = "ended"      // failed or skipped there: cancelled, unless the runner itself said so
	Gone       Verdict = "gone"       // the service does not know it any more
)

// Report is the agent's own word about one step: set-up, or a failure that the
// runner could not tell. Running is told before the lines and counts as a sign
// of life (a heartbeat); an end is told after them, whatever became of them. A
// report of neither lines nor a status is a sign of life alone.
type Report struct {
	Step   int
	Offset int    // index of the first of Lines within the step
	Lines  []Line //
	Status Status // empty when only lines are told
}

// Line is one line of a step's log, with its newline if it has one.
type Line struct {
	Time time.Time
	Text string
}

// Sentinels that a Cloud's errors may wrap.
var (
	// ErrGone says that the service does not want to hear of the job any more.
	ErrGone = fmt.Errorf("the service no longer has this job")
	// ErrUntold says that a report's lines did not arrive, and all else did.
	ErrUntold = fmt.Errorf("lines of the log could not be told")
	// ErrUnauthorized says that the service refuses the pool's credentials.
	ErrUnauthorized = fmt.Errorf("the service refuses the token")
)
