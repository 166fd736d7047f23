package reconcile

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
)

// Observed is the observed state.
type Observed struct {
	Now     time.Time
	Pools   map[string]runtime.PoolState // by key
	Process ProcessSpec                  // in force
	RetryAt map[string]time.Time         // by key of a failed pool, or ProcessKey: time of the retry

	Leftovers map[string]runtime.PoolSpec // pools that have instances of an earlier run of the agent, by key
}

// ProcessKey is the key of the process as a whole in Observed.RetryAt and Status.Problems.
const ProcessKey = "process"

// Action is one change. There are five kinds: [SetProcess], [StartPool], [TunePool],
// [DrainPool], [RemovePool].
type Action interface {
	fmt.Stringer
	rank() int // order in a plan
	key() string
}

// SetProcess changes the settings of the process: its log, its listener, its limits.
// The new listener and log are open before the old ones are closed.
type SetProcess struct{ From, To ProcessSpec }

// StartPool builds a pool and runs it. During the build the phase of the pool is Starting.
type StartPool struct{ Spec runtime.PoolSpec }

// TunePool changes the settings of a pool, also while it is being built. With Revive, a
// draining pool stops draining.
type TunePool struct {
	Spec   runtime.PoolSpec
	Revive bool
}

// DrainPool makes a pool claim no more jobs; it stops after its last job. If the pool is
// being built, the build is cancelled.
type DrainPool struct {
	Key, Name string
	Jobs      int // in flight
}

// RemovePool removes a stopped pool from the [Set].
type RemovePool struct{ Key, Name string }

// Plan is an ordered list of actions. It prints as one line per action.
type Plan []Action

// String returns one line for each action.
func (p Plan) String() string {
	var b strings.Builder
	for _, action := range p {
		fmt.Fprintln(&b, action)
	}
	return b.String()
}

// Diff returns the actions that turn observed into desired. The same values give the
// same plan. An empty plan is the normal case.
//
//  1. Changed settings of the process are applied, unless this failed a short time ago.
//  2. A desired pool that does not exist is started, unless it failed a short time ago.
//  3. A desired pool that exists with other settings is tuned. A pause or a resumption by an
//     operator is such a setting. If the pool is draining, and is not a completed single
//     run, it stops draining. No second pool with the key is started.
//  4. A desired pool that has stopped is removed, so that the next plan starts it again.
//     A completed single run stays while a single run is desired.
//  5. A pool that is not desired is drained: at once if no desired pool replaces it,
//     otherwise when a replacement runs. A paused pool does not wait for a replacement.
//  6. A pool that is not desired and has stopped is removed.
//  7. A leftover pool that is neither desired nor observed is started. It drains at once:
//     see [runtime.PoolSpec].Leftover.
//
// A pool exists from the start of its build. No action ends a job.
func Diff(desired Desired, observed Observed) Plan {
	var plan Plan

	// 1. Set the process.
	if desired.Process != observed.Process && !observed.Now.Before(observed.RetryAt[ProcessKey]) {
		plan = append(plan, SetProcess{observed.Process, desired.Process})
	}

	// 2. to 4. Start, tune or remove desired pools.
	for key, spec := range desired.Pools {
		spec.Tuning.Paused = desired.Paused[spec.Name]
		state, exists := observed.Pools[key]
		completed := state.Completed && spec.Tuning.SingleRun
		switch {
		case !exists && observed.Now.Before(observed.RetryAt[key]):
		case !exists:
			plan = append(plan, StartPool{spec})
		case state.Phase == runtime.PoolStopped && completed:
		case state.Phase == runtime.PoolStopped:
			plan = append(plan, RemovePool{key, spec.Name})
		case state.Phase == runtime.PoolDraining && !state.Completed:
			plan = append(plan, TunePool{spec, true})
		case !equalSpec(spec, state.Spec):
			plan = append(plan, TunePool{spec, false})
		}
	}

	// 5. and 6. Drain or remove pools that are not desired.
	for key, state := range observed.Pools {
		_, isDesired := desired.Pools[key]
		switch {
		case isDesired, state.Phase == runtime.PoolDraining:
		case state.Phase == runtime.PoolStopped:
			plan = append(plan, RemovePool{key, state.Spec.Name})
		case desired.canDrain(state.Spec, observed):
			plan = append(plan, DrainPool{key, state.Spec.Name, len(state.Jobs)})
		}
	}

	// 7. Start leftover pools.
	for key, spec := range observed.Leftovers {
		_, isDesired := desired.Pools[key]
		if _, exists := observed.Pools[key]; !isDesired && !exists {
			plan = append(plan, StartPool{spec})
		}
	}
	slices.SortFunc(plan, func(a, b Action) int {
		return cmp.Or(cmp.Compare(a.rank(), b.rank()), cmp.Compare(a.key(), b.key()))
	})
	return plan
}

