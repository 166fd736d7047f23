package reconcile

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/schema"
)

// Fate is what a reload does to a pool.
type Fate string

// The fates.
const (
	Started  Fate = "started"
	Kept     Fate = "kept"     // goes on as it is: what changes is for another deploy_target
	Tuned    Fate = "tuned"    // goes on, with new settings
	Replaced Fate = "replaced" // drains, and a new one starts
	Drained  Fate = "drained"  // claims nothing more, and is removed when its jobs have ended
)

// Change is one key that a reload changes.
type Change struct {
	Key      string
	From, To string       // as they stand in a file; a mark for secrets; empty is unset
	Effect   schema.Class // when it takes effect; empty is never, as it is for another deploy_target
}

// Reload is what a reload does to one pool, or to the agent as a whole.
type Reload struct {
	Pool    string // empty is the agent as a whole
	Fate    Fate   // empty for the agent as a whole
	Changes []Change
}

// Effect is one consequence of a reload: a pool starts or drains, or a key changes.
type Effect struct {
	Pool   string // empty is the agent as a whole
	Fate   Fate   // Started or Drained; empty if a key changes
	Change Change // zero if Fate is set
}

// Effects are the consequences of a reload by when they take effect, each list in
// the order of the reloads.
type Effects struct {
	Now          []Effect // the listener that is opened again included
	NextJob      []Effect
	NewPool      []Effect // keys of the pools that replace others
	Replaced     []string // names of these pools
	NeedsRestart []Effect
	None         []Effect // keys for another deploy_target
}

// ByEffect sorts what a reload does by when it takes effect. The log, the status
// document and the text of [Describe] print the result.
func ByEffect(reloads []Reload) (effects Effects) {
	for _, r := range reloads {
		switch r.Fate {
		case Started, Drained:
			effects.Now = append(effects.Now, Effect{Pool: r.Pool, Fate: r.Fate})
		case Replaced:
			effects.Replaced = append(effects.Replaced, r.Pool)
		}
		for _, c := range r.Changes {
			list := &effects.None
			switch c.Effect {
			case schema.ReloadLive, schema.ReloadRebind:
				list = &effects.Now
			case schema.ReloadJob:
				list = &effects.NextJob
			case schema.ReloadDrain:
				list = &effects.NewPool
			case schema.ReloadRestart:
				list = &effects.NeedsRestart
			}
			*list = append(*list, Effect{Pool: r.Pool, Change: c})
		}
	}
	return effects
}

// logAttributes returns what a reload changes, by when it takes effect, as names
// of pools and keys for a line of the log. Empty lists are left out. A replaced
// pool is named without its keys.
func (e Effects) logAttributes() (attributes []any) {
	add := func(name string, values []string) {
		if len(values) > 0 {
			attributes = append(attributes, name, strings.Join(values, ", "))
		}
	}
	add("now", logNames(e.Now))
	add("next_job", logNames(e.NextJob))
	add("drained_and_replaced", e.Replaced)
	add("needs_restart", logNames(e.NeedsRestart))
	return attributes
}

// logNames returns the pool of each effect, and its changed key or what happens to
// the pool.
func logNames(effects []Effect) (names []string) {
	for _, e := range effects {
		name := e.Change.Key + string(e.Fate) // one of them is empty
		if e.Pool != "" {
			name = e.Pool + ": " + name
		}
		names = append(names, name)
	}
	return names
}

// Preview returns what a reload from one configuration to another does: the actions of
// the loop if the first were in force and no job ran, and when each changed key takes
// effect. The agent comes first, then the pools by name. The list is empty if nothing
// changes.
func Preview(before, after *schema.Config) []Reload {
	// What happens to each pool, and to the agent.
	reloads := fates(before, after)
	targets := map[string]string{}
	for _, p := range after.Pools {
		targets[p.Name] = p.DeployTarget
	}

	// The changed keys of each.
	old := byPool(before.Settings())
	for pool, settings := range byPool(after.Settings()) {
		for i, s := range settings {
			var was schema.Setting
			if former := old[pool]; former != nil {
				was = former[i]
				if s.Same(was) {
					continue
				}
			}
			r := reloads[pool]
			if r == nil {
				r = &Reload{Pool: pool}
				if pool != "" {
					r.Fate = Kept
				}
				reloads[pool] = r
			}
			effect := s.Reload
			switch {
			case pool != "" && !concerns(s.Key, targets[pool]):
				effect = ""
			case r.Fate == Kept:
				r.Fate = Tuned
			}
			switch {
			case r.Fate == Started:
				continue // all of its keys are new
			case r.Fate == Replaced && effect != "":
				effect = schema.ReloadDrain // with the new pool
			}
			r.Changes = append(r.Changes, Change{Key: s.Key, From: was.Value, To: s.Value, Effect: effect})
		}
	}

	var list []Reload
	for _, name := range sorted(reloads) {
		list = append(list, *reloads[name])
	}
	return list
}

