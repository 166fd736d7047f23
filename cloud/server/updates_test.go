package server

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"
)

const stackPath = "/api/stacks/organization/project/"

// change is an update of a stack, with the token of its lease.
type change struct {
	w       *world
	stack   string
	id      string
	token   string
	version int64
	journal int
}

// update creates an update of a stack. The fields of request are those of its body.
func (w *world) update(stack string, request object) *change {
	w.t.Helper()
	var made struct {
		ID string `json:"updateID"`
	}
	w.want(200, w.user, "POST", stackPath+stack+"/update", request, &made)
	return &change{w: w, stack: stack, id: made.ID}
}

// path returns the path of a call of the update.
func (u *change) path(call string) string { return stackPath + u.stack + "/update/" + u.id + call }

// start starts the update, without a journal.
func (u *change) start() *change { u.w.t.Helper(); return u.startWith(object{}) }

func (u *change) startWith(request object) *change {
	u.w.t.Helper()
	var started struct {
		Version int64  `json:"version"`
		Token   string `json:"token"`
		Expires int64  `json:"tokenExpiration"`
		Journal int    `json:"journalVersion"`
	}
	u.w.want(200, u.w.user, "POST", u.path(""), request, &started)
	if started.Token == "" || started.Expires <= time.Now().Unix()-1 {
		u.w.t.Fatalf("started as %+v", started)
	}
	u.token, u.version, u.journal = started.Token, started.Version, started.Journal
	return u
}

// ask makes a call with the token of the lease.
func (u *change) ask(method, call string, body any) answer {
	u.w.t.Helper()
	text, ok := body.(string)
	if !ok {
		packed, err := json.Marshal(body)
		if err != nil {
			u.w.t.Fatal(err)
		}
		text = string(packed)
	}
	return u.w.send("", method, u.path(call), text, "Authorization", updateScheme+" "+u.token)
}

// checkpoint sends a state.
func (u *change) checkpoint(state string) int {
	u.w.t.Helper()
	return u.ask("PATCH", "/checkpoint", state).code
}

func (u *change) complete(status string) int {
	u.w.t.Helper()
	return u.ask("POST", "/complete", object{"status": status}).code
}

// resources returns a state with resources of these names.
func resources(names ...string) string {
	all := []object{}
	for _, name := range names {
		all = append(all, object{
			"urn": "urn:pulumi:s::project::a:b:C::" + name, "type": "a:b:C", "custom": true, "id": name,
		})
	}
	text, err := json.Marshal(object{"version": 3, "deployment": object{
		"manifest": object{"time": "2026-01-02T03:04:05Z", "magic": "m", "version": "v3"}, "resources": all,
	}})
	if err != nil {
		panic(err)
	}
	return string(text)
}

// exported returns the names of the resources of a stack. At is empty, or / and a version.
func (w *world) exported(stack, at string) (names []string) {
	w.t.Helper()
	var d struct {
		Deployment struct{ Resources []struct{ ID string } }
	}
	w.want(200, w.user, "GET", stackPath+stack+"/export"+at, nil, &d)
	for _, r := range d.Deployment.Resources {
		names = append(names, r.ID)
	}
	return names
}

// holds checks the resources of a stack after a version, or those of its newest state if at is empty.
func (w *world) holds(stack, at string, want ...string) {
	w.t.Helper()
	if got := w.exported(stack, at); fmt.Sprint(got) != fmt.Sprint(want) {
		w.t.Errorf("%s%s has the resources %v, want %v", stack, at, got, want)
	}
}

// at checks the version of a stack and whether an update runs.
func (w *world) at(stack string, version int, running bool) (view stackView) {
	w.t.Helper()
	w.want(200, w.user, "GET", stackPath+stack, nil, &view)
	if int(view.Version) != version || (view.Operation != nil) != running {
		w.t.Errorf("%s has version %d and runs %v, want version %d and %t", stack, view.Version, view.Operation,
			version, running)
	}
	return view
}

func TestUpdate(t *testing.T) {
	w := newWorld(t)
	w.stack("s")
	w.holds("s", "")
	w.holds("s", "/0")

	// 1. While an update runs, its checkpoints are the newest state, and no other update starts.
	u := w.update("s", object{"options": object{}}).start()
	if u.version != 1 || u.journal != 0 {
		t.Errorf("started as %+v", u)
	}
	if view := w.at("s", 0, true); view.ActiveUpdate != u.id || view.Operation.Kind != "update" {
		t.Errorf("the stack shows %+v", view)
	}
	for _, state := range []string{resources("a"), resources("a", "b")} {
		if got := u.checkpoint(state); got != 204 {
			t.Fatalf("checkpoint: %d", got)
		}
	}
	w.holds("s", "", "a", "b")
	w.want(404, w.user, "GET", stackPath+"s/export/1", nil, nil)
	second := w.update("s", object{})
	w.want(409, w.user, "POST", second.path(""), object{}, nil)
	w.want(409, w.user, "POST", stackPath+"s/import", resources("i"), nil)
	w.want(409, w.user, "POST", u.path(""), object{}, nil) // it runs already

	// 2. A dry run may run beside it, and changes nothing.
	dry := w.update("s", object{"options": object{"dryRun": true}}).start()
	if dry.version != 0 || dry.checkpoint(resources()) != 400 || dry.complete("succeeded") != 204 {
		t.Errorf("the dry run is %+v", dry)
	}
	w.at("s", 0, true)

	// 3. The end makes the version. A repeat of the same end is accepted.
	for _, one := range []struct {
		status string
		code   int
	}{{"unknown", 400}, {"succeeded", 204}, {"succeeded", 204}, {"failed", 409}} {
		if got := u.complete(one.status); got != one.code {
			t.Errorf("completed as %s: %d, want %d", one.status, got, one.code)
		}
	}
	w.at("s", 1, false)
	if got := u.checkpoint(resources("late")); got != 403 {
		t.Errorf("a late checkpoint: %d", got)
	}

	// 4. The next one starts with the state of the version before, and its failure makes a version, too.
	second.start()
	if second.version != 2 || second.checkpoint(resources("a", "b", "c")) != 204 || second.complete("failed") != 204 {
		t.Errorf("the second update is %+v", second)
	}
	w.want(200, w.user, "POST", stackPath+"s/import", resources("i"), nil)
	w.at("s", 3, false)
	w.update("s", object{}).start().complete("succeeded")
	for version, want := range [][]string{nil, {"a", "b"}, {"a", "b", "c"}, {"i"}, {"i"}} {
		w.holds("s", fmt.Sprintf("/%d", version), want...)
	}
	w.restart()
	w.at("s", 4, false)
	w.holds("s", "", "i")
}
