package reconcile

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/schema"
	"github.com/cmwa-project/cmwa/schema/printable"
)

// PoolChange is the effect of a reload on a pool.
type PoolChange string

// The changes of a pool.
const (
	Started  PoolChange = "started"
	Kept     PoolChange = "kept"     // runs unchanged: the changed keys are for another deploy_target
	Tuned    PoolChange = "tuned"    // continues with new settings
	Replaced PoolChange = "replaced" // drains, and a new pool with the same name starts
	Drained  PoolChange = "drained"  // claims nothing more, and is removed when its jobs have ended
)

// Effect is when a changed key takes effect. The log, the status and the plan use
// these names.
type Effect string

// The effects.
const (
	Live     Effect = "live"     // at once
	Rebind   Effect = "rebind"   // at once: the new listener opens, then the old one closes
	NextJob  Effect = "next job" // for jobs that are claimed from then on
	Drain    Effect = "drain"    // with a new pool, which starts while the old one drains
	Restart  Effect = "restart"  // when the agent is restarted
	NoEffect Effect = "none"     // not at all: the key is for another deploy_target
)

// Effects returns all effects, in the order in which they are printed.
func Effects() []Effect { return []Effect{Live, Rebind, NextJob, Drain, Restart, NoEffect} }

// Change is one key that a reload changes.
type Change struct {
	Key    string `json:"key"`
	From   string `json:"from"` // as in a file; [secret] for a secret; empty if unset
	To     string `json:"to"`   // in the same form
	Effect Effect `json:"effect"`
}

// Difference returns the two values as text, such as "2 -> 4". Long values are shortened.
func (c Change) Difference() string {
	from, to := cut(c.From), cut(c.To)
	if from == to {
		return from + " (changed)"
	}
	return from + " -> " + to
}

// cut shortens a long value, and returns "(unset)" for an empty one.
func cut(value string) string {
	return printable.Shorten(cmp.Or(value, "(unset)"), 60)
}

// Reload contains the changes of a reload to one pool, or to the agent as a whole.
type Reload struct {
	Pool       string     `json:"pool,omitempty"`        // empty is the agent as a whole
	PoolChange PoolChange `json:"pool_change,omitempty"` // empty for the agent as a whole
	Changes    []Change   `json:"changes"`
}

// with returns the changes that have this effect.
func (r Reload) with(effect Effect) (changes []Change) {
	for _, c := range r.Changes {
		if c.Effect == effect {
			changes = append(changes, c)
		}
	}
	return changes
}

// alike divides the reloads into groups. Pools that are next to each other in the list and
// have equal changes are in the same group. Each group has at least one reload.
func alike(reloads []Reload) (groups [][]Reload) {
	for _, r := range reloads {
		if last := len(groups) - 1; last >= 0 && groups[last][0].like(r) {
			groups[last] = append(groups[last], r)
		} else {
			groups = append(groups, []Reload{r})
		}
	}
	return groups
}

func (r Reload) like(other Reload) bool {
	return r.Pool != "" && r.PoolChange == other.PoolChange && slices.Equal(r.Changes, other.Changes)
}

// poolNames returns the names of the pools of a group.
func poolNames(group []Reload) string {
	names := make([]string, len(group))
	for i, r := range group {
		names[i] = r.Pool
	}
	return strings.Join(names, ", ")
}

