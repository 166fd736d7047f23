package runtime

import "time"

// endIdle drains the pool if it is a single run that has had no job for idle_timeout. Time
// during which the pool runs a job, or is paused, does not count. The caller holds the
// lock.
func (p *Pool) endIdle() {
	if left, counts := p.idleLeft(); !counts || left > 0 {
		return
	}
	p.draining, p.idleEnd = true, true
	p.log.Info("single run ends: the pool got no job within idle_timeout",
		"idle_timeout", p.spec.Tuning.IdleTimeout)
}

// idleLeft returns the time until the pool ends because it has no job. Counts is false if
// the pool does not end for this reason. The caller holds the lock.
func (p *Pool) idleLeft() (left time.Duration, counts bool) {
	t := p.spec.Tuning
	if !t.SingleRun || t.IdleTimeout <= 0 || t.Paused || p.draining || len(p.runs) > 0 {
		return 0, false
	}
	return t.IdleTimeout - time.Since(p.idleSince), true
}

// untilIdle returns the delay for the loop's timer: the time until the pool ends because it
// has no job, if that is shorter than delay, and otherwise delay. A delay of 0 means no
// timer.
func (p *Pool) untilIdle(delay time.Duration) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	left, counts := p.idleLeft()
	if !counts || delay > 0 && delay < left {
		return delay
	}
	return max(left, time.Nanosecond)
}
