package pool

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
)

// Parts are the dependencies of a pool.
type Parts struct {
	Cloud     runtime.Cloud
	Executor  runtime.Executor
	Journal   runtime.Journal             // of the agent's claimed jobs; nil keeps nothing
	Slots     *Slots                      // of all pools of the process; nil is no limit
	Close     func()                      // called once, at the end of Run; may be nil
	Agent     string                      // id of the agent, for the labels of instances
	UserAgent string                      // of the runner's calls
	Environ   func(string) (string, bool) // the agent's environment
	Metrics   runtime.Metrics             // counts the work of the pool; nil counts nothing
	Tracer    runtime.Tracer              // exports a trace of each job; nil exports nothing
	Log       *slog.Logger
}

// Pool claims jobs and runs each in an instance, up to Tuning.MaxJobs at a time. Its
// methods are safe for concurrent use.
type Pool struct {
	parts    Parts
	log      *slog.Logger
	changed  chan struct{} // holds a token after a change that the loop has not seen
	ready    chan struct{} // closed when the loop starts
	jobs     sync.WaitGroup
	finalCtx context.Context // for work after the end of Run's ctx; ends when the time for this work is over

	forced    chan struct{} // closed by forceStop
	forceStop func()

	deployments *source
	sources     []*source // deployments, and leased work if the service may have it

	mu       sync.Mutex
	spec     runtime.PoolSpec
	tuned    chan struct{}      // closed and replaced by each Tune
	runs     map[string]*jobRun // by job id
	draining bool               // claim nothing more
	single   singleRun
	stopped  bool  // Run has returned
	err      error // why Run returned

	polls     polls
	jobEnded  bool      // since the last poll for leased work
	starts    starts    // of jobs
	check     check     // of the executor
	leftovers int       // instances of earlier leases that are not removed yet
	adoption  adoption  // of jobs of agents that no longer exist
	due       time.Time // latest time at which Run starts to poll, or ends; zero while neither is due
}

// New returns a pool that does nothing until [Pool.Run].
func New(spec runtime.PoolSpec, parts Parts) *Pool {
	if parts.Metrics == nil {
		parts.Metrics = runtime.NoMetrics{}
	}
	if parts.Journal == nil {
		parts.Journal = runtime.NoJournal{}
	}
	if parts.Slots == nil {
		parts.Slots = NewSlots(0)
	}
	forced := make(chan struct{})
	p := &Pool{
		forced: forced, forceStop: sync.OnceFunc(func() { close(forced) }),
		parts:   parts,
		log:     parts.Log.With("component", "pool", "pool", spec.Name),
		changed: make(chan struct{}, 1),
		ready:   make(chan struct{}),
		spec:    spec,
		runs:    map[string]*jobRun{},
		tuned:   make(chan struct{}),
	}
	p.deployments = &source{origin: &deployments{p}}
	p.sources = []*source{p.deployments}
	if leaser, ok := parts.Cloud.(runtime.Leaser); ok {
		p.sources = append(p.sources, &source{origin: &leasedWork{pool: p, leaser: leaser}})
	}
	return p
}

