package runtime

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Back-off of a pool whose jobs fail before their first step.
const (
	startFailures     = 2               // in a row, after which the pool backs off
	firstStartBackoff = 5 * time.Second // doubles with each job that fails after it
	lastStartBackoff  = 5 * time.Minute // ceiling of these
)

// starts counts the jobs in a row that failed before their first step for a
// reason that is not their own. Such a reason fails every job of the queue.
//
//  1. After the first, the pool claims the next job only when no other one is
//     still being started.
//  2. From the second on, the pool also pauses before each claim: five seconds, and
//     twice as long after each further job, up to five minutes. A job that was
//     claimed before the pause began does not lengthen it.
//  3. A job that gets past its start ends both. Other settings for jobs end the
//     pause alone, because they may be the cure.
//
// A job that fails for a reason of its own (see [ErrJob]), or that is cancelled,
// counts as neither a failure nor a success.
type starts struct {
	failed  int           // in a row
	backoff time.Duration // length of the last pause; 0 is none
	paused  time.Time     // when it began
	hold    NextPoll      // its end and reason; may be past
}

// startFailed counts a job that failed before its first step.
func (p *Pool) startFailed(l *life, reason error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.check.ended = time.Time{} // what the last check found no longer counts
	p.starts.failed++           // 1. From the first on, turn waits for the job that starts.
	if p.starts.failed < startFailures || l.since.Before(p.starts.paused) {
		return
	}

	// 2. From the second on, pause.
	now := time.Now()
	p.starts.paused = now
	p.starts.backoff = min(max(2*p.starts.backoff, firstStartBackoff), lastStartBackoff)
	p.starts.hold = NextPoll{
		At: now.Add(p.starts.backoff),
		Reason: fmt.Sprintf("%d jobs in a row failed before their first step, so one job is tried at a time: %v",
			p.starts.failed, reason),
	}
	p.log.Warn("polling paused: jobs fail before their first step",
		"failures", p.starts.failed, "retry_in", p.starts.backoff, "error", reason)
}

// startSucceeded notes that a job is past its start, if that was not known yet.
func (p *Pool) startSucceeded(l *life) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l.past {
		return
	}
	l.past = true
	if p.starts.failed == 0 {
		return
	}
	if p.starts.failed >= startFailures {
		p.log.Info("polling resumed: a job is past its start", "job", l.job.ID)
	}
	p.starts = starts{} // 3.
	p.poke()
}

// retryStart ends the pause after failed starts when the settings that jobs are
// started with have changed from before. One job at a time is tried until one
// gets past its start. The caller holds the lock.
func (p *Pool) retryStart(before Tuning) {
	if p.starts.failed == 0 || before.SameStart(p.spec.Tuning) {
		return
	}
	p.starts = starts{failed: 1} // 3.
	p.polls.soon()
}

// starting reports whether a job is not past its start yet. The caller holds the
// lock.
func (p *Pool) starting() bool {
	for _, l := range p.lives {
		if !l.past {
			return true
		}
	}
	return false
}

// startEnded counts a start that failed with err, unless the reason is the job's
// own, or the job was stopped.
func (l *life) startEnded(ctx context.Context, err error) {
	fetched := len(l.job.Definition.Raw) > 0
	switch {
	case ctx.Err() != nil, errors.Is(err, errCancelled), errors.Is(err, ErrJob), errors.Is(err, ErrGone) && fetched:
	default:
		l.pool.startFailed(l, err)
	}
}

// runnerEnded counts a job whose runner has ended. One that ended before its first
// step without reporting how has failed to start: the runner is of another
// release, has no memory, or cannot reach the service.
func (l *life) runnerEnded(ctx context.Context, e end) {
	switch {
	case ctx.Err() != nil, l.isPast():
	case e.err == nil && (e.exit.Code == CodeSucceeded || e.exit.Code == CodeSucceededUnreported):
		l.pool.startSucceeded(l)
	case e.err == nil && (e.exit.Code == CodeFailed || e.exit.Code == CodeGone):
	default:
		l.pool.startFailed(l, errors.New(epitaph(e.exit, e.err)))
	}
}

// isPast reports whether the job is past its start.
func (l *life) isPast() bool {
	l.pool.mu.Lock()
	defer l.pool.mu.Unlock()
	return l.past
}
