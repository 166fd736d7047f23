package server

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
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

func resource(name string) object {
	return object{"urn": "urn:pulumi:s::project::a:b:C::" + name, "type": "a:b:C", "custom": true, "id": name}
}

// resources returns a state with resources of these names.
func resources(names ...string) string {
	all := []object{}
	for _, name := range names {
		all = append(all, resource(name))
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
	w.want(400, w.user, "DELETE", stackPath+"s", nil, nil) // an update without a checkpoint keeps the resources
	for version, want := range [][]string{nil, {"a", "b"}, {"a", "b", "c"}, {"i"}, {"i"}} {
		w.holds("s", fmt.Sprintf("/%d", version), want...)
	}
	w.restart()
	w.at("s", 4, false)
	w.holds("s", "", "i")
}

// lost checks that every call with the lease is refused, and changes nothing.
func (u *change) lost(complete int) {
	u.w.t.Helper()
	before := u.w.exported(u.stack, "")
	for call, code := range map[string]int{
		"POST /renew_lease": 403, "PATCH /checkpoint": 403, "PATCH /journalentries": 403, "POST /events/batch": 403,
		"POST /complete": complete,
	} {
		method, path, _ := strings.Cut(call, " ")
		body := object{"status": "succeeded", "version": 3, "deployment": object{}, "duration": 300}
		if got := u.ask(method, path, body); got.code != code {
			u.w.t.Errorf("%s with a lost lease: %d %s, want %d", call, got.code, got.body, code)
		}
	}
	u.w.holds(u.stack, "", before...)
}

func TestUpdateLease(t *testing.T) {
	w := newWorld(t)
	w.stack("s")
	w.stack("other")
	u := w.update("s", object{}).start()
	u.checkpoint(resources("a"))

	// 1. A renewal returns the same token.
	var renewed struct{ Token string }
	got := u.ask("POST", "/renew_lease", object{"token": "", "duration": 300})
	if err := json.Unmarshal([]byte(got.body), &renewed); err != nil || renewed.Token != u.token {
		t.Errorf("renewed: %d %s, %v", got.code, got.body, err)
	}

	// 2. Unknown tokens, tokens of other updates, and those of users are refused.
	for name, one := range map[string]struct {
		authorization string
		code          int
	}{
		"unknown token": {"update-token x", 403}, "no token": {"", 401}, "token of a user": {"token " + w.user, 401},
		"token of a user as a lease": {"update-token " + w.user, 403}, "lease as a token": {"token " + u.token, 401},
		"lease of another stack": {"update-token " + w.update("other", object{}).start().token, 403},
		"lease of another update": {"update-token " +
			w.update("s", object{"options": object{"dryRun": true}}).start().token, 403},
	} {
		got := w.send("", "PATCH", u.path("/checkpoint"), resources("evil"), "Authorization", one.authorization)
		if got.code != one.code {
			t.Errorf("%s: %d %s, want %d", name, got.code, got.body, one.code)
		}
	}
	w.holds("s", "", "a")

	// 3. After a cancel the lease is lost.
	w.want(204, w.user, "POST", u.path("/cancel"), nil, nil)
	w.want(409, w.user, "POST", u.path("/cancel"), nil, nil)
	u.lost(409)
	w.at("s", 1, false)
	var progress struct{ Status, ContinuationToken string }
	w.want(200, w.user, "GET", u.path(""), nil, &progress)
	if progress.Status != cancelled || progress.ContinuationToken != "" {
		t.Errorf("the cancelled update shows %+v", progress)
	}

	// 4. It is lost with its stack, too.
	u = w.update("s", object{}).start()
	w.sql(`DELETE FROM stacks WHERE name = 's'`)
	if got := u.checkpoint(resources("b")); got != 403 {
		t.Errorf("checkpoint of a deleted stack: %d", got)
	}
}

// TestUpdateExpires starts updates whose clients are never seen again, with a service that runs.
func TestUpdateExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.close()
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() {
			if err := w.server.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		defer all.Wait()
		defer cancel()

		w.stack("s")
		forgotten := w.update("s", object{})
		plain := w.update("s", object{}).start()
		dry := w.update("s", object{"options": object{"dryRun": true}}).start()
		plain.checkpoint(resources("a"))
		time.Sleep(290 * time.Second)
		w.at("s", 0, true)
		time.Sleep(20 * time.Second)
		plain.lost(403)
		dry.lost(403)
		w.at("s", 1, false)

		// The state of a journal becomes that of the version.
		journal := w.update("s", object{}).startWith(object{"journalVersion": 1})
		journal.entries(t, 204, object{"kind": 1, "sequenceID": 1, "operationID": 1, "state": resource("b")})
		for range 3 {
			time.Sleep(4 * time.Minute)
			journal.ask("POST", "/renew_lease", object{"duration": 300})
		}
		w.at("s", 1, true)
		time.Sleep(310 * time.Second)
		journal.lost(403)
		w.at("s", 2, false)
		w.holds("s", "/2", "b", "a")

		if err := w.server.expireUpdates(t.Context(), time.Now().Add(startLimit)); err != nil {
			t.Error(err)
		}
		w.want(404, w.user, "POST", forgotten.path(""), object{}, nil)
	})
}

// entries sends entries of a journal of version 1.
func (u *change) entries(t testing.TB, code int, entries ...object) {
	t.Helper()
	for _, entry := range entries {
		entry["version"] = 1
	}
	if got := u.ask("PATCH", "/journalentries", object{"entries": entries}); got.code != code {
		t.Errorf("entries: %d %s, want %d", got.code, got.body, code)
	}
}

