//go:build !race

package reconcile_test

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/cmwa-project/cmwa/reconcile"
	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// sequences is the least number of random histories that a run tries.
const sequences = 100_000

// TestDiffProperty tries random histories of edits, jobs, failures and clock steps. Each
// plan must be safe, and after the last edit a few plans must reach the state of a fresh
// start with the last file.
//
// The race detector makes it 25 times slower and finds nothing, because Diff starts no goroutine.
func TestDiffProperty(t *testing.T) {
	const shards = 4
	checks := flag.Lookup("rapid.checks")
	before := checks.Value.String()
	if asked, _ := strconv.Atoi(before); asked < sequences/shards {
		if err := checks.Value.Set(strconv.Itoa(sequences / shards)); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = checks.Value.Set(before) })
	}
	for shard := range shards {
		t.Run(fmt.Sprint(shard), func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, history)
		})
	}
}

// page is a small configuration file. It has all settings on which plans depend.
type page struct {
	pools   [3]entry // a, b and c
	process reconcile.ProcessSpec
}

// entry is one pool of a page. The pool exists if most, its limit of jobs, is not 0.
type entry struct {
	most, service, target, token int
	single                       bool
}

// What the entries of a page choose from.
var (
	services = [2]string{"https://0", "https://1"}
	targets  = [2]string{"docker", "process"}
	tokens   = [3]secret.String{secret.New("pul-0"), secret.New("pul-1"), secret.New("pul-2")}
)

func (e entry) spec(name int, generation uint64) runtime.PoolSpec {
	return runtime.PoolSpec{
		Name:     string(rune('a' + name)),
		Identity: runtime.Identity{Service: services[e.service], Target: targets[e.target]},
		Tuning: runtime.Tuning{
			MaxJobs: e.most, SingleRun: e.single, Token: tokens[e.token], Kinds: []runtime.Kind{runtime.Deployment},
		},
		Generation: generation,
	}
}

// keys contains the keys of all pools of all pages, by name, service and target. The
// histories look up a key many million times, and a digest is slow.
var keys = func() (keys [3][2][len(targets)]string) {
	for name := range keys {
		for service := range keys[name] {
			for target := range targets {
				keys[name][service][target] = entry{service: service, target: target}.spec(name, 0).Key()
			}
		}
	}
	return keys
}()

// keyOf returns the key of a spec of a page.
func keyOf(spec *runtime.PoolSpec) string {
	service, target := 0, slices.Index(targets[:], spec.Identity.Target)
	if spec.Identity.Service == services[1] {
		service = 1
	}
	return keys[spec.Name[0]-'a'][service][target]
}

func (p page) desired(generation uint64) reconcile.Desired {
	d := reconcile.Desired{Generation: generation, Pools: map[string]runtime.PoolSpec{}, Process: p.process}
	for name, e := range p.pools {
		if e.most > 0 {
			d.Pools[keys[name][e.service][e.target]] = e.spec(name, generation)
		}
	}
	return d
}

// dice are the random choices of one step.
type dice uint64

func (d *dice) pick(sides int) int {
	picked := int(*d % dice(sides))
	*d /= dice(sides)
	return picked
}

// edited returns the page after one typical edit.
func (p page) edited(d dice) page {
	name := d.pick(len(p.pools))
	e := &p.pools[name]
	was := *e
	switch d.pick(13) {
	case 0:
		e.most = 0
	case 1, 2:
		e.most = 1 + d.pick(3)
	case 3, 4:
		e.service = d.pick(2)
	case 5:
		e.target = d.pick(2)
	case 6:
		e.token = d.pick(3)
	case 7, 12:
		e.single = !e.single
	case 8: // renamed, perhaps to the name of another pool
		e.most = 0
		p.pools[d.pick(len(p.pools))] = was
	case 9:
		p.process.HTTPPort = 8080 * d.pick(3)
	case 10:
		p.process.LogLevel, p.process.MaxJobs = []string{"info", "debug"}[d.pick(2)], d.pick(3)
	case 11: // all pools
		for i := range p.pools {
			p.pools[i] = entry{most: d.pick(3), service: d.pick(2), target: d.pick(2), token: d.pick(2),
				single: d.pick(2) == 0}
		}
	}
	return p
}

