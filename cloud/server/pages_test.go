package server

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cmwa-project/cmwa/cloud/server/page"
	"github.com/cmwa-project/cmwa/cloud/server/store"
)

// visitor is a browser that shows the web page of a service.
type visitor struct {
	*world
	cookie string
}

// signIn sends the form with a token.
func (w *world) signIn(token string) *httptest.ResponseRecorder {
	r := httptest.NewRequest("POST", "/sign-in", strings.NewReader(url.Values{"token": {token}}.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	rec := httptest.NewRecorder()
	w.handler.ServeHTTP(rec, r)
	return rec
}

// visit signs in with a valid token.
func (w *world) visit(token string) *visitor {
	w.t.Helper()
	rec := w.signIn(token)
	if rec.Code != http.StatusSeeOther {
		w.t.Fatalf("sign-in: %d %s", rec.Code, rec.Body)
	}
	cookie := rec.Result().Cookies()[0]
	return &visitor{w, cookie.Name + "=" + cookie.Value}
}

func (v *visitor) get(path string) (code int, text string) {
	v.t.Helper()
	r := httptest.NewRequest("GET", path, nil)
	r.Header.Set("Cookie", v.cookie)
	rec := httptest.NewRecorder()
	v.handler.ServeHTTP(rec, r)
	return rec.Code, rec.Body.String()
}

// shows checks that a page contains texts.
func (v *visitor) shows(path string, parts ...string) {
	v.t.Helper()
	code, text := v.get(path)
	if code != 200 {
		v.t.Fatalf("%s: status %d: %s", path, code, text)
	}
	for _, part := range parts {
		if !strings.Contains(text, part) {
			v.t.Errorf("%s lacks %q:\n%s", path, part, text)
		}
	}
	for _, secret := range []string{v.user, "cmwa-session-", "plain-secret"} {
		if strings.Contains(text, secret) {
			v.t.Errorf("%s contains the secret %q", path, secret)
		}
	}
}

func TestPages(t *testing.T) {
	w := newWorld(t)
	p, at := w.pool("first pool"), w.stack("s")
	v := w.visit(w.user)
	const stack = "/organization/project/s"
	v.shows("/", "There is no deployment yet")
	v.shows(stack, "No updates.", "No deployments.", "never")
	v.shows("/pools", "first pool", "No agent has called")

	w.deploy(at, steps(1, object{"operationContext": object{
		"environmentVariables": object{"KEY": object{"secret": "plain-secret"}}}}))
	v.shows("/", "not-started", stack+"/deployments/1", "local")
	v.shows(stack+"/deployments/1", "Waits for the next lines.")
	job := w.mustClaim(p)
	job.status(0, running)
	job.logs(0, 0, "\x1b[31m<b>first line</b>\x1b[0m\n")
	v.shows("/?show=active", "running", "first pool")
	v.shows(stack+"/deployments/1", "Setup", "&lt;b&gt;first line&lt;/b&gt;", `data-next="0.2"`)
	v.shows(stack+"/deployments/1?from=0.2", `data-next="0.2"`)
	if _, text := v.get(stack + "/deployments/1?from=0.2"); strings.Contains(text, "first line") {
		t.Error("a page from a position on repeats the line before it")
	}
	v.shows("/pools", "box", "192.0.2.1", "1.2.3", "online")
	job.logs(0, 1, "second line\n")
	job.status(0, succeeded)
	job.runs(1, 1)
	v.shows(stack+"/deployments/1", "succeeded", "second line", "line of 1", "End of the log")
	v.shows("/?show=active", "No deployment is queued or running")

	cancelled := w.deploy(at, steps(1))
	w.want(200, w.user, "POST", at+"/"+cancelled+"/cancel", nil, nil)
	v.shows(stack+"/deployments/2", "cancelled", "deployment cancelled at")
	v.shows(stack, "#2", "#1")
	for path, want := range map[string]int{
		"/organization/project/none":                        404,
		"/organization/none/s/updates":                      404,
		"/other/project/s":                                  404,
		stack + "/deployments/3":                            404,
		stack + "/deployments/1?from=9.9":                   400,
		stack + "/updates/1":                                404,
		stack + "/updates?after=x":                          400,
		"/stacks?search=" + strings.Repeat("%25", 500):      200,
		"/stacks?project=%00&stack=%ff":                     200,
		"/organization/project/" + strings.Repeat("x", 5e4): 404,
	} {
		if code, text := v.get(path); code != want {
			t.Errorf("%.80s: status %d, want %d: %s", path, code, want, text)
		}
	}
}

func TestPagesSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.close()
		p := w.pool("p")
		for _, wrong := range []string{"", "x", p.Token} {
			if got := w.signIn(wrong); got.Code != http.StatusUnauthorized || len(got.Result().Cookies()) > 0 {
				t.Errorf("sign-in with %.8q: %d", wrong, got.Code)
			}
		}
		v, other := w.visit(w.user), w.visit(w.user)
		session := strings.TrimPrefix(v.cookie, "cmwa-session=")
		w.want(403, session, "GET", "/api/user", nil, nil) // a session is for the page only

		time.Sleep(page.Session - time.Minute)
		last := w.visit(w.user)
		v.shows("/")
		r := httptest.NewRequest("POST", "/sign-out", nil)
		r.Header.Set("Cookie", v.cookie)
		w.handler.ServeHTTP(httptest.NewRecorder(), r)
		if code, _ := v.get("/"); code != http.StatusSeeOther {
			t.Errorf("after the sign-out: %d", code)
		}
		other.shows("/")
		time.Sleep(2 * time.Minute)
		if code, _ := other.get("/"); code != http.StatusSeeOther {
			t.Errorf("after the end of the session: %d", code)
		}

		last.shows("/")
		err := w.server.db.Write(t.Context(), func(tx *store.Tx) error {
			return dropTokens(tx, principal{userToken, "local"})
		})
		if err != nil {
			t.Fatal(err)
		}
		if code, _ := last.get("/"); code != http.StatusSeeOther {
			t.Errorf("after the deletion of the token: %d", code)
		}
	})
}

