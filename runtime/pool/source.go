package pool

import (
	"context"
	"slices"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
)

// source is where the jobs of a pool come from: deployments, or leased work. Each source has its
// own polls and its own limit. The sources share the slots of the process, the check of the
// executor, and the backoff after failed starts. The pool's lock guards the fields except place.
type source struct {
	origin
	place   *slot     // in the queue, or the slot itself; nil while the source may not poll; used by the loop alone
	polling time.Time // start of the poll that is under way; zero without one
	queued  bool      // the source waits for one of the process's slots
	due     time.Time // latest time of the source's next turn; zero while it waits for an event
}

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

// turn decides whether to poll a source, and starts the poll. The jobs run with the context jobs. Turn
// returns the delay until the source's next turn; 0 if an event wakes the loop.
func (p *Pool) turn(ctx, jobs context.Context, s *source) time.Duration {
	if p.isPolling(s) {
		return 0
	}
	may, delay := p.nextPoll(s)
	polls := may && delay <= 0
	executor, check := p.checkExecutor(ctx, s, polls)

	// A source that may not poll leaves the queue. One that has a slot polls if the last check
	// of the executor is recent, because the slot may have been granted long after an earlier one.
	switch {
	case !polls || executor == unable:
		p.leaveQueue(s)
	case executor == able:
		if s.place == nil {
			s.place = p.parts.Slots.join(p)
			p.setQueued(s, !closed(s.place.granted))
		}
		if closed(s.place.granted) {
			granted := s.place
			s.place = nil
			p.setQueued(s, false)
			p.startPoll(jobs, s, granted)
			return 0
		}
	}

	// The delay is that of the next poll, or of the next check while the executor is unable or
	// unchecked, or while the source is in the queue.
	if executor != able || s.place != nil {
		return check
	}
	return delay
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

// principal returns the source whose polls are the polls of the pool in its state: deployments, or
// leased work if the pool claims no deployments. The caller holds the lock.
func (p *Pool) principal() *source {
	if p.spec.Tuning.ClaimsDeployments() {
		return p.deployments
	}
	return p.sources[len(p.sources)-1]
}

// isPolling reports whether a poll of this source is under way.
func (p *Pool) isPolling(s *source) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !s.polling.IsZero()
}

// startPoll polls a source in a goroutine, unless the settings have changed since the turn started.
// The goroutine ends with the poll, so that the stack that a request needs does not stay in use until
// the next one.
func (p *Pool) startPoll(ctx context.Context, s *source, granted *slot) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.mayPoll(s) {
		granted.release()
		p.wake()
		return
	}
	now := time.Now()
	s.polling, s.due = now, now.Add(s.limit())
	checked, tuned := p.spec, p.tuned
	p.jobs.Go(func() { p.poll(ctx, s, granted, checked, tuned) })
}

// poll polls a source once and starts the job that the service returns, if there is one.
//
//  1. The end of ctx does not cancel the poll, because the response may be a job that the
//     service gives to no other agent.
//  2. Changes of the settings during the poll apply to its result, but not to the start of the job: the
//     executor was checked with the settings before them. Such a change closes tuned.
//  3. The job takes the slot, or the slot is released. After slotGrace without a response,
//     another pool may use the slot.
func (p *Pool) poll(
	ctx context.Context, s *source, granted *slot, checked runtime.PoolSpec, tuned <-chan struct{},
) {
	started := false
	defer func() {
		if !started {
			granted.release()
		}
	}()
	// 1. Poll.
	limited, cancel := context.WithTimeout(p.finalCtx, s.limit())
	defer cancel()
	slow := time.AfterFunc(slotGrace, granted.share)
	since := time.Now()
	claim, err := s.claim(limited)
	slow.Stop()

	// 2. Record the result.
	p.mu.Lock()
	defer p.mu.Unlock()
	s.polling, s.due = time.Time{}, time.Time{}
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
	r.recordStage(runtime.StageClaim, since)
	if granted.keep() {
		r.log().Info("the response to a poll was late, and another pool uses the slot: " +
			"this job exceeds the limit of all pools")
	}
	p.startRun(ctx, r, granted)
	started = true
}

// leaveQueue releases the source's place in the queue for a slot, or its slot, if it has one.
func (p *Pool) leaveQueue(s *source) {
	if s.place != nil {
		s.place.release()
		s.place = nil
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