// TestUpdateJournal sends a journal to two instances of the service, one after the other.
func TestUpdateJournal(t *testing.T) {
	w := newWorld(t)
	w.stack("s")
	w.want(200, w.user, "POST", stackPath+"s/import", resources("old", "gone"), nil)
	u := w.update("s", object{}).startWith(object{"journalVersion": 7})
	if u.journal != 1 || u.version != 2 {
		t.Errorf("started as %+v", u)
	}
	first := object{"kind": 1, "sequenceID": 2, "operationID": 1, "state": resource("first"), "removeOld": 1}
	u.entries(t, 204, object{"kind": 0, "sequenceID": 1, "operationID": 1})
	u.entries(t, 204, first)
	w.holds("s", "", "first", "old")
	w.holds("s", "/1", "old", "gone")

	// 1. A repeat has no effect, and entries that do not fit are refused, also after a restart.
	for range 2 {
		u.entries(t, 204, first)
		u.entries(t, 400, object{"kind": 1, "sequenceID": 9, "operationID": 9, "removeNew": 9},
			object{"kind": 0, "sequenceID": 10, "operationID": 10})
		u.entries(t, 400, object{"kind": 77, "sequenceID": 9, "operationID": 9})
		if got := u.ask("PATCH", "/checkpoint", resources("x")); got.code != 400 {
			t.Errorf("a checkpoint beside a journal: %d", got.code)
		}
		w.restart()
	}

	// 2. The end makes one state of the journal. A request with an entry is then refused.
	u.entries(t, 204, object{"kind": 4, "sequenceID": 3, "operationID": 2, "removeNew": 1, "state": resource("second")})
	if got := u.complete("failed"); got != 204 {
		t.Errorf("completed: %d", got)
	}
	u.entries(t, 403, first)
	w.holds("s", "/2", "second", "old")
	if n := w.count(`SELECT count(*) FROM journal`); n != 0 {
		t.Errorf("%d batches of the journal are left", n)
	}

	// 3. A journal without entries changes nothing.
	u = w.update("s", object{}).startWith(object{"journalVersion": 1})
	w.holds("s", "", "second", "old")
	u.complete("succeeded")
	w.holds("s", "", "second", "old")
	if got := w.update("s", object{}).start().ask("PATCH", "/journalentries", `{"entries":[]}`); got.code != 400 {
		t.Errorf("entries without a journal: %d", got.code)
	}
}

// count returns the result of a query for a number.
func (w *world) count(query string, args ...any) (n int) {
	w.t.Helper()
	w.read([]any{&n}, query, args...)
	return n
}

// TestUpdateOfJob makes an update with the token of a job's programs.
func TestUpdateOfJob(t *testing.T) {
	w := newWorld(t)
	p := w.pool("p")
	id := w.deploy(w.stack("s"), steps(1))
	token := w.mustClaim(p).definition().Env["PULUMI_ACCESS_TOKEN"].Value.Reveal()
	w.stack("other")
	w.want(404, token, "POST", stackPath+"other/update", object{}, nil)
	w.want(200, token, "GET", stackPath+"other/export", nil, nil) // for stack references
	var made struct {
		ID string `json:"updateID"`
	}
	w.want(200, token, "POST", stackPath+"s/update", object{}, &made)
	if n := w.count(`SELECT count(*) FROM updates WHERE id = ? AND deployment = ? AND requester = 'local'`,
		made.ID, id); n != 1 {
		t.Error("the update does not belong to its deployment")
	}
	u := &change{w: w, stack: "s", id: made.ID}
	w.want(200, token, "POST", u.path(""), object{}, nil)
	w.want(204, token, "POST", u.path("/cancel"), nil, nil)
}

func TestUpdateTags(t *testing.T) {
	w := newWorld(t)
	w.stack("s")
	shows := func(want string) {
		t.Helper()
		var view stackView
		w.want(200, w.user, "GET", stackPath+"s", nil, &view)
		if got := fmt.Sprint(view.Tags); got != want {
			t.Errorf("the tags are %s, want %s", got, want)
		}
	}
	w.update("s", object{}).startWith(object{"tags": object{"a": "1", "b": "2"}}).complete("succeeded")
	shows("map[a:1 b:2]")
	w.update("s", object{}).start().complete("succeeded")
	shows("map[a:1 b:2]")
	w.want(400, w.user, "POST", w.update("s", object{}).path(""), object{"tags": object{"bad name": ""}}, nil)
	w.update("s", object{}).startWith(object{"tags": object{"c": "3"}}).complete("succeeded")
	shows("map[c:3]")
}

// TestCreateUpdateRefusals sends what clients and the web page could not read in the history of the stack.
func TestCreateUpdateRefusals(t *testing.T) {
	w := newWorld(t)
	w.stack("s")
	for _, body := range []string{
		`{"metadata":{"environment":{"a":1}}}`, `{"metadata":{"environment":[]}}`,
		`{"metadata":{"environment":{"a":{}}}}`,
		`{"config":{"a":"b"}}`, `{"config":{"a":{"secret":"yes"}}}`, `{"config":[]}`, `{"config":{"a":{"string":1}}}`,
	} {
		w.want(400, w.user, "POST", stackPath+"s/update", body, nil)
	}
	w.want(200, w.user, "POST", stackPath+"s/update",
		`{"config":{"a":{"string":"b","secret":true,"later":1}},"metadata":{"environment":{"a":"b"}}}`, nil)
}
