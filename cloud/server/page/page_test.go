package page_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/cloud/server/page"
	"github.com/cmwa-project/cmwa/cloud/server/state"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// hostile is a name that must not become a part of a page's HTML.
const hostile = `<script>alert("1")</script><b>'&`

const token = "cmwa-user-0123"

// service is a source whose values a test changes.
type service struct {
	mu         sync.Mutex
	session    string // the valid one; empty for none
	deployment page.Deployment
	stack      page.Stack
	pools      []page.Pool
	queued     []page.Deployment // the newest ones
	lines      int               // of a page of a log; 0 for all
	fault      error             // of every page
}

// change changes the values while the service runs.
func (s *service) change(do func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	do()
}

func name(project, stack string) page.StackName {
	return page.StackName{Organization: "acme", Project: project, Name: stack}
}

func newService() *service {
	now := time.Now()
	at := func(ago time.Duration) time.Time { return now.Add(-ago) }
	prod := name("website", "production")
	s := &service{}
	s.deployment = page.Deployment{
		Key: 7, Stack: prod, Version: 42, Operation: "update", Status: "running", Pool: "default", Agent: "build-1",
		Requester: "ada", Initiator: "cli", Created: at(75 * time.Second), Started: at(70 * time.Second),
		Steps: []page.Step{
			{Name: "Setup", Status: "succeeded", Started: at(70 * time.Second), Ended: at(64 * time.Second)},
			{Name: "Get source", Status: "succeeded", Started: at(64 * time.Second), Ended: at(61 * time.Second)},
			{Name: "pulumi update", Status: "running", Started: at(61 * time.Second)},
			{Name: "Cleanup", Status: "not-started"},
		},
		Updates: []page.Update{{
			Stack: prod, ID: "u-12", Version: 12, Kind: "update", Status: "running", Requester: "ada",
			Created: at(50 * time.Second), Started: at(50 * time.Second),
		}},
		Log: page.Log{Lines: []page.Line{
			{Header: "Setup", Time: at(70 * time.Second)},
			{Time: at(69 * time.Second), Text: "image pulumi/pulumi:3.259.0\n"},
			{Header: "Get source", Time: at(64 * time.Second)},
			{Time: at(63 * time.Second), Text: "HEAD is now at 4f2c1aa Serve the new start page\n"},
			{Header: "pulumi update", Time: at(61 * time.Second)},
			{Time: at(60 * time.Second), Text: "\x1b[1mUpdating (website/production)\x1b[0m\n"},
			{Time: at(58 * time.Second), Text: hostile + "\n"},
		}},
	}
	update := func(version int64, kind, status, message string, ago time.Duration, changes map[string]int64) page.Update {
		return page.Update{
			Stack: prod, ID: fmt.Sprint("u-", version), Version: version, Kind: kind, Status: status, Requester: "ada",
			Message: message, Created: at(ago), Started: at(ago), Ended: at(ago - 83*time.Second), Changes: changes,
			Deployment: 41, Log: page.Log{Lines: []page.Line{
				{Time: at(ago), Text: "update aws:s3/bucketObject:BucketObject page-1"},
				{Time: at(ago - 3*time.Second), Text: "update aws:s3/bucketObject:BucketObject page-1 done"},
			}}, Environment: map[string]string{"git.head": "4f2c1aa"},
			Config: page.Config{"aws:region": {}, "website:key": {Secret: true}},
		}
	}
	s.stack = page.Stack{
		StackSummary: page.StackSummary{
			Stack: prod, Resources: 28, Updated: at(3 * time.Hour), Kind: "update", Result: "succeeded",
		},
		Version: 11, Created: at(400 * 24 * time.Hour), Pool: "default",
		Tags:   map[string]string{"pulumi:runtime": "go", "owner": "web"},
		Config: page.Config{"aws:region": {}, "website:key": {Secret: true}},
		Outputs: []state.Property{
			{Name: "password", Value: "[secret]", Secret: true},
			{Name: "replicas", Value: "3"},
			{Name: "url", Value: "https://www.example.org"},
		},
		Updates: []page.Update{
			update(11, "update", "succeeded", "Serve the new start page", 3*time.Hour,
				map[string]int64{"create": 2, "update": 1}),
			update(10, "refresh", "failed", "", 26*time.Hour, nil),
			update(9, "destroy", "cancelled", "Clean up", 70*time.Hour, map[string]int64{"delete": 4}),
			{
				Stack: prod, ID: "p-1", Kind: "update", Preview: true, Status: "succeeded", Requester: "ada",
				Created: at(71 * time.Hour), Started: at(71 * time.Hour), Ended: at(71 * time.Hour),
			},
		},
		Deployments: []page.Deployment{s.deployment},
	}
	s.pools = []page.Pool{
		{
			ID: "p1", Name: "default", Description: "Machines in the data centre", Default: true, Status: "online",
			Seen: at(12 * time.Second), Agents: []page.Agent{
				{Host: "build-1", IP: "192.0.2.11", PID: "812", Platform: "linux/amd64", Version: "1.9.0", Status: "online",
					Seen: at(12 * time.Second)},
				{Host: "build-2", IP: "192.0.2.12", PID: "90", Platform: "linux/arm64", Version: "1.8.2", Status: "offline",
					Seen: at(14 * time.Minute)},
			},
		},
		{ID: "p2", Name: hostile, Status: "offline"},
	}
	return s
}

