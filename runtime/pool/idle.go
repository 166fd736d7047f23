package pool

import "time"

// singleRun is how far a pool with Tuning.SingleRun has come. The pool's lock guards it.
type singleRun struct {
	ended     int       // jobs that have ended; reset when SingleRun is switched on
	idle      bool      // the pool drains because it got no job within the idle timeout
	idleSince time.Time // since when the pool has no job
}

// endIdle drains the pool if it is a single run that has had no job for idle_timeout. Otherwise
// it returns a channel that delivers when that time is over, or nil. Time during which the pool
// runs a job, or is paused, does not count, and the pool does not end during a poll. The caller
// holds the lock.
func (p *Pool) endIdle() <-chan time.Time {
	t := p.spec.Tuning
	if !t.SingleRun || t.IdleTimeout <= 0 || t.Paused || p.draining || len(p.runs) > 0 || p.polling() {
		return nil
	}
	if left := t.IdleTimeout - time.Since(p.single.idleSince); left > 0 {
		return time.After(left)
	}
	p.draining, p.single.idle = true, true
	p.log.Info("single run ends: the pool got no job within idle_timeout", "idle_timeout", t.IdleTimeout)
	return nil
}
