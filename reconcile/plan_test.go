package reconcile_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/cmwa-project/cmwa/reconcile"
	"github.com/cmwa-project/cmwa/runtime"
)

// world is what runs, as a value that plans are applied to.
type world struct {
	now     time.Time
	pools   map[string]runtime.PoolState
	blocked map[string]time.Time
}

func (w *world) observed() reconcile.Observed {
	return reconcile.Observed{Now: w.now, Pools: maps.Clone(w.pools), Blocked: maps.Clone(w.blocked)}
}

// apply carries a plan out as the loop would, and reports what it must never do.
func (w *world) apply(t *rapid.T, plan reconcile.Plan) {
	for _, action := range plan {
		switch a := action.(type) {
		case reconcile.StartPool:
			key := a.Spec.Key()
			if _, there := w.pools[key]; there {
				t.Fatalf("%v doubles a pool that is there", a)
			}
			w.pools[key] = runtime.PoolState{Spec: a.Spec, Phase: runtime.PoolPolling}
		case reconcile.TunePool:
			key := a.Spec.Key()
			state := w.pools[key]
			state.Spec = a.Spec
			if state.Phase == runtime.PoolDraining {
				state.Phase = runtime.PoolPolling
			}
			w.pools[key] = state
		case reconcile.DrainPool:
			state := w.pools[a.Key]
			state.Phase = runtime.PoolDraining
			if len(state.Jobs) == 0 {
				state.Phase = runtime.PoolStopped
			}
			w.pools[a.Key] = state
		case reconcile.RemovePool:
			state := w.pools[a.Key]
			if state.Phase != runtime.PoolStopped || len(state.Jobs) > 0 {
				t.Fatalf("%v removes a pool in phase %s with %d jobs", a, state.Phase, len(state.Jobs))
			}
			if state.Err != nil {
				w.blocked[a.Key] = w.now.Add(time.Second)
			}
			delete(w.pools, a.Key)
		}
	}
}

// jobEnds lets one job of a pool end; a draining pool without jobs stops.
func (w *world) jobEnds(key string) {
	state := w.pools[key]
	if len(state.Jobs) == 0 {
		return
	}
	state.Jobs = state.Jobs[1:]
	if state.Phase == runtime.PoolDraining && len(state.Jobs) == 0 {
		state.Phase = runtime.PoolStopped
	}
	w.pools[key] = state
}

func genSpec(t *rapid.T) runtime.PoolSpec {
	return runtime.PoolSpec{
		Name: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "name"),
		Identity: runtime.Identity{
			Service: rapid.SampledFrom([]string{"http://one", "http://two"}).Draw(t, "service"),
			Target:  rapid.SampledFrom([]string{"docker", "process"}).Draw(t, "target"),
		},
		Tuning: runtime.Tuning{
			MaxJobs: rapid.IntRange(1, 3).Draw(t, "most"),
			Kinds:   []runtime.Kind{runtime.Deployment},
		},
	}
}

func genDesired(t *rapid.T, generation uint64) reconcile.Desired {
	d := reconcile.Desired{Generation: generation, Pools: map[string]runtime.PoolSpec{}}
	names := map[string]bool{}
	for _, spec := range rapid.SliceOfN(rapid.Custom(genSpec), 0, 3).Draw(t, "pools") {
		if names[spec.Name] {
			continue
		}
		names[spec.Name] = true
		spec.Generation = generation
		d.Pools[spec.Key()] = spec
	}
	return d
}

// live is a history: edits, jobs that start and end, pools that die, time.
func live(t *rapid.T, w *world, desired *reconcile.Desired) {
	one := func(label string) (string, bool) {
		keys := slices.Sorted(maps.Keys(w.pools)) // sorted, so that a failing history can be replayed
		if len(keys) == 0 {
			return "", false
		}
		return rapid.SampledFrom(keys).Draw(t, label), true
	}
	t.Repeat(map[string]func(*rapid.T){
		"edit": func(t *rapid.T) { *desired = genDesired(t, desired.Generation+1) },
		"converge a step": func(t *rapid.T) {
			w.apply(t, reconcile.Diff(*desired, w.observed()))
		},
		"a job starts": func(t *rapid.T) {
			if key, ok := one("pool"); ok && w.pools[key].Phase == runtime.PoolPolling {
				state := w.pools[key]
				state.Jobs = append(state.Jobs, runtime.JobState{ID: fmt.Sprint(len(state.Jobs))})
				w.pools[key] = state
			}
		},
		"a job ends": func(t *rapid.T) {
			if key, ok := one("pool"); ok {
				w.jobEnds(key)
			}
		},
		"a pool dies": func(t *rapid.T) {
			if key, ok := one("pool"); ok {
				state := w.pools[key]
				state.Phase, state.Jobs, state.Err = runtime.PoolStopped, nil, errors.New("died")
				w.pools[key] = state
			}
		},
		"time passes": func(t *rapid.T) { w.now = w.now.Add(700 * time.Millisecond) },
		"": func(t *rapid.T) {
			plan := reconcile.Diff(*desired, w.observed())
			for range 3 { // maps are walked in another order each time
				if again := reconcile.Diff(*desired, w.observed()); again.String() != plan.String() {
					t.Fatalf("the same values gave two plans:\n%s\n%s", plan, again)
				}
			}
			checkSafe(t, plan, *desired, w)
		},
	})
}