func (s *service) source() page.Source {
	list := func() []page.Deployment {
		now := time.Now()
		all := append(slices.Clone(s.queued), page.Deployment{
			Key: 8, Stack: name("network", "production"), Version: 3, Operation: "preview", Status: "not-started",
			Pool: "default", Requester: "grace", Created: now.Add(-20 * time.Second),
		}, s.deployment)
		for i, status := range []string{"succeeded", "failed", "cancelled", "skipped", "succeeded", "succeeded"} {
			d := page.Deployment{
				Key: int64(6 - i),
				Stack: name([]string{"website", "network", "database"}[i%3],
					[]string{"staging", "production"}[i%2]),
				Version: int64(20 - i), Operation: []string{"update", "refresh", "destroy"}[i%3],
				Status: status, Pool: "default",
				Agent: "build-1", Requester: "ada", Created: now.Add(-time.Duration(i*i+1) * 40 * time.Minute),
			}
			if status != "skipped" {
				d.Started = d.Created.Add(3 * time.Second)
			}
			d.Ended = d.Created.Add(time.Duration(i+1) * 51 * time.Second)
			all = append(all, d)
		}
		return all
	}
	locked := func() func() { s.mu.Lock(); return s.mu.Unlock }
	known := func(n page.StackName) error {
		if n != s.stack.Stack {
			return &page.Problem{Code: 404, Message: "there is no stack " + n.String()}
		}
		return nil
	}
	return page.Source{
		SignIn: func(_ context.Context, _ string, given secret.String) (secret.String, error) {
			defer locked()()
			if given.Reveal() != token {
				return secret.String{}, page.ErrToken
			}
			s.session = "session-1"
			return secret.New(s.session), nil
		},
		SignOut: func(context.Context, secret.String) error { defer locked()(); s.session = ""; return nil },
		User: func(_ context.Context, session secret.String) (string, error) {
			defer locked()()
			if s.fault != nil {
				return "", s.fault
			}
			if s.session == "" || session.Reveal() != s.session {
				return "", nil
			}
			return "ada", nil
		},
		Deployments: func(_ context.Context, active bool, before int64) (page.Deployments, error) {
			defer locked()()
			all := list()
			if active {
				all = all[:2]
			}
			if before > 0 {
				all = nil
			}
			return page.Deployments{List: all, Active: 2, Next: 1}, nil
		},
		Deployment: func(_ context.Context, n page.StackName, version int64, from string) (page.Deployment, error) {
			defer locked()()
			if version != 42 {
				return page.Deployment{}, errors.New("the database has 3 secrets")
			}
			d := s.deployment
			d.Steps = slices.Clone(d.Steps)
			shown, _ := strconv.Atoi(from) // position n is after n lines
			d.Log.Lines = d.Log.Lines[min(shown, len(d.Log.Lines)):]
			if d.Log.More = s.lines > 0 && len(d.Log.Lines) > s.lines; d.Log.More {
				d.Log.Lines = d.Log.Lines[:s.lines]
			}
			if d.Ended.IsZero() || d.Log.More {
				d.Log.Next = strconv.Itoa(shown + len(d.Log.Lines))
			}
			return d, known(n)
		},
		Stacks: func(_ context.Context, search string, after page.StackName) (page.Stacks, error) {
			defer locked()()
			now := time.Now()
			all := page.Stacks{List: []page.StackSummary{
				{Stack: name("database", "production"), Resources: 61, Updated: now.Add(-20 * time.Hour),
					Kind: "update", Result: "succeeded"},
				{Stack: name("database", "staging")},
				{Stack: name("network", "production"), Resources: 1204, Updated: now.Add(-9 * 24 * time.Hour),
					Kind: "refresh", Result: "failed"},
				s.stack.StackSummary,
			}, Next: &page.StackName{Organization: "acme", Project: "website", Name: "production"}}
			if search != "" || after.Project != "" {
				all = page.Stacks{}
			}
			return all, nil
		},
		Stack: func(_ context.Context, n page.StackName) (page.Stack, error) {
			defer locked()()
			return s.stack, known(n)
		},
		Resources: func(_ context.Context, n page.StackName, from int) (page.Resources, error) {
			defer locked()()
			all := page.Resources{Total: 28, Next: 20}
			for i := range 12 {
				all.List = append(all.List, state.Resource{
					URN:  fmt.Sprintf("urn:pulumi:production::website::aws:s3/bucketObject:BucketObject::page-%d", i),
					Type: "aws:s3/bucketObject:BucketObject", Name: fmt.Sprintf("page-%d", i),
					ID:        fmt.Sprintf("page-%d.html", i),
					Protected: i == 1, Deleting: i == 2,
					Outputs: []state.Property{
						{Name: "etag", Value: "0c2f"}, {Name: "key", Value: "[secret]", Secret: true},
					},
				})
			}
			return all, known(n)
		},
		Updates: func(_ context.Context, n page.StackName, after string) (page.Updates, error) {
			defer locked()()
			return page.Updates{List: s.stack.Updates, Next: "1.u"}, known(n)
		},
		Update: func(_ context.Context, n page.StackName, id, _ string) (page.Update, error) {
			defer locked()()
			for _, u := range s.stack.Updates {
				if id == u.ID || id == fmt.Sprint(u.Version) {
					return u, known(n)
				}
			}
			return page.Update{}, &page.Problem{Code: 404, Message: "there is no update " + id}
		},
		Pools: func(context.Context) ([]page.Pool, error) { defer locked()(); return s.pools, nil },
	}
}