// model is a loop and its pools as values. They behave like a Loop and a Set, but without
// goroutines and clocks.
type model struct {
	t          *rapid.T
	now        time.Time
	page       page
	earlier    []page
	generation uint64
	desired    reconcile.Desired
	pools      map[string]*member
	inForce    reconcile.ProcessSpec
	failures   map[string]failure
	down       [len(targets)]bool // engines that cannot be reached
	taken      bool               // another process uses the HTTP port
	jobs       int                // started so far
}

type member struct {
	state runtime.PoolState
	done  int // jobs that have ended
}

type failure struct {
	times int
	until time.Time
}

func newModel(t *rapid.T) *model {
	return &model{t: t, now: time.Unix(1e9, 0), pools: map[string]*member{}, failures: map[string]failure{}}
}

func history(t *rapid.T) {
	m := newModel(t)
	m.want(page{}.edited(dice(rapid.Uint64().Draw(t, "first")) * 0x9E3779B97F4A7C15).edited(11 * 3))
	for _, step := range rapid.SliceOfN(rapid.Uint64(), 8, 60).Draw(t, "steps") {
		m.step(dice(step*0x9E3779B97F4A7C15) >> 8) // spread small numbers, which are drawn often
	}
	m.converge()
}

// step applies one random event. Half of the events are turns of the loop.
func (m *model) step(d dice) {
	if d.pick(2) == 0 {
		plan := m.plan()
		if d.pick(3) == 0 { // an event during the preparation of the plan
			m.event(d)
		}
		m.apply(plan)
		return
	}
	m.event(d)
}

func (m *model) event(d dice) {
	switch d.pick(12) {
	case 0, 1, 2:
		m.earlier = append(m.earlier, m.page)
		m.want(m.page.edited(d))
	case 3:
		if len(m.earlier) > 0 { // undo edits
			m.want(m.earlier[d.pick(len(m.earlier))])
		}
	case 4, 5:
		m.one(d, m.jobStarts)
	case 6, 7:
		m.one(d, m.jobEnds)
	case 8:
		m.one(d, func(p *member) {
			*p = member{state: runtime.PoolState{Spec: p.state.Spec, Phase: runtime.PoolStopped, Ready: p.state.Ready,
				Err: errors.New("died")}, done: p.done}
		})
	case 9:
		m.one(d, func(p *member) {
			if phase := p.state.Phase; phase != runtime.PoolDraining && phase != runtime.PoolStopped {
				p.state.Phase, p.state.Ready = []runtime.PoolPhase{runtime.PoolPolling, runtime.PoolPaused,
					runtime.PoolBackoff, runtime.PoolWaiting}[d.pick(4)], true
			}
		})
	case 10:
		if engine := d.pick(3); engine < len(m.down) {
			m.down[engine] = !m.down[engine]
		} else {
			m.taken = !m.taken
		}
	case 11:
		m.now = m.now.Add([]time.Duration{300 * time.Millisecond, time.Second, time.Minute, 24 * time.Hour,
			-5 * time.Second}[d.pick(5)])
	}
}

func (m *model) want(p page) {
	m.generation++
	m.page, m.desired = p, p.desired(m.generation)
	clear(m.failures)
}

// one applies an event to a randomly chosen pool.
func (m *model) one(d dice, happens func(*member)) {
	if len(m.pools) == 0 {
		return
	}
	sorted := slices.Sorted(maps.Keys(m.pools)) // so that a history can be replayed
	key := sorted[d.pick(len(sorted))]
	happens(m.pools[key])
}

func (m *model) jobStarts(p *member) {
	started := p.state.Phase == runtime.PoolStarting ||
		p.state.Phase == runtime.PoolPolling // a starting pool may adopt a job
	if started && len(p.state.Jobs) < p.state.Spec.Tuning.MaxJobs {
		m.jobs++
		p.state.Jobs = append(slices.Clone(p.state.Jobs), runtime.JobState{ID: strconv.Itoa(m.jobs)})
	}
}

