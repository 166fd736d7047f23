package pool

import (
	"context"
	"slices"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
)

// source is where the jobs of a pool come from: deployments, or leased work. Each source has its
// own loop and its own limit. The loops share the slots of the process, the check of the
// executor, and the backoff after failed starts. The pool's lock guards the fields.
type source struct {
	origin
	changed chan struct{} // holds a token after a change that the loop has not seen
	polling time.Time     // start of the poll that is under way; zero without one
	queued  bool          // the loop waits for one of the process's slots
	due     time.Time     // latest time of the loop's next turn; zero while it waits for an event
}

func newSource(o origin) *source { return &source{origin: o, changed: make(chan struct{}, 1)} }

// origin is what differs between sources. The caller of each method except claim holds the lock of
// the pool.
type origin interface {
	// room returns how many more jobs the pool may run; 0 or less if it must not poll.
	room() int
	// next returns when the next poll is allowed.
	next() runtime.NextPoll
	// claim polls once. Its context ends after limit.
	claim(ctx context.Context) (runtime.Claim, error)
	limit() time.Duration
	// record records the result of a poll.
	record(since time.Time, claim runtime.Claim, err error)
	// accept reports whether to start a job that a poll has returned. Ctx is the context of jobs.
	accept(ctx context.Context, r *jobRun) bool
}

// poll polls a source until ctx ends, and starts the jobs, which run with the context jobs. Each
// turn decides whether to poll, and then waits for the first event.
func (p *Pool) poll(ctx, jobs context.Context, s *source) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var place *slot // in the queue, or the slot itself; nil while the source may not poll
	for ctx.Err() == nil {
		may, delay := p.nextPoll(s)
		polls := may && delay <= 0
		executor, check := p.checkExecutor(ctx, s, polls)

		// A source that may not poll leaves the queue. One that has a slot polls if the last check
		// of the executor is recent, because the slot may have been granted long after an earlier one.
		switch {
		case !polls || executor == unable:
			p.leaveQueue(s, place)
			place = nil
		case executor == able:
			if place == nil {
				place = p.parts.Slots.join(p)
				p.setQueued(s, !closed(place.granted))
			}
			if closed(place.granted) {
				granted := place
				place = nil
				p.setQueued(s, false)
				p.pollOnce(jobs, s, granted)
				continue
			}
		}

		// Wait for the first event. The timer is for the next poll, or for the next check while
		// the executor is unable or unchecked, or while the source is in the queue.
		if executor != able || place != nil {
			delay = check
		}
		var due <-chan time.Time
		if delay > 0 {
			timer.Reset(delay)
			due = timer.C
		}
		var granted <-chan struct{}
		if place != nil && !closed(place.granted) {
			granted = place.granted
		}
		select {
		case <-ctx.Done():
		case <-s.changed:
		case <-due:
		case <-granted:
		}
	}
	p.leaveQueue(s, place)
	p.mu.Lock()
	defer p.mu.Unlock()
	s.due = time.Time{}
}

// nextPoll returns whether the source may poll, and the delay until then. If it may not, an event
// wakes the loop.
func (p *Pool) nextPoll(s *source) (may bool, delay time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.due = time.Time{}
	if !p.mayPoll(s) {
		return false, 0
	}
	now := time.Now()
	delay = max(0, s.next().At.Sub(now), p.starts.hold.At.Sub(now))
	if delay > 0 || !s.queued {
		s.due = now.Add(delay)
	}
	return true, delay
}

// mayPoll reports whether the source may poll, at once or later. A single run is one job of all
// sources, so only one of them polls at a time. The caller holds the lock.
func (p *Pool) mayPoll(s *source) bool {
	switch {
	case p.draining, p.spec.Tuning.Paused, s.room() <= 0:
		return false
	case p.starts.failed > 0 && p.starting(): // see starts, 1.
		return false
	case p.spec.Tuning.SingleRun:
		return p.single.ended == 0 && len(p.runs) == 0 && !p.polling()
	}
	return true
}

// polling reports whether a poll of any source is under way. The caller holds the lock.
func (p *Pool) polling() bool {
	return slices.ContainsFunc(p.sources, func(s *source) bool { return !s.polling.IsZero() })
}

// pollOnce polls a source once and starts the job that the service returns, if there is one.
//
//  1. The end of ctx does not cancel the poll, because the response may be a job that the
//     service gives to no other agent.
//  2. Changes of the settings during the poll apply to its result.
//  3. The job takes the slot, or the slot is released. After slotGrace without a response,
//     another pool may use the slot.
func (p *Pool) pollOnce(ctx context.Context, s *source, granted *slot) {
	started := false
	defer func() {
		if !started {
			granted.release()
		}
	}()
	p.mu.Lock()
	if !p.mayPoll(s) { // the settings have changed, or another source polls
		p.mu.Unlock()
		return
	}
	since := time.Now()
	s.polling, s.due = since, since.Add(s.limit())
	checked, tuned := p.spec, p.tuned
	p.mu.Unlock()

	// 1. Poll.
	limited, cancel := context.WithTimeout(p.finalCtx, s.limit())
	defer cancel()
	slow := time.AfterFunc(slotGrace, granted.share)
	claim, err := s.claim(limited)
	slow.Stop()

	// 2. Record the result.
	p.mu.Lock()
	defer p.mu.Unlock()
	s.polling = time.Time{}
	s.record(since, claim, err)
	p.wake() // a single run, or a pool that drains, waits for the end of the poll
	if err != nil || claim.Job == nil {
		return
	}
	claim.Job.Generation = p.spec.Generation
	r := p.newRun(claim.Job, time.Now())
	if closed(tuned) { // the executor was checked with the settings before the change
		r.job.Tuning.Instance, r.job.Tuning.CA = checked.Tuning.Instance, checked.Tuning.CA
	}
	if !s.accept(ctx, r) {
		return
	}

	// 3. Start the job.
	p.parts.Metrics.JobClaimed(r.job.PoolName, r.job.Kind)
	if granted.keep() {
		r.log.Info("the response to a poll was late, and another pool uses the slot: " +
			"this job exceeds the limit of all pools")
	}
	p.startRun(ctx, r, granted)
	started = true
}

// leaveQueue releases the source's place in the queue for a slot, or its slot. Queued may
// be nil.
func (p *Pool) leaveQueue(s *source, queued *slot) {
	if queued != nil {
		queued.release()
		p.setQueued(s, false)
	}
}

// setQueued records whether the source waits for a slot. While it does, an event wakes the
// loop.
func (p *Pool) setQueued(s *source, queued bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.queued = queued
	if queued {
		s.due = time.Time{}
	}
}
