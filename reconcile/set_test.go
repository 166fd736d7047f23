package reconcile_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
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

// quiet checks that no warning was logged.
func (h *loopTest) quiet(t *testing.T) {
	t.Helper()
	if text := h.log.String(); strings.Contains(text, "level=WARN") {
		t.Errorf("the log has a warning:\n%s", text)
	}
}

func TestSet(t *testing.T) {
	t.Run("a pool is starting while it is built", func(t *testing.T) {
		withLoop(t, func(t *testing.T, h *loopTest) {
			open := h.gate("a")
			h.want(1, pool("a", "one", 1))
			s := h.loop.Status()
			if h.phases()["a"] != runtime.PoolStarting || s.Claiming || s.Ready(time.Now()) || !s.Healthy(time.Now()) {
				t.Errorf("while the pool is built the status is %+v", s)
			}
			open()
			if s := h.loop.Status(); h.claiming() != "a one 1" || !s.Converged() {
				t.Errorf("after the build of the pool the status is %+v", s)
			}
		})
	})
	t.Run("a building pool that is no longer desired is cancelled", func(t *testing.T) {
		withLoop(t, func(t *testing.T, h *loopTest) {
			h.hangs["b"] = true
			h.want(1, pool("a", "one", 1), pool("b", "one", 1))
			h.want(2, pool("a", "one", 1))
			if s := h.loop.Status(); len(s.Pools) != 1 || !s.Converged() || h.tries["b"] != 1 {
				t.Errorf("after %d builds the status is %+v", h.tries["b"], s)
			}
			h.quiet(t)
		})
	})
	t.Run("a pool that is built after its cancellation drains and ends", func(t *testing.T) {
		withLoop(t, func(t *testing.T, h *loopTest) {
			open := h.gate("b")
			h.want(1, pool("a", "one", 1), pool("b", "one", 1))
			h.want(2, pool("a", "one", 1))
			if h.phases()["b"] != runtime.PoolDraining {
				t.Errorf("after the cancellation the phases are %v", h.phases())
			}
			open()
			if b := h.pool("b"); b == nil || !b.stopped || b.cause != nil {
				t.Error("the pool was not run to its end")
			}
			if s := h.loop.Status(); len(s.Pools) != 1 || !s.Converged() {
				t.Errorf("after the end of the pool the status is %+v", s)
			}
		})
	})
	t.Run("a cancelled build that is desired again succeeds", func(t *testing.T) {
		for name, broken := range map[string]error{"in the first build": nil,
			"in a second build": errors.New("cancelled")} {
			t.Run(name, func(t *testing.T) {
				withLoop(t, func(t *testing.T, h *loopTest) {
					open := h.gate("a")
					h.want(1, pool("a", "one", 1))
					h.want(2)
					h.want(3, pool("a", "one", 3))
					if h.phases()["a"] != runtime.PoolStarting {
						t.Errorf("after the pool is desired again the phases are %v", h.phases())
					}
					h.fail("a", broken)
					again := h.gate("a")
					open()
					h.fail("a", nil)
					again()
					if s := h.loop.Status(); h.claiming() != "a one 3" || !s.Converged() ||
						s.Pools[0].Spec.Generation != 3 {
						t.Errorf("after the last build the status is %+v", s)
					}
					h.quiet(t)
				})
			})
		}
	})
	t.Run("a change of settings during the build reaches the pool", func(t *testing.T) {
		withLoop(t, func(t *testing.T, h *loopTest) {
			open := h.gate("a")
			h.want(1, pool("a", "one", 1))
			h.want(2, pool("a", "one", 5))
			open()
			if s := h.loop.Status(); h.claiming() != "a one 5" || h.tries["a"] != 1 || !s.Converged() {
				t.Errorf("after %d builds the status is %+v", h.tries["a"], s)
			}
		})
	})
	t.Run("a leftover pool that becomes desired during its build is revived", func(t *testing.T) {
		withLoop(t, func(t *testing.T, h *loopTest) {
			h.begin = func(p *fakePool) { p.jobs = 1 }
			open := h.gate("old")
			h.want(1, pool("new", "one", 1))
			h.setLeftovers(leftover("old", "one"))
			if phase := h.phases()["old"]; phase != runtime.PoolDraining {
				t.Errorf("while the leftover pool is built its phase is %q", phase)
			}
			h.want(2, pool("new", "one", 1), pool("old", "one", 3))
			open()
			if old := h.pool("old").State(); h.claiming() != "new one 1, old one 3" || old.Spec.Leftover ||
				h.tries["old"] != 1 {
				t.Errorf("the claiming pools are %s after %d builds", h.claiming(), h.tries["old"])
			}
		})
	})
	t.Run("a build that hangs delays neither other pools nor the shutdown", func(t *testing.T) {
		withLoop(t, func(t *testing.T, h *loopTest) {
			h.hangs["b"] = true
			h.want(1, pool("a", "one", 1), pool("b", "one", 1), pool("c", "one", 1))
			c := h.pool("c")
			c.has(1)
			began := time.Now()
			h.want(2, pool("a", "one", 4), pool("b", "one", 1), pool("d", "one", 1))
			if h.claiming() != "a one 4, d one 1" || c.State().Phase != runtime.PoolDraining {
				t.Errorf("the claiming pools are %s", h.claiming())
			}
			c.has(0)
			synctest.Wait()
			if _, there := h.phases()["c"]; there {
				t.Error("a drained pool is not removed")
			}
			h.stop()
			err := <-h.ended
			h.ended <- err
			if took := time.Since(began); took > 0 {
				t.Errorf("all steps took %s, want 0s", took)
			}
			h.quiet(t)
		})
	})
	t.Run("a failed build is tried again with back-off", func(t *testing.T) {
		withLoop(t, func(t *testing.T, h *loopTest) {
			h.fail("a", errors.New("cannot reach the engine"))
			h.want(1, pool("a", "one", 1))
			var after []time.Duration
			for began, tries := time.Now(), 0; time.Since(began) < 4*time.Minute; pass(time.Second) {
				if h.tries["a"] > tries {
					after = append(after, time.Since(began))
				}
				tries = h.tries["a"]
				if s := h.loop.Status(); len(s.Pools) > 0 || len(s.Problems) != 1 || s.Pending {
					t.Fatalf("after %s the status is %+v", time.Since(began), s)
				}
			}
			want := []time.Duration{0, 1, 3, 7, 15, 31, 63, 123, 183}
			for i := range want {
				want[i] *= time.Second
			}
			if !slices.Equal(after, want) {
				t.Errorf("the pool was built after %v, want %v", after, want)
			}
		})
	})
	t.Run("builds are limited in number and time", func(t *testing.T) {
		withLoop(t, func(t *testing.T, h *loopTest) {
			var specs []runtime.PoolSpec
			for i := range 20 {
				name := fmt.Sprint("hangs-", i)
				h.hangs[name] = true
				specs = append(specs, pool(name, "one", 1))
			}
			h.want(1, specs...)
			pass(time.Minute)
			if problems := len(h.loop.Status().Problems); h.most != 8 || problems != 8 {
				t.Errorf("after a minute %d builds have failed, and at most %d ran at once; want 8 and 8", problems,
					h.most)
			}
			h.want(2)
			if s := h.loop.Status(); len(s.Pools) > 0 || !s.Converged() {
				t.Errorf("after all builds are cancelled the status is %+v", s)
			}
		})
	})
}

