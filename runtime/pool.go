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

// Tunable is what a [Cloud] may also be: one that takes new settings while it
// is in use.
type Tunable interface {
	Tune(Tuning)
}

// Pool claims jobs and runs each in an environment of its own, up to
// Tuning.MaxJobs at a time. Its methods are safe for concurrent use.
type Pool struct {
	parts   Parts
	log     *slog.Logger
	changed chan struct{} // holds one empty token: something below is new
	begun   chan struct{}
	jobs    sync.WaitGroup
	final   context.Context // of Run, for what is done after its end: it ends lastLimit later

	mu      sync.Mutex
	spec    PoolSpec
	lives   map[string]*life // by job id
	running bool             // the loop has begun, and begun is closed
	stopped bool             // Run has returned
	drain   bool             // claim nothing more
	done    int              // jobs that have ended, in a single run since it is one
	err     error            // why Run returned

	polled   time.Time // last question for work
	answered time.Time // last one that did not fail, or last answer about a job
	pollAt   time.Time // next one; a pause may delay it
	service  pause     // before the next question, for what the last one brought
	engine   pause     // before the next poll, after jobs that failed before their first step
	starts   starts    // of jobs
	check    check     // of the executor
	progress time.Time // last time that anything went forward
	due      time.Time // latest time of the loop's next turn; zero while it waits for an event
	failing  error     // of the last question; nil if it did not fail

	pollingSince time.Time // start of the poll that is under way; zero if none is
	failingSince time.Time // start of the first question of this row of failures

	quiet   bool          // the failures of this row are said, and nothing has changed that may end it
	broken  bool          // the circuit breaker is open, and this was said
	waiting bool          // for one of the process's slots
	tuned   chan struct{} // closed and replaced by each Tune
}

// NewPool makes a pool that does nothing until [Pool.Run].
func NewPool(spec PoolSpec, parts Parts) *Pool {
	return &Pool{
		parts:    parts,
		log:      parts.Log.With("component", "pool", "pool", spec.Name),
		changed:  make(chan struct{}, 1),
		begun:    make(chan struct{}),
		spec:     spec,
		lives:    map[string]*life{},
		progress: time.Now(),
		tuned:    make(chan struct{}),
	}
}

// Run adopts what an earlier run of this agent left behind, then claims and
// runs jobs. It returns nil when the pool is drained or its single run is over,
// and an error when it cannot work. When ctx ends, the jobs are stopped in
// order first. It returns only after every job has been reported and removed,
// or two minutes after the end of ctx: a job that an engine could not end until
// then is left to the next agent, and nothing is said of it.
// Run is called once.
func (p *Pool) Run(ctx context.Context) error {
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
	p.expect(time.Now().Add(listLimit))
	err := p.adopt(ctx)
	if err == nil {
		p.mu.Lock()
		p.running = true
		p.mu.Unlock()
		close(p.begun)
		p.loop(ctx)
	}
	p.expect(time.Time{})
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

// loop is one turn after the other: wait for whatever comes first, ask for work
// when that is due and there is room, and sweep now and then.
func (p *Pool) loop(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	broom := time.NewTicker(sweepInterval)
	defer broom.Stop()
	beside, enough := context.WithCancel(ctx) // for sweeps and checks
	defer enough()
	var queued *slot // while the pool waits for a slot
	defer func() { p.leaveQueue(queued) }()
	for {
		room, wait := p.turn()
		if room < 0 {
			return
		}
		polls := room > 0 && wait <= 0 // the next poll is due
		executor, check := p.examine(beside, polls)

		// A pool that may not poll waits for no slot. One that has a slot polls, but
		// only after a check that still counts.
		switch {
		case !polls || executor == unable:
			p.leaveQueue(queued)
			queued = nil
		case executor == able && queued != nil && queued.has():
			granted := queued
			queued = nil
			p.setWaiting(false)
			p.claim(ctx, granted)
			continue
		}

		// Wait for the first event. The timer is for the next poll, or for the
		// next check: while the pool may not poll, and while it waits for a slot.
		var due <-chan time.Time
		var granted <-chan struct{}
		if queued != nil && !queued.has() {
			granted = queued.granted
		}
		switch {
		case executor != able || queued != nil:
			if wait = check; check > 0 {
				due = timer.C
			}
		case room > 0:
			due = timer.C
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return
		case <-p.changed:
		case <-broom.C:
			p.jobs.Go(func() { p.sweepAgain(beside) })
		case <-due:
			if !polls || executor != able || queued != nil {
				continue
			}
			if slot := p.parts.Slots.join(p); slot.has() {
				p.claim(ctx, slot)
			} else {
				queued = slot
				p.setWaiting(true)
			}
		case <-granted: // if it is still wanted
		}
	}
}

// leaveQueue gives up the pool's place in the queue for a slot, or its slot. Nil is
// a pool that waits for none.
func (p *Pool) leaveQueue(queued *slot) {
	if queued != nil {
		queued.leave()
		p.setWaiting(false)
	}
}

// setWaiting notes whether the pool waits for a slot.
func (p *Pool) setWaiting(waiting bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting = waiting
}

// turn says how many jobs there is room for, and how long to wait before the
// next question. Room is negative when the loop is over.
func (p *Pool) turn() (room int, wait time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drain = p.drain || p.spec.Tuning.SingleRun && p.done > 0
	now := time.Now()
	p.due = time.Time{} // until there is room, an event wakes the loop
	switch {
	case p.drain && len(p.lives) == 0:
		return -1, 0
	case p.drain, p.starts.failed > 0 && p.starting():
		return 0, 0
	}
	most := p.spec.Tuning.MaxJobs
	if p.spec.Tuning.SingleRun {
		most = 1
	}
	room, wait = max(0, most-len(p.lives)), max(0, p.pollAt.Sub(now), p.paused().until.Sub(now))
	if room > 0 && !p.waiting {
		p.due = now.Add(wait)
	}
	return room, wait
}

// polling notes that a poll begins, which ends at the latest at a time.
func (p *Pool) polling(began, end time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pollingSince, p.due = began, end
}

// expect sets the time at which the loop turns next at the latest; zero is when
// something happens.
func (p *Pool) expect(due time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.due = due
}

// Tune gives the pool new settings. They are used from the next turn on; a job
// keeps what it was claimed under, but for the interval of the questions whether
// it is wanted. Waits that the new settings make shorter end sooner, at once if
// they should be over, and what the service has asked for is kept for as long as
// nothing changes that it was asked for.
func (p *Pool) Tune(spec PoolSpec) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.spec.Tuning
	p.spec = spec
	p.drain = false
	if spec.Tuning.SingleRun && !before.SingleRun {
		p.done = 0
	}
	if cloud, ok := p.parts.Cloud.(Tunable); ok {
		cloud.Tune(spec.Tuning)
	}
	p.reconsider(before)
	p.retryStart(before)
	p.check.ended = time.Time{}
	close(p.tuned)
	p.tuned = make(chan struct{})
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
	p.answered = time.Now()
}

// settings returns the settings in force now, and a channel that is closed when
// there are others.
func (p *Pool) settings() (Tuning, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.spec.Tuning, p.tuned
}

// poke wakes the loop. The caller holds the lock.
func (p *Pool) poke() {
	select {
	case p.changed <- struct{}{}:
	default:
	}
}
