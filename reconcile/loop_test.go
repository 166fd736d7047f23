package reconcile_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cmwa-project/cmwa/reconcile"
	"github.com/cmwa-project/cmwa/runtime"
)

// fakePool is a Pool whose state the test sets. It runs until it has drained, fails or is cancelled.
type fakePool struct {
	mu       sync.Mutex
	spec     runtime.PoolSpec
	jobs     int
	drained  bool
	stopped  bool
	begins   bool // is still starting
	paused   bool // does not poll
	done     bool // a job has ended
	stubborn bool // keeps its jobs when it is cancelled, until this is reset
	looks    int  // calls of State
	retries  int  // calls of Retry
	jobStops int  // calls of StopJob for the job of the pool
	cause    error
	err      error

	progress time.Time
	stale    bool // makes no progress
	changed  chan struct{}
	started  chan struct{}
}

func newFakePool(spec runtime.PoolSpec) *fakePool {
	return &fakePool{spec: spec, changed: make(chan struct{}, 1), started: make(chan struct{})}
}

func (p *fakePool) set(edit func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	edit()
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

func (p *fakePool) over() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err != nil || (p.drained || p.finished()) && p.jobs == 0
}

// endJobs ends the jobs of a cancelled pool, unless it is stubborn.
func (p *fakePool) endJobs() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.stubborn {
		p.jobs = 0
	}
}

// finished reports whether a single run has completed. The caller holds the lock.
func (p *fakePool) finished() bool { return p.spec.Tuning.SingleRun && p.done }

func (p *fakePool) Ready() <-chan struct{} { return p.started }

// begin ends the start.
func (p *fakePool) begin() {
	p.set(func() { p.begins = false })
	close(p.started)
}

func (p *fakePool) Run(ctx context.Context) error {
	p.mu.Lock()
	begins := p.begins
	p.mu.Unlock()
	if !begins {
		p.begin()
	}
	cancelled := ctx.Done()
	for !p.over() {
		select {
		case <-p.changed:
		case <-cancelled:
			cancelled = nil
			p.set(func() { p.drained, p.cause = true, context.Cause(ctx) })
		}
		if ctx.Err() != nil {
			p.endJobs()
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopped = true
	return p.err
}

func (p *fakePool) Tune(spec runtime.PoolSpec) {
	p.set(func() { p.spec, p.drained = spec, false })
}
func (p *fakePool) Drain() { p.set(func() { p.drained = true }) }

// StopJob knows one job, which has the name of the pool.
func (p *fakePool) StopJob(id string) (found bool) {
	p.set(func() {
		if found = id == p.spec.Name; found {
			p.jobStops++
		}
	})
	return found
}

func (p *fakePool) State() runtime.PoolState {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.looks++
	if !p.stale && !p.stopped {
		p.progress = time.Now()
	}
	state := runtime.PoolState{Spec: p.spec, Phase: runtime.PoolPolling, Jobs: make([]runtime.JobState, p.jobs),
		Err: p.err, Ready: !p.begins, Completed: p.finished(), Due: p.progress, AnsweredAt: p.progress}
	switch {
	case p.stopped:
		state.Phase = runtime.PoolStopped
	case p.drained, p.finished():
		state.Phase = runtime.PoolDraining
	case p.begins:
		state.Phase = runtime.PoolStarting
	case p.paused:
		state.Phase = runtime.PoolPaused
	}
	return state
}

// loopTest is a loop with fake pools.
type loopTest struct {
	testing.TB
	loop      *reconcile.Loop
	log       strings.Builder
	stop      context.CancelFunc
	forceStop context.CancelFunc
	ended     chan error

	mu    sync.Mutex
	built map[string][]*fakePool // by name
	fails map[string]error       // errors of the next builds, by name
	hangs map[string]bool        // whether a build ends only when its context ends, by name
	// gates are channels. A build, or a preparation of the process, waits until the channel
	// of its name is closed.
	gates map[string]chan struct{}
	tries map[string]int          // number of builds, by name
	sets  []reconcile.ProcessSpec // committed, in order

	building, most int                     // concurrent builds: now, and at most so far
	discarded      []reconcile.ProcessSpec // prepared and discarded, in order

	begin func(*fakePool) // is called for each pool that is built; may be nil
}

// withLoop runs story as a subtest, in a synctest bubble. Afterwards it stops the loop, and checks that Run returns
// no error.
func withLoop(t *testing.T, name string, story func(h *loopTest)) {
	t.Run(name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			h := &loopTest{TB: t, built: map[string][]*fakePool{}, fails: map[string]error{}, hangs: map[string]bool{},
				gates: map[string]chan struct{}{}, tries: map[string]int{}, ended: make(chan error, 1)}
			log := slog.New(slog.NewTextHandler(&h.log, nil))
			h.loop = reconcile.New(h.build, h.process, reconcile.ProcessSpec{}, log)
			ctx, stop := context.WithCancel(context.Background())
			force, forceStop := context.WithCancel(context.Background())
			h.stop, h.forceStop = stop, forceStop
			go func() { h.ended <- h.loop.Run(ctx, force) }()
			story(h)
			forceStop()
			stop()
			if err := <-h.ended; err != nil {
				t.Errorf("Run returned %v", err)
			}
		})
	})
}

