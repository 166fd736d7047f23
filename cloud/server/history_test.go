package server

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// newHistory makes a service with a stack that has twelve updates. The last one is running. Three previews
// were made since its start, and one before.
func newHistory(t *testing.T) *world {
	w := newWorld(t)
	w.stack("s")
	w.stack("t")
	const insert = `INSERT INTO updates (id, stack, kind, dry_run, status, version, requester, message, environment,
			config, changes, resources, created, started, ended)
		SELECT '%s', id, '%s', %d, '%s', %s, 'ann', 'text', '{"e":"1"}', '{"p:k":{"string":"v"}}', '{"create":2}', 3,
			%[6]d * 1000000000, %[6]d * 1000000000, %[7]d * 1000000000 FROM stacks WHERE name = 's'`
	const start = 4_000_000_000 // later than the creation of the stack
	for i := 1; i <= 12; i++ {
		status, end := "succeeded", start+10*i+5
		switch i {
		case 11:
			status = "cancelled"
		case 12:
			status, end = "running", 0
		}
		w.sql(fmt.Sprintf(insert, fmt.Sprint("u", i), "update", 0, status, fmt.Sprint(i), start+10*i, end))
	}
	for i, at := range []int{15, 121, 122, 123} {
		w.sql(fmt.Sprintf(insert, fmt.Sprint("p", i), "refresh", 1, "succeeded", "NULL", start+at, start+at+1))
	}
	w.sql(fmt.Sprintf(insert, "waiting", "update", 0, "not-started", "NULL", start+130, 0),
		`UPDATE stacks SET version = 11, resources = 3, update_id = 'u12' WHERE name = 's'`)
	return w
}

func TestListHistory(t *testing.T) {
	w := newHistory(t)
	type page struct {
		Updates             []updateInfo
		ItemsPerPage, Total int
	}
	for query, want := range map[string]string{
		"":                     "12 11 10 9 8 7 6 5 4 3",
		"?pageSize=10&page=2":  "2 1",
		"?page=3":              "",
		"?page=0":              "12 11 10 9 8 7 6 5 4 3 2 1",
		"?pageSize=3&page=2":   "9 8 7",
		"?pageSize=100&page=1": "12 11 10 9 8 7 6 5 4 3 2 1",
	} {
		var got page
		w.want(200, w.user, "GET", project+"/s/updates"+query, nil, &got)
		var versions []string
		for _, u := range got.Updates {
			versions = append(versions, fmt.Sprint(u.Version))
		}
		if strings.Join(versions, " ") != want || got.Total != 12 {
			t.Errorf("%q lists %v of %d, want %s", query, versions, got.Total, want)
		}
	}

	var got page
	before := time.Now().Unix()
	w.want(200, w.user, "GET", project+"/s/updates?pageSize=3", nil, &got)
	one := updateInfo{Kind: "update", StartTime: 4_000_000_100, Message: "text",
		Environment: json.RawMessage(`{"e":"1"}`), Config: json.RawMessage(`{"p:k":{"string":"v"}}`),
		Result: succeeded, EndTime: 4_000_000_105, Version: 10, Changes: json.RawMessage(`{"create":2}`),
		ResourceCount: 3}
	cancelled, running := one, one
	cancelled.StartTime, cancelled.EndTime = 4_000_000_110, 4_000_000_115
	cancelled.Version, cancelled.Result = 11, failed
	running.StartTime, running.EndTime, running.Version, running.Result = 4_000_000_120, 0, 12, "in-progress"
	if end := got.Updates[0].EndTime; end < before || end > time.Now().Unix() {
		t.Errorf("the end of a running update is %d, want the time of the call", end)
	}
	got.Updates[0].EndTime = 0
	if diff := cmp.Diff([]updateInfo{running, cancelled, one}, got.Updates); diff != "" {
		t.Errorf("the history (-want +got):\n%s", diff)
	}

	var service struct{ Updates []updateView }
	w.want(200, w.user, "GET", project+"/s/updates?pageSize=1&output-type=service", nil, &service)
	want := updateView{Info: running, UpdateID: "u12", Version: 12, LatestVersion: 11, Requester: shortUser("ann")}
	service.Updates[0].Info.EndTime = 0
	if diff := cmp.Diff([]updateView{want}, service.Updates); diff != "" {
		t.Errorf("output-type=service (-want +got):\n%s", diff)
	}
	for path, code := range map[string]int{"/s/updates?page=-1": 400, "/s/updates?pageSize=101": 400,
		"/s/updates?pageSize=0": 400, "/none/updates": 404} {
		w.want(code, w.user, "GET", project+path, nil, nil)
	}
	if got := w.want(200, w.user, "GET", project+"/t/updates", nil, nil); !strings.Contains(got.body, `"updates":[]`) {
		t.Errorf("the history of a new stack is %s", got.body)
	}
}

