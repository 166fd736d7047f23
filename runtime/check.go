package runtime

import (
	"context"
	"time"
)

// Times of the check that precedes a poll.
const (
	checkFresh = 5 * time.Second  // for which a check that found no problem counts
	checkRetry = time.Second      // between two checks while the last one found a problem
	checkLimit = 10 * time.Second // of one check
)

// Checker is an optional interface of an [Executor] that can tell whether it is
// able to start jobs.
type Checker interface {
	// Check returns nil if a job could be started now under these settings, and
	// else an error of one line with the reason and the cure. It reports only
	// what would fail every job, as far as that can be found at little cost, and
	// starts nothing. A pool calls it before it polls, at most every five
	// seconds, and every second while it reports a problem. It returns soon after
	// the end of ctx, and is safe for concurrent use.
	Check(ctx context.Context, tuning Tuning) error
}

// check is what is known of the executor's ability to start jobs.
type check struct {
	ended   time.Time // of the last check; zero makes the next one due
	problem error     // that it found; nil is none
	running bool      // a check is under way
	began   time.Time // the one that is under way
}

// due returns when the next check is due.
func (c check) due() time.Time {
	if c.problem != nil {
		return c.ended.Add(checkRetry)
	}
	return c.ended.Add(checkFresh)
}

// ability says whether a pool may poll, as far as its executor is concerned.
type ability int

const (
	able      ability = iota // the last check found no problem, and still counts
	unchecked                // the last check counts no more, and another is under way
	unable                   // the last check found a problem
)

// examine returns the executor's ability, and begins a check if one is due: for a
// pool that is about to poll, and for one that waits for the end of a problem.
// Next is the time until another one is due; zero while one is under way, and if
// the executor is not checked.
func (p *Pool) examine(ctx context.Context, polls bool) (a ability, next time.Duration) {
	checker, ok := p.parts.Executor.(Checker)
	p.mu.Lock()
	defer p.mu.Unlock()
	if !ok || p.drain || !polls && p.check.problem == nil {
		return able, 0
	}
	now := time.Now()
	left := p.check.due().Sub(now)
	if left <= 0 && !p.check.running {
		p.check.running, p.check.began = true, now
		p.jobs.Go(func() { p.runCheck(ctx, checker) })
	}
	switch {
	case p.check.problem != nil:
		a = unable
	case left <= 0:
		a = unchecked
	}
	switch {
	case p.check.running && a != able:
		left = 0
		p.due = p.check.began.Add(checkLimit)
	case a != able:
		p.due = now.Add(left)
	}
	return a, max(0, left)
}

// runCheck checks the executor once and wakes the loop. The result of a check
// under settings that have changed meanwhile is dropped: such a check is
// cancelled, and another is due at once.
func (p *Pool) runCheck(ctx context.Context, checker Checker) {
	tuning, tuned := p.settings()
	limited, cancel := context.WithTimeout(ctx, checkLimit)
	defer cancel()
	p.jobs.Go(func() {
		select {
		case <-tuned:
			cancel()
		case <-limited.Done():
		}
	})
	err := checker.Check(limited, tuning)

	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.poke()
	p.check.running = false
	if ctx.Err() != nil || closed(tuned) {
		return
	}
	before := p.check.problem
	p.check.ended, p.check.problem = time.Now(), err
	switch {
	case err == nil && before != nil:
		p.polls.soon() // it was due when the problem was found
		p.log.Info("polling resumed: the executor can start jobs again")
	case err != nil && (before == nil || before.Error() != err.Error()):
		p.log.Warn("polling paused: the executor cannot start jobs", "error", err)
	}
}
