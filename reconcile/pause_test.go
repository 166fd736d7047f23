package reconcile_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
)

// paused returns the names of the pools that are paused by the operator.
func (h *loopTest) paused() string {
	var names []string
	for _, state := range h.loop.Status().Pools {
		if state.Spec.Tuning.Paused {
			names = append(names, state.Spec.Name)
		}
	}
	return strings.Join(names, " ")
}

func TestLoopPause(t *testing.T) {
	t.Run("pool stays paused over reloads and a replacement until it is resumed", func(t *testing.T) {
		withLoop(t, func(t *testing.T, h *loopTest) {
			h.want(1, pool("a", "one", 1), pool("b", "one", 1))
			h.pool("a").has(1)
			if !h.loop.Pause("a") || h.loop.Pause("a") {
				t.Error("Pause must return true for the first call and false for the second")
			}
			synctest.Wait()
			if got := h.paused(); got != "a" || len(h.pool("a").State().Jobs) != 1 {
				t.Errorf("the paused pools are %q, want a; pool a has %d jobs, want 1", got,
					len(h.pool("a").State().Jobs))
			}
			h.want(2, pool("a", "one", 5), pool("b", "one", 1))
			if got := h.paused(); got != "a" || h.pool("a").State().Spec.Tuning.MaxJobs != 5 {
				t.Errorf("after an edit of the settings of pool a, the paused pools are %q", got)
			}
			h.pool("a").has(0)
			h.want(3, pool("a", "two", 5), pool("b", "one", 1))
			pass(time.Minute)
			if got := h.paused(); got != "a" || len(h.built["a"]) != 2 {
				t.Errorf("after a replacement the paused pools are %q, and pool a was built %d times", got,
					len(h.built["a"]))
			}
			if s := h.loop.Status(); s.Applied != 3 || !s.Ready(time.Now()) || !s.Converged() {
				t.Errorf("with a paused pool, generation %d is applied, want 3; the reasons for not ready are %v",
					s.Applied, s.Unready(time.Now()))
			}
			if !h.loop.Resume("a") || h.loop.Resume("a") {
				t.Error("Resume must return true for the first call and false for the second")
			}
			synctest.Wait()
			if got := h.paused(); got != "" || len(h.built["a"]) != 2 {
				t.Errorf("after Resume the paused pools are %q", got)
			}
		})
	})

	t.Run("pool is paused before its first poll", func(t *testing.T) {
		withLoop(t, func(t *testing.T, h *loopTest) {
			h.loop.Pause("a")
			h.want(1, pool("a", "one", 1))
			if got := h.paused(); got != "a" || !h.pool("a").spec.Tuning.Paused {
				t.Errorf("the paused pools are %q, want a", got)
			}
		})
	})

	t.Run("paused pool whose replacement fails claims nothing", func(t *testing.T) {
		withLoop(t, func(t *testing.T, h *loopTest) {
			h.want(1, pool("a", "one", 1))
			old := h.pool("a")
			old.has(1)
			h.fail("a", errors.New("the engine is down"))
			h.want(2, pool("a", "two", 1))
			if phase := old.State().Phase; phase != runtime.PoolPolling {
				t.Fatalf("while its replacement cannot be built the pool is %s, want polling", phase)
			}
			h.loop.Pause("a")
			pass(time.Minute)
			if phase := old.State().Phase; phase != runtime.PoolDraining {
				t.Errorf("the paused pool is %s, want draining", phase)
			}
			h.want(3, pool("a", "one", 1)) // the edit is undone
			if state := old.State(); state.Phase == runtime.PoolDraining || !state.Spec.Tuning.Paused {
				t.Errorf("the pool is %s, paused: %v", state.Phase, state.Spec.Tuning.Paused)
			}
		})
	})
}