func (h *loopTest) build(ctx context.Context, spec runtime.PoolSpec) (reconcile.Pool, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.tries[spec.Name]++
	h.building++
	h.most = max(h.most, h.building)
	defer func() { h.building-- }()
	h.waitAtGate(spec.Name)
	if h.hangs[spec.Name] {
		h.mu.Unlock()
		<-ctx.Done()
		h.mu.Lock()
		return nil, ctx.Err()
	}
	if err := h.fails[spec.Name]; err != nil {
		return nil, err
	}
	p := newFakePool(spec)
	if h.begin != nil {
		h.begin(p)
	}
	h.built[spec.Name] = append(h.built[spec.Name], p)
	return p, nil
}

// waitAtGate waits until the gate of a name is open, if there is one. The caller holds the
// lock.
func (h *loopTest) waitAtGate(name string) {
	if gate := h.gates[name]; gate != nil {
		h.mu.Unlock()
		<-gate
		h.mu.Lock()
	}
}

// gate makes builds of a name wait until the returned function is called.
func (h *loopTest) gate(name string) (open func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	gate := make(chan struct{})
	h.gates[name] = gate
	return func() {
		close(gate)
		synctest.Wait()
	}
}

func (h *loopTest) fail(name string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fails[name] = err
}

// pool returns the last pool that was built with a name, or nil.
func (h *loopTest) pool(name string) *fakePool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if all := h.built[name]; len(all) > 0 {
		return all[len(all)-1]
	}
	return nil
}

func (h *loopTest) want(generation uint64, specs ...runtime.PoolSpec) {
	h.deliver(desiredState(generation, specs...))
}

// deliver replaces the desired state, and waits until the loop has acted.
func (h *loopTest) deliver(desired reconcile.Desired) {
	h.loop.Want(desired)
	synctest.Wait()
}

// wantApplied checks which generation was applied last.
func (h *loopTest) wantApplied(generation uint64) {
	h.Helper()
	if s := h.loop.Status(); s.Applied != generation {
		h.Errorf("generation %d is applied, want %d; the status is %+v", s.Applied, generation, s)
	}
}

// wantReady checks whether the agent is ready.
func (h *loopTest) wantReady(ready bool) {
	h.Helper()
	if reasons := h.loop.Status().Unready(time.Now()); (len(reasons) == 0) != ready {
		h.Errorf("the reasons for not ready are %v, want ready %v", reasons, ready)
	}
}

// wantProblems checks the number of pools that cannot be built, and of other problems.
func (h *loopTest) wantProblems(want int) {
	h.Helper()
	if problems := h.loop.Status().Problems; len(problems) != want {
		h.Errorf("the problems are %v, want %d", problems, want)
	}
}

// wantPools checks the number of pools that exist.
func (h *loopTest) wantPools(want int) {
	h.Helper()
	if pools := h.loop.Status().Pools; len(pools) != want {
		h.Errorf("the pools are %+v, want %d", pools, want)
	}
}

// wantConverged checks that the desired state is in force.
func (h *loopTest) wantConverged() {
	h.Helper()
	if s := h.loop.Status(); !s.Converged() {
		h.Errorf("the status is %+v, want it converged", s)
	}
}

// wantPhase checks the phase of a pool. The pool need not be a member of the loop any more.
func (h *loopTest) wantPhase(p *fakePool, want runtime.PoolPhase) {
	h.Helper()
	if phase := p.State().Phase; phase != want {
		h.Errorf("pool %s is %s, want %s", p.spec.Name, phase, want)
	}
}

func desiredState(generation uint64, specs ...runtime.PoolSpec) reconcile.Desired {
	d := reconcile.Desired{Generation: generation, Pools: map[string]runtime.PoolSpec{},
		Process: reconcile.ProcessSpec{ShutdownTimeout: time.Hour}}
	for _, spec := range specs {
		spec.Generation = generation
		d.Pools[spec.Key()] = spec
	}
	return d
}

// pass lets virtual time pass.
func pass(span time.Duration) {
	time.Sleep(span)
	synctest.Wait()
}

func pool(name, service string, most int) runtime.PoolSpec {
	return runtime.PoolSpec{Name: name, Identity: runtime.Identity{Service: service},
		Tuning: runtime.Tuning{MaxJobs: most}}
}

