package server

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const project = "/api/stacks/organization/project"

// sql runs statements on the database of the service.
func (w *world) sql(statements ...string) {
	w.t.Helper()
	for _, statement := range statements {
		w.write(statement)
	}
}

// runningUpdate makes an update that holds the lock of the stack s.
const runningUpdate = `INSERT INTO updates (id, stack, kind, dry_run, status, version, requester, message, environment,
		config, changes, created, started)
	SELECT 'running', id, 'refresh', 0, 'running', 4, 'ann', '', '{}', '{}', '{}', 1, 1700000000000000000
		FROM stacks WHERE name = 's'`

func TestGetStack(t *testing.T) {
	w := newWorld(t)
	w.want(200, w.user, "POST", project, object{"stackName": "s", "tags": object{"a": "b"}}, nil)
	var view stackView
	w.want(200, w.user, "GET", project+"/s", nil, &view)
	if view.ID == "" {
		t.Error("the stack has no id")
	}
	want := stackView{ID: view.ID, Organization: "organization", Project: "project", Name: "s",
		Tags: map[string]string{"a": "b"}}
	if diff := cmp.Diff(want, view); diff != "" {
		t.Errorf("a new stack (-want +got):\n%s", diff)
	}
	w.sql(runningUpdate, `INSERT INTO locks (stack, update_id) SELECT stack, id FROM updates`,
		`UPDATE stacks SET version = 3, update_id = 'running'`)
	view = stackView{}
	w.want(200, w.user, "GET", project+"/s", nil, &view)
	want.Version, want.ActiveUpdate = 3, "running"
	want.Operation = &operationView{Kind: "refresh", Author: "ann", Started: 1_700_000_000}
	if diff := cmp.Diff(want, view); diff != "" {
		t.Errorf("a stack with a running update (-want +got):\n%s", diff)
	}
}

func TestCreateStack(t *testing.T) {
	w := newWorld(t)
	for name, body := range map[string]any{
		"teams":                 object{"stackName": "s", "teams": []string{"a"}},
		"environment as config": object{"stackName": "s", "config": object{"environment": "a/b"}},
		"name of a tag":         object{"stackName": "s", "tags": object{"a b": "c"}},
		"not JSON":              "{",
		"state without version": object{"stackName": "s", "state": object{"deployment": object{}}},
	} {
		if got := w.ask(w.user, "POST", project, body); got.code != 400 {
			t.Errorf("%s: %d %s, want 400", name, got.code, got.body)
		}
		w.want(404, w.user, "GET", project+"/s", nil, nil)
	}
}

func TestCreateStackState(t *testing.T) {
	w := newWorld(t)
	w.want(200, w.user, "POST", project, `{"stackName":"s","state":`+resources("a", "b")+`}`, nil)
	if got := w.exported("s", ""); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("the stack has the resources %v", got)
	}
	var history struct{ Updates []updateInfo }
	w.want(200, w.user, "GET", project+"/s/updates", nil, &history)
	if len(history.Updates) != 1 || history.Updates[0].Kind != "import" || history.Updates[0].Version != 1 {
		t.Errorf("the history is %+v", history.Updates)
	}
	w.want(409, w.user, "POST", project, `{"stackName":"s","state":`+resources("c")+`}`, nil)
	w.want(200, w.user, "POST", project, `{"stackName":"t","state":null}`, nil)
	if got := w.exported("t", ""); len(got) != 0 {
		t.Errorf("the stack without a state has the resources %v", got)
	}
	if u := w.update("s", object{}).start(); u.version != 2 {
		t.Errorf("the first update makes version %d, want 2", u.version)
	}
}