// setLeftovers makes pools the leftovers of an earlier run.
func (h *loopTest) setLeftovers(specs ...runtime.PoolSpec) {
	h.followLeftovers(func(context.Context, map[string]runtime.PoolSpec) ([]runtime.PoolSpec, error) {
		return specs,
			nil
	})
}

func TestProcess(t *testing.T) {
	withPort := func(generation uint64, port int, specs ...runtime.PoolSpec) reconcile.Desired {
		d := desiredState(generation, specs...)
		d.Process.HTTPPort = port
		return d
	}
	ports := func(specs []reconcile.ProcessSpec) (ports []int) {
		for _, spec := range specs {
			ports = append(ports, spec.HTTPPort)
		}
		return ports
	}
	t.Run("a change that is being prepared does not delay pools", func(t *testing.T) {
		withLoop(t, func(t *testing.T, h *loopTest) {
			h.want(1, pool("a", "one", 1), pool("b", "one", 1))
			open := h.gate(reconcile.ProcessKey)
			h.loop.Want(withPort(2, 8080, pool("a", "one", 2), pool("c", "one", 1)))
			pass(10 * time.Second)
			s := h.loop.Status()
			if h.claiming() != "a one 2, c one 1" || len(s.Pools) != 2 || !s.Pending || s.Applied != 1 {
				t.Errorf("during the preparation the claiming pools are %s; the status is %+v", h.claiming(), s)
			}
			open()
			if s := h.loop.Status(); !s.Converged() || len(h.discarded) > 0 || ports(h.sets)[len(h.sets)-1] != 8080 {
				t.Errorf("committed changes to the ports %v; the status is %+v", ports(h.sets), s)
			}
		})
	})
	t.Run("a superseded change is discarded, and the latest change is committed", func(t *testing.T) {
		withLoop(t, func(t *testing.T, h *loopTest) {
			h.want(1)
			h.sets = nil
			open := h.gate(reconcile.ProcessKey)
			for i, port := range []int{8080, 8081, 8082} {
				h.loop.Want(withPort(uint64(i)+2, port))
				synctest.Wait()
			}
			open()
			if !slices.Equal(ports(h.sets), []int{8082}) || !slices.Equal(ports(h.discarded), []int{8080}) ||
				!h.loop.Status().Converged() {
				t.Errorf("committed changes to the ports %v, discarded those to %v", ports(h.sets), ports(h.discarded))
			}
		})
	})
	t.Run("a change that is undone is discarded", func(t *testing.T) {
		withLoop(t, func(t *testing.T, h *loopTest) {
			h.want(1)
			h.sets = nil
			open := h.gate(reconcile.ProcessKey)
			h.loop.Want(withPort(2, 8080))
			synctest.Wait()
			h.want(3)
			if !h.loop.Status().Converged() {
				t.Error("Converged is false although the desired state is in force")
			}
			open()
			if len(h.sets) > 0 || !slices.Equal(ports(h.discarded), []int{8080}) {
				t.Errorf("committed changes to the ports %v, discarded those to %v", ports(h.sets), ports(h.discarded))
			}
		})
	})
	t.Run("a cancelled change that fails is not a problem when it is desired again", func(t *testing.T) {
		withLoop(t, func(t *testing.T, h *loopTest) {
			h.want(1)
			h.sets = nil
			open := h.gate(reconcile.ProcessKey)
			for i, port := range []int{8080, 8081, 8080} {
				h.loop.Want(withPort(uint64(i)+2, port))
				synctest.Wait()
			}
			h.fail(reconcile.ProcessKey, context.Canceled)
			again := h.gate(reconcile.ProcessKey)
			open()
			h.fail(reconcile.ProcessKey, nil)
			again()
			if !slices.Equal(ports(h.sets), []int{8080}) || len(h.discarded) > 0 || !h.loop.Status().Converged() {
				t.Errorf("committed changes to the ports %v, discarded those to %v", ports(h.sets), ports(h.discarded))
			}
			h.quiet(t)
		})
	})
	t.Run("a change whose preparation ends while the agent stops is discarded", func(t *testing.T) {
		withLoop(t, func(t *testing.T, h *loopTest) {
			h.want(1, pool("a", "one", 1))
			h.sets = nil
			open := h.gate(reconcile.ProcessKey)
			h.loop.Want(withPort(2, 8080, pool("a", "one", 1)))
			synctest.Wait()
			h.stop()
			synctest.Wait()
			if !h.pool("a").stopped {
				t.Error("the pools wait for the change")
			}
			open()
			err := <-h.ended
			h.ended <- err
			if len(h.sets) > 0 || !slices.Equal(ports(h.discarded), []int{8080}) {
				t.Errorf("committed changes to the ports %v, discarded those to %v", ports(h.sets), ports(h.discarded))
			}
		})
	})
}
