package reconcile_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cmwa-project/cmwa/reconcile"
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

// has sets the number of running jobs of the pool.
func (p *fakePool) has(jobs int) { p.set(func() { p.jobs = jobs }) }

func TestLoopDrain(t *testing.T) {
	t.Run("pool that drains for hours is revived with new settings", func(t *testing.T) {
		withLoop(t, func(t *testing.T, h *loopTest) {
			h.want(1, pool("a", "one", 1), pool("b", "one", 1))
			a := h.pool("a")
			a.has(1)
			h.want(2, pool("b", "one", 1))
			pass(5 * time.Hour)
			if phase := a.State().Phase; phase != runtime.PoolDraining {
				t.Fatalf("after hours with a job the pool is %s, want draining", phase)
			}
			h.want(3, pool("a", "one", 4), pool("b", "one", 1))
			if h.pool("a") != a || h.claiming() != "a one 4, b one 1" || a.State().Spec.Generation != 3 ||
				len(a.State().Jobs) != 1 {
				t.Errorf("the polling pools are %s, want the first pool a with its job and a limit of 4, and b; "+
					"pool a was built %d times", h.claiming(), len(h.built["a"]))
			}
			if s := h.loop.Status(); s.Applied != 3 || !s.Ready(time.Now()) {
				t.Errorf("generation %d is applied, want 3", s.Applied)
			}
			a.has(0)
			pass(time.Minute)
			if h.claiming() != "a one 4, b one 1" {
				t.Errorf("after the end of the job, the polling pools are %s", h.claiming())
			}
		})
	})

	t.Run("second change of the identity starts no pool twice", func(t *testing.T) {
		for name, c := range map[string]struct {
			last   runtime.PoolSpec
			builds int
			during []string // services of the pools, while the first job runs
		}{
			"back to the first":             {pool("a", "one", 2), 2, []string{"one"}},
			"to a third":                    {pool("a", "three", 2), 3, []string{"one", "three"}},
			"unchanged, with another limit": {pool("a", "two", 2), 2, []string{"one", "two"}},
		} {
			t.Run(name, func(t *testing.T) {
				withLoop(t, func(t *testing.T, h *loopTest) {
					h.want(1, pool("a", "one", 1))
					first := h.pool("a")
					first.has(1)
					h.want(2, pool("a", "two", 1))
					if h.claiming() != "a two 1" || first.State().Phase != runtime.PoolDraining {
						t.Fatalf("the polling pools are %s, and the first pool is %s, want draining", h.claiming(),
							first.State().Phase)
					}
					h.want(3, c.last)
					pass(time.Minute)
					var services []string
					for _, state := range h.loop.Status().Pools {
						services = append(services, state.Spec.Identity.Service)
					}
					slices.Sort(services)
					if !slices.Equal(services, c.during) || len(first.State().Jobs) != 1 || first.cause != nil {
						t.Errorf("while the first job runs, the services are %v, want %v", services, c.during)
					}
					if want := "a " + c.last.Identity.Service + " 2"; h.claiming() != want {
						t.Errorf("the polling pools are %s, want %s", h.claiming(), want)
					}
					first.has(0)
					pass(time.Minute)
					s := h.loop.Status()
					if h.claiming() != "a "+c.last.Identity.Service+" 2" || len(s.Pools) != 1 || s.Applied != 3 ||
						len(h.built["a"]) != c.builds {
						t.Errorf("after the end of the job, the polling pools are %s; there are %d pools, want 1; "+
							"generation %d is applied, want 3; %d pools were built, want %d",
							h.claiming(), len(s.Pools), s.Applied, len(h.built["a"]), c.builds)
					}
				})
			})
		}
	})

	t.Run("an edit during builds is applied", func(t *testing.T) {
		withLoop(t, func(t *testing.T, h *loopTest) {
			h.want(1, pool("a", "one", 1))
			h.meanwhile = func() { h.loop.Want(desiredState(3, pool("a", "one", 1), pool("c", "one", 1))) }
			h.want(2, pool("a", "two", 1), pool("b", "one", 1))
			pass(time.Minute)
			if s := h.loop.Status(); h.claiming() != "a one 1, c one 1" || s.Applied != 3 || len(s.Pools) != 2 {
				t.Errorf("the polling pools are %s of %d pools, and generation %d is applied",
					h.claiming(), len(s.Pools), s.Applied)
			}
		})
	})

	t.Run("failed change of the process delays no pool", func(t *testing.T) {
		withLoop(t, func(t *testing.T, h *loopTest) {
			h.want(1, pool("a", "one", 1), pool("b", "one", 1), pool("c", "one", 1))
			h.fail(reconcile.ProcessKey, errors.New("the port is taken"))
			next := desiredState(2, pool("a", "one", 2), pool("b", "two", 1))
			next.Process.HTTPPort = 9090
			h.loop.Want(next)
			pass(time.Second)
			if want := "a one 2, b two 1"; h.claiming() != want || len(h.loop.Status().Pools) != 2 {
				t.Errorf("the polling pools are %s of %d pools, want %s", h.claiming(),
					len(h.loop.Status().Pools), want)
			}
			if s := h.loop.Status(); s.Ready(time.Now()) || s.Applied != 1 || len(s.Problems) != 1 {
				t.Errorf("a failed change of the process counts as applied: %+v", s)
			}
			h.fail(reconcile.ProcessKey, nil)
			pass(time.Minute)
			if s := h.loop.Status(); !s.Ready(time.Now()) || s.Applied != 2 || len(s.Problems) != 0 {
				t.Errorf("after the port is free: %+v", s)
			}
		})
	})

	t.Run("failure of a draining pool is logged and blocks nothing", func(t *testing.T) {
		withLoop(t, func(t *testing.T, h *loopTest) {
			h.want(1, pool("a", "one", 1), pool("b", "one", 1))
			a := h.pool("a")
			a.has(1)
			h.want(2, pool("b", "one", 1))
			a.set(func() { a.err = errors.New("the engine is gone") })
			pass(time.Minute)
			if s := h.loop.Status(); s.Applied != 2 || !s.Ready(time.Now()) || len(h.built["a"]) != 1 {
				t.Errorf("a pool that is not desired keeps generation 2 from being applied: %+v", s)
			}
			if text := h.log.String(); !strings.Contains(text, "the engine is gone") ||
				strings.Contains(text, "retry_in") {
				t.Errorf("the log is\n%s", text)
			}
		})
	})

	t.Run("paused pool has no problem", func(t *testing.T) {
		withLoop(t, func(t *testing.T, h *loopTest) {
			h.begin = func(p *fakePool) { p.paused = true } // the service requested a pause
			h.fail("a", errors.New("cannot reach the engine"))
			h.want(1, pool("a", "one", 1))
			h.fail("a", nil)
			pass(time.Minute)
			if s := h.loop.Status(); len(s.Problems) != 0 || s.Applied != 1 {
				t.Errorf("a paused pool still has the problem of its failed build: %+v", s)
			}
		})
	})

	t.Run("agent continues when an edit removes single_run from a pool with a completed run", func(t *testing.T) {
		withLoop(t, func(t *testing.T, h *loopTest) {
			once := pool("a", "one", 1)
			once.Tuning.SingleRun = true
			h.want(1, once, pool("b", "one", 1))
			a := h.pool("a")
			a.set(func() { a.done = true })
			pass(time.Minute)
			if phase := a.State().Phase; phase != runtime.PoolStopped || h.claiming() != "b one 1" {
				t.Fatalf("the pool of the single run is %s, and the polling pools are %s", phase, h.claiming())
			}
			h.want(2, pool("a", "one", 1))
			select {
			case err := <-h.ended:
				h.ended <- err
				t.Fatal("the agent has ended, although no single run is desired any more")
			default:
			}
			if h.claiming() != "a one 1" {
				t.Errorf("the polling pools are %s", h.claiming())
			}
		})
	})

	t.Run("removed pool does not wait for a failed build", func(t *testing.T) {
		withLoop(t, func(t *testing.T, h *loopTest) {
			named := func(name, token string) runtime.PoolSpec {
				spec := pool(name, "one", 1)
				spec.Tuning.Token = secret.New(token)
				return spec
			}
			h.want(1, named("a", "t-a"), named("b", "t-b"), named("c", "t-c"))
			h.fail("new", errors.New("no such engine"))
			c := h.pool("c")
			h.want(2, named("renamed", "t-a"), named("new", "t-c"), named("other", "t-o"))
			if want := "c one 1, other one 1, renamed one 1"; h.claiming() != want {
				t.Errorf("the polling pools are %s, want %s: one pool per token", h.claiming(), want)
			}
			pass(24 * time.Hour)
			if s := h.loop.Status(); h.claiming() != "c one 1, other one 1, renamed one 1" || s.Ready(time.Now()) ||
				s.Applied == 2 {
				t.Errorf("a day later, the polling pools are %s, and the agent is ready: %v", h.claiming(),
					s.Ready(time.Now()))
			}
			h.fail("new", nil)
			pass(2 * time.Minute)
			if s := h.loop.Status(); h.claiming() != "new one 1, other one 1, renamed one 1" ||
				!s.Ready(time.Now()) || c.cause != nil {
				t.Errorf("after the build succeeds, the polling pools are %s, and the agent is ready: %v", h.claiming(),
					s.Ready(time.Now()))
			}
		})
	})

	t.Run("replaced pool runs until its replacement has started", func(t *testing.T) {
		withLoop(t, func(t *testing.T, h *loopTest) {
			h.want(1, pool("a", "one", 1))
			h.begin = func(p *fakePool) { p.begins = true }
			h.want(2, pool("a", "two", 1))
			pass(time.Minute)
			if s := h.loop.Status(); h.claiming() != "a one 1" || s.Applied != 1 || s.Ready(time.Now()) {
				t.Errorf("while the new pool starts, the polling pools are %s; generation %d is applied; "+
					"the agent is ready: %v", h.claiming(), s.Applied, s.Ready(time.Now()))
			}
			h.pool("a").begin()
			synctest.Wait()
			if s := h.loop.Status(); h.claiming() != "a two 1" || s.Applied != 2 || !s.Ready(time.Now()) {
				t.Errorf("after the start of the new pool, the polling pools are %s; generation %d is applied; "+
					"the agent is ready: %v", h.claiming(), s.Applied, s.Ready(time.Now()))
			}
		})
	})

	t.Run("jobs of other pools finish after a single run", func(t *testing.T) {
		withLoop(t, func(t *testing.T, h *loopTest) {
			once := pool("once", "one", 1)
			once.Tuning.SingleRun = true
			h.want(1, pool("a", "one", 1))
			a := h.pool("a")
			a.has(1)
			h.want(2, once)
			h.pool("once").set(func() { h.pool("once").done = true })
			pass(5 * time.Hour)
			if a.cause != nil || len(a.State().Jobs) != 1 {
				t.Fatalf("the job of a pool that drains was stopped: %v", a.cause)
			}
			if s := h.loop.Status(); s.Stopping {
				t.Error("the agent stops although a job runs")
			}
			a.has(0)
			pass(time.Minute)
			select {
			case err := <-h.ended:
				if err != nil {
					t.Error(err)
				}
				h.ended <- nil
			default:
				t.Error("the agent runs although all pools have stopped")
			}
		})
	})

	t.Run("completed single run does not affect health", func(t *testing.T) {
		withLoop(t, func(t *testing.T, h *loopTest) {
			once := pool("once", "one", 1)
			once.Tuning.SingleRun = true
			both := desiredState(1, once, pool("a", "one", 1))
			both.Process.HealthThreshold = time.Minute
			h.loop.Want(both)
			synctest.Wait()
			h.pool("once").set(func() { h.pool("once").done = true })
			pass(time.Hour)
			if s := h.loop.Status(); !s.Healthy(time.Now()) || !s.Ready(time.Now()) {
				t.Errorf("an hour after the single run, the agent is healthy: %v, ready: %v", s.Healthy(time.Now()),
					s.Ready(time.Now()))
			}
			h.pool("a").set(func() { h.pool("a").stale = true })
			pass(time.Hour)
			if h.loop.Status().Healthy(time.Now()) {
				t.Error("the agent is healthy although its pool makes no progress")
			}
		})
	})

	t.Run("hanging builds delay nothing else", func(t *testing.T) {
		withLoop(t, func(t *testing.T, h *loopTest) {
			specs := []runtime.PoolSpec{pool("a", "one", 2), pool("last", "one", 1)}
			for i := range 10 {
				name := fmt.Sprint("hangs-", i)
				h.hangs[name] = true
				specs = append(specs, pool(name, "one", 1))
			}
			h.want(1, pool("a", "one", 1), pool("gone", "one", 1), pool("changed", "one", 1))
			h.want(2, append(specs, pool("changed", "two", 1), pool("early", "one", 1))...)
			if h.claiming() != "a one 2, changed two 1, early one 1" {
				t.Errorf("during the builds, the polling pools are %s", h.claiming())
			}
			h.pool("a").set(func() { h.pool("a").err = errors.New("the engine is gone") })
			synctest.Wait()
			if s := h.loop.Status(); len(s.Problems) == 0 {
				t.Error("the status does not show the failure of a pool that fails during builds")
			}
			pass(3 * time.Minute)
			if h.claiming() != "a one 2, changed two 1, early one 1, last one 1" {
				t.Errorf("after ten builds that hang, the polling pools are %s", h.claiming())
			}
		})
	})

	t.Run("agent with a failed pool is not ready", func(t *testing.T) {
		withLoop(t, func(t *testing.T, h *loopTest) {
			h.want(1, pool("a", "one", 1), pool("b", "one", 1))
			h.fail("a", errors.New("cannot reach the engine"))
			h.pool("a").set(func() { h.pool("a").err = errors.New("the engine is gone") })
			synctest.Wait()
			if s := h.loop.Status(); s.Ready(time.Now()) || len(s.Problems) != 1 {
				t.Errorf("the agent is ready: %v; its problems are %v, want one", s.Ready(time.Now()), s.Problems)
			}
		})
	})

	// A pool that was drained before its start has not shown that it can run. So the pool that
	// it replaces must run until it has started.
	t.Run("old pool runs until a revived replacement has started", func(t *testing.T) {
		withLoop(t, func(t *testing.T, h *loopTest) {
			renamed := func(name string) runtime.PoolSpec {
				spec := pool(name, "one", 1)
				spec.Tuning.Token = secret.New("t")
				return spec
			}
			h.want(1, renamed("a"))
			a := h.pool("a")
			h.begin = func(p *fakePool) {
				p.begins, p.jobs = true,
					1
			} // an adopted job, so that the pool does not stop at once
			h.want(2, renamed("b"))
			h.want(3, renamed("a"))
			h.want(4, renamed("b"))
			pass(time.Minute)
			if a.State().Phase != runtime.PoolPolling || h.claiming() != "a one 1" {
				t.Errorf("before the start of the replacement, the polling pools are %s", h.claiming())
			}
			h.pool("b").begin()
			synctest.Wait()
			if h.claiming() != "b one 1" || h.loop.Status().Applied != 4 {
				t.Errorf("after the start of the replacement, the polling pools are %s", h.claiming())
			}
		})
	})

	t.Run("events during a hanging build are handled at once", func(t *testing.T) {
		withLoop(t, func(t *testing.T, h *loopTest) {
			h.want(1, pool("a", "one", 1), pool("gone", "one", 1))
			gone := h.pool("gone")
			gone.has(1)
			h.hangs["new"] = true
			h.want(2, pool("a", "one", 1), pool("new", "one", 1))
			began := time.Now()
			gone.has(0) // its job ends while the build hangs
			synctest.Wait()
			var names []string
			for _, pool := range h.loop.Status().Pools {
				names = append(names, pool.Spec.Name)
			}
			if want := []string{"a", "new"}; !slices.Equal(names, want) || time.Since(began) > 0 {
				t.Errorf("the pools %v are left, want %v", names, want)
			}
		})
	})
}