// browser is a client with cookies that does not follow redirects.
type browser struct {
	t       *testing.T
	handler http.Handler
	cookie  string
}

func newBrowser(t *testing.T, s *service, origin string) *browser {
	t.Helper()
	handler, err := page.New(s.source(), origin, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return &browser{t: t, handler: handler}
}

func (b *browser) do(r *http.Request) *http.Response {
	b.t.Helper()
	if b.cookie != "" {
		r.Header.Set("Cookie", b.cookie)
	}
	w := httptest.NewRecorder()
	b.handler.ServeHTTP(w, r)
	for _, cookie := range w.Result().Cookies() {
		b.cookie = cookie.Name + "=" + cookie.Value
	}
	return w.Result()
}

func (b *browser) get(path string) (code int, text string) {
	b.t.Helper()
	answer := b.do(httptest.NewRequest("GET", path, nil))
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	return answer.StatusCode, string(body)
}

func (b *browser) post(path string, values url.Values, headers ...string) *http.Response {
	b.t.Helper()
	r := httptest.NewRequest("POST", path, strings.NewReader(values.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	return b.do(r)
}

func (b *browser) signIn() {
	b.t.Helper()
	if got := b.post("/sign-in", url.Values{"token": {token}}); got.StatusCode != http.StatusSeeOther {
		b.t.Fatalf("sign-in: %s", got.Status)
	}
}

func TestPages(t *testing.T) {
	b := newBrowser(t, newService(), "")
	b.signIn()
	const stack = "/acme/website/production"
	inline := regexp.MustCompile(`(?i)<script(?: |>)(?:[^>]*)>[^<]|<style|\sstyle=|\son[a-z]+=|javascript:`)
	for path, want := range map[string][]string{
		"/": {`Queued and running <span class="badge">2`, "#42", "cancelled", "?before=1",
			`data-refresh="3"`},
		"/?show=active": {"show=active&amp;before=1", "#42"},
		"/?before=1":    {"There are no older deployments", "Newest"},
		stack + "/deployments/42": {"Get source", "1 min", `data-next="7"`, "Serve the new start page",
			"Waits for the next lines"},
		"/stacks":                {"1,204", "stack=production", "never"},
		"/stacks?search=%3Cb%3E": {"No project or stack has “&lt;b&gt;”"},
		stack: {"https://www.example.org", "website:key", "update 11", "2 create",
			"pulumi:runtime", "11", "28 resources"},
		stack + "/resources": {"page-11", "28 resources", "protected", "to be deleted", "?from=20",
			`<span class="tag">secret`},
		stack + "/updates":      {"refresh 10", "preview", "?after=1.u"},
		stack + "/updates/11":   {"git.head", "4f2c1aa", "website:key", "deployments/41"},
		stack + "/previews/p-1": {"preview"},
		"/pools": {"build-2", "192.0.2.12", "1.8.2", "14 min ago", "default",
			"No agent has called in the last hour"},
	} {
		t.Run(path, func(t *testing.T) {
			code, text := b.get(path)
			if code != 200 {
				t.Fatalf("status %d: %s", code, text)
			}
			for _, part := range want {
				if !strings.Contains(text, part) {
					t.Errorf("the page lacks %q:\n%s", part, text)
				}
			}
			if found := inline.FindString(text); found != "" {
				t.Errorf("the policy forbids %q", found)
			}
			if strings.Contains(text, "<b>'") || strings.Contains(text, "\x1b") {
				t.Errorf("the page has a text from outside without escapes:\n%s", text)
			}
			if !strings.HasSuffix(strings.TrimSpace(text), "</html>") {
				t.Error("the page is incomplete")
			}
		})
	}
}

func TestPagesEmpty(t *testing.T) {
	s := newService()
	s.pools, s.stack = nil, page.Stack{StackSummary: page.StackSummary{Stack: s.stack.Stack}}
	s.deployment = page.Deployment{Stack: s.stack.Stack, Version: 42, Status: "not-started"}
	b := newBrowser(t, s, "")
	b.signIn()
	for path, want := range map[string]string{
		"/pools":                                  "There is no agent pool yet.",
		"/acme/website/production":                "No outputs.",
		"/acme/website/production/":               "There is no such page.",
		"/acme/website/production/deployments/42": "Waits for the next lines.",
	} {
		if _, text := b.get(path); !strings.Contains(text, want) {
			t.Errorf("%s lacks %q:\n%s", path, want, text)
		}
	}
}

func TestPagesProblems(t *testing.T) {
	b := newBrowser(t, newService(), "")
	b.signIn()
	for path, want := range map[string]int{
		"/none":                                      404,
		"/acme":                                      404,
		"/acme/website/none":                         404,
		"/acme/website/none/updates":                 404,
		"/acme/website/none/deployments/42":          404,
		"/acme/website/production/deployments/x":     404,
		"/acme/website/production/deployments/43":    500,
		"/acme/website/production/updates/none":      404,
		"/acme/website/production/resources?from=-1": 400,
		"/?before=x":                                 400,
		"/?before=9999999999999999999":               400,
		"/static/":                                   404,
		"/static/none":                               404,
		"/templates/stack.html":                      404,
	} {
		code, text := b.get(path)
		if code != want {
			t.Errorf("%s: status %d, want %d", path, code, want)
		}
		if strings.Contains(text, "3 secrets") {
			t.Errorf("%s shows the details of a fault", path)
		}
	}
	for _, method := range []string{"POST", "PUT", "DELETE"} {
		if got := b.do(httptest.NewRequest(method, "/acme/website/production", nil)); got.StatusCode/100 != 4 {
			t.Errorf("%s: %s", method, got.Status)
		}
	}
}

func TestSignIn(t *testing.T) {
	const target = "/acme/website/production?a=b"
	s := newService()
	b := newBrowser(t, s, "")
	got := b.do(httptest.NewRequest("GET", target, nil))
	form := "/sign-in?next=" + url.QueryEscape(target)
	if got.StatusCode != http.StatusSeeOther || got.Header.Get("Location") != form {
		t.Fatalf("without a session: %s to %s", got.Status, got.Header.Get("Location"))
	}
	if _, text := b.get(form); !strings.Contains(text, `value="/acme/website/production?a=b"`) {
		t.Errorf("the form lacks the page after the sign-in:\n%s", text)
	}
	for _, wrong := range []string{"", "other", strings.Repeat("x", 20<<10)} {
		got := b.post("/sign-in", url.Values{"token": {wrong}, "next": {target}})
		body, err := io.ReadAll(got.Body)
		shown := wrong != "" && strings.Contains(string(body), wrong)
		if err != nil || got.StatusCode/100 != 4 || len(got.Cookies()) > 0 || shown {
			t.Errorf("a wrong token of %d bytes: %s %s %v", len(wrong), got.Status, body, err)
		}
	}

	got = b.post("/sign-in", url.Values{"token": {" " + token + "\n"}, "next": {target}})
	if got.StatusCode != http.StatusSeeOther || got.Header.Get("Location") != target || len(got.Cookies()) != 1 {
		t.Fatalf("sign-in: %s to %s", got.Status, got.Header.Get("Location"))
	}
	cookie := got.Cookies()[0]
	if !cookie.HttpOnly || cookie.SameSite != http.SameSiteStrictMode || cookie.Secure || cookie.Value == token ||
		cookie.MaxAge != int(page.Session.Seconds()) || cookie.Path != "/" {
		t.Errorf("the cookie is %s", cookie)
	}
	if code, text := b.get(target); code != 200 || !strings.Contains(text, "Sign out") {
		t.Errorf("with a session: %d %s", code, text)
	}

	got = b.post("/sign-out", nil)
	if got.StatusCode != http.StatusSeeOther || s.session != "" || got.Cookies()[0].MaxAge >= 0 {
		t.Errorf("sign-out: %s, cookie %s", got.Status, got.Cookies()[0])
	}
	if code, _ := b.get(target); code != http.StatusSeeOther {
		t.Errorf("after the sign-out: %d", code)
	}
}

func TestSignInTLS(t *testing.T) {
	b := newBrowser(t, newService(), "")
	r := httptest.NewRequest("POST", "https://cmwa.example.org/sign-in", strings.NewReader("token="+token))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if got := b.do(r); !got.Cookies()[0].Secure {
		t.Error("the cookie of a call with TLS is not Secure")
	}
}

func TestSignInNext(t *testing.T) {
	b := newBrowser(t, newService(), "https://cmwa.example.org")
	for next, want := range map[string]string{
		"": "/", "/pools": "/pools", "//evil.example.org": "/", "/\\evil.example.org": "/",
		"https://evil.example.org": "/",
		"/\t/evil.example.org":     "/", "pools": "/",
	} {
		got := b.post("/sign-in", url.Values{"token": {token}, "next": {next}})
		if got.Header.Get("Location") != want {
			t.Errorf("next %q leads to %q, want %q", next, got.Header.Get("Location"), want)
		}
		if !got.Cookies()[0].Secure {
			t.Error("the cookie of a service with HTTPS is not Secure")
		}
	}
}

func TestSignInCrossOrigin(t *testing.T) {
	s := newService()
	b := newBrowser(t, s, "https://cmwa.example.org")
	b.signIn()
	for _, headers := range [][]string{
		{"Sec-Fetch-Site", "cross-site"},
		{"Sec-Fetch-Site", "same-site"},
		{"Origin", "https://evil.example.org"},
		{"Origin", "null"},
	} {
		if got := b.post("/sign-out", nil, headers...); got.StatusCode != http.StatusForbidden || s.session == "" {
			t.Errorf("%v: %s", headers, got.Status)
		}
	}
	if got := b.post("/sign-out", nil, "Origin", "https://cmwa.example.org"); got.StatusCode != http.StatusSeeOther {
		t.Errorf("from the public URL: %s", got.Status)
	}
}

func TestHeaders(t *testing.T) {
	b := newBrowser(t, newService(), "")
	b.signIn()
	for _, path := range []string{"/", "/none", "/sign-in", "/static/live.js", "/static/style.css"} {
		got := b.do(httptest.NewRequest("GET", path, nil)).Header
		policy := got.Get("Content-Security-Policy")
		for _, part := range []string{"default-src 'none'", "script-src 'self'", "frame-ancestors 'none'"} {
			if !strings.Contains(policy, part) || strings.Contains(policy, "unsafe") {
				t.Errorf("%s: the policy %q lacks %q", path, policy, part)
			}
		}
		if got.Get("X-Content-Type-Options") != "nosniff" || got.Get("Referrer-Policy") != "same-origin" {
			t.Errorf("%s: headers %v", path, got)
		}
		if cache := got.Get("Cache-Control"); !strings.HasPrefix(path, "/static/") && cache != "no-store" {
			t.Errorf("%s: Cache-Control %q", path, cache)
		}
	}
}