// Preview returns the changes of a reload from one configuration to another: how each pool
// changes, and the effect of each changed key. It computes the actions of a loop in which
// the first configuration is in force and no job runs. The agent comes first in the list,
// then the pools by name. Without changes, the list is empty.
func Preview(before, after *schema.Config) []Reload {
	reloads := poolChanges(before, after)
	targets := map[string]string{}
	for _, p := range after.Pools {
		targets[p.Name] = p.DeployTarget
	}

	// Add the changed keys of each pool and of the agent.
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
					r.PoolChange = Kept
				}
				reloads[pool] = r
			}
			effect := Effect(s.Reload.String())
			switch {
			case pool != "" && !s.AppliesTo(targets[pool]):
				effect = NoEffect
			case r.PoolChange == Kept:
				r.PoolChange = Tuned
			}
			switch {
			case r.PoolChange == Started:
				continue // all of its keys are new
			case r.PoolChange == Replaced && effect != NoEffect:
				effect = Drain // with the new pool
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

// byPool returns the settings of each pool by its name. The settings of the agent have the
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

// restartSettings returns the settings of the agent that take effect only when it is restarted.
func restartSettings(c *schema.Config) []schema.Setting {
	return slices.DeleteFunc(slices.Clone(byPool(c.Settings())[""]), func(s schema.Setting) bool {
		return Effect(s.Reload.String()) != Restart
	})
}

// changedKeys returns the keys whose values differ. Both lists have the same keys in the same order.
func changedKeys(before, after []schema.Setting) (keys []string) {
	for i, s := range after {
		if !s.Same(before[i]) {
			keys = append(keys, s.Key)
		}
	}
	return keys
}

// poolChanges applies plans of Diff to a state in which every started pool is ready at
// once, and returns the change of each pool.
func poolChanges(before, after *schema.Config) map[string]*Reload {
	was, will := Want(before, 1), Want(after, 2)
	observed := Observed{Process: was.Process, Pools: map[string]runtime.PoolState{}}
	exists := func(spec runtime.PoolSpec, phase runtime.PoolPhase) {
		observed.Pools[spec.Key()] = runtime.PoolState{Spec: spec, Phase: phase, Ready: true}
	}
	for _, spec := range was.Pools {
		exists(spec, runtime.PoolPolling)
	}

	reloads := map[string]*Reload{}
	note := func(pool string, change PoolChange) {
		if reloads[pool] != nil {
			change = Replaced
		}
		reloads[pool] = &Reload{Pool: pool, PoolChange: change}
	}
	for plan := Diff(will, observed); len(plan) > 0; plan = Diff(will, observed) {
		for _, action := range plan {
			switch a := action.(type) {
			case SetProcess:
				observed.Process = a.To
			case StartPool:
				exists(a.Spec, runtime.PoolPolling)
				note(a.Spec.Name, Started)
			case TunePool:
				exists(a.Spec, runtime.PoolPolling)
				reloads[a.Spec.Name] = &Reload{Pool: a.Spec.Name, PoolChange: Tuned}
			case DrainPool:
				exists(observed.Pools[a.Key].Spec, runtime.PoolDraining)
				note(a.Name, Drained)
			}
		}
	}
	return reloads
}

// Describe returns a preview as text for the user. Pools with the same changes share a
// paragraph. The text of an empty preview is one line.
func Describe(reloads []Reload) string {
	if len(reloads) == 0 {
		return "no change\n"
	}
	var b strings.Builder
	for _, group := range alike(reloads) {
		b.WriteString(heading(group) + "\n")
		writeChanges(&b, group[0])
	}
	return b.String()
}

// heading returns the first line about a group of pools, or about the agent.
func heading(group []Reload) string {
	subject := "pool " + poolNames(group)
	if len(group) > 1 {
		subject = "pools " + poolNames(group)
	}
	switch group[0].PoolChange {
	case Started:
		return subject + ": started"
	case Kept:
		return subject + ": kept, nothing in use changes"
	case Tuned:
		return subject + ": tuned, running jobs continue"
	case Replaced:
		return subject + ": drained and replaced, running jobs finish first"
	case Drained:
		return subject + ": drained and removed, running jobs finish first"
	default:
		return "agent:"
	}
}

// writeChanges writes a line for each change, ordered by effect.
func writeChanges(b *strings.Builder, r Reload) {
	width := 0
	for _, c := range r.Changes {
		width = max(width, len(c.Key))
	}
	for _, effect := range Effects() {
		for _, c := range r.with(effect) {
			fmt.Fprintf(b, "  %-8s  %-*s  %s\n", effect, width, c.Key, c.Difference())
		}
	}
}