func TestPagesLists(t *testing.T) {
	w := newWorld(t)
	w.pool("p")
	const n = 2*pageRows + 1
	for i := range n {
		at := w.stack(fmt.Sprintf("s%03d", i))
		w.deploy(at, steps(1))
	}
	v := w.visit(w.user)
	for list, mark := range map[string]string{"/stacks": `id="s-`, "/": `id="d`, "/?show=active": `id="d`} {
		seen := map[string]bool{}
		pages := 0
		for next := list; next != ""; pages++ {
			code, text := v.get(next)
			if code != 200 {
				t.Fatalf("%s: %d", next, code)
			}
			for _, part := range strings.Split(text, mark)[1:] {
				id, _, _ := strings.Cut(part, `"`)
				if seen[id] {
					t.Errorf("%s repeats row %s", next, id)
				}
				seen[id] = true
			}
			_, link, _ := strings.Cut(text, `rel="next" href="`)
			link, _, _ = strings.Cut(link, `"`)
			next = strings.ReplaceAll(link, "&amp;", "&")
		}
		if len(seen) != n || pages != 3 {
			t.Errorf("%s: %d rows on %d pages, want %d on 3", list, len(seen), pages, n)
		}
	}
	v.shows("/stacks?search=S10", "s100", "s10")
	if _, text := v.get("/stacks?search=_"); !strings.Contains(text, "No project or stack") {
		t.Error("a search for _ finds every name")
	}
}