// TestReadyWhilePoolsDrain checks that the agent is ready while removed and replaced pools
// finish their jobs, which may take hours. The agent is ready because it claims new jobs.
func TestReadyWhilePoolsDrain(t *testing.T) {
	for name, wanted := range map[string][]runtime.PoolSpec{
		"a replaced pool": {pool("a", "two", 1), pool("b", "one", 1)},
		"a removed pool":  {pool("b", "one", 1)},
	} {
		t.Run(name, func(t *testing.T) {
			withLoop(t, func(t *testing.T, h *loopTest) {
				h.want(1, pool("a", "one", 1), pool("b", "one", 1))
				old := h.pool("a")
				old.has(1)
				h.want(2, wanted...)
				pass(time.Hour)
				s := h.loop.Status()
				if phase := old.State().Phase; phase != runtime.PoolDraining || s.Converged() {
					t.Fatalf("after an hour with a job the pool is %s, converged %v", phase, s.Converged())
				}
				if !s.Ready(time.Now()) {
					t.Errorf("the agent is not ready while the pool drains: %v", s.Unready(time.Now()))
				}
				old.has(0)
				pass(time.Second)
				if s := h.loop.Status(); !s.Converged() || !s.Ready(time.Now()) {
					t.Errorf("after the last job of the pool: converged: %v, reasons for not ready: %v", s.Converged(),
						s.Unready(time.Now()))
				}
			})
		})
	}
}