func (m *model) jobEnds(p *member) {
	if len(p.state.Jobs) > 0 {
		p.state.Jobs = p.state.Jobs[1:]
		if p.state.Ready { // otherwise the pool adopted the job
			p.done++
		}
		p.settle()
	}
}

// settle stops a pool that has nothing left to do.
func (p *member) settle() {
	if p.state.Phase == runtime.PoolStopped {
		return
	}
	p.state.Completed = p.state.Spec.Tuning.SingleRun && p.done > 0
	if p.state.Completed {
		p.state.Phase = runtime.PoolDraining
	}
	if p.state.Phase == runtime.PoolDraining && len(p.state.Jobs) == 0 {
		p.state.Phase = runtime.PoolStopped
	}
}

func (m *model) observed() reconcile.Observed {
	o := reconcile.Observed{Now: m.now, Process: m.inForce, Pools: map[string]runtime.PoolState{},
		RetryAt: map[string]time.Time{}}
	for key, p := range m.pools {
		o.Pools[key] = p.state
	}
	for key, f := range m.failures {
		_, wanted := m.desired.Pools[key]
		var phase runtime.PoolPhase
		if p, exists := m.pools[key]; exists {
			phase = p.state.Phase
		}
		if phase == runtime.PoolPolling || phase == runtime.PoolWaiting || !wanted && key != reconcile.ProcessKey {
			delete(m.failures, key)
			continue
		}
		o.RetryAt[key] = f.until
	}
	return o
}

// plan returns the plan of a turn, and checks it.
func (m *model) plan() reconcile.Plan {
	o := m.observed()
	plan := reconcile.Diff(m.desired, o)
	m.check(plan, o)
	if len(plan) == 0 {
		return plan
	}
	again := o // with maps that were filled in reverse order
	again.Pools = maps.Collect(reversed(o.Pools))
	again.RetryAt = maps.Collect(reversed(o.RetryAt))
	desired := m.desired
	desired.Pools = maps.Collect(reversed(m.desired.Pools))
	if other := reconcile.Diff(desired, again); !slices.EqualFunc(plan, other, sameAction) {
		m.t.Fatalf("the same values give two plans:\n%s\n%s", plan, other)
	}
	return plan
}

// sameAction reports whether two actions change the same pool or process in the same way. Specs
// are equal if their keys and generations are: the desired state has one spec for each key.
func sameAction(a, b reconcile.Action) bool {
	switch a := a.(type) {
	case reconcile.StartPool:
		b, ok := b.(reconcile.StartPool)
		return ok && keyOf(&a.Spec) == keyOf(&b.Spec) && a.Spec.Generation == b.Spec.Generation
	case reconcile.TunePool:
		b, ok := b.(reconcile.TunePool)
		return ok && keyOf(&a.Spec) == keyOf(&b.Spec) && a.Spec.Generation == b.Spec.Generation && a.Revive == b.Revive
	default:
		return a == b
	}
}

func reversed[V any](values map[string]V) func(yield func(string, V) bool) {
	return func(yield func(string, V) bool) {
		for _, key := range slices.Backward(slices.Sorted(maps.Keys(values))) {
			if !yield(key, values[key]) {
				return
			}
		}
	}
}

