package pool

import (
	"context"
	"time"
)

// check is the result of the last check of the executor.
type check struct {
	ended   time.Time // end of the last check; zero makes the next check due
	problem error     // result of the last check; nil if it found no problem
	running bool      // a check is under way
	started time.Time // start of the check that is under way
}

// due returns when the next check is due.
func (c check) due() time.Time {
	if c.problem != nil {
		return c.ended.Add(checkRetry)
	}
	return c.ended.Add(checkValid)
}

// ability is whether the executor can start jobs.
type ability int

const (
	able      ability = iota // the last check found no problem, and is valid
	unchecked                // the last check is outdated, and another check is under way
	unable                   // the last check found a problem
)

// checkExecutor returns the executor's ability, and starts a check if one is due. A check is
// made only if the source is about to poll, or if the last check found a problem. Next is the
// time until another check is due. Next is zero while the result of a check is awaited, and if no
// check is made, for example because the pool drains.
func (p *Pool) checkExecutor(ctx context.Context, s *source, polls bool) (a ability, next time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.draining || p.spec.Tuning.Paused || !polls && p.check.problem == nil {
		return able, 0
	}
	now := time.Now()
	left := p.check.due().Sub(now)
	if left <= 0 && !p.check.running {
		p.check.running, p.check.started = true, now
		p.jobs.Go(func() { p.runCheck(ctx) })
	}
	switch {
	case p.check.problem != nil:
		a = unable
	case left <= 0:
		a = unchecked
	default:
		return able, left
	}
	if p.check.running {
		s.due = p.check.started.Add(checkTimeout)
		return a, 0
	}
	s.due = now.Add(left)
	return a, left
}

// runCheck checks the executor once and wakes the loop. If the settings change during the
// check, the check is cancelled, its result is dropped, and another check is due at once.
func (p *Pool) runCheck(ctx context.Context) {
	tuning, tuned := p.settings()
	limited, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	p.jobs.Go(func() {
		select {
		case <-tuned:
			cancel()
		case <-limited.Done():
		}
	})
	err := p.parts.Executor.Check(limited, tuning)

	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.wake()
	p.check.running = false
	if ctx.Err() != nil || closed(tuned) {
		return
	}
	before := p.check.problem
	p.check.ended, p.check.problem = time.Now(), err
	switch {
	case err == nil && before != nil:
		p.polls.dueNow() // a poll was due when the problem was found
		p.log.Info("polling resumed: the executor can start jobs again")
	case err != nil && (before == nil || before.Error() != err.Error()):
		p.log.Warn("polling paused: the executor cannot start jobs", "error", err)
	}
}
