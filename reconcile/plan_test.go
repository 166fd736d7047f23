package reconcile_test

import (
	"strings"
	"testing"

	"github.com/cmwa-project/cmwa/reconcile"
	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/schema/secret"
)

func TestDiff(t *testing.T) {
	t.Run("draining pool that is desired again is revived", func(t *testing.T) {
		spec := runtime.PoolSpec{Name: "a", Tuning: runtime.Tuning{MaxJobs: 1}}
		desired := reconcile.Desired{Generation: 3, Pools: map[string]runtime.PoolSpec{spec.Key(): spec}}
		draining := runtime.PoolState{Spec: spec, Phase: runtime.PoolDraining, Jobs: []runtime.JobState{{ID: "1"}}}
		plan := reconcile.Diff(desired, reconcile.Observed{Pools: map[string]runtime.PoolState{spec.Key(): draining}})
		if got, want := plan.String(), "revive pool a\n"; got != want {
			t.Errorf("the plan is %q, want %q", got, want)
		}
	})

	t.Run("completed single run is not started again", func(t *testing.T) {
		spec := runtime.PoolSpec{Name: "a", Tuning: runtime.Tuning{MaxJobs: 1, SingleRun: true}}
		desired := reconcile.Desired{Generation: 1, Pools: map[string]runtime.PoolSpec{spec.Key(): spec}}
		for _, phase := range []runtime.PoolPhase{runtime.PoolDraining, runtime.PoolStopped} {
			over := runtime.PoolState{Spec: spec, Phase: phase, Completed: true}
			if plan := reconcile.Diff(desired, reconcile.Observed{
				Pools: map[string]runtime.PoolState{spec.Key(): over}}); len(plan) > 0 {
				t.Errorf("for a completed single run that is %s the plan is\n%swant no action", phase, plan)
			}
		}
	})

	t.Run("completed single run continues when single_run is removed", func(t *testing.T) {
		once := runtime.PoolSpec{Name: "a", Tuning: runtime.Tuning{MaxJobs: 1, SingleRun: true}}
		ever := runtime.PoolSpec{Name: "a", Tuning: runtime.Tuning{MaxJobs: 1}}
		desired := reconcile.Desired{Generation: 2, Pools: map[string]runtime.PoolSpec{ever.Key(): ever}}
		for phase, want := range map[runtime.PoolPhase]string{runtime.PoolDraining: "tune pool a\n",
			runtime.PoolStopped: "remove pool a\n"} {
			over := runtime.PoolState{Spec: once, Phase: phase, Completed: true}
			if got := reconcile.Diff(desired, reconcile.Observed{
				Pools: map[string]runtime.PoolState{ever.Key(): over}}).String(); got != want {
				t.Errorf("from %s the plan is %q, want %q", phase, got, want)
			}
		}
	})

	t.Run("after a change of identity the new pool starts before the old pool drains", func(t *testing.T) {
		old := runtime.PoolSpec{Name: "a", Identity: runtime.Identity{Service: "http://one"}}
		next := runtime.PoolSpec{Name: "a", Identity: runtime.Identity{Service: "http://two"}}
		desired := reconcile.Desired{Generation: 2, Pools: map[string]runtime.PoolSpec{next.Key(): next}}
		running := runtime.PoolState{Spec: old, Phase: runtime.PoolPolling,
			Jobs: []runtime.JobState{{ID: "1"}, {ID: "2"}}}
		plan := reconcile.Diff(desired, reconcile.Observed{Pools: map[string]runtime.PoolState{old.Key(): running}})
		if got, want := plan.String(), "start pool a\n"; got != want {
			t.Errorf("the plan is\n%swant\n%s", got, want)
		}
		for phase, want := range map[runtime.PoolPhase]string{
			runtime.PoolStarting: "",
			runtime.PoolPolling:  "drain pool a (running jobs: 2)\n",
			runtime.PoolPaused:   "drain pool a (running jobs: 2)\n",
			runtime.PoolDraining: "revive pool a\ndrain pool a (running jobs: 2)\n",
		} {
			there := map[string]runtime.PoolState{old.Key(): running,
				next.Key(): {Spec: next, Phase: phase, Ready: phase != runtime.PoolStarting}}
			if got := reconcile.Diff(desired, reconcile.Observed{Pools: there}).String(); got != want {
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
			"no edit": {from: pools{spec("a", "1", "x")}, to: pools{spec("a", "1", "x")}},
			"another token": {from: pools{spec("a", "1", "x")}, to: pools{spec("a", "1", "y")},
				want: "tune pool a\n"},
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
