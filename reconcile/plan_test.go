package reconcile_test

import (
	"strings"
	"testing"

	"github.com/cmwa-project/cmwa/reconcile"
	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// planOf returns the plan for observed pools and desired ones.
func planOf(observed []runtime.PoolState, desired ...runtime.PoolSpec) string {
	d := reconcile.Desired{Generation: 2, Pools: map[string]runtime.PoolSpec{}}
	for _, spec := range desired {
		d.Pools[spec.Key()] = spec
	}
	o := reconcile.Observed{Pools: map[string]runtime.PoolState{}}
	for _, state := range observed {
		o.Pools[state.Spec.Key()] = state
	}
	return reconcile.Diff(d, o).String()
}

func TestDiff(t *testing.T) {
	ever, once := runtime.Tuning{MaxJobs: 1}, runtime.Tuning{MaxJobs: 1, SingleRun: true}
	for name, c := range map[string]struct {
		observed  runtime.PoolState
		was, want runtime.Tuning
		plan      string
	}{
		"draining pool that is desired again is revived": {
			runtime.PoolState{Phase: runtime.PoolDraining, Jobs: []runtime.JobState{{ID: "1"}}}, ever, ever,
			"revive pool a\n"},
		"completed single run that drains is not started again": {
			runtime.PoolState{Phase: runtime.PoolDraining, Completed: true}, once, once, ""},
		"completed single run that has stopped is not started again": {
			runtime.PoolState{Phase: runtime.PoolStopped, Completed: true}, once, once, ""},
		"completed single run that drains continues when single_run is removed": {
			runtime.PoolState{Phase: runtime.PoolDraining, Completed: true}, once, ever, "tune pool a\n"},
		"completed single run that has stopped is removed when single_run is removed": {
			runtime.PoolState{Phase: runtime.PoolStopped, Completed: true}, once, ever, "remove pool a\n"},
	} {
		t.Run(name, func(t *testing.T) {
			c.observed.Spec = runtime.PoolSpec{Name: "a", Tuning: c.was}
			plan := planOf([]runtime.PoolState{c.observed}, runtime.PoolSpec{Name: "a", Tuning: c.want})
			if plan != c.plan {
				t.Errorf("the plan is %q, want %q", plan, c.plan)
			}
		})
	}

	t.Run("after a change of identity the new pool starts before the old pool drains", func(t *testing.T) {
		old := runtime.PoolSpec{Name: "a", Identity: runtime.Identity{Service: "http://one"}}
		next := runtime.PoolSpec{Name: "a", Identity: runtime.Identity{Service: "http://two"}}
		running := runtime.PoolState{Spec: old, Phase: runtime.PoolPolling,
			Jobs: []runtime.JobState{{ID: "1"}, {ID: "2"}}}
		if got, want := planOf([]runtime.PoolState{running}, next), "start pool a\n"; got != want {
			t.Errorf("the plan is\n%swant\n%s", got, want)
		}
		for phase, want := range map[runtime.PoolPhase]string{
			runtime.PoolStarting: "",
			runtime.PoolPolling:  "drain pool a (running jobs: 2)\n",
			runtime.PoolPaused:   "drain pool a (running jobs: 2)\n",
			runtime.PoolDraining: "revive pool a\ndrain pool a (running jobs: 2)\n",
		} {
			replacement := runtime.PoolState{Spec: next, Phase: phase, Ready: phase != runtime.PoolStarting}
			if got := planOf([]runtime.PoolState{running, replacement}, next); got != want {
				t.Errorf("when the new pool is %s the plan is\n%swant\n%s", phase, got, want)
			}
		}
	})

	// Each row has the observed pools, the desired pools, and the plan.
	t.Run("each kind of edit has its plan", func(t *testing.T) {
		spec := func(name, service, token string) runtime.PoolSpec {
			return runtime.PoolSpec{Name: name, Identity: runtime.Identity{Service: service},
				Tuning: runtime.Tuning{MaxJobs: 1, Token: secret.New(token)}}
		}
		type pools []runtime.PoolSpec
		for name, c := range map[string]struct {
			from, to pools
			process  reconcile.ProcessSpec
			want     string
			then     string // plan after the first one
		}{
			"no edit":       {from: pools{spec("a", "1", "x")}, to: pools{spec("a", "1", "x")}},
			"another token": {from: pools{spec("a", "1", "x")}, to: pools{spec("a", "1", "y")}, want: "tune pool a\n"},
			"two pools swap tokens": {from: pools{spec("a", "1", "x"), spec("b", "1", "y")},
				to: pools{spec("a", "1", "y"), spec("b", "1", "x")}, want: "tune pool a\ntune pool b\n"},
			"a pool is renamed": {from: pools{spec("a", "1", "x")}, to: pools{spec("b", "1", "x")},
				want: "start pool b\n", then: "drain pool a\n"},
			"another name and another token": {from: pools{spec("a", "1", "x")}, to: pools{spec("b", "1", "y")},
				want: "drain pool a\nstart pool b\n"},
			"one pool is removed, another added": {from: pools{spec("a", "1", "x"), spec("b", "1", "y")},
				to: pools{spec("b", "1", "y"), spec("c", "1", "z")}, want: "drain pool a\nstart pool c\n"},
			"the token moves to another pool": {from: pools{spec("a", "1", "x"), spec("b", "1", "y")},
				to: pools{spec("b", "1", "x")}, want: "tune pool b\ndrain pool a\n"},
			"two pools swap names": {from: pools{spec("a", "1", "x"), spec("b", "2", "y")},
				to: pools{spec("b", "1", "x"), spec("a", "2", "y")}, want: "start pool a\nstart pool b\n",
				then: "drain pool a\ndrain pool b\n"},
			"every pool is removed": {from: pools{spec("a", "1", "x"), spec("b", "1", "y")},
				want: "drain pool a\ndrain pool b\n"},
			"a change of the agent, and of no pool": {from: pools{spec("a", "1", "x")}, to: pools{spec("a", "1", "x")},
				process: reconcile.ProcessSpec{LogLevel: "debug", MaxJobs: 2},
				want:    "set the agent's log, jobs of all pools 0 -> 2\n"},
			"a change of the agent and of two pools": {from: pools{spec("a", "1", "x"), spec("b", "1", "y")},
				to: pools{spec("a", "2", "x"), spec("b", "1", "z")}, process: reconcile.ProcessSpec{HTTPPort: 8080},
				want: "set the agent's HTTP port 0 -> 8080\ntune pool b\nstart pool a\n", then: "drain pool a\n"},
		} {
			desired := reconcile.Desired{Generation: 2, Pools: map[string]runtime.PoolSpec{}, Process: c.process}
			for _, s := range c.to {
				s.Generation = 2
				desired.Pools[s.Key()] = s
			}
			observed := reconcile.Observed{Pools: map[string]runtime.PoolState{}}
			for _, s := range c.from {
				s.Generation = 1
				observed.Pools[s.Key()] = runtime.PoolState{Spec: s, Phase: runtime.PoolPolling, Ready: true}
			}
			if got := reconcile.Diff(desired, observed).String(); got != c.want {
				t.Errorf("%s: the plan is\n%swant\n%s", name, got, c.want)
			}
			for key, s := range desired.Pools {
				observed.Pools[key] = runtime.PoolState{Spec: s, Phase: runtime.PoolPolling, Ready: true}
			}
			for key, state := range observed.Pools {
				if _, wanted := desired.Pools[key]; !wanted && strings.Contains(c.want, "drain pool "+state.Spec.Name) {
					delete(observed.Pools, key)
				}
			}
			observed.Process = desired.Process
			if got := reconcile.Diff(desired, observed).String(); got != c.then {
				t.Errorf("%s: after the first plan the next one is\n%swant\n%s", name, got, c.then)
			}
		}
	})
}