// check checks a plan against the desired and the observed state.
func (m *model) check(plan reconcile.Plan, o reconcile.Observed) {
	wrong := func(action reconcile.Action, why string) {
		m.t.Fatalf("%v: %s; the plan is\n%s", action, why, plan)
	}
	touched := make(map[string]bool, len(plan))
	order := 0
	for _, action := range plan {
		var rank int
		var key string
		switch a := action.(type) {
		case reconcile.SetProcess:
			rank, key = 1, reconcile.ProcessKey
			if a.To != m.desired.Process || a.From != m.inForce || a.To == a.From {
				wrong(action, "does not set the desired settings, or changes nothing")
			}
		case reconcile.StartPool:
			rank, key = 5, keyOf(&a.Spec)
			if _, exists := m.pools[key]; exists {
				wrong(action, "starts a pool that exists")
			}
			if !reflect.DeepEqual(a.Spec, m.desired.Pools[key]) {
				wrong(action, "starts a pool that is not desired")
			}
		case reconcile.TunePool:
			rank, key = 2, keyOf(&a.Spec)
			p, exists := m.pools[key]
			if !exists || p.state.Phase == runtime.PoolStopped {
				wrong(action, "tunes a pool that does not exist")
			}
			if !reflect.DeepEqual(a.Spec, m.desired.Pools[key]) {
				wrong(action, "sets settings that are not desired")
			}
			if a.Revive != (p.state.Phase == runtime.PoolDraining && !p.state.Completed) {
				wrong(action, "has the wrong value of Revive")
			}
			if same := a.Spec; !a.Revive {
				same.Generation = p.state.Spec.Generation
				if reflect.DeepEqual(same, p.state.Spec) {
					wrong(action, "changes nothing")
				}
			}
		case reconcile.DrainPool:
			rank, key = 3, a.Key
			if _, wanted := m.desired.Pools[key]; wanted {
				wrong(action, "drains a desired pool")
			}
			p, exists := m.pools[key]
			if !exists || p.state.Phase == runtime.PoolDraining || p.state.Phase == runtime.PoolStopped {
				wrong(action, "drains a pool that does not exist, or a draining or stopped one")
			}
			if a.Jobs != len(p.state.Jobs) {
				wrong(action, "has the wrong number of jobs")
			}
			if !m.canDrain(&p.state.Spec) {
				wrong(action, "drains a pool although no replacement runs")
			}
		case reconcile.RemovePool:
			rank, key = 4, a.Key
			p, exists := m.pools[key]
			if !exists || p.state.Phase != runtime.PoolStopped || len(p.state.Jobs) > 0 {
				wrong(action, "removes a running pool, or one that does not exist")
			}
			if p.state.Completed && m.desired.Pools[key].Tuning.SingleRun {
				wrong(action, "would run a single run twice")
			}
		default:
			wrong(action, "is an unknown action")
		}
		if m.now.Before(o.RetryAt[key]) && (rank == 1 || rank == 5) {
			wrong(action, "is retried too early")
		}
		if touched[key] {
			wrong(action, "is the second action for one pool")
		}
		if rank < order {
			wrong(action, "is in the wrong order")
		}
		touched[key], order = true, rank
	}
	for key, p := range m.pools {
		_, wanted := m.desired.Pools[key]
		drains := p.state.Phase == runtime.PoolDraining
		switch {
		case touched[key]:
		case wanted && drains && !p.state.Completed:
			m.t.Fatalf("pool %s is desired and drains, but is not revived; the plan is\n%s", key, plan)
		case !wanted && !drains && p.state.Phase != runtime.PoolStopped && m.canDrain(&p.state.Spec):
			m.t.Fatalf("pool %s is not desired, and is not drained; the plan is\n%s", key, plan)
		}
	}
}

// canDrain reports whether a pool that is not desired has no replacement, or a replacement
// that runs.
func (m *model) canDrain(old *runtime.PoolSpec) bool {
	waits := false
	for key, spec := range m.desired.Pools {
		sameWork := spec.Identity.Service == old.Identity.Service && spec.Tuning.Token == old.Tuning.Token
		if spec.Name != old.Name && !sameWork {
			continue
		}
		if p, exists := m.pools[key]; exists && p.state.Ready && p.state.Err == nil {
			return true
		}
		waits = true
	}
	return !waits
}

