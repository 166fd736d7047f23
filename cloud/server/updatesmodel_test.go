package server

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// updatesModel is what the calls of a test should have done to the stacks of a service.
type updatesModel struct {
	w       *world
	stacks  []*modelStack
	updates []*modelUpdate
	names   int // of resources so far
}

type modelStack struct {
	name   string
	states [][]string   // resources after each version; the first has none
	lock   *modelUpdate // nil if the stack is free
	latest *modelUpdate // that is no dry run
}

type modelUpdate struct {
	*change
	of       *modelStack
	dry      bool
	journal  bool
	started  bool
	status   string // empty before the end
	expired  bool   // the update ended after its lease
	expires  time.Time
	base     []string // resources at the start; those that were removed are empty
	made     []string // by the journal
	saved    []string // by the last checkpoint
	sequence int
}

func (u *modelUpdate) holds() bool {
	return u.started && u.status == "" && time.Now().Before(u.expires)
}

// resources returns those after the calls so far.
func (u *modelUpdate) resources() (names []string) {
	if !u.journal {
		return u.saved
	}
	for _, name := range u.base {
		if name != "" {
			names = append(names, name)
		}
	}
	return append(slices.Clone(u.made), names...)
}

// end ends the update in the model.
func (u *modelUpdate) end(status string) {
	u.status = status
	if !u.dry {
		u.of.states, u.of.lock = append(u.of.states, u.resources()), nil
	}
}

// expire ends all updates in the model whose lease has expired.
func (m *updatesModel) expire() {
	for _, u := range m.updates {
		if u.started && u.status == "" && !u.holds() {
			u.end(failed)
			u.expired = true
		}
	}
}

// expect checks the status of a response.
func expect(t *rapid.T, what string, got answer, want int) {
	t.Helper()
	if got.code != want {
		t.Fatalf("%s: %d %s, want %d", what, got.code, got.body, want)
	}
}

// pick draws an update. It skips the action if there is none.
func (m *updatesModel) pick(t *rapid.T) *modelUpdate {
	if len(m.updates) == 0 {
		t.Skip()
	}
	// The last ones run or wait more often.
	return m.updates[len(m.updates)-1-rapid.IntRange(0, min(len(m.updates)-1, 3)).Draw(t, "update from the end")]
}

func (m *updatesModel) name() string { m.names++; return fmt.Sprintf("r%d", m.names) }

func (m *updatesModel) create(t *rapid.T) {
	u := &modelUpdate{
		of: rapid.SampledFrom(m.stacks).Draw(t, "stack"), dry: rapid.IntRange(0, 4).Draw(t, "dry") == 0,
		journal: rapid.Bool().Draw(t, "journal"),
	}
	u.change = m.w.update(u.of.name, object{"options": object{"dryRun": u.dry}})
	m.updates = append(m.updates, u)
}

func (m *updatesModel) start(t *rapid.T) {
	u := m.pick(t)
	body := `{}`
	if u.journal {
		body = `{"journalVersion":3}`
	}
	if lock := u.of.lock; lock != nil && !lock.holds() {
		lock.end(failed) // the start of another update ends it
		lock.expired = true
	}
	if u.started || !u.dry && u.of.lock != nil {
		expect(t, "a start that is refused", m.w.ask(m.w.user, "POST", u.path(""), body), 409)
		return
	}
	if u.journal {
		u.startWith(object{"journalVersion": 3})
	} else {
		u.change.start()
	}
	u.started, u.expires = true, time.Now().Add(5*time.Minute)
	u.base = slices.Clone(u.of.states[len(u.of.states)-1])
	u.saved = slices.Clone(u.base)
	want := len(u.of.states)
	if u.dry {
		want--
	} else {
		u.of.lock, u.of.latest = u, u
	}
	if u.version != int64(want) || (u.change.journal == 1) != (u.journal && !u.dry) {
		t.Fatalf("started as %+v, want version %d", u.change, want)
	}
}

// lease returns the status that a call with the token of an update's lease should have.
func (u *modelUpdate) lease(good int) int {
	switch {
	case !u.started:
		return 401 // there is no token
	case !u.holds():
		return 403
	}
	return good
}

func (m *updatesModel) renew(t *rapid.T) {
	u := m.pick(t)
	seconds := rapid.SampledFrom([]int{-1, 0, 60, 300, 301}).Draw(t, "seconds")
	want := u.lease(200)
	if want != 401 && (seconds < 0 || seconds > 300) {
		want = 400
	}
	got := u.ask("POST", "/renew_lease", object{"duration": seconds})
	expect(t, "a renewal", got, want)
	if want == 200 {
		if seconds == 0 {
			seconds = 300
		}
		u.expires = time.Now().Add(time.Duration(seconds) * time.Second)
	}
}

func (m *updatesModel) save(t *rapid.T) {
	u := m.pick(t)
	name := m.name()
	if rapid.IntRange(0, 5).Draw(t, "foreign") == 0 {
		for _, other := range m.updates {
			if other != u && other.started {
				foreign := *u.change
				foreign.token = other.token
				expect(t, "a foreign lease", foreign.ask("PATCH", "/checkpoint", resources(name)), 403)
			}
		}
	}
	saved := append(slices.Clone(u.saved), name)
	wanted := u.lease(204)
	if wanted == 204 && (u.dry || u.journal) {
		wanted = 400
	}
	expect(t, "a checkpoint", u.ask("PATCH", "/checkpoint", resources(saved...)), wanted)
	if wanted == 204 {
		u.saved = saved
	}
}