func TestDeleteStack(t *testing.T) {
	w := newWorld(t)
	w.stack("s")
	w.sql(runningUpdate, `INSERT INTO locks (stack, update_id) SELECT stack, id FROM updates`,
		`UPDATE stacks SET resources = 2`)
	for _, query := range []string{"", "?force=true"} {
		got := w.want(409, w.user, "DELETE", project+"/s"+query, nil, nil)
		if !strings.Contains(got.body, "pulumi cancel") {
			t.Errorf("during an update, DELETE %s: %s", query, got.body)
		}
	}
	w.sql(`DELETE FROM locks`)
	for _, query := range []string{"", "?force=false", "?force="} {
		const text = `{"code":400,"message":"Bad Request: Stack still contains resources."}`
		if got := w.want(400, w.user, "DELETE", project+"/s"+query, nil, nil); got.body != text {
			t.Errorf("with resources, DELETE %s: %s, want %s", query, got.body, text)
		}
	}
	w.want(204, w.user, "DELETE", project+"/s?force=true", nil, nil)
	w.want(404, w.user, "GET", project+"/s", nil, nil)
	w.stack("s")
	w.want(204, w.user, "DELETE", project+"/s?force=false", nil, nil)
}

// TestDeleteStackByJob removes a stack in a job of its own deployment, such as with the option deleteAfterDestroy.
func TestDeleteStackByJob(t *testing.T) {
	w := newWorld(t)
	p, at := w.pool("p"), w.stack("s")
	id := w.deploy(at, steps(1))
	c := w.mustClaim(p)
	token := c.definition().Env["PULUMI_ACCESS_TOKEN"].Value.Reveal()
	c.runs(0, 0)
	c.status(1, running)
	w.write(`UPDATE stacks SET resources = 1`)
	w.want(400, token, "DELETE", project+"/s", nil, nil)
	w.write(`UPDATE stacks SET resources = 0`)
	w.want(204, token, "DELETE", project+"/s?force=false", nil, nil)
	w.expireAfter(removalDelay + time.Second)
	w.want(200, w.user, "GET", project+"/s", nil, nil) // the job still runs
	c.logs(1, 0, "removed\n")
	if c.status(1, succeeded) != 200 {
		t.Fatal("the job cannot report its end")
	}
	w.expireAfter(removalDelay + 2*time.Second)
	w.shows(at, id, succeeded, succeeded, succeeded)
	w.expireAfter(2*removalDelay + 3*time.Second)
	w.want(404, w.user, "GET", project+"/s", nil, nil)

	w.stack("s")
	w.deploy(at, steps(1))
	c = w.mustClaim(p)
	token = c.definition().Env["PULUMI_ACCESS_TOKEN"].Value.Reveal()
	w.want(204, token, "DELETE", project+"/s", nil, nil)
	c.runs(0, 1)
	if w.update("s", object{}).start().complete(succeeded) != 204 {
		t.Fatal("the update is not completed")
	}
	w.expireAfter(removalDelay + time.Second)
	w.want(200, w.user, "GET", project+"/s", nil, nil) // an update uses the stack again
}

func TestListUserStacks(t *testing.T) {
	w := newWorld(t)
	const count = 2*stacksPage + 1
	var names []string
	for i := range count {
		names = append(names, fmt.Sprintf("%04d", i))
		w.want(200, w.user, "POST", project+fmt.Sprint(i%2), object{"stackName": names[i]}, nil)
	}
	w.sql(`UPDATE stacks SET version = 1, updated = 1700000000999999999, resources = 7 WHERE name = '0000'`)

	var got []string
	var sizes []int
	for token := ""; ; {
		var page struct {
			Stacks            []stackSummary
			ContinuationToken *string
		}
		query := "?organization=organization&continuationToken=" + url.QueryEscape(token)
		w.want(200, w.user, "GET", "/api/user/stacks"+query, nil, &page)
		sizes = append(sizes, len(page.Stacks))
		for _, one := range page.Stacks {
			got = append(got, one.Name)
			updated := one.Name == "0000"
			if (one.LastUpdate == 1_700_000_000) != updated ||
				(one.Resources != nil && *one.Resources == 7) != updated {
				t.Errorf("stack %s: %+v", one.Name, one)
			}
		}
		if page.ContinuationToken == nil {
			break
		}
		token = *page.ContinuationToken
	}
	if !slices.Equal(sizes, []int{stacksPage, stacksPage, 1}) {
		t.Errorf("the pages have %v stacks", sizes)
	}
	slices.Sort(got)
	if diff := cmp.Diff(names, got); diff != "" {
		t.Errorf("all pages (-want +got):\n%s", diff)
	}
	const token = "continuationToken="
	for _, query := range []string{token + "x", token + "YQ", token + "%00", "tagValue=a"} {
		w.want(400, w.user, "GET", "/api/user/stacks?"+query, nil, nil)
	}
}