// canDrain reports whether a pool that is not desired can be drained: it has no
// replacement, or a replacement runs, or an operator has paused it.
func (d Desired) canDrain(old runtime.PoolSpec, observed Observed) bool {
	if d.Paused[old.Name] {
		return true
	}
	replaced := false
	for key, spec := range d.Pools {
		if !replaces(spec, old) {
			continue
		}
		if state := observed.Pools[key]; state.Ready && state.Err == nil {
			return true
		}
		replaced = true
	}
	return !replaced
}

// replaces reports whether a pool replaces another one: it has the same name, or polls
// the same pool of the same service.
func replaces(spec, old runtime.PoolSpec) bool {
	if spec.Name == old.Name {
		return true
	}
	a, b := spec.Identity, old.Identity
	sameToken := !spec.Tuning.Token.Empty() && spec.Tuning.Token == old.Tuning.Token
	samePool := a.PoolID != "" && a.PoolID == b.PoolID && a.Organization == b.Organization
	return a.Service == b.Service && (sameToken || samePool)
}

// equalSpec reports whether two specs of one key are equal except for the generation.
func equalSpec(a, b runtime.PoolSpec) bool {
	a.Generation = b.Generation
	return reflect.DeepEqual(a, b)
}

func (a SetProcess) rank() int { return 0 }
func (a TunePool) rank() int   { return 1 }
func (a DrainPool) rank() int  { return 2 }
func (a RemovePool) rank() int { return 3 }
func (a StartPool) rank() int  { return 4 }

func (a SetProcess) key() string { return ProcessKey }
func (a StartPool) key() string  { return a.Spec.Key() }
func (a TunePool) key() string   { return a.Spec.Key() }
func (a DrainPool) key() string  { return a.Key }
func (a RemovePool) key() string { return a.Key }

// String returns the changed settings.
func (a SetProcess) String() string {
	var parts []string
	if a.From.HTTPPort != a.To.HTTPPort {
		parts = append(parts, fmt.Sprintf("HTTP port %d -> %d", a.From.HTTPPort, a.To.HTTPPort))
	}
	if a.From.HTTPAddress != a.To.HTTPAddress {
		from, to := cmp.Or(a.From.HTTPAddress, "all"), cmp.Or(a.To.HTTPAddress, "all")
		parts = append(parts, fmt.Sprintf("HTTP address %s -> %s", from, to))
	}
	if a.From.LogLevel != a.To.LogLevel || a.From.LogFormat != a.To.LogFormat || a.From.Syslog != a.To.Syslog {
		parts = append(parts, "log")
	}
	if a.From.MaxJobs != a.To.MaxJobs {
		parts = append(parts, fmt.Sprintf("jobs of all pools %d -> %d", a.From.MaxJobs, a.To.MaxJobs))
	}
	if a.From.HealthThreshold != a.To.HealthThreshold || a.From.ShutdownTimeout != a.To.ShutdownTimeout {
		parts = append(parts, "time limits")
	}
	return "set the agent's " + strings.Join(parts, ", ")
}

// String returns the action with the name of the pool.
func (a StartPool) String() string {
	if a.Spec.Leftover {
		return fmt.Sprintf("adopt instances of pool %s, which is no longer configured", a.Spec.Name)
	}
	return fmt.Sprintf("start pool %s", a.Spec.Name)
}

// String returns the action with the name of the pool.
func (a TunePool) String() string {
	if a.Revive {
		return fmt.Sprintf("revive pool %s", a.Spec.Name)
	}
	return fmt.Sprintf("tune pool %s", a.Spec.Name)
}

// String returns the action with the name of the pool and the number of its jobs.
func (a DrainPool) String() string {
	if a.Jobs == 0 {
		return fmt.Sprintf("drain pool %s", a.Name)
	}
	return fmt.Sprintf("drain pool %s (running jobs: %d)", a.Name, a.Jobs)
}

// String returns the action with the name of the pool.
func (a RemovePool) String() string { return fmt.Sprintf("remove pool %s", a.Name) }

// sorted returns the keys of a map in order.
func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