func TestPagesOfState(t *testing.T) {
	w := newWorld(t)
	w.stack("s")
	v := w.visit(w.user)
	secret := object{"4dabf18193072939515e22adb298388d": "1b47061264138c4ac30d75fd1eb44270",
		"ciphertext": "plain-secret"}
	const stack = "/organization/project/s"
	deployment := func(names ...string) string {
		all := []object{{
			"urn": "urn:pulumi:s::project::pulumi:pulumi:Stack::project-s", "type": "pulumi:pulumi:Stack",
			"outputs": object{"address": "<b>https://example.org</b>", "password": secret,
				"list": []any{"<b>", `\u003c`, secret}},
		}}
		for _, name := range names {
			all = append(all, object{
				"urn": "urn:pulumi:s::project::a:b:C::" + name, "type": "a:b:C", "custom": true, "id": "id of " + name,
				"inputs": object{"key": secret}, "outputs": object{"key": secret, "size": 3}, "protect": true,
			})
		}
		text, err := json.Marshal(object{"version": 3, "deployment": object{
			"manifest": object{"time": "2026-01-02T03:04:05Z", "magic": "m", "version": "v3"}, "resources": all,
		}})
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}

	// 1. A running update shows its events.
	u := w.update("s", object{
		"metadata": object{"message": "the <i>first</i> one", "environment": object{"git.head": "4f2c1aa"}},
		"config": object{"project:plain": object{"string": "plain-secret"}, "project:key": object{
			"string": "plain-secret", "secret": true}},
	}).start()
	events := []object{
		{"sequence": 0, "timestamp": 1, "diagnosticEvent": object{
			"prefix": "<{%fg 3%}>warning: <{%reset%}>", "message": "deprecated\n"}},
		{"sequence": 1, "timestamp": 2, "resourcePreEvent": object{"metadata": object{"op": "create",
			"urn": "urn:pulumi:s::project::a:b:C::x::y", "type": "a:b:C"}}},
		{"sequence": 2, "timestamp": 2, "resourcePreEvent": object{"metadata": object{"op": "same",
			"urn": "urn:pulumi:s::project::a:b:C::unchanged", "type": "a:b:C"}}},
		{"sequence": 3, "timestamp": 3, "diagnosticEvent": object{"message": "progress", "ephemeral": true}},
		{"sequence": 4, "timestamp": 3, "resourcePreEvent": "no object"},
	}
	if got := u.ask("POST", "/events/batch", object{"events": events}); got.code != 204 && got.code != 200 {
		t.Fatalf("events: %d %s", got.code, got.body)
	}
	v.shows(stack, "running", "No outputs.")
	v.shows(stack+"/updates/1", "running", "warning: deprecated", "create a:b:C x::y", `data-next="5"`, "4f2c1aa",
		"&lt;i&gt;first", "project:key", "project:plain")
	_, text := v.get(stack + "/updates/1")
	if strings.Contains(text, "unchanged") || strings.Contains(text, "progress") {
		t.Errorf("the page shows events that it omits otherwise:\n%s", text)
	}
	v.shows(stack+"/updates/1?from=5", `data-next="5"`)

	// 2. After its end, the stack shows its outputs and resources.
	var names []string
	for i := range pageRows {
		names = append(names, fmt.Sprintf("r%02d", i))
	}
	if got := u.checkpoint(deployment(names...)); got != 204 {
		t.Fatalf("checkpoint: %d", got)
	}
	u.ask("POST", "/events/batch", object{"events": []object{{"sequence": 5, "timestamp": 4,
		"summaryEvent": object{"resourceChanges": object{"create": 7, "same": 1}}}}})
	u.complete("succeeded")
	v.shows(stack, "&lt;b&gt;https://example.org", ">secret<",
		`[&#34;&lt;b&gt;&#34;,&#34;\\u003c&#34;,&#34;[secret]&#34;]`,
		"7 create", "update 1",
		fmt.Sprint(pageRows+1)+" resources")
	v.shows(stack+"/updates/1", "End of the log", "succeeded", "7 create")
	v.shows(stack+"/resources", "r00", "id of r00", "protected", ">secret<", "?from=50")
	v.shows(stack+"/resources?from=50", names[pageRows-1])
	v.shows(stack+"/resources?from=99999999999", "There are no more resources")
	v.shows("/stacks", "succeeded", fmt.Sprint(pageRows+1))

	// 3. A preview is in the list, and has a page of its own.
	dry := w.update("s", object{"options": object{"dryRun": true}}).start()
	v.shows(stack+"/updates", "/previews/"+dry.id, "preview")
	v.shows(stack+"/previews/"+dry.id, "running", `data-next="0"`)
	w.stack("other")
	for _, path := range []string{"/previews/" + dry.id, "/updates/1"} {
		if code, _ := v.get("/organization/project/other" + path); code != 404 {
			t.Errorf("another stack shows %s: %d", path, code)
		}
	}
}