// apply applies a plan as the loop does.
func (m *model) apply(plan reconcile.Plan) {
	built := map[string]bool{}
	for _, action := range plan {
		switch a := action.(type) {
		case reconcile.SetProcess:
			if built[reconcile.ProcessKey] = !m.taken; m.taken {
				m.failed(reconcile.ProcessKey)
			}
		case reconcile.StartPool:
			key := keyOf(&a.Spec)
			if built[key] = !m.down[slices.Index(targets[:], a.Spec.Identity.Target)]; !built[key] {
				m.failed(key)
			}
		}
	}
	running := m.running()
	for _, action := range plan {
		switch a := action.(type) {
		case reconcile.SetProcess:
			if built[reconcile.ProcessKey] {
				m.inForce = a.To
				delete(m.failures, reconcile.ProcessKey)
			}
		case reconcile.StartPool:
			if key := keyOf(&a.Spec); built[key] {
				m.pools[key] = &member{state: runtime.PoolState{Spec: a.Spec, Phase: runtime.PoolStarting}}
			}
		case reconcile.TunePool:
			p := m.pools[keyOf(&a.Spec)]
			p.state.Spec = a.Spec
			if p.state.Phase == runtime.PoolDraining {
				p.state.Phase = runtime.PoolPolling
				if !p.state.Ready {
					p.state.Phase = runtime.PoolStarting
				}
			}
			p.settle()
		case reconcile.DrainPool:
			if p := m.pools[a.Key]; p.state.Phase != runtime.PoolStopped {
				p.state.Phase = runtime.PoolDraining
				p.settle()
			}
		case reconcile.RemovePool:
			if m.pools[a.Key].state.Err != nil {
				m.failed(a.Key)
			}
			delete(m.pools, a.Key)
		}
	}
	if after := m.running(); after != running {
		m.t.Fatalf("a plan ends jobs: %d before, %d after:\n%s", running, after, plan)
	}
}

func (m *model) failed(key string) {
	f := m.failures[key]
	m.failures[key] = failure{times: f.times + 1, until: m.now.Add(min(time.Minute, time.Second<<min(f.times, 10)))}
}

func (m *model) running() (jobs int) {
	for _, p := range m.pools {
		jobs += len(p.state.Jobs)
	}
	return jobs
}

// converge ends all jobs and lets time pass, and compares the final state with that of a
// fresh start.
func (m *model) converge() {
	const rounds = 6 // one each to remove failed pools, start, become ready, drain, remove; one without a plan
	m.down, m.taken = [len(targets)]bool{}, false
	for round := 1; ; round++ {
		m.now = m.now.Add(2 * time.Minute)
		plan := m.plan()
		if len(plan) == 0 && len(m.pools) == len(m.desired.Pools) {
			break
		}
		if round > rounds {
			m.t.Fatalf("not converged after %d rounds; %d pools exist and %d are desired; the plan is\n%s", rounds,
				len(m.pools), len(m.desired.Pools), plan)
		}
		m.apply(plan)
		for _, p := range m.pools {
			if p.state.Phase == runtime.PoolStarting {
				p.state.Phase, p.state.Ready = runtime.PoolPolling, true
			}
			for p.state.Phase == runtime.PoolDraining && len(p.state.Jobs) > 0 {
				m.jobEnds(p)
			}
		}
	}
	fresh := newModel(m.t)
	fresh.want(m.page)
	for range 2 {
		fresh.apply(fresh.plan())
	}
	over := map[string]bool{} // completed single runs, whose settings have no effect
	for key, p := range m.pools {
		over[key] = p.state.Completed && m.desired.Pools[key].Tuning.SingleRun
	}
	got, want := m.settled(over), fresh.settled(over)
	if m.inForce != fresh.inForce || !maps.Equal(got, want) {
		m.t.Fatalf("the final state differs from that of a fresh start; got\n%+v\n%+v\nwant\n%+v\n%+v",
			m.inForce, got, fresh.inForce, want)
	}
	m.want(m.page) // the same page as another generation
	if plan := m.plan(); len(plan) > 0 {
		m.t.Fatalf("a generation without a change gives the plan\n%s", plan)
	}
}

// settings are the settings in force of a pool in the final state.
type settings struct {
	completed, single, idle bool
	most                    int
	token                   string
}

// settled returns the settings in force of all pools, and for those in except only that they
// have completed.
func (m *model) settled(except map[string]bool) map[string]settings {
	all := make(map[string]settings, len(m.pools))
	for key, p := range m.pools {
		if except[key] {
			all[key] = settings{completed: true}
			continue
		}
		tuning := &p.state.Spec.Tuning
		all[key] = settings{
			single: tuning.SingleRun, most: tuning.MaxJobs, token: tuning.Token.Reveal(),
			idle: p.state.Phase == runtime.PoolDraining || p.state.Phase == runtime.PoolStopped,
		}
	}
	return all
}