func (m *updatesModel) append(t *rapid.T) {
	u := m.pick(t)
	name, remove := m.name(), -1
	if n := len(u.base); n > 0 && rapid.Bool().Draw(t, "remove") {
		remove = rapid.IntRange(0, n).Draw(t, "index")
	}
	u.sequence++
	entry := object{
		"version": 1, "kind": 1, "sequenceID": u.sequence, "operationID": u.sequence, "state": resource(name),
	}
	if remove >= 0 {
		entry["removeOld"] = remove
	}
	want := u.lease(204)
	if want == 204 && (u.dry || !u.journal || remove == len(u.base)) { // a wrong index is refused
		want = 400
	}
	for range rapid.IntRange(1, 2).Draw(t, "tries") { // a repeat has no effect
		expect(t, "entries of a journal", u.ask("PATCH", "/journalentries", object{"entries": []object{entry}}), want)
	}
	if want == 204 {
		u.made = append(u.made, name)
		if remove >= 0 {
			u.base[remove] = ""
		}
	}
}

func (m *updatesModel) complete(t *rapid.T) {
	u := m.pick(t)
	status := rapid.SampledFrom([]string{succeeded, failed}).Draw(t, "status")
	want := u.lease(204)
	switch {
	case !u.started || u.expired:
	case u.status == status:
		want = 204
	case u.status != "":
		want = 409
	}
	expect(t, "the end", u.ask("POST", "/complete", object{"status": status}), want)
	if u.holds() {
		u.end(status)
	}
}

func (m *updatesModel) cancel(t *rapid.T) {
	u := m.pick(t)
	want := 204
	if !u.started || u.status != "" {
		want = 409
	}
	expect(t, "a cancel", m.w.ask(m.w.user, "POST", u.path("/cancel"), nil), want)
	if want == 204 {
		u.expired = !u.holds()
		u.end(cancelled)
	}
}

func (m *updatesModel) importState(t *rapid.T) {
	st := rapid.SampledFrom(m.stacks).Draw(t, "stack")
	name, want := m.name(), 200
	if st.lock != nil {
		want = 409
	}
	expect(t, "an import", m.w.ask(m.w.user, "POST", stackPath+st.name+"/import", resources(name)), want)
	if want == 200 {
		st.states = append(st.states, []string{name})
		st.latest = nil
	}
}

// check compares the stacks with the model.
func (m *updatesModel) check(t *rapid.T) {
	for _, st := range m.stacks {
		var view stackView
		m.w.want(200, m.w.user, "GET", stackPath+st.name, nil, &view)
		if int(view.Version) != len(st.states)-1 || (view.Operation != nil) != (st.lock != nil) ||
			st.latest != nil && view.ActiveUpdate != st.latest.id {
			t.Fatalf("stack %s is %+v, want version %d and the lock of %+v", st.name, view, len(st.states)-1, st.lock)
		}
		newest := st.states[len(st.states)-1]
		if st.lock != nil {
			newest = st.lock.resources()
		}
		if got := m.w.exported(st.name, ""); fmt.Sprint(got) != fmt.Sprint(newest) {
			t.Fatalf("stack %s has the resources %v, want %v", st.name, got, newest)
		}
	}
}

// checkHistory compares all versions with the model.
func (m *updatesModel) checkHistory(t *rapid.T) {
	for _, st := range m.stacks {
		for version, want := range st.states {
			if got := m.w.exported(st.name, fmt.Sprintf("/%d", version)); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Fatalf("version %d of stack %s has the resources %v, want %v", version, st.name, got, want)
			}
		}
	}
}

// wait lets time pass: it moves the ends of all leases that are held. No sum of the times is near the time of a lease.
func (m *updatesModel) wait(t *rapid.T) {
	passed := rapid.SampledFrom([]time.Duration{97 * time.Second, 211 * time.Second}).Draw(t, "time")
	m.w.write(`UPDATE updates SET expires = expires - ? WHERE ended = 0`, int64(passed))
	for _, u := range m.updates {
		u.expires = u.expires.Add(-passed)
	}
}

func (m *updatesModel) runExpiry(t *rapid.T) {
	if err := m.w.server.expireUpdates(t.Context(), time.Now()); err != nil {
		t.Fatal(err)
	}
	m.expire()
}

// TestUpdateProperty makes random calls for updates of several stacks, lets leases expire, restarts the service, and
// adds another instance of it. After each call it compares the stacks with a model.
func TestUpdateProperty(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	rounds := 0
	rapid.Check(t, func(t *rapid.T) {
		m := &updatesModel{w: w}
		for i := range 2 {
			name := fmt.Sprintf("s%d-%d", rounds, i)
			w.stack(name)
			m.stacks = append(m.stacks, &modelStack{name: name, states: [][]string{nil}})
		}
		rounds++
		t.Repeat(map[string]func(*rapid.T){
			"create": m.create, "start": m.start, "start another": m.start, "renew": m.renew, "save": m.save,
			"append": m.append, "append more": m.append, "complete": m.complete, "cancel": m.cancel,
			"import": m.importState, "wait": m.wait, "expire": m.runExpiry,
			"restart": func(t *rapid.T) {
				if rapid.IntRange(0, 3).Draw(t, "restart") == 0 {
					w.restart()
				}
			},
			"add instance": func(t *rapid.T) {
				if w.second != nil || rapid.IntRange(0, 3).Draw(t, "instance") > 0 {
					t.Skip("the service has two instances")
				}
				w.addInstance()
			},
			"": m.check,
		})
		m.checkHistory(t)
	})
}