func TestGetPastUpdate(t *testing.T) {
	w := newHistory(t)
	for path, want := range map[string]string{"/updates/latest": "u12", "/updates/12": "u12", "/updates/3": "u3",
		"/previews/p0": "p0"} {
		var got updateView
		w.want(200, w.user, "GET", project+"/s"+path, nil, &got)
		kind := "update"
		if strings.HasPrefix(want, "p") {
			kind = "preview"
		}
		if got.UpdateID != want || got.Info.Kind != kind {
			t.Errorf("%s is %+v, want %s", path, got, want)
		}
	}
	const summary = `{"endTime":4000000035,"resourceChanges":{"create":2},"resourceCount":3,"result":"succeeded",` +
		`"startTime":4000000030}`
	if got := w.want(200, w.user, "GET", project+"/s/updates/3/summary", nil, nil); got.body != summary {
		t.Errorf("the summary is %s, want %s", got.body, summary)
	}
	for path, code := range map[string]int{"/s/updates/13": 404, "/s/updates/u3": 400, "/s/updates/0": 400,
		"/s/updates/13/summary": 404, "/t/updates/latest": 404, "/t/updates/3": 404, "/s/previews/u3": 404,
		"/t/previews/p0": 404} {
		w.want(code, w.user, "GET", project+path, nil, nil)
	}
}

func TestListPreviews(t *testing.T) {
	w := newHistory(t)
	for query, want := range map[string]string{"": "p1 p2 p3", "?asc=false&pageSize=1&page=1": "p3",
		"?pageSize=2&page=2": "p3", "?asc=true": "p1 p2 p3"} {
		var got struct {
			Updates []updateView
			Total   int
		}
		w.want(200, w.user, "GET", project+"/s/updates/latest/previews"+query, nil, &got)
		var ids []string
		for _, u := range got.Updates {
			ids = append(ids, u.UpdateID)
		}
		if strings.Join(ids, " ") != want || got.Total != 3 {
			t.Errorf("%q lists %v of %d, want %s", query, ids, got.Total, want)
		}
	}
	w.sql(`DELETE FROM updates WHERE dry_run = 0`)
	var got struct{ Updates []updateView }
	w.want(200, w.user, "GET", project+"/s/updates/latest/previews", nil, &got)
	if len(got.Updates) != 4 {
		t.Errorf("without updates, %d previews are listed, want 4", len(got.Updates))
	}
}

func TestCountResources(t *testing.T) {
	w := newHistory(t)
	if got := w.want(200, w.user, "GET", project+"/s/resources/count", nil, nil); got.body !=
		`{"resourceCount":3,"version":11}` {
		t.Errorf("the count is %s", got.body)
	}
}

func TestListResources(t *testing.T) {
	w := newWorld(t)
	w.stack("s")
	u := w.update("s", object{}).start()
	u.checkpoint(resources("a"))
	if u.complete(succeeded) != 204 {
		t.Fatal("the update is not completed")
	}
	running := w.update("s", object{}).start()
	running.checkpoint(resources("a", "b"))
	for path, want := range map[string]string{"latest": "a", "1": "a", "0": ""} {
		var got struct {
			Resources []struct {
				Resource struct{ ID, Type string }
			}
			Version int
		}
		w.want(200, w.user, "GET", project+"/s/resources/"+path, nil, &got)
		var ids []string
		for _, one := range got.Resources {
			ids = append(ids, one.Resource.ID)
		}
		if strings.Join(ids, " ") != want || (got.Version == 0) != (path == "0") {
			t.Errorf("%s: version %d has the resources %v, want %s", path, got.Version, ids, want)
		}
	}
	for path, code := range map[string]int{"2": 404, "-1": 400, "x": 400} {
		w.want(code, w.user, "GET", project+"/s/resources/"+path, nil, nil)
	}
}