// FuzzPages requests pages with any path and query. None may fail.
func FuzzPages(f *testing.F) {
	for _, target := range []string{
		"/?before=1&show=active", "/stacks?project=a&stack=b&search=%25", "/organization/project/s",
		"/organization/project/s/updates?after=1.x", "/organization/project/s/updates/1?from=3",
		"/organization/project/s/deployments/1?from=0.1", "/organization/project/s/resources?from=2",
		"/organization/project/s/previews/%00", "/pools", "/static/..%2fpage.go", "/sign-in?next=//x",
	} {
		f.Add(target)
	}
	w := newWorld(f)
	w.deploy(w.stack("s"), steps(1))
	w.update("s", object{}).start()
	v := w.visit(w.user)
	f.Fuzz(func(t *testing.T, target string) {
		if _, err := url.ParseRequestURI(target); err != nil || !strings.HasPrefix(target, "/") ||
			strings.ContainsAny(target, " \t\r\n") {
			return
		}
		r := httptest.NewRequest("GET", target, nil)
		r.Header.Set("Cookie", v.cookie)
		rec := httptest.NewRecorder()
		if w.handler.ServeHTTP(rec, r); rec.Code >= 500 {
			t.Errorf("%q: %d %s", target, rec.Code, rec.Body)
		}
	})
}

// BenchmarkPages requests pages of a large database, which also has 50,000 deployments and a stack with a state of
// 5 MB. Each page takes less than 100 ms of processor time.
func BenchmarkPages(b *testing.B) {
	w := newWorld(b)
	loadLarge(w)
	w.sql(`WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 5)
		INSERT INTO deployments (id, job, stack, organization, pool, version, operation, status, ended, inherits,
				initiator, requester, created, modified, definition)
			SELECT id || '-' || n, id || '-' || n, id, organization, '', n, 'update',
				CASE WHEN n = 5 AND name LIKE '%7' THEN 'not-started' ELSE 'succeeded' END,
				CASE WHEN n = 5 AND name LIKE '%7' THEN '' ELSE 'steps' END,
				1, 'cli', 'local', n, n, x'00' FROM stacks, numbers`)
	w.stack("state")
	names := make([]string, 2500)
	for i := range names {
		names[i] = fmt.Sprintf("resource-%d-%s", i, strings.Repeat("x", 1000))
	}
	w.want(200, w.user, "POST", stackPath+"state/import", resources(names...), nil)

	v := w.visit(w.user)
	const stack = "/organization/project/s"
	for name, path := range map[string]string{
		"deployments":           "/",
		"deployments, middle":   "/?before=25000",
		"deployments, active":   "/?show=active",
		"stacks":                "/stacks",
		"stacks, middle":        "/stacks?project=project&stack=copy5000",
		"stacks, search":        "/stacks?search=9999",
		"stack":                 stack,
		"stack, state of 5 MB":  "/organization/project/state",
		"resources, last page":  "/organization/project/state/resources?from=2490",
		"updates":               stack + "/updates",
		"updates, middle":       stack + "/updates?after=5000.x",
		"update":                stack + "/updates/1",
		"update, end of events": stack + "/updates/1?from=" + fmt.Sprint(manyEvents-100),
		"deployment":            stack + "/deployments/5",
		"pools":                 "/pools",
	} {
		b.Run(name, func(b *testing.B) {
			measure(b, func() {
				if code, text := v.get(path); code != 200 {
					b.Fatalf("%d %s", code, text)
				}
			})
		})
	}
}