// checkSafe says what no plan may do, whatever the history.
func checkSafe(t *rapid.T, plan reconcile.Plan, desired reconcile.Desired, w *world) {
	touched := map[string]bool{}
	for _, action := range plan {
		switch a := action.(type) {
		case reconcile.StartPool:
			if touched[a.Spec.Key()] {
				t.Fatalf("a plan touches %s twice:\n%s", a.Spec.Key(), plan)
			}
			touched[a.Spec.Key()] = true
		case reconcile.DrainPool:
			if _, wanted := desired.Pools[a.Key]; wanted {
				t.Fatalf("a plan drains what is wanted:\n%s", plan)
			}
			for key := range desired.Pools {
				if _, there := w.pools[key]; !there && w.now.Before(w.blocked[key]) {
					t.Fatalf("a plan drains %s although %s cannot be started yet:\n%s", a.Key, key, plan)
				}
			}
		case reconcile.RemovePool:
			if len(w.pools[a.Key].Jobs) > 0 {
				t.Fatalf("a plan removes a pool with running jobs:\n%s", plan)
			}
		}
	}
}

func TestPlansAreSafeAndReachWhatIsWanted(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{now: time.Unix(1e9, 0), pools: map[string]runtime.PoolState{}, blocked: map[string]time.Time{}}
		desired := genDesired(t, 1)
		live(t, w, &desired)

		// From here on nothing happens but jobs that end, and time.
		for round := 0; ; round++ {
			plan := reconcile.Diff(desired, w.observed())
			busy := false
			for key, state := range w.pools {
				if _, wanted := desired.Pools[key]; !wanted && state.Phase == runtime.PoolDraining {
					w.jobEnds(key)
					busy = true
				}
			}
			blocked := false
			for key := range desired.Pools {
				_, there := w.pools[key]
				blocked = blocked || !there
			}
			if len(plan) == 0 && !busy && !blocked {
				break
			}
			if round > 20 {
				t.Fatalf("not converged after %d rounds; the plan is still:\n%s", round, plan)
			}
			w.apply(t, plan)
			w.now = w.now.Add(time.Second)
		}
		fresh := &world{now: w.now, pools: map[string]runtime.PoolState{}, blocked: map[string]time.Time{}}
		fresh.apply(t, reconcile.Diff(desired, fresh.observed()))
		if diff := cmp.Diff(specs(fresh), specs(w)); diff != "" {
			t.Fatalf("the end differs from a fresh start with the last wish (-fresh +here):\n%s", diff)
		}
	})
}

// specs is the settings in force by key, without generations: another
// generation alone changes nothing.
func specs(w *world) map[string]runtime.PoolSpec {
	out := map[string]runtime.PoolSpec{}
	for key, state := range w.pools {
		state.Spec.Generation = 0
		out[key] = state.Spec
	}
	return out
}

func TestAPoolThatIsWantedAgainWhileItDrainsIsRevived(t *testing.T) {
	spec := runtime.PoolSpec{Name: "a", Tuning: runtime.Tuning{MaxJobs: 1}}
	desired := reconcile.Desired{Generation: 3, Pools: map[string]runtime.PoolSpec{spec.Key(): spec}}
	draining := runtime.PoolState{Spec: spec, Phase: runtime.PoolDraining, Jobs: []runtime.JobState{{ID: "1"}}}
	plan := reconcile.Diff(desired, reconcile.Observed{Pools: map[string]runtime.PoolState{spec.Key(): draining}})
	if got, want := plan.String(), "revive pool a\n"; got != want {
		t.Errorf("the plan is %q, want %q", got, want)
	}
}

func TestASingleRunThatIsOverIsNotStartedAgain(t *testing.T) {
	spec := runtime.PoolSpec{Name: "a", Tuning: runtime.Tuning{MaxJobs: 1, SingleRun: true}}
	desired := reconcile.Desired{Generation: 1, Pools: map[string]runtime.PoolSpec{spec.Key(): spec}}
	for _, phase := range []runtime.PoolPhase{runtime.PoolDraining, runtime.PoolStopped} {
		over := runtime.PoolState{Spec: spec, Phase: phase, Finished: true}
		if plan := reconcile.Diff(desired, reconcile.Observed{Pools: map[string]runtime.PoolState{spec.Key(): over}}); len(plan) > 0 {
			t.Errorf("a finished single run (%s) gives the plan\n%s", phase, plan)
		}
	}
}

func TestAChangedIdentityStartsTheNewBeforeItDrainsTheOld(t *testing.T) {
	old := runtime.PoolSpec{Name: "a", Identity: runtime.Identity{Service: "http://one"}}
	next := runtime.PoolSpec{Name: "a", Identity: runtime.Identity{Service: "http://two"}}
	desired := reconcile.Desired{Generation: 2, Pools: map[string]runtime.PoolSpec{next.Key(): next}}
	running := runtime.PoolState{Spec: old, Phase: runtime.PoolPolling, Jobs: []runtime.JobState{{ID: "1"}, {ID: "2"}}}
	plan := reconcile.Diff(desired, reconcile.Observed{Pools: map[string]runtime.PoolState{old.Key(): running}})
	if got, want := plan.String(), "start pool a\ndrain pool a (2 running, left to finish)\n"; got != want {
		t.Errorf("the plan is\n%swant\n%s", got, want)
	}
}