func TestTags(t *testing.T) {
	w := newWorld(t)
	w.stack("s")
	w.stack("t")
	const at = project + "/s/tags"
	shows := func(want map[string]string) {
		t.Helper()
		var view stackView
		w.want(200, w.user, "GET", project+"/s", nil, &view)
		if diff := cmp.Diff(want, view.Tags); diff != "" {
			t.Errorf("the tags (-want +got):\n%s", diff)
		}
	}
	w.want(204, w.user, "PATCH", at, object{"pulumi:project": "p", "a": "1"}, nil)
	w.want(204, w.user, "PATCH", project+"/t/tags", object{"other": "1"}, nil)
	w.want(204, w.user, "PATCH", at, object{"pulumi:project": "p", "b": "2"}, nil)
	shows(map[string]string{"pulumi:project": "p", "b": "2"})
	w.want(204, w.user, "POST", at, object{"name": "c", "value": "3"}, nil)
	w.want(204, w.user, "POST", at, object{"name": "b", "value": "4"}, nil)
	w.want(204, w.user, "PATCH", at+"/c", object{"value": "5"}, nil)
	w.want(204, w.user, "DELETE", at+"/b", nil, nil)
	want := map[string]string{"pulumi:project": "p", "c": "5"}
	shows(want)

	many := object{}
	for i := range maxTags + 1 {
		many[fmt.Sprint(i)] = ""
	}
	for name, refused := range map[string]struct {
		code         int
		method, path string
		body         any
	}{
		"built-in tag added":     {400, "POST", "", object{"name": "vcs:kind", "value": "x"}},
		"built-in tag changed":   {400, "PATCH", "/pulumi:project", object{"value": "x"}},
		"built-in tag deleted":   {400, "DELETE", "/pulumi:project", nil},
		"missing tag changed":    {404, "PATCH", "/none", object{"value": "x"}},
		"missing tag deleted":    {404, "DELETE", "/none", nil},
		"tag renamed":            {400, "PATCH", "/c", object{"name": "d", "value": "x"}},
		"no name":                {400, "POST", "", object{"value": "x"}},
		"long name":              {400, "PATCH", "", object{strings.Repeat("n", 41): "x"}},
		"name with a slash":      {400, "PATCH", "", object{"a/b": "x"}},
		"long value":             {400, "PATCH", "", object{"n": strings.Repeat("x", 257)}},
		"too many tags":          {400, "PATCH", "", many},
		"value that is an array": {400, "PATCH", "", object{"n": []string{}}},
		"body that is too large": {413, "PATCH", "", object{"n": strings.Repeat("x", maxSmallBody)}},
	} {
		if got := w.ask(w.user, refused.method, at+refused.path, refused.body); got.code != refused.code {
			t.Errorf("%s: %d %s, want %d", name, got.code, got.body, refused.code)
		}
	}
	shows(want)
}

func TestStackConfig(t *testing.T) {
	w := newWorld(t)
	w.stack("s")
	for method, code := range map[string]int{"GET": 404, "PUT": 400, "DELETE": 204} {
		got := w.want(code, w.user, method, project+"/s/config", object{}, nil)
		if code != 204 && !strings.Contains(got.body, "Pulumi.dev.yaml") {
			t.Errorf("%s: %s", method, got.body)
		}
		w.want(404, w.user, method, project+"/none/config", object{}, nil)
	}
}
