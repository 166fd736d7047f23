package reconcile_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/reconcile"
	"github.com/cmwa-project/cmwa/runtime"
)

// leftover is a pool as the labels of its instances name it.
func leftover(name, service string) runtime.PoolSpec {
	return runtime.PoolSpec{Name: name, Identity: runtime.Identity{Service: service}, Leftover: true}
}

func TestDiffLeftovers(t *testing.T) {
	old, spec := leftover("a", "one"), pool("a", "one", 1)
	leftovers := map[string]runtime.PoolSpec{old.Key(): old}
	for name, c := range map[string]struct {
		desired []runtime.PoolSpec
		there   map[string]runtime.PoolState
		want    string
	}{
		"a pool that is neither desired nor observed is started": {nil, nil, "adopt instances of pool a, which is no longer configured\n"},
		"a desired pool adopts its instances itself":             {[]runtime.PoolSpec{spec}, nil, "start pool a\n"},
		"a running pool adopts its instances itself":             {nil, map[string]runtime.PoolState{spec.Key(): {Spec: spec, Phase: runtime.PoolDraining}}, ""},
		"a leftover pool that is desired again is revived": {
			[]runtime.PoolSpec{spec}, map[string]runtime.PoolState{spec.Key(): {Spec: old, Phase: runtime.PoolDraining}}, "revive pool a\n",
		},
		"a leftover pool that has stopped is removed": {nil, map[string]runtime.PoolState{spec.Key(): {Spec: old, Phase: runtime.PoolStopped}}, "remove pool a\n"},
	} {
		t.Run(name, func(t *testing.T) {
			plan := reconcile.Diff(wish(1, c.desired...), reconcile.Observed{Pools: c.there, Leftovers: leftovers, Process: wish(1).Process})
			if plan.String() != c.want {
				t.Errorf("the plan is %q, want %q", plan, c.want)
			}
		})
	}
}

// followLeftovers lists these pools, until the test's end.
func (h *house) followLeftovers(list reconcile.Leftovers) {
	h.t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- h.loop.FollowLeftovers(ctx, list) }()
	h.t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			h.t.Error(err)
		}
	})
	pass(0)
}

func TestFollowLeftovers(t *testing.T) {
	of := func(specs ...runtime.PoolSpec) reconcile.Leftovers {
		return func(context.Context, map[string]runtime.PoolSpec) ([]runtime.PoolSpec, error) { return specs, nil }
	}
	t.Run("a pool that is no longer configured drains and does not delay readiness", func(t *testing.T) {
		inHouse(t, func(t *testing.T, h *house) {
			h.begin = func(p *fakePool) {
				if p.spec.Name == "old" {
					p.jobs = 1
				}
			}
			h.want(1, pool("new", "one", 1))
			h.followLeftovers(of(leftover("old", "one"), leftover("new", "one")))
			pass(time.Hour)
			status := h.loop.Status()
			if len(status.Pools) != 2 || len(h.built["new"]) != 1 || len(h.built["old"]) != 1 {
				t.Fatalf("there are pools %+v", status.Pools)
			}
			if phase := h.pool("old").State().Phase; phase != runtime.PoolDraining {
				t.Errorf("the leftover pool is %s", phase)
			}
			if status.Applied != 1 || !status.Converged() || !status.Ready(time.Now()) {
				t.Errorf("the leftover pool delays readiness: %v", status.Unready(time.Now()))
			}
			h.want(2, pool("new", "one", 2))
			if status := h.loop.Status(); status.Applied != 2 {
				t.Errorf("the leftover pool delays generation %d", status.Desired)
			}
			h.pool("old").has(0)
			pass(time.Second)
			if status := h.loop.Status(); len(status.Pools) != 1 || len(status.Problems) > 0 {
				t.Errorf("after its last job there are pools %+v, problems %v", status.Pools, status.Problems)
			}
		})
	})
	t.Run("a pool that is configured again is revived", func(t *testing.T) {
		inHouse(t, func(t *testing.T, h *house) {
			h.begin = func(p *fakePool) { p.jobs = 1 }
			h.want(1, pool("new", "one", 1))
			h.followLeftovers(of(leftover("old", "one")))
			h.want(2, pool("new", "one", 1), pool("old", "one", 3))
			old := h.pool("old").State()
			if old.Phase != runtime.PoolPolling || old.Spec.Leftover || old.Spec.Tuning.MaxJobs != 3 || len(h.built["old"]) != 1 {
				t.Errorf("the pool is %s under %+v, built %d times", old.Phase, old.Spec, len(h.built["old"]))
			}
		})
	})
	t.Run("an engine that does not answer is asked again soon", func(t *testing.T) {
		inHouse(t, func(t *testing.T, h *house) {
			h.want(1, pool("new", "one", 1))
			down, lists := errors.New("the engine is down"), 0
			h.followLeftovers(func(context.Context, map[string]runtime.PoolSpec) ([]runtime.PoolSpec, error) {
				if lists++; lists <= 5 {
					return nil, down
				}
				return []runtime.PoolSpec{leftover("old", "one")}, nil
			})
			pass(time.Minute)
			if h.pool("old") == nil {
				t.Errorf("after a minute and %d lists there is no pool", lists)
			}
			if warned := strings.Count(h.log.String(), "cannot list instances"); warned != 1 {
				t.Errorf("%d lines are logged for one series of failures:\n%s", warned, h.log.String())
			}
			if status := h.loop.Status(); !status.Ready(time.Now()) {
				t.Errorf("not ready: %v", status.Unready(time.Now()))
			}
		})
	})
	t.Run("a pool that cannot be built is tried again after the next list", func(t *testing.T) {
		inHouse(t, func(t *testing.T, h *house) {
			h.want(1, pool("new", "one", 1))
			h.fail("old", errors.New("no such target"))
			h.followLeftovers(of(leftover("old", "one")))
			pass(9 * time.Minute)
			if tries := h.tries["old"]; tries != 1 {
				t.Errorf("the pool was built %d times before the next list", tries)
			}
			if status := h.loop.Status(); !status.Ready(time.Now()) || len(status.Problems) > 0 {
				t.Errorf("not ready: %v", status.Unready(time.Now()))
			}
			h.fail("old", nil)
			pass(2 * time.Minute)
			if h.pool("old") == nil {
				t.Error("the pool was not built again")
			}
		})
	})
}
