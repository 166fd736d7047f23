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

// fakePool is a pool with state: it runs until it is drained of its jobs, dies,
// or is cancelled.
type fakePool struct {
	mu      sync.Mutex
	spec    runtime.PoolSpec
	jobs    int
	drained bool
	stopped bool
	begins  bool // has not begun to poll yet
	paused  bool // waits on purpose
	done    bool // a job has ended, or is about to
	looks   int  // calls of State
	retries int  // calls of Retry
	cause   error
	err     error

	progress time.Time
	stale    bool // makes no progress any more
	changed  chan struct{}
	begun    chan struct{}
}

func newFakePool(spec runtime.PoolSpec) *fakePool {
	return &fakePool{spec: spec, changed: make(chan struct{}, 1), begun: make(chan struct{})}
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

// finished reports whether a single run is over. The caller holds the lock.
func (p *fakePool) finished() bool { return p.spec.Tuning.SingleRun && p.done }

func (p *fakePool) Begun() <-chan struct{} { return p.begun }

// begin is the end of the start.
func (p *fakePool) begin() {
	p.set(func() { p.begins = false })
	close(p.begun)
}

func (p *fakePool) Run(ctx context.Context) error {
	p.mu.Lock()
	begins := p.begins
	p.mu.Unlock()
	if !begins {
		p.begin()
	}
	for !p.over() {
		select {
		case <-p.changed:
		case <-ctx.Done():
			p.set(func() { p.jobs, p.drained, p.cause = 0, true, context.Cause(ctx) })
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
	state := runtime.PoolState{Spec: p.spec, Phase: runtime.PoolPolling, Jobs: make([]runtime.JobState, p.jobs), Err: p.err, Begun: !p.begins, Finished: p.finished(), Due: p.progress, AnsweredAt: p.progress}
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

// house is a loop whose pools are fakes.
type house struct {
	t     *testing.T
	loop  *reconcile.Loop
	log   strings.Builder
	stop  context.CancelFunc
	hurry context.CancelFunc
	ended chan error

	mu    sync.Mutex
	built map[string][]*fakePool   // by name
	fails map[string]error         // of the next builds, by name
	hangs map[string]bool          // builds that end only with their context, by name
	gates map[string]chan struct{} // builds, and preparations of the process, that go on when these are closed, by name
	tries map[string]int
	sets  []reconcile.ProcessSpec // in order

	building, most int                     // builds at the same time
	discarded      []reconcile.ProcessSpec // prepared and not made, in order

	begin     func(*fakePool) // is done to each pool that is built; nil is nothing
	meanwhile func()          // happens once, during the next build
}

func inHouse(t *testing.T, story func(t *testing.T, h *house)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		h := &house{t: t, built: map[string][]*fakePool{}, fails: map[string]error{}, hangs: map[string]bool{}, gates: map[string]chan struct{}{}, tries: map[string]int{}, ended: make(chan error, 1)}
		h.loop = reconcile.New(h.build, h.process, reconcile.ProcessSpec{}, slog.New(slog.NewTextHandler(&h.log, nil)))
		soft, stop := context.WithCancel(context.Background())
		hard, hurry := context.WithCancel(context.Background())
		h.stop, h.hurry = stop, hurry
		go func() { h.ended <- h.loop.Run(soft, hard) }()
		story(t, h)
		hurry()
		stop()
		if err := <-h.ended; err != nil {
			t.Errorf("the loop ended with %v", err)
		}
	})
}

func (h *house) build(ctx context.Context, spec runtime.PoolSpec) (reconcile.Pool, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.tries[spec.Name]++
	h.building++
	h.most = max(h.most, h.building)
	defer func() { h.building-- }()
	h.pass(spec.Name)
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

// pass waits for a gate, if there is one. The caller holds the lock.
func (h *house) pass(name string) {
	if gate := h.gates[name]; gate != nil {
		h.mu.Unlock()
		<-gate
		h.mu.Lock()
	}
}

// gate makes builds of a name wait until the returned function is called.
func (h *house) gate(name string) (open func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	gate := make(chan struct{})
	h.gates[name] = gate
	return func() {
		close(gate)
		synctest.Wait()
	}
}

func (h *house) fail(name string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fails[name] = err
}

// pool is the newest that was built under the name, or nil.
func (h *house) pool(name string) *fakePool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if all := h.built[name]; len(all) > 0 {
		return all[len(all)-1]
	}
	return nil
}

func (h *house) want(generation uint64, specs ...runtime.PoolSpec) {
	h.loop.Want(wish(generation, specs...))
	synctest.Wait()
}

func wish(generation uint64, specs ...runtime.PoolSpec) reconcile.Desired {
	d := reconcile.Desired{Generation: generation, Pools: map[string]runtime.PoolSpec{}, Process: reconcile.ProcessSpec{ShutdownTimeout: time.Hour}}
	for _, spec := range specs {
		spec.Generation = generation
		d.Pools[spec.Key()] = spec
	}
	return d
}

func pass(span time.Duration) {
	time.Sleep(span) // in a bubble: virtual
	synctest.Wait()
}

func pool(name, service string, most int) runtime.PoolSpec {
	return runtime.PoolSpec{Name: name, Identity: runtime.Identity{Service: service}, Tuning: runtime.Tuning{MaxJobs: most}}
}

func TestAnEditStartsTunesAndDrains(t *testing.T) {
	inHouse(t, func(t *testing.T, h *house) {
		h.want(1, pool("a", "one", 1), pool("b", "one", 1))
		if s := h.loop.Status(); s.Applied != 1 || len(s.Pools) != 2 || !s.Ready(time.Now()) {
			t.Fatalf("after the first wish: %+v", s)
		}
		h.pool("b").set(func() { h.pool("b").jobs = 1 })
		h.want(2, pool("a", "one", 5))
		if got := h.pool("a").State().Spec.Tuning.MaxJobs; got != 5 {
			t.Errorf("pool a is tuned to %d, want 5", got)
		}
		if s := h.loop.Status(); s.Applied != 1 || len(s.Pools) != 2 {
			t.Errorf("with a pool that drains, generation %d counts as applied", s.Applied)
		}
		b := h.pool("b")
		b.set(func() { b.jobs = 0 })
		pass(time.Second)
		if s := h.loop.Status(); s.Applied != 2 || len(s.Pools) != 1 {
			t.Errorf("after the last job: applied %d with %d pools, want 2 with 1", s.Applied, len(s.Pools))
		}
	})
}

func TestAPoolThatDiesComesBackWithBackOff(t *testing.T) {
	inHouse(t, func(t *testing.T, h *house) {
		h.want(1, pool("a", "one", 1))
		for range 3 {
			p := h.pool("a")
			p.set(func() { p.err = errors.New("the engine is gone") })
			pass(10 * time.Second)
			if h.pool("a") == p {
				t.Fatal("the pool did not come back")
			}
		}
		if count := strings.Count(h.log.String(), "pool failed"); count != 3 {
			t.Errorf("said %d times:\n%s", count, h.log.String())
		}
	})
}

func TestWhatCannotBeBuiltIsTriedEverMoreSeldomAndSaidOnce(t *testing.T) {
	inHouse(t, func(t *testing.T, h *house) {
		h.fail("a", errors.New("cannot reach the engine"))
		h.want(1, pool("a", "one", 1), pool("b", "one", 1))
		if h.pool("b") == nil {
			t.Error("a pool that cannot be built keeps its neighbour from work")
		}
		pass(10 * time.Minute)
		if tries := h.tries["a"]; tries < 10 || tries > 20 {
			t.Errorf("%d tries in ten minutes, want about 16", tries)
		}
		if loud := strings.Count(h.log.String(), "level=WARN"); loud != 1 {
			t.Errorf("%d warnings:\n%s", loud, h.log.String())
		}
		if s := h.loop.Status(); s.Ready(time.Now()) || len(s.Problems) != 1 {
			t.Errorf("ready with a problem: %+v", s)
		}
		h.fail("a", nil)
		pass(2 * time.Minute)
		if s := h.loop.Status(); !s.Ready(time.Now()) || len(s.Problems) != 0 {
			t.Errorf("not ready after the engine is back: %+v", s)
		}
	})
}

func TestANewWishDoesNotWaitForWhatIsBeingBuilt(t *testing.T) {
	inHouse(t, func(t *testing.T, h *house) {
		h.want(1, pool("a", "one", 1))
		h.mu.Lock()
		h.hangs["b"] = true
		h.mu.Unlock()
		h.want(2, pool("a", "one", 1), pool("b", "one", 1), pool("c", "one", 1))
		if h.tries["b"] != 1 {
			t.Fatalf("%d tries of the pool that hangs", h.tries["b"])
		}
		h.want(3, pool("a", "one", 2), pool("d", "one", 1))
		if s := h.loop.Status(); s.Applied != 3 || len(s.Pools) != 2 || len(s.Problems) != 0 {
			t.Errorf("at once after the new wish: %+v", s)
		}
		if c := h.pool("c"); c == nil || !c.stopped {
			t.Error("a pool of the wish before is not there, or still asks for work")
		}
		if strings.Contains(h.log.String(), "pool failed") {
			t.Errorf("what nobody wants any more is said to fail:\n%s", h.log.String())
		}
	})
}

func TestTheEndOfTheAgentDoesNotWaitForWhatIsBeingBuilt(t *testing.T) {
	inHouse(t, func(t *testing.T, h *house) {
		h.hangs["a"] = true
		h.want(1, pool("a", "one", 1))
		began := time.Now()
		h.stop()
		if err := <-h.ended; err != nil || time.Since(began) > 0 {
			t.Errorf("the loop ended with %v after %s", err, time.Since(began))
		}
		if strings.Contains(h.log.String(), "pool failed") {
			t.Errorf("a pool is said to fail since the agent ends:\n%s", h.log.String())
		}
		h.ended <- nil
	})
}

func TestWhatFailedAndIsNotWantedAnyMoreIsNoProblem(t *testing.T) {
	inHouse(t, func(t *testing.T, h *house) {
		h.want(1, pool("a", "one", 1), pool("b", "one", 1))
		b := h.pool("b")
		b.set(func() { b.jobs = 1 })
		h.want(2, pool("a", "one", 1))
		b.set(func() { b.err = errors.New("the engine is gone") })
		pass(time.Minute)
		if s := h.loop.Status(); s.Applied != 2 || len(s.Problems) != 0 || !s.Ready(time.Now()) {
			t.Errorf("after a pool that nobody wants has died: %+v", s)
		}
	})
}

func TestAPoolThatTakesLongToBeginIsWaitedForInPeace(t *testing.T) {
	inHouse(t, func(t *testing.T, h *house) {
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
			t.Errorf("the loop looked %d times in half a minute", p.looks)
		}
	})
}

func TestAPoolIsNotLetGoUntilItsReplacementIsThere(t *testing.T) {
	inHouse(t, func(t *testing.T, h *house) {
		h.want(1, pool("a", "one", 1))
		old := h.pool("a")
		h.fail("a", errors.New("no such engine"))
		h.want(2, pool("a", "two", 1))
		pass(5 * time.Minute)
		if phase := old.State().Phase; phase != runtime.PoolPolling {
			t.Fatalf("the old pool is %s although the new one cannot be built", phase)
		}
		h.fail("a", nil)
		pass(2 * time.Minute)
		if phase := old.State().Phase; phase != runtime.PoolStopped {
			t.Errorf("the old pool is %s although the new one is there", phase)
		}
		if s := h.loop.Status(); s.Applied != 2 || len(s.Pools) != 1 {
			t.Errorf("applied %d with %d pools, want 2 with 1", s.Applied, len(s.Pools))
		}
	})
}

func TestAShutdownWaitsForJobsUpToItsLimit(t *testing.T) {
	for name, c := range map[string]struct {
		jobEnds time.Duration // 0 is never
		hurry   time.Duration // 0 is never
		took    time.Duration
		cause   string
	}{
		"the job ends":  {jobEnds: 10 * time.Minute, took: 10 * time.Minute},
		"the limit":     {took: time.Hour, cause: "the agent is stopping"},
		"in a hurry":    {hurry: time.Minute, took: time.Minute, cause: "the agent is stopping"},
		"without a job": {jobEnds: -1, took: 0},
	} {
		t.Run(name, func(t *testing.T) {
			inHouse(t, func(t *testing.T, h *house) {
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
				if c.hurry > 0 {
					time.AfterFunc(c.hurry, h.hurry)
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
					t.Errorf("the pool was stopped because of %q, want %q", cause, c.cause)
				}
			})
		})
	}
}

func TestTheLatestWishWins(t *testing.T) {
	inHouse(t, func(t *testing.T, h *house) {
		for generation := range uint64(50) {
			h.loop.Want(reconcile.Desired{Generation: generation + 1, Pools: map[string]runtime.PoolSpec{}})
		}
		h.want(51, pool("a", "one", 3))
		if s := h.loop.Status(); s.Applied != 51 || len(s.Pools) != 1 {
			t.Errorf("applied %d with %d pools, want 51 with 1", s.Applied, len(s.Pools))
		}
	})
}

// process stands for the process around the loop.
func (h *house) process(_ context.Context, _, to reconcile.ProcessSpec) (reconcile.Prepared, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pass(reconcile.ProcessKey)
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

func TestTheProcessIsSetOnceAndTriedAgainWhereItCannotBe(t *testing.T) {
	inHouse(t, func(t *testing.T, h *house) {
		h.fail(reconcile.ProcessKey, errors.New("the port is taken"))
		spec := reconcile.ProcessSpec{HTTPPort: 9090, LogLevel: "debug"}
		h.loop.Want(reconcile.Desired{Generation: 2, Pools: map[string]runtime.PoolSpec{}, Process: spec})
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if status := h.loop.Status(); len(h.sets) > 0 || status.Applied == 2 || status.Problems[reconcile.ProcessKey] != "the port is taken" {
			t.Errorf("set %v; the status is %+v", h.sets, status)
		}
		h.fail(reconcile.ProcessKey, nil)
		time.Sleep(time.Minute)
		synctest.Wait()
		if status := h.loop.Status(); len(h.sets) != 1 || h.sets[0] != spec || status.Applied != 2 || len(status.Problems) > 0 {
			t.Errorf("set %v; the status is %+v", h.sets, status)
		}
	})
}
