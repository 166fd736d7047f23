package runtime

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// lastLimit bounds everything that is still to be done for jobs once a pool has
// been told to stop: ending them, the last words, and removing what is left.
const lastLimit = 2 * time.Minute

// Parts is what a pool works with.
type Parts struct {
	Cloud     Cloud
	Executor  Executor
	Slots     *Slots                      // that all pools of the process share; nil is no limit
	Close     func()                      // called once, when Run is about to return and needs nothing any more; may be nil
	Agent     string                      // id of the agent: labels what the executor makes
	InFlight  func(delta int)             // called when a job begins (+1), and when its instance is gone (-1); may be nil
	UserAgent string                      // of the runner's calls
	Environ   func(string) (string, bool) // the agent's environment
	Log       *slog.Logger
}

// Pool claims jobs and runs each in an environment of its own, up to
// Tuning.MaxJobs at a time. Its methods are safe for concurrent use.
type Pool struct {
	parts   Parts
	log     *slog.Logger
	changed chan struct{} // holds one empty token: something below is new
	begun   chan struct{} // closed when the loop begins
	jobs    sync.WaitGroup
	final   context.Context // of Run, for what is done after its end: it ends lastLimit later

	mu      sync.Mutex
	spec    PoolSpec
	tuned   chan struct{}    // closed and replaced by each Tune
	lives   map[string]*life // by job id
	drain   bool             // claim nothing more
	done    int              // jobs that have ended, in a single run since it is one
	stopped bool             // Run has returned
	err     error            // why Run returned

	polls          polls
	starts         starts    // of jobs
	check          check     // of the executor
	orphansUnknown bool      // the last attempt to adopt failed
	adopting       func()    // cancels the attempt to adopt that is being made; nil if none is
	waiting        bool      // for one of the process's slots
	due            time.Time // latest time of the loop's next turn; zero while it waits for an event
}

// NewPool makes a pool that does nothing until [Pool.Run].
func NewPool(spec PoolSpec, parts Parts) *Pool {
	return &Pool{
		parts:   parts,
		log:     parts.Log.With("component", "pool", "pool", spec.Name),
		changed: make(chan struct{}, 1),
		begun:   make(chan struct{}),
		spec:    spec,
		lives:   map[string]*life{},
		tuned:   make(chan struct{}),
	}
}

