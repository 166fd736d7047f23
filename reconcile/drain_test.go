package reconcile_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// claiming returns the names of the polling pools with their services and limits, sorted.
func (h *loopTest) claiming() string {
	var names []string
	for _, state := range h.loop.Status().Pools {
		if state.Phase == runtime.PoolPolling {
			names = append(names, fmt.Sprint(state.Spec.Name, " ", state.Spec.Identity.Service, " ",
				state.Spec.Tuning.MaxJobs))
		}
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// wantClaiming checks which pools poll, such as "a one 1".
func (h *loopTest) wantClaiming(want string) {
	h.Helper()
	if got := h.claiming(); got != want {
		h.Errorf("the polling pools are %q, want %q", got, want)
	}
}

// has sets the number of running jobs of the pool.
func (p *fakePool) has(jobs int) { p.set(func() { p.jobs = jobs }) }

func TestLoopDrain(t *testing.T) {
	withLoop(t, "pool that drains for hours is revived with new settings", func(h *loopTest) {
		h.want(1, pool("a", "one", 1), pool("b", "one", 1))
		a := h.pool("a")
		a.has(1)
		h.want(2, pool("b", "one", 1))
		pass(5 * time.Hour)
		h.wantPhase(a, runtime.PoolDraining)
		h.want(3, pool("a", "one", 4), pool("b", "one", 1))
		h.wantClaiming("a one 4, b one 1")
		if state := a.State(); h.pool("a") != a || state.Spec.Generation != 3 || len(state.Jobs) != 1 {
			h.Errorf("pool a was built %d times, want once; the first one has generation %d and %d jobs, want 3 and 1",
				len(h.built["a"]), state.Spec.Generation, len(state.Jobs))
		}
		h.wantApplied(3)
		h.wantReady(true)
		a.has(0)
		pass(time.Minute)
		h.wantClaiming("a one 4, b one 1")
	})

	for name, c := range map[string]struct {
		last   runtime.PoolSpec
		builds int
		during []string // services of the pools, while the first job runs
	}{
		"back to the first":             {pool("a", "one", 2), 2, []string{"one"}},
		"to a third":                    {pool("a", "three", 2), 3, []string{"one", "three"}},
		"unchanged, with another limit": {pool("a", "two", 2), 2, []string{"one", "two"}},
	} {
		withLoop(t, "second change of the identity, "+name+", starts no pool twice", func(h *loopTest) {
			h.want(1, pool("a", "one", 1))
			first := h.pool("a")
			first.has(1)
			h.want(2, pool("a", "two", 1))
			h.wantClaiming("a two 1")
			h.wantPhase(first, runtime.PoolDraining)
			h.want(3, c.last)
			pass(time.Minute)
			var services []string
			for _, state := range h.loop.Status().Pools {
				services = append(services, state.Spec.Identity.Service)
			}
			slices.Sort(services)
			if !slices.Equal(services, c.during) || len(first.State().Jobs) != 1 || first.cause != nil {
				h.Errorf("while the first job runs, the services are %v, want %v", services, c.during)
			}
			h.wantClaiming("a " + c.last.Identity.Service + " 2")
			first.has(0)
			pass(time.Minute)
			h.wantClaiming("a " + c.last.Identity.Service + " 2")
			h.wantPools(1)
			h.wantApplied(3)
			if builds := len(h.built["a"]); builds != c.builds {
				h.Errorf("%d pools were built, want %d", builds, c.builds)
			}
		})
	}

	withLoop(t, "failure of a draining pool is logged, and is no problem", func(h *loopTest) {
		h.want(1, pool("a", "one", 1), pool("b", "one", 1))
		a := h.pool("a")
		a.has(1)
		h.want(2, pool("b", "one", 1))
		a.set(func() { a.err = errors.New("the engine is gone") })
		pass(time.Minute)
		h.wantApplied(2)
		h.wantReady(true)
		h.wantProblems(0)
		h.wantTries("a", 1)
		if text := h.log.String(); !strings.Contains(text, "the engine is gone") || strings.Contains(text, "retry_in") {
			h.Errorf("the log is\n%s", text)
		}
	})

	withLoop(t, "paused pool has no problem", func(h *loopTest) {
		h.begin = func(p *fakePool) { p.paused = true } // the service requested a pause
		h.fail("a", errors.New("cannot reach the engine"))
		h.want(1, pool("a", "one", 1))
		h.fail("a", nil)
		pass(time.Minute)
		h.wantProblems(0)
		h.wantApplied(1)
	})

	once := pool("once", "one", 1)
	once.Tuning.SingleRun = true
	withLoop(t, "agent continues when an edit removes single_run from a pool with a completed run", func(h *loopTest) {
		h.want(1, once, pool("b", "one", 1))
		a := h.pool("once")
		a.set(func() { a.done = true })
		pass(time.Minute)
		h.wantPhase(a, runtime.PoolStopped)
		h.wantClaiming("b one 1")
		h.want(2, pool("once", "one", 1))
		select {
		case err := <-h.ended:
			h.ended <- err
			h.Fatal("the agent has ended, although no single run is desired any more")
		default:
		}
		h.wantClaiming("once one 1")
	})

	withToken := func(name, token string) runtime.PoolSpec {
		spec := pool(name, "one", 1)
		spec.Tuning.Token = secret.New(token)
		return spec
	}
	withLoop(t, "removed pool does not wait for a failed build", func(h *loopTest) {
		h.want(1, withToken("a", "t-a"), withToken("b", "t-b"), withToken("c", "t-c"))
		h.fail("new", errors.New("no such engine"))
		c := h.pool("c")
		h.want(2, withToken("renamed", "t-a"), withToken("new", "t-c"), withToken("other", "t-o"))
		h.wantClaiming("c one 1, other one 1, renamed one 1") // one pool per token
		pass(24 * time.Hour)
		h.wantClaiming("c one 1, other one 1, renamed one 1")
		h.wantReady(false)
		h.wantApplied(1)
		h.fail("new", nil)
		pass(2 * time.Minute)
		h.wantClaiming("new one 1, other one 1, renamed one 1")
		h.wantReady(true)
		if c.cause != nil {
			h.Errorf("pool c was stopped: %v", c.cause)
		}
	})

	withLoop(t, "jobs of other pools finish after a single run", func(h *loopTest) {
		h.want(1, pool("a", "one", 1))
		a := h.pool("a")
		a.has(1)
		h.want(2, once)
		h.pool("once").set(func() { h.pool("once").done = true })
		pass(5 * time.Hour)
		if a.cause != nil || len(a.State().Jobs) != 1 {
			h.Fatalf("the job of a pool that drains was stopped: %v", a.cause)
		}
		if s := h.loop.Status(); s.Stopping {
			h.Error("the agent stops although a job runs")
		}
		a.has(0)
		pass(time.Minute)
		select {
		case err := <-h.ended:
			h.ended <- err
		default:
			h.Error("the agent runs although all pools have stopped")
		}
	})

	withLoop(t, "completed single run does not affect health", func(h *loopTest) {
		both := desiredState(1, once, pool("a", "one", 1))
		both.Process.HealthThreshold = time.Minute
		h.deliver(both)
		h.pool("once").set(func() { h.pool("once").done = true })
		pass(time.Hour)
		h.wantReady(true)
		if !h.loop.Status().Healthy(time.Now()) {
			h.Error("an hour after the single run, the agent is not healthy")
		}
		h.pool("a").set(func() { h.pool("a").stale = true })
		pass(time.Hour)
		if h.loop.Status().Healthy(time.Now()) {
			h.Error("the agent is healthy although its pool makes no progress")
		}
	})

	withLoop(t, "hanging builds delay nothing else", func(h *loopTest) {
		specs := []runtime.PoolSpec{pool("a", "one", 2), pool("last", "one", 1)}
		for i := range 10 {
			name := fmt.Sprint("hangs-", i)
			h.hangs[name] = true
			specs = append(specs, pool(name, "one", 1))
		}
		h.want(1, pool("a", "one", 1), pool("gone", "one", 1), pool("changed", "one", 1))
		h.want(2, append(specs, pool("changed", "two", 1), pool("early", "one", 1))...)
		h.wantClaiming("a one 2, changed two 1, early one 1")
		h.pool("a").set(func() { h.pool("a").err = errors.New("the engine is gone") })
		synctest.Wait()
		if s := h.loop.Status(); len(s.Problems) == 0 {
			h.Error("the status does not show the failure of a pool that fails during builds")
		}
		pass(3 * time.Minute)
		h.wantClaiming("a one 2, changed two 1, early one 1, last one 1")
	})

	withLoop(t, "replacement that is undone during its build leaves the old pool", func(h *loopTest) {
		h.want(1, pool("a", "one", 1))
		open := h.gate("a")
		h.want(2, pool("a", "two", 1), pool("b", "one", 1))
		h.want(3, pool("a", "one", 1), pool("c", "one", 1))
		open()
		h.wantClaiming("a one 1, c one 1")
		h.wantApplied(3)
		h.wantPools(2)
	})

	// A pool that was drained before its start has not shown that it can run. So the pool that
	// it replaces must run until it has started.
	withLoop(t, "old pool runs until a revived replacement has started", func(h *loopTest) {
		h.want(1, withToken("a", "t"))
		a := h.pool("a")
		h.begin = func(p *fakePool) { p.begins, p.jobs = true, 1 } // a job, so that the pool does not stop at once
		h.want(2, withToken("b", "t"))
		h.want(3, withToken("a", "t"))
		h.want(4, withToken("b", "t"))
		pass(time.Minute)
		h.wantPhase(a, runtime.PoolPolling)
		h.wantClaiming("a one 1")
		h.pool("b").begin()
		synctest.Wait()
		h.wantClaiming("b one 1")
		h.wantApplied(4)
	})
}

// TestReadyWhilePoolsDrain checks that the agent is ready while removed and replaced pools
// finish their jobs, which may take hours. The agent is ready because it claims new jobs.
func TestReadyWhilePoolsDrain(t *testing.T) {
	for name, wanted := range map[string][]runtime.PoolSpec{
		"a replaced pool": {pool("a", "two", 1), pool("b", "one", 1)},
		"a removed pool":  {pool("b", "one", 1)},
	} {
		withLoop(t, name, func(h *loopTest) {
			h.want(1, pool("a", "one", 1), pool("b", "one", 1))
			old := h.pool("a")
			old.has(1)
			h.want(2, wanted...)
			pass(time.Hour)
			h.wantPhase(old, runtime.PoolDraining)
			h.wantReady(true)
			if h.loop.Status().Converged() {
				h.Error("Converged is true while a pool drains")
			}
			old.has(0)
			pass(time.Second)
			h.wantConverged()
			h.wantReady(true)
		})
	}
}
