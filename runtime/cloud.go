package runtime

import (
	"context"
	"fmt"
	"time"
)

// Cloud is what a pool asks of a service. Implementations are safe for
// concurrent use and limit each call in time themselves; a context bounds the
// whole of a call, its repetitions included.
type Cloud interface {
	// Claim asks once for a job. It has a side effect: what it returns belongs to
	// the caller, and an answer that gets lost is a job that gets lost. So it
	// never repeats a request that may have been understood, and callers do not
	// cancel it. A *Pause as error says not to ask again before its time.
	Claim(ctx context.Context) (Claim, error)

	// Definition fetches what the job is made of. [ErrGone] when the service no
	// longer has the job.
	Definition(ctx context.Context, job *Job) (Definition, error)

	// Wanted asks whether the job shall go on. An error never means no.
	Wanted(ctx context.Context, job *Job) (Verdict, error)

	// Report says the agent's own word about a step. It is safe to repeat.
	// [ErrGone] when the service wants to hear no more of the job.
	Report(ctx context.Context, job *Job, report Report) error
}

// Claim is the answer to the question for work.
type Claim struct {
	Job        *Job          // nil when there is nothing to do; the caller fills in what is its own
	RetryAfter time.Duration // the service's wish for the next question; 0 is none
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

// BreakerOpen is the Reason of a [Pause] that a Cloud itself keeps: until then it
// answers every claim with it and asks the service nothing. So it may be asked
// earlier, to learn whether new settings have moved the end.
const BreakerOpen = "circuit breaker open"

// Pause is the error of a [Cloud.Claim] that must not be repeated before Until:
// between two tries, or while the circuit breaker is open.
type Pause struct {
	Until  time.Time
	Wish   time.Time // until when the service itself asks for it, and only other credentials end it; zero if it does not
	Reason string    // for people, or BreakerOpen
	Err    error     // the failure behind it; may be nil
}

// Error says until when and why.
func (p *Pause) Error() string {
	text := fmt.Sprintf("%s, asking again at %s", p.Reason, p.Until.Format(time.TimeOnly))
	if p.Err != nil {
		text = fmt.Sprintf("%v (%s)", p.Err, text)
	}
	return text
}

// Unwrap returns the failure behind the pause.
func (p *Pause) Unwrap() error { return p.Err }