// Run adopts the instances of an earlier run of this agent, then claims and runs jobs.
// It returns nil when the pool is drained or its single run is over, and an error when
// it cannot work. Run is called once.
//
// When ctx ends, jobs are stopped with a grace period, or left running if another agent
// adopts them ([runtime.Adopter]). Run returns when every other job has been reported and removed,
// but at the latest when the cancel grace period and two more minutes have passed since the
// end of ctx. A job that an engine could not stop by then is left to the next agent, and
// nothing is reported of it.
func (p *Pool) Run(ctx context.Context) error {
	// Limit the work after the end of ctx.
	finalCtx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	p.finalCtx = finalCtx
	stop := context.AfterFunc(ctx, func() {
		if p.awaitGrace(time.Now(), shutdownLimit, finalCtx.Done(), nil) {
			cancel(errShutdown)
		}
	})
	defer stop()

	err := p.start(ctx)
	if err == nil {
		close(p.ready)
		p.loop(ctx)
	}

	// Wait for the last job. If the pool is revived during the wait, begin again.
	p.jobs.Wait()
	for err == nil && p.isRevived(ctx) {
		p.loop(ctx)
		p.jobs.Wait()
	}
	if p.parts.Close != nil {
		p.parts.Close()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopped, p.err, p.due = true, err, time.Now()
	return err
}

// start applies the settings, and adopts the instances of an earlier run.
func (p *Pool) start(ctx context.Context) error {
	p.mu.Lock()
	p.polls.next = p.parts.Cloud.Tune(p.spec.Tuning)
	p.due = time.Now().Add(listLimit + adoptLimit)
	p.mu.Unlock()
	err := p.adopt(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.single.idleSince, p.due = time.Now(), time.Time{}
	return err
}

// isRevived reports whether [Pool.Tune] was called after the pool had drained.
func (p *Pool) isRevived(ctx context.Context) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return ctx.Err() == nil && !p.draining
}

// Ready returns a channel that is closed when the pool has adopted instances of an earlier
// run and starts to poll. It stays open if the adoption fails.
func (p *Pool) Ready() <-chan struct{} { return p.ready }

// loop gives each source its turns, adopts and sweeps until the pool is done or ctx ends.
// Jobs run with ctx, which ends later than what the loop starts. Thousands of goroutines may wait in it,
// so work that needs a large stack is in goroutines of its own.
func (p *Pool) loop(ctx context.Context) {
	loops, cancel := context.WithCancel(ctx)
	defer cancel()
	defer p.endTurns()
	if adopter, ok := p.parts.Executor.(runtime.Adopter); ok {
		p.jobs.Go(func() { p.followOrphans(loops, ctx, adopter) })
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	sweepTicker := time.NewTicker(sweepInterval)
	defer sweepTicker.Stop()
	for ctx.Err() == nil {
		done, idle := p.isDone()
		if done {
			return
		}
		var due <-chan time.Time
		if delay := p.turns(loops, ctx); delay > 0 {
			timer.Reset(delay)
			due = timer.C
		}
		select {
		case <-ctx.Done():
		case <-p.changed:
		case <-due:
		case <-idle:
		case <-sweepTicker.C:
			p.jobs.Go(func() { p.listAndSweep(loops) })
		}
	}
}

// turns gives each source a turn, and returns the delay until the next one; 0 if an event wakes the
// loop.
func (p *Pool) turns(ctx, jobs context.Context) (next time.Duration) {
	for _, s := range p.sources {
		if delay := p.turn(ctx, jobs, s); delay > 0 && (next == 0 || delay < next) {
			next = delay
		}
	}
	return next
}

// endTurns releases what the sources have for their next polls.
func (p *Pool) endTurns() {
	for _, s := range p.sources {
		p.leaveQueue(s)
		p.mu.Lock()
		if s.polling.IsZero() {
			s.due = time.Time{}
		}
		p.mu.Unlock()
	}
}

// isDone reports whether the pool drains and nothing of it is left. Otherwise an event wakes the
// loop, or the channel idle, when a single run ends because it gets no job.
func (p *Pool) isDone() (done bool, idle <-chan time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.draining = p.draining || p.spec.Tuning.SingleRun && p.single.ended > 0
	idle = p.endIdle()
	switch {
	case !p.draining, len(p.runs) > 0, p.leftovers > 0, p.polling():
		return false, idle
	case p.adoption.cancel != nil:
		p.adoption.cancel() // the end of the adoption wakes the loop; a job may have been adopted
		return false, nil
	}
	return true, nil
}

// Tune gives the pool new settings. They are used from the next turn of the loops on. A
// running job keeps the settings of its claim, except for the interval of its status polls
// and its cancel grace period. The Cloud decides which delays the new settings end. For example,
// a corrected token is tried at once, but a Retry-After of the service stays.
func (p *Pool) Tune(spec runtime.PoolSpec) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.spec.Tuning
	p.spec = spec
	p.draining, p.single.idle = false, false
	if spec.Tuning.SingleRun && !before.SingleRun {
		p.single.ended, p.single.idleSince = 0, time.Now()
	}
	if before.Paused && !spec.Tuning.Paused {
		p.single.idleSince = time.Now()
	}
	p.polls.next, p.polls.outdated = p.parts.Cloud.Tune(spec.Tuning), true
	if journal, ok := p.parts.Journal.(runtime.JournalTuner); ok {
		journal.Tune(spec.Tuning)
	}
	p.retryStart(before)
	p.check.ended = time.Time{}
	close(p.tuned)
	p.tuned = make(chan struct{})
	p.wake()
}

// Retry ends the delay after a failed poll: the next poll is made at once, and if it
// fails, the delay starts again. A delay that the service requested stays, and so does the
// interval after a poll that succeeded.
func (p *Pool) Retry() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if next := p.parts.Cloud.Retry(); next.At.Before(p.polls.next.At) {
		p.polls.next = next
	}
	p.polls.outdated = true
	p.wake()
}

// Drain makes the pool claim nothing more; Run returns when the last job has ended. If
// [Pool.Tune] is called before that, the pool claims jobs again.
func (p *Pool) Drain() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.draining = true
	p.wake()
}

// noteAnswer records that the service has answered a call that carries the pool's token. It
// is called for calls about jobs: a pool that is full of adopted jobs does not poll.
func (p *Pool) noteAnswer() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.polls.answered = time.Now()
}

// settings returns the settings in force, and a channel that is closed when they change.
func (p *Pool) settings() (runtime.Tuning, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.spec.Tuning, p.tuned
}

// statusInterval returns the interval of status polls in force, and a channel that is closed
// when the settings change. It does not return all settings, because these are large and
// each running job would hold them on its stack.
func (p *Pool) statusInterval() (time.Duration, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.spec.Tuning.StatusInterval, p.tuned
}

// isLeftover reports whether the pool is not configured.
func (p *Pool) isLeftover() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.spec.Leftover
}

func (p *Pool) isDraining() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.draining
}

// wake causes another turn of the loop.
func (p *Pool) wake() { notify(p.changed) }

// notify puts a token into a channel that holds at most one.
func notify(changed chan<- struct{}) {
	select {
	case changed <- struct{}{}:
	default:
	}
}
