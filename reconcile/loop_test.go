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
	t         *testing.T
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

	begin     func(*fakePool) // is called for each pool that is built; may be nil
	meanwhile func()          // is called once, during the next build
}

func withLoop(t *testing.T, story func(t *testing.T, h *loopTest)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		h := &loopTest{t: t, built: map[string][]*fakePool{}, fails: map[string]error{}, hangs: map[string]bool{},
			gates: map[string]chan struct{}{}, tries: map[string]int{}, ended: make(chan error, 1)}
		h.loop = reconcile.New(h.build, h.process, reconcile.ProcessSpec{}, slog.New(slog.NewTextHandler(&h.log, nil)))
		ctx, stop := context.WithCancel(context.Background())
		force, forceStop := context.WithCancel(context.Background())
		h.stop, h.forceStop = stop, forceStop
		go func() { h.ended <- h.loop.Run(ctx, force) }()
		story(t, h)
		forceStop()
		stop()
		if err := <-h.ended; err != nil {
			t.Errorf("Run returned %v", err)
		}
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
	if h.meanwhile != nil {
		h.meanwhile()
		h.meanwhile = nil
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
	h.loop.Want(desiredState(generation, specs...))
	synctest.Wait()
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
	t.Run("edit starts, tunes and drains pools", func(t *testing.T) {
		withLoop(t, func(t *testing.T, h *loopTest) {
			h.want(1, pool("a", "one", 1), pool("b", "one", 1))
			if s := h.loop.Status(); s.Applied != 1 || len(s.Pools) != 2 || !s.Ready(time.Now()) {
				t.Fatalf("after the first generation: %+v", s)
			}
			h.pool("b").set(func() { h.pool("b").jobs = 1 })
			h.want(2, pool("a", "one", 5))
			if got := h.pool("a").State().Spec.Tuning.MaxJobs; got != 5 {
				t.Errorf("pool a is tuned to %d, want 5", got)
			}
			if s := h.loop.Status(); s.Applied != 1 || len(s.Pools) != 2 {
				t.Errorf("while a pool drains, generation %d is applied, want 1; %d pools, want 2",
					s.Applied, len(s.Pools))
			}
			b := h.pool("b")
			b.set(func() { b.jobs = 0 })
			pass(time.Second)
			if s := h.loop.Status(); s.Applied != 2 || len(s.Pools) != 1 {
				t.Errorf("after the last job, generation %d is applied, want 2; %d pools, want 1",
					s.Applied, len(s.Pools))
			}
			if log := h.log.String(); strings.Count(log, "msg=converged") != 2 {
				t.Errorf("the log does not have one line for each of the two generations in force:\n%s", log)
			}
		})
	})

	t.Run("failed pool is started again", func(t *testing.T) {
		withLoop(t, func(t *testing.T, h *loopTest) {
			h.want(1, pool("a", "one", 1))
			for range 3 {
				p := h.pool("a")
				p.set(func() { p.err = errors.New("the engine is gone") })
				pass(10 * time.Second)
				if h.pool("a") == p {
					t.Fatal("the failed pool was not started again")
				}
			}
			if count := strings.Count(h.log.String(), "pool failed"); count != 3 {
				t.Errorf("the failure is logged %d times, want 3:\n%s", count, h.log.String())
			}
		})
	})

	t.Run("failed build is retried with back-off and logged once", func(t *testing.T) {
		withLoop(t, func(t *testing.T, h *loopTest) {
			h.fail("a", errors.New("cannot reach the engine"))
			h.want(1, pool("a", "one", 1), pool("b", "one", 1))
			if h.pool("b") == nil {
				t.Error("a pool that cannot be built delays another one")
			}
			pass(10 * time.Minute)
			if tries := h.tries["a"]; tries < 10 || tries > 20 {
				t.Errorf("%d tries in ten minutes, want about 16", tries)
			}
			if loud := strings.Count(h.log.String(), "level=WARN"); loud != 1 {
				t.Errorf("%d warnings, want 1:\n%s", loud, h.log.String())
			}
			if s := h.loop.Status(); s.Ready(time.Now()) || len(s.Problems) != 1 {
				t.Errorf("with a failed build the status is %+v, want not ready and 1 problem", s)
			}
			h.fail("a", nil)
			pass(2 * time.Minute)
			if s := h.loop.Status(); !s.Ready(time.Now()) || len(s.Problems) != 0 {
				t.Errorf("after the engine can be reached again the status is %+v, want ready", s)
			}
		})
	})

	t.Run("new desired state does not wait for builds", func(t *testing.T) {
		withLoop(t, func(t *testing.T, h *loopTest) {
			h.want(1, pool("a", "one", 1))
			h.mu.Lock()
			h.hangs["b"] = true
			h.mu.Unlock()
			h.want(2, pool("a", "one", 1), pool("b", "one", 1), pool("c", "one", 1))
			if h.tries["b"] != 1 {
				t.Fatalf("the pool whose build hangs was built %d times, want once", h.tries["b"])
			}
			h.want(3, pool("a", "one", 2), pool("d", "one", 1))
			if s := h.loop.Status(); s.Applied != 3 || len(s.Pools) != 2 || len(s.Problems) != 0 {
				t.Errorf("directly after generation 3 the status is %+v", s)
			}
			if c := h.pool("c"); c == nil || !c.stopped {
				t.Error("a pool of the previous generation was not built, or still runs")
			}
			if strings.Contains(h.log.String(), "pool failed") {
				t.Errorf("a cancelled build is logged as a failure:\n%s", h.log.String())
			}
		})
	})

	t.Run("stop does not wait for builds", func(t *testing.T) {
		withLoop(t, func(t *testing.T, h *loopTest) {
			h.hangs["a"] = true
			h.want(1, pool("a", "one", 1))
			began := time.Now()
			h.stop()
			if err := <-h.ended; err != nil || time.Since(began) > 0 {
				t.Errorf("Run returned %v after %s", err, time.Since(began))
			}
			if strings.Contains(h.log.String(), "pool failed") {
				t.Errorf("a build that the stop cancelled is logged as a failure:\n%s", h.log.String())
			}
			h.ended <- nil
		})
	})

	t.Run("failed pool that is not desired is not a problem", func(t *testing.T) {
		withLoop(t, func(t *testing.T, h *loopTest) {
			h.want(1, pool("a", "one", 1), pool("b", "one", 1))
			b := h.pool("b")
			b.set(func() { b.jobs = 1 })
			h.want(2, pool("a", "one", 1))
			b.set(func() { b.err = errors.New("the engine is gone") })
			pass(time.Minute)
			if s := h.loop.Status(); s.Applied != 2 || len(s.Problems) != 0 || !s.Ready(time.Now()) {
				t.Errorf("after the failure of a pool that is not desired the status is %+v", s)
			}
		})
	})

	t.Run("slow start does not cause turns", func(t *testing.T) {
		withLoop(t, func(t *testing.T, h *loopTest) {
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
				t.Errorf("the loop read the state %d times in half a minute, want at most 100", p.looks)
			}
		})
	})

	t.Run("replaced pool runs until its replacement is built", func(t *testing.T) {
		withLoop(t, func(t *testing.T, h *loopTest) {
			h.want(1, pool("a", "one", 1))
			old := h.pool("a")
			h.fail("a", errors.New("no such engine"))
			h.want(2, pool("a", "two", 1))
			pass(5 * time.Minute)
			if phase := old.State().Phase; phase != runtime.PoolPolling {
				t.Fatalf("the old pool is %s although the new pool cannot be built", phase)
			}
			h.fail("a", nil)
			pass(2 * time.Minute)
			if phase := old.State().Phase; phase != runtime.PoolStopped {
				t.Errorf("the old pool is %s although the new pool runs", phase)
			}
			if s := h.loop.Status(); s.Applied != 2 || len(s.Pools) != 1 {
				t.Errorf("applied %d with %d pools, want 2 with 1", s.Applied, len(s.Pools))
			}
		})
	})

	t.Run("shutdown waits for jobs up to its limit", func(t *testing.T) {
		for name, c := range map[string]struct {
			jobEnds   time.Duration // 0: it never ends by itself; negative: there is no job
			forceStop time.Duration // 0: there is no forced stop
			took      time.Duration
			cause     string
		}{
			"the job ends":     {jobEnds: 10 * time.Minute, took: 10 * time.Minute},
			"the limit passes": {took: time.Hour, cause: "the agent is stopping, and shutdown_timeout has passed"},
			"the stop is forced": {
				forceStop: time.Minute, took: time.Minute, cause: "the agent is stopping, after a second signal",
			},
			"there is no job": {jobEnds: -1, took: 0},
		} {
			t.Run(name, func(t *testing.T) {
				withLoop(t, func(t *testing.T, h *loopTest) {
					h.want(1, pool("a", "one", 1))
					p := h.pool("a")
					if c.jobEnds >= 0 {
						p.set(func() { p.jobs = 1 })
					}
					began := time.Now()
					h.stop()
					synctest.Wait()
					if c.jobEnds > 0 {
						time.AfterFunc(c.jobEnds, func() { p.set(func() { p.jobs = 0 }) })
					}
					if c.forceStop > 0 {
						time.AfterFunc(c.forceStop, h.forceStop)
					}
					err := <-h.ended
					h.ended <- err
					if took := time.Since(began); took != c.took {
						t.Errorf("the shutdown took %s, want %s", took, c.took)
					}
					cause := ""
					if p.cause != nil {
						cause = p.cause.Error()
					}
					if cause != c.cause {
						t.Errorf("the cause of the stop is %q, want %q", cause, c.cause)
					}
				})
			})
		}
	})

	t.Run("latest desired state wins", func(t *testing.T) {
		withLoop(t, func(t *testing.T, h *loopTest) {
			for generation := range uint64(50) {
				h.loop.Want(reconcile.Desired{Generation: generation + 1, Pools: map[string]runtime.PoolSpec{}})
			}
			h.want(51, pool("a", "one", 3))
			if s := h.loop.Status(); s.Applied != 51 || len(s.Pools) != 1 {
				t.Errorf("applied %d with %d pools, want 51 with 1", s.Applied, len(s.Pools))
			}
		})
	})

	t.Run("failed change of the process is retried", func(t *testing.T) {
		withLoop(t, func(t *testing.T, h *loopTest) {
			h.fail(reconcile.ProcessKey, errors.New("the port is taken"))
			spec := reconcile.ProcessSpec{HTTPPort: 9090, LogLevel: "debug"}
			h.loop.Want(reconcile.Desired{Generation: 2, Pools: map[string]runtime.PoolSpec{}, Process: spec})
			time.Sleep(3 * time.Second)
			synctest.Wait()
			if status := h.loop.Status(); len(h.sets) > 0 || status.Applied == 2 ||
				status.Problems[reconcile.ProcessKey] != "the port is taken" {
				t.Errorf("set %v; the status is %+v", h.sets, status)
			}
			h.fail(reconcile.ProcessKey, nil)
			time.Sleep(time.Minute)
			synctest.Wait()
			if status := h.loop.Status(); len(h.sets) != 1 || h.sets[0] != spec || status.Applied != 2 ||
				len(status.Problems) > 0 {
				t.Errorf("set %v; the status is %+v", h.sets, status)
			}
		})
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