func TestLoopRun(t *testing.T) {
	withLoop(t, "edit starts, tunes and drains pools", func(h *loopTest) {
		h.want(1, pool("a", "one", 1), pool("b", "one", 1))
		h.wantApplied(1)
		h.wantPools(2)
		h.wantReady(true)
		b := h.pool("b")
		b.has(1)
		h.want(2, pool("a", "one", 5))
		if got := h.pool("a").State().Spec.Tuning.MaxJobs; got != 5 {
			h.Errorf("pool a is tuned to %d, want 5", got)
		}
		h.wantApplied(1) // while a pool drains
		h.wantPools(2)
		b.has(0)
		pass(time.Second)
		h.wantApplied(2)
		h.wantPools(1)
		h.wantLogged(2, "msg=converged")
	})

	withLoop(t, "failed pool is started again", func(h *loopTest) {
		h.want(1, pool("a", "one", 1), pool("b", "one", 1))
		for range 3 {
			p := h.pool("a")
			p.set(func() { p.err = errors.New("the engine is gone") })
			synctest.Wait()
			h.wantReady(false)
			h.wantProblems(1)
			pass(10 * time.Second)
			if h.pool("a") == p {
				h.Fatal("the failed pool was not started again")
			}
		}
		h.wantLogged(3, "pool failed")
	})

	withLoop(t, "slow start does not cause turns", func(h *loopTest) {
		h.fail("a", errors.New("cannot reach the engine"))
		h.want(1, pool("a", "one", 1))
		h.fail("a", nil)
		pass(1500 * time.Millisecond)
		p := h.pool("a")
		p.set(func() { p.begins = true })
		pass(30 * time.Second)
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.looks > 100 {
			h.Errorf("the loop read the state %d times in half a minute, want at most 100", p.looks)
		}
	})

	withLoop(t, "replaced pool runs until its replacement has started", func(h *loopTest) {
		h.want(1, pool("a", "one", 1))
		old := h.pool("a")
		h.begin = func(p *fakePool) { p.begins = true }
		h.fail("a", errors.New("no such engine"))
		h.want(2, pool("a", "two", 1))
		pass(5 * time.Minute)
		h.wantPhase(old, runtime.PoolPolling) // the new pool cannot be built
		h.fail("a", nil)
		pass(2 * time.Minute)
		h.wantClaiming("a one 1") // the new pool starts
		h.wantApplied(1)
		h.wantReady(false)
		h.pool("a").begin()
		synctest.Wait()
		h.wantPhase(old, runtime.PoolStopped)
		h.wantClaiming("a two 1")
		h.wantApplied(2)
		h.wantPools(1)
		h.wantReady(true)
	})

	for name, c := range map[string]struct {
		jobEnds   time.Duration // 0: it never ends by itself; negative: there is no job
		forceStop time.Duration // 0: there is no forced stop
		took      time.Duration
		cause     string
	}{
		"for the end of a job": {jobEnds: 10 * time.Minute, took: 10 * time.Minute},
		"up to its limit":      {took: time.Hour, cause: "the agent is stopping, and shutdown_timeout has passed"},
		"until the stop is forced": {
			forceStop: time.Minute, took: time.Minute, cause: "the agent is stopping, after a second signal",
		},
		"for nothing without a job": {jobEnds: -1, took: 0},
	} {
		withLoop(t, "shutdown waits "+name, func(h *loopTest) {
			h.want(1, pool("a", "one", 1))
			p := h.pool("a")
			if c.jobEnds >= 0 {
				p.has(1)
			}
			began := time.Now()
			h.stop()
			synctest.Wait()
			if c.jobEnds > 0 {
				time.AfterFunc(c.jobEnds, func() { p.has(0) })
			}
			if c.forceStop > 0 {
				time.AfterFunc(c.forceStop, h.forceStop)
			}
			h.ended <- <-h.ended
			if took := time.Since(began); took != c.took {
				h.Errorf("the shutdown took %s, want %s", took, c.took)
			}
			cause := ""
			if p.cause != nil {
				cause = p.cause.Error()
			}
			if cause != c.cause {
				h.Errorf("the cause of the stop is %q, want %q", cause, c.cause)
			}
		})
	}

	withLoop(t, "latest desired state wins", func(h *loopTest) {
		for generation := range uint64(50) {
			h.loop.Want(reconcile.Desired{Generation: generation + 1, Pools: map[string]runtime.PoolSpec{}})
		}
		h.want(51, pool("a", "one", 3))
		h.wantApplied(51)
		h.wantPools(1)
	})
}

// process is the Process of the loop.
func (h *loopTest) process(_ context.Context, _, to reconcile.ProcessSpec) (reconcile.Prepared, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.waitAtGate(reconcile.ProcessKey)
	if err := h.fails[reconcile.ProcessKey]; err != nil {
		return reconcile.Prepared{}, err
	}
	note := func(list *[]reconcile.ProcessSpec) func() {
		return func() {
			h.mu.Lock()
			defer h.mu.Unlock()
			*list = append(*list, to)
		}
	}
	return reconcile.Prepared{Commit: note(&h.sets), Discard: note(&h.discarded)}, nil
}