// Run adopts what an earlier run of this agent left behind, then claims and
// runs jobs. It returns nil when the pool is drained or its single run is over,
// and an error when it cannot work. When ctx ends, the jobs are stopped in
// order first, or left running where another agent adopts them ([Adopter]). It
// returns only after every other job has been reported and removed, or two minutes
// after the end of ctx: a job that an engine could not end until then is left to
// the next agent, and nothing is reported of it.
// Run is called once.
func (p *Pool) Run(ctx context.Context) error {
	// Give what is done after the end of ctx a limit of its own.
	final, over := context.WithCancelCause(context.WithoutCancel(ctx))
	defer over(nil)
	p.final = final
	stop := context.AfterFunc(ctx, func() {
		timer := time.NewTimer(lastLimit)
		defer timer.Stop()
		select {
		case <-timer.C:
			over(errNoTime)
		case <-final.Done():
		}
	})
	defer stop()

	// Adopt, then claim and run jobs.
	p.mu.Lock()
	p.polls.next = p.parts.Cloud.Tune(p.spec.Tuning)
	p.due = time.Now().Add(listLimit + adoptLimit)
	p.mu.Unlock()
	err := p.adopt(ctx)
	if err == nil {
		close(p.begun)
		p.loop(ctx)
	}

	// Wait for the last job.
	p.mu.Lock()
	p.due = time.Time{}
	p.mu.Unlock()
	p.jobs.Wait()
	if p.parts.Close != nil {
		p.parts.Close()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopped, p.err, p.due = true, err, time.Now()
	return err
}

// Begun returns a channel that is closed when the pool has adopted what was left
// behind and begins to ask for work. It stays open if it never comes to that.
func (p *Pool) Begun() <-chan struct{} { return p.begun }

// loop claims jobs until the pool is done or ctx ends. Each turn decides whether to
// poll, and then waits for the first event.
func (p *Pool) loop(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	sweepTicker := time.NewTicker(sweepInterval)
	defer sweepTicker.Stop()
	beside, cancel := context.WithCancel(ctx) // for sweeps, checks and adoptions
	defer cancel()
	if adopter, ok := p.parts.Executor.(Adopter); ok {
		p.jobs.Go(func() { p.followOrphans(beside, ctx, adopter) })
	}
	var place *slot // in the queue, or the slot itself; nil while the pool may not poll
	for ctx.Err() == nil {
		capacity, wait := p.turn()
		if capacity < 0 {
			break
		}
		polls := capacity > 0 && wait <= 0 // the next poll is due
		executor, check := p.examine(beside, polls)

		// A pool that may not poll waits for no slot. One that has a slot polls, but
		// only after a check that still counts.
		switch {
		case !polls || executor == unable:
			p.leaveQueue(place)
			place = nil
		case executor == able:
			if place == nil {
				place = p.parts.Slots.join(p)
				p.setWaiting(!place.has())
			}
			if place.has() {
				granted := place
				place = nil
				p.setWaiting(false)
				p.claim(ctx, granted)
				continue
			}
		}

		// The timer is for the next poll, or for the next check: while the pool may not
		// poll, and while it waits for a slot.
		if executor != able || place != nil {
			wait = check
		}
		var due <-chan time.Time
		if wait > 0 {
			timer.Reset(wait)
			due = timer.C
		}
		var granted <-chan struct{}
		if place != nil && !place.has() {
			granted = place.granted
		}
		select {
		case <-ctx.Done():
		case <-p.changed:
		case <-sweepTicker.C:
			p.jobs.Go(func() { p.sweepAgain(beside) })
		case <-due:
		case <-granted:
		}
	}
	p.leaveQueue(place)
}

// leaveQueue gives up the pool's place in the queue for a slot, or its slot. Nil is
// a pool that waits for none.
func (p *Pool) leaveQueue(queued *slot) {
	if queued != nil {
		queued.leave()
		p.setWaiting(false)
	}
}

// setWaiting notes whether the pool waits for a slot. While it does, an event wakes
// the loop.
func (p *Pool) setWaiting(waiting bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting = waiting
	if waiting {
		p.due = time.Time{}
	}
}

// turn returns the free capacity and the delay until the next poll. Capacity is -1
// when the pool is done. Without capacity there is no delay: an event wakes the loop.
func (p *Pool) turn() (capacity int, wait time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drain = p.drain || p.spec.Tuning.SingleRun && p.done > 0
	p.due = time.Time{}
	switch {
	case p.drain && len(p.lives) == 0 && p.adopting != nil:
		p.adopting() // its end wakes the loop, which may have adopted a job
		return 0, 0
	case p.drain && len(p.lives) == 0:
		return -1, 0
	case p.drain, p.starts.failed > 0 && p.starting(): // see starts, 1.
		return 0, 0
	}
	most := p.spec.Tuning.MaxJobs
	if p.spec.Tuning.SingleRun {
		most = 1
	}
	if capacity = most - len(p.lives); capacity <= 0 {
		return 0, 0
	}
	now := time.Now()
	wait = max(0, p.polls.next.At.Sub(now), p.starts.hold.At.Sub(now))
	if wait > 0 || !p.waiting {
		p.due = now.Add(wait)
	}
	return capacity, wait
}

// Tune gives the pool new settings. They are used from the next turn on; a job
// keeps what it was claimed under, but for the interval of its status check. The
// Cloud decides which waits the new settings end.
func (p *Pool) Tune(spec PoolSpec) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.spec.Tuning
	p.spec = spec
	p.drain = false
	if spec.Tuning.SingleRun && !before.SingleRun {
		p.done = 0
	}
	p.polls.next, p.polls.outdated = p.parts.Cloud.Tune(spec.Tuning), true
	p.retryStart(before)
	p.check.ended = time.Time{}
	close(p.tuned)
	p.tuned = make(chan struct{})
	p.poke()
}

// Retry ends the wait after a failed poll: the next one is made now, and if it fails,
// the wait begins again. A wait that the service asked for stays, and so does the
// interval after a poll that did not fail.
func (p *Pool) Retry() {
	cloud, ok := p.parts.Cloud.(PollRetrier)
	if !ok {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if next := cloud.Retry(); next.At.Before(p.polls.next.At) {
		p.polls.next = next
	}
	p.polls.outdated = true
	p.poke()
}

// Drain makes the pool claim nothing more; Run returns when the last job has
// ended. A [Pool.Tune] before that revives it.
func (p *Pool) Drain() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drain = true
	p.poke()
}

// answeredNow notes that the service has answered a call that carries the pool's
// token: a pool that is full of adopted jobs has no reason to poll.
func (p *Pool) answeredNow() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.polls.answered = time.Now()
}

// settings returns the settings in force now, and a channel that is closed when
// there are others.
func (p *Pool) settings() (Tuning, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.spec.Tuning, p.tuned
}

// statusInterval returns the interval that is in force now, and a channel that is
// closed when there are other settings. Settings are large: each running job would
// hold them on its stack.
func (p *Pool) statusInterval() (time.Duration, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.spec.Tuning.StatusInterval, p.tuned
}

// poke wakes the loop. The caller holds the lock.
func (p *Pool) poke() {
	select {
	case p.changed <- struct{}{}:
	default:
	}
}
