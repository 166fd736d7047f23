package reconcile_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cmwa-project/cmwa/reconcile"
	"github.com/cmwa-project/cmwa/runtime"
)

// phases returns the phase of each pool of the status, by name.
func (h *loopTest) phases() map[string]runtime.PoolPhase {
	phases := map[string]runtime.PoolPhase{}
	for _, state := range h.loop.Status().Pools {
		phases[state.Spec.Name] = state.Phase
	}
	return phases
}

func TestSet(t *testing.T) {
	withLoop(t, "a pool is starting while it is built", func(h *loopTest) {
		open := h.gate("a")
		h.want(1, pool("a", "one", 1))
		s := h.loop.Status()
		if h.phases()["a"] != runtime.PoolStarting || s.Claiming || s.Ready(time.Now()) || !s.Healthy(time.Now()) {
			h.Errorf("while the pool is built the status is %+v", s)
		}
		open()
		h.wantClaiming("a one 1")
		h.wantConverged()
	})
	withLoop(t, "a building pool that is no longer desired is cancelled", func(h *loopTest) {
		h.hangs["b"] = true
		h.want(1, pool("a", "one", 1), pool("b", "one", 1))
		h.want(2, pool("a", "one", 1))
		h.wantPools(1)
		h.wantConverged()
		h.wantTries("b", 1)
		h.wantLogged(0, "level=WARN")
	})
	withLoop(t, "a build that fails after its cancellation is no problem", func(h *loopTest) {
		open := h.gate("a")
		h.want(1, pool("a", "one", 1))
		h.want(2)
		h.fail("a", errors.New("the engine does not respond"))
		open()
		h.wantApplied(2)
		h.wantProblems(0)
		h.wantLogged(0, "level=WARN")
	})
	withLoop(t, "a pool that is built after its cancellation drains and ends", func(h *loopTest) {
		open := h.gate("b")
		h.want(1, pool("a", "one", 1), pool("b", "one", 1))
		h.want(2, pool("a", "one", 1))
		if h.phases()["b"] != runtime.PoolDraining {
			h.Errorf("after the cancellation the phases are %v", h.phases())
		}
		open()
		if b := h.pool("b"); b == nil || !b.stopped || b.cause != nil {
			h.Error("the pool was not run to its end")
		}
		h.wantPools(1)
		h.wantConverged()
	})
	for name, broken := range map[string]error{
		"in the first build": nil, "in a second build": errors.New("cancelled"),
	} {
		withLoop(t, "a cancelled build that is desired again succeeds "+name, func(h *loopTest) {
			open := h.gate("a")
			h.want(1, pool("a", "one", 1))
			h.want(2)
			h.want(3, pool("a", "one", 3))
			if h.phases()["a"] != runtime.PoolStarting {
				h.Errorf("after the pool is desired again the phases are %v", h.phases())
			}
			h.fail("a", broken)
			again := h.gate("a")
			open()
			h.fail("a", nil)
			again()
			h.wantClaiming("a one 3")
			h.wantConverged()
			if generation := h.loop.Status().Pools[0].Spec.Generation; generation != 3 {
				h.Errorf("the pool has generation %d, want 3", generation)
			}
			h.wantLogged(0, "level=WARN")
		})
	}
	withLoop(t, "a change of settings during the build reaches the pool", func(h *loopTest) {
		open := h.gate("a")
		h.want(1, pool("a", "one", 1))
		h.want(2, pool("a", "one", 5))
		open()
		h.wantClaiming("a one 5")
		h.wantTries("a", 1)
		h.wantConverged()
	})
	withLoop(t, "a build that hangs delays neither other pools nor the shutdown", func(h *loopTest) {
		h.hangs["b"] = true
		h.want(1, pool("a", "one", 1), pool("b", "one", 1), pool("c", "one", 1))
		c := h.pool("c")
		c.has(1)
		started := time.Now()
		h.want(2, pool("a", "one", 4), pool("b", "one", 1), pool("d", "one", 1))
		h.wantClaiming("a one 4, d one 1")
		h.wantPhase(c, runtime.PoolDraining)
		c.has(0)
		synctest.Wait()
		if _, there := h.phases()["c"]; there {
			h.Error("a drained pool is not removed")
		}
		h.stop()
		h.ended <- <-h.ended
		if took := time.Since(started); took > 0 {
			h.Errorf("all steps took %s, want 0s", took)
		}
		h.wantLogged(0, "level=WARN")
	})
	withLoop(t, "a failed build is tried again with back-off, and logged once", func(h *loopTest) {
		h.fail("a", errors.New("cannot reach the engine"))
		h.want(1, pool("a", "one", 1), pool("b", "one", 1))
		h.wantClaiming("b one 1")
		var after []time.Duration
		for started, tries := time.Now(), 0; time.Since(started) < 10*time.Minute; pass(time.Second) {
			if h.tries["a"] > tries {
				after = append(after, time.Since(started)/time.Second)
			}
			tries = h.tries["a"]
			s := h.loop.Status()
			if len(s.Pools) != 1 || len(s.Problems) != 1 || s.Pending || s.Ready(time.Now()) {
				h.Fatalf("after %s the status is %+v", time.Since(started), s)
			}
		}
		want := []time.Duration{0, 1, 3, 7, 15, 31, 63, 123, 183, 243, 303, 363, 423, 483, 543}
		if !slices.Equal(after, want) {
			h.Errorf("the pool was built after %d s, want %d s", after, want)
		}
		h.wantLogged(1, "level=WARN")
		h.fail("a", nil)
		pass(2 * time.Minute)
		h.wantReady(true)
		h.wantProblems(0)
	})
	withLoop(t, "builds are limited in number and time", func(h *loopTest) {
		var specs []runtime.PoolSpec
		for i := range 20 {
			name := fmt.Sprint("hangs-", i)
			h.hangs[name] = true
			specs = append(specs, pool(name, "one", 1))
		}
		h.want(1, specs...)
		pass(time.Minute)
		if problems := len(h.loop.Status().Problems); h.most != 8 || problems != 8 {
			h.Errorf("after a minute %d builds have failed, and at most %d ran at once; want 8 and 8", problems, h.most)
		}
		h.want(2)
		h.wantPools(0) // all builds are cancelled
		h.wantConverged()
	})
}