// byPool returns the settings of each pool by name, and those of the agent under the
// empty name. All pools of all configurations have the same keys in the same order.
func byPool(settings []schema.Setting) map[string][]schema.Setting {
	parts := map[string][]schema.Setting{}
	for i := 0; i < len(settings); {
		from, name := i, settings[i].Pool
		for i < len(settings) && settings[i].Pool == name {
			i++
		}
		parts[name] = settings[from:i]
	}
	return parts
}

// concerns reports whether a key has a meaning for a target.
func concerns(key, target string) bool {
	section, _, nested := strings.Cut(key, ".")
	switch {
	case nested:
		return section == target
	case strings.HasPrefix(key, "pod_template"):
		return target == "kubernetes"
	default:
		return true
	}
}

// fates applies plans of Diff to a state in which every started pool works at once, and
// returns what happens to each pool.
func fates(before, after *schema.Config) map[string]*Reload {
	// The state in which the first configuration is in force.
	was, will := Want(before, 1), Want(after, 2)
	observed := Observed{Process: was.Process, Pools: map[string]runtime.PoolState{}}
	there := func(spec runtime.PoolSpec, phase runtime.PoolPhase) {
		observed.Pools[spec.Key()] = runtime.PoolState{Spec: spec, Phase: phase, Begun: true}
	}
	for _, spec := range was.Pools {
		there(spec, runtime.PoolPolling)
	}

	// Plan after plan, until one is empty.
	reloads := map[string]*Reload{}
	for plan := Diff(will, observed); len(plan) > 0; plan = Diff(will, observed) {
		for _, action := range plan {
			switch a := action.(type) {
			case SetProcess:
				observed.Process = a.To
			case StartPool:
				there(a.Spec, runtime.PoolPolling)
				if r := reloads[a.Spec.Name]; r != nil {
					r.Fate = Replaced
				} else {
					reloads[a.Spec.Name] = &Reload{Pool: a.Spec.Name, Fate: Started}
				}
			case TunePool:
				there(a.Spec, runtime.PoolPolling)
				reloads[a.Spec.Name] = &Reload{Pool: a.Spec.Name, Fate: Tuned}
			case DrainPool:
				there(observed.Pools[a.Key].Spec, runtime.PoolDraining)
				if r := reloads[a.Name]; r != nil {
					r.Fate = Replaced
				} else {
					reloads[a.Name] = &Reload{Pool: a.Name, Fate: Drained}
				}
			}
		}
	}
	return reloads
}

// Describe returns a preview as text for people. Pools with the same changes share a
// paragraph. The text of an empty preview is one line.
func Describe(reloads []Reload) string {
	if len(reloads) == 0 {
		return "no change\n"
	}
	var b strings.Builder
	for i := 0; i < len(reloads); {
		names := []string{reloads[i].Pool}
		next := i + 1
		for ; next < len(reloads) && reloads[i].like(reloads[next]); next++ {
			names = append(names, reloads[next].Pool)
		}
		b.WriteString(reloads[i].heading(names) + "\n")
		writeChanges(&b, reloads[i].Changes)
		i = next
	}
	return b.String()
}

func (r Reload) like(other Reload) bool {
	return r.Pool != "" && r.Fate == other.Fate && slices.Equal(r.Changes, other.Changes)
}

func (r Reload) heading(names []string) string {
	who := "pool " + names[0]
	if len(names) > 1 {
		who = "pools " + strings.Join(names, ", ")
	}
	switch r.Fate {
	case Started:
		return who + ": started"
	case Kept:
		return who + ": goes on as before"
	case Tuned:
		return who + ": tuned, running jobs go on"
	case Replaced:
		return who + ": drained and replaced, running jobs finish first"
	case Drained:
		return who + ": drained and removed, running jobs finish first"
	default:
		return "agent:"
	}
}

// writeChanges writes a line for each change, ordered by when it takes effect.
func writeChanges(b *strings.Builder, changes []Change) {
	wide := 0
	for _, c := range changes {
		wide = max(wide, len(c.Key))
	}
	write := func(when string, effects []Effect) {
		for _, e := range effects {
			fmt.Fprintf(b, "  %-13s  %-*s  %s\n", when, wide, e.Change.Key, e.Change.difference())
		}
	}
	rebinds := func(e Effect) bool { return e.Change.Effect == schema.ReloadRebind }
	live := func(e Effect) bool { return !rebinds(e) }
	effects := ByEffect([]Reload{{Changes: changes}})
	write("now", slices.DeleteFunc(slices.Clone(effects.Now), rebinds))
	write("rebind", slices.DeleteFunc(slices.Clone(effects.Now), live))
	write("next job", effects.NextJob)
	write("new pool", effects.NewPool)
	write("needs restart", effects.NeedsRestart)
	write("no effect", effects.None)
}

func (c Change) difference() string {
	shown := func(value string) string {
		const longest = 60
		switch {
		case value == "":
			return "(unset)"
		case len(value) > longest:
			return strings.ToValidUTF8(value[:longest-3], "") + "..."
		default:
			return value
		}
	}
	from, to := shown(c.From), shown(c.To)
	if from == to {
		return from + " (changed)"
	}
	return from + " -> " + to
}
