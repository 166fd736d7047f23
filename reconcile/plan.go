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
	Blocked map[string]time.Time         // keys that failed, and when to try them again; the process has ProcessKey

	Leftovers map[string]runtime.PoolSpec // pools that have instances of an earlier run of the agent, by key
}

// ProcessKey is the key under which the process as a whole fails.
const ProcessKey = "process"

// Action is one change. The set is closed: [SetProcess], [StartPool],
// [TunePool], [DrainPool], [RemovePool].
type Action interface {
	fmt.Stringer
	rank() int // order in a plan
	key() string
}

// SetProcess changes the settings of the process: its log, its listener, its limits.
// The new listener and log are open before the old ones are closed.
type SetProcess struct{ From, To ProcessSpec }

// StartPool builds a pool and runs it. The pool is starting at once.
type StartPool struct{ Spec runtime.PoolSpec }

// TunePool gives a pool new settings, also while it is built; it revives a pool that
// drains.
type TunePool struct {
	Spec   runtime.PoolSpec
	Revive bool
}

// DrainPool makes a pool claim nothing more. It ends when its jobs have. It cancels a
// build.
type DrainPool struct {
	Key, Name string
	Jobs      int // in flight
}

// RemovePool forgets a pool that has stopped.
type RemovePool struct{ Key, Name string }

// Plan is an ordered list of actions. It prints as one line per action.
type Plan []Action

// String lists the actions, a line each.
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
//  1. The process is set to what is desired of it, unless that failed a short while
//     ago.
//  2. A desired pool that is not there is started, unless it failed a short while
//     ago.
//  3. A desired pool that is there with other settings is tuned; if it drains, it is
//     revived, never doubled.
//  4. A desired pool that has stopped is removed, so that the next plan starts it
//     again; a single run that is over stays over for as long as one is desired.
//  5. A pool that is not desired is drained, whatever it holds: at once if no desired
//     pool replaces it, otherwise once a replacement works.
//  6. A pool that is not desired and has stopped is removed.
//  7. A pool with instances of an earlier run that is neither desired nor
//     observed is started: it drains at once, see [runtime.PoolSpec].Leftover.
//
// A pool is there from the start of its build. No action ends a job.
func Diff(desired Desired, observed Observed) Plan {
	var plan Plan

	// 1. The process.
	if desired.Process != observed.Process && !observed.Now.Before(observed.Blocked[ProcessKey]) {
		plan = append(plan, SetProcess{observed.Process, desired.Process})
	}

	// 2. to 4. Desired pools.
	for key, spec := range desired.Pools {
		state, there := observed.Pools[key]
		over := state.Finished && spec.Tuning.SingleRun
		switch {
		case !there && observed.Now.Before(observed.Blocked[key]):
		case !there:
			plan = append(plan, StartPool{spec})
		case state.Phase == runtime.PoolStopped && over:
		case state.Phase == runtime.PoolStopped:
			plan = append(plan, RemovePool{key, spec.Name})
		case state.Phase == runtime.PoolDraining && !state.Finished:
			plan = append(plan, TunePool{spec, true})
		case !same(spec, state.Spec):
			plan = append(plan, TunePool{spec, false})
		}
	}

	// 5. and 6. Pools that are not desired.
	for key, state := range observed.Pools {
		_, wanted := desired.Pools[key]
		switch {
		case wanted, state.Phase == runtime.PoolDraining:
		case state.Phase == runtime.PoolStopped:
			plan = append(plan, RemovePool{key, state.Spec.Name})
		case desired.mayDrain(state.Spec, observed):
			plan = append(plan, DrainPool{key, state.Spec.Name, len(state.Jobs)})
		}
	}

	// 7. Pools of an earlier run.
	for key, spec := range observed.Leftovers {
		_, wanted := desired.Pools[key]
		if _, there := observed.Pools[key]; !wanted && !there {
			plan = append(plan, StartPool{spec})
		}
	}
	slices.SortFunc(plan, func(a, b Action) int {
		return cmp.Or(cmp.Compare(a.rank(), b.rank()), cmp.Compare(a.key(), b.key()))
	})
	return plan
}

// mayDrain reports whether a pool that is not desired may be drained: no desired pool
// replaces it, or one that does works.
func (d Desired) mayDrain(old runtime.PoolSpec, observed Observed) bool {
	replaced := false
	for key, spec := range d.Pools {
		if !replaces(spec, old) {
			continue
		}
		if state, there := observed.Pools[key]; there && state.Begun && state.Err == nil {
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

// same reports whether two specs of one key differ in nothing but the generation.
func same(a, b runtime.PoolSpec) bool {
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

// String names what changes.
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

func (a StartPool) String() string {
	if a.Spec.Leftover {
		return fmt.Sprintf("adopt instances of pool %s, which is no longer configured", a.Spec.Name)
	}
	return fmt.Sprintf("start pool %s", a.Spec.Name)
}

func (a TunePool) String() string {
	if a.Revive {
		return fmt.Sprintf("revive pool %s", a.Spec.Name)
	}
	return fmt.Sprintf("tune pool %s", a.Spec.Name)
}

func (a DrainPool) String() string {
	if a.Jobs == 0 {
		return fmt.Sprintf("drain pool %s", a.Name)
	}
	return fmt.Sprintf("drain pool %s (%d running, left to finish)", a.Name, a.Jobs)
}

func (a RemovePool) String() string { return fmt.Sprintf("remove pool %s", a.Name) }

// sorted returns the keys of a map in order.
func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