// wantTries checks how often a pool was built.
func (h *loopTest) wantTries(name string, want int) {
	h.Helper()
	if tries := h.tries[name]; tries != want {
		h.Errorf("pool %s was built %d times, want %d", name, tries, want)
	}
}

// setLeftovers makes pools the leftovers of an earlier run.
func (h *loopTest) setLeftovers(specs ...runtime.PoolSpec) {
	h.followLeftovers(func(context.Context, map[string]runtime.PoolSpec) ([]runtime.PoolSpec, error) {
		return specs, nil
	})
}

func TestProcess(t *testing.T) {
	withPort := func(generation uint64, port int, specs ...runtime.PoolSpec) reconcile.Desired {
		d := desiredState(generation, specs...)
		d.Process.HTTPPort = port
		return d
	}
	// wantPorts checks the ports of the changes that were committed, and of those that were discarded.
	wantPorts := func(h *loopTest, committed, discarded []int) {
		h.Helper()
		ports := func(specs []reconcile.ProcessSpec) (ports []int) {
			for _, spec := range specs {
				ports = append(ports, spec.HTTPPort)
			}
			return ports
		}
		if sets, drops := ports(h.sets), ports(h.discarded); !slices.Equal(sets, committed) ||
			!slices.Equal(drops, discarded) {
			h.Errorf("committed changes to the ports %v, want %v; discarded those to %v, want %v", sets, committed,
				drops, discarded)
		}
	}
	withLoop(t, "a change that is being prepared does not delay pools", func(h *loopTest) {
		h.want(1, pool("a", "one", 1), pool("b", "one", 1))
		open := h.gate(reconcile.ProcessKey)
		h.loop.Want(withPort(2, 8080, pool("a", "one", 2), pool("c", "one", 1)))
		pass(10 * time.Second)
		h.wantClaiming("a one 2, c one 1")
		h.wantPools(2)
		h.wantApplied(1)
		if !h.loop.Status().Pending {
			h.Error("Pending is false during the preparation")
		}
		open()
		h.wantConverged()
		wantPorts(h, []int{0, 8080}, nil)
	})
	withLoop(t, "a change that fails delays no pool, and is retried", func(h *loopTest) {
		h.want(1, pool("a", "one", 1), pool("b", "one", 1), pool("c", "one", 1))
		h.fail(reconcile.ProcessKey, errors.New("the port is taken"))
		next := withPort(2, 9090, pool("a", "one", 2), pool("b", "two", 1))
		next.Process.LogLevel = "debug"
		h.loop.Want(next)
		pass(3 * time.Second)
		h.wantClaiming("a one 2, b two 1")
		h.wantPools(2)
		h.wantApplied(1)
		h.wantReady(false)
		h.wantProblems(1)
		if problem := h.loop.Status().Problems[reconcile.ProcessKey]; problem != "the port is taken" {
			h.Errorf("the problem of the process is %q", problem)
		}
		wantPorts(h, []int{0}, nil)
		h.fail(reconcile.ProcessKey, nil)
		pass(time.Minute)
		h.wantApplied(2)
		h.wantReady(true)
		h.wantProblems(0)
		if wantPorts(h, []int{0, 9090}, nil); h.sets[1] != next.Process {
			h.Errorf("committed %+v, want %+v", h.sets[1], next.Process)
		}
	})
	withLoop(t, "a superseded change is discarded, and the latest change is committed", func(h *loopTest) {
		h.want(1)
		open := h.gate(reconcile.ProcessKey)
		for i, port := range []int{8080, 8081, 8082} {
			h.deliver(withPort(uint64(i)+2, port))
		}
		open()
		wantPorts(h, []int{0, 8082}, []int{8080})
		h.wantConverged()
	})
	withLoop(t, "a change that is undone is discarded", func(h *loopTest) {
		h.want(1)
		open := h.gate(reconcile.ProcessKey)
		h.deliver(withPort(2, 8080))
		h.want(3)
		h.wantConverged()
		open()
		wantPorts(h, []int{0}, []int{8080})
	})
	withLoop(t, "a cancelled change that fails is not a problem when it is desired again", func(h *loopTest) {
		h.want(1)
		open := h.gate(reconcile.ProcessKey)
		for i, port := range []int{8080, 8081, 8080} {
			h.deliver(withPort(uint64(i)+2, port))
		}
		h.fail(reconcile.ProcessKey, context.Canceled)
		again := h.gate(reconcile.ProcessKey)
		open()
		h.fail(reconcile.ProcessKey, nil)
		again()
		wantPorts(h, []int{0, 8080}, nil)
		h.wantConverged()
		h.wantLogged(0, "level=WARN")
	})
	withLoop(t, "a change whose preparation ends while the agent stops is discarded", func(h *loopTest) {
		h.want(1, pool("a", "one", 1))
		open := h.gate(reconcile.ProcessKey)
		h.deliver(withPort(2, 8080, pool("a", "one", 1)))
		h.stop()
		synctest.Wait()
		if !h.pool("a").stopped {
			h.Error("the pools wait for the change")
		}
		open()
		h.ended <- <-h.ended
		wantPorts(h, []int{0}, []int{8080})
	})
}
