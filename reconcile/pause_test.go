package reconcile_test

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
)

// wantPaused checks which pools are paused by the operator.
func (h *loopTest) wantPaused(want ...string) {
	h.Helper()
	var names []string
	for _, state := range h.loop.Status().Pools {
		if state.Spec.Tuning.Paused {
			names = append(names, state.Spec.Name)
		}
	}
	if !slices.Equal(names, want) {
		h.Errorf("the paused pools are %v, want %v", names, want)
	}
}

func TestLoopPause(t *testing.T) {
	withLoop(t, "pool stays paused over reloads and a replacement until it is resumed", func(h *loopTest) {
		h.want(1, pool("a", "one", 1), pool("b", "one", 1))
		h.pool("a").has(1)
		if !h.loop.Pause("a") || h.loop.Pause("a") {
			h.Error("Pause must return true for the first call and false for the second")
		}
		synctest.Wait()
		h.wantPaused("a")
		if jobs := len(h.pool("a").State().Jobs); jobs != 1 {
			h.Errorf("pool a has %d jobs, want 1", jobs)
		}
		h.want(2, pool("a", "one", 5), pool("b", "one", 1))
		h.wantPaused("a")
		if most := h.pool("a").State().Spec.Tuning.MaxJobs; most != 5 {
			h.Errorf("after an edit the limit of pool a is %d, want 5", most)
		}
		h.pool("a").has(0)
		h.want(3, pool("a", "two", 5), pool("b", "one", 1))
		pass(time.Minute)
		h.wantPaused("a")
		h.wantTries("a", 2)
		h.wantApplied(3)
		h.wantReady(true)
		h.wantConverged()
		if !h.loop.Resume("a") || h.loop.Resume("a") {
			h.Error("Resume must return true for the first call and false for the second")
		}
		synctest.Wait()
		h.wantPaused()
		h.wantTries("a", 2)
	})

	withLoop(t, "pool is paused before its first poll", func(h *loopTest) {
		h.loop.Pause("a")
		h.want(1, pool("a", "one", 1))
		h.wantPaused("a")
		if !h.pool("a").spec.Tuning.Paused {
			h.Error("the pool was not built as a paused one")
		}
	})

	withLoop(t, "paused pool whose replacement fails claims nothing", func(h *loopTest) {
		h.want(1, pool("a", "one", 1))
		old := h.pool("a")
		old.has(1)
		h.fail("a", errors.New("the engine is down"))
		h.want(2, pool("a", "two", 1))
		h.wantPhase(old, runtime.PoolPolling) // its replacement cannot be built
		h.loop.Pause("a")
		pass(time.Minute)
		h.wantPhase(old, runtime.PoolDraining)
		h.want(3, pool("a", "one", 1)) // the edit is undone
		if state := old.State(); state.Phase == runtime.PoolDraining || !state.Spec.Tuning.Paused {
			h.Errorf("the pool is %s, paused: %v", state.Phase, state.Spec.Tuning.Paused)
		}
	})
}
