package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cmwa-project/cmwa/cmd/cli"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// place is one running service, as a person at a terminal has it.
type place struct {
	t      *testing.T
	url    string
	folder string
	env    map[string]string
}

// output is what a program says, safe to read while it speaks.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
	said chan struct{}
}

func newOutput() *output { return &output{said: make(chan struct{}, 1)} }

func (o *output) Write(text []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	select {
	case o.said <- struct{}{}:
	default:
	}
	return o.text.Write(text)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// find waits until something is said.
func (o *output) find(t *testing.T, what string) string {
	t.Helper()
	limit := time.After(30 * time.Second)
	for {
		if found := regexp.MustCompile(what).FindString(o.String()); found != "" {
			return found
		}
		select {
		case <-o.said:
		case <-limit:
			t.Fatalf("%q was not said in:\n%s", what, o)
		}
	}
}

// newPlace starts a service; at the end of the test it must stop in order.
func newPlace(t *testing.T, more ...string) *place {
	t.Helper()
	p := &place{t: t, folder: filepath.Join(t.TempDir(), "data"), env: map[string]string{}}
	ctx, stop := context.WithCancel(context.Background())
	out, log, code := newOutput(), newOutput(), make(chan int, 1)
	go func() {
		code <- run(ctx, append([]string{"serve", "--listen", "127.0.0.1:0", "--data", p.folder}, more...), world{p.lookup, out, log})
	}()
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		stop()
		if got := <-code; got != cli.ExitOK {
			t.Errorf("the service ended with %d:\n%s", got, log)
		}
	})
	p.url = out.find(t, `http://[0-9.]+:[0-9]+`)
	token, err := os.ReadFile(filepath.Join(p.folder, "access-token"))
	if err != nil {
		t.Fatal(err)
	}
	p.env["CMWA_CLOUD_URL"], p.env["PULUMI_ACCESS_TOKEN"] = p.url, strings.TrimSpace(string(token))
	return p
}

func (p *place) lookup(name string) (string, bool) {
	value, found := p.env[name]
	return value, found
}

// says runs a command line that must end with a code, and returns what it said.
func (p *place) says(code int, args ...string) (stdout, stderr string) {
	p.t.Helper()
	var out, err bytes.Buffer
	if got := run(p.t.Context(), args, world{p.lookup, &out, &err}); got != code {
		p.t.Fatalf("%v ended with %d, want %d:\n%s%s", args, got, code, &out, &err)
	}
	return out.String(), err.String()
}

// agent is a pool's agent that ends each job as it is told.
type agent struct {
	p     *place
	token string
}

func (a agent) call(token, method, path, body string, answer any) int {
	a.p.t.Helper()
	request, err := http.NewRequest(method, a.p.url+path, strings.NewReader(body))
	if err != nil {
		a.p.t.Fatal(err)
	}
	request.Header.Set("Authorization", "token "+token)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		a.p.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		a.p.t.Fatal(err)
	}
	if answer != nil && response.StatusCode == http.StatusOK {
		if err := json.Unmarshal(text, answer); err != nil {
			a.p.t.Fatal(err)
		}
	}
	return response.StatusCode
}

// work claims one job, says a line in each step, and ends the last with a
// status. It returns the variables of the job.
func (a agent) work(end string) map[string]string {
	a.p.t.Helper()
	var job struct{ JobID, JobToken string }
	if a.call(a.token, "GET", "/api/deployments/poll", "", &job) != http.StatusOK {
		a.p.t.Fatal("there is no job")
	}
	var definition struct {
		Env   map[string]string
		Steps []struct{ Name string }
	}
	at := "/api/workflow/jobs/" + job.JobID
	a.call(job.JobToken, "GET", at, "", &definition)
	for i, step := range definition.Steps {
		status := "succeeded"
		if i == len(definition.Steps)-1 {
			status = end
		}
		line := fmt.Sprintf(`{"offset":0,"lines":[{"t":"2026-01-01T00:00:00Z","l":"this is %s\n"}]}`, step.Name)
		for _, sent := range [][3]string{{"PATCH", "status", `{"status":"running"}`}, {"POST", "logs", line}, {"PATCH", "status", `{"status":"` + status + `"}`}} {
			if got := a.call(job.JobToken, sent[0], fmt.Sprintf("%s/%d/%s", at, i, sent[1]), sent[2], nil); got != http.StatusOK {
				a.p.t.Errorf("step %d, %s: %d", i, sent[1], got)
			}
		}
	}
	return definition.Env
}

func TestADeploymentIsQueuedFollowedAndLookedAt(t *testing.T) {
	p := newPlace(t)
	file := filepath.Join(t.TempDir(), "pool.token")
	if out, _ := p.says(cli.ExitOK, "pool", "create", "demo", "--token-file", file, "--default"); out != "" {
		t.Errorf("the token was printed though it has a file: %q", out)
	}
	token, err := os.ReadFile(file)
	if err != nil || !strings.HasPrefix(string(token), "pul-") {
		t.Fatalf("the token's file: %v", err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the token's file has mode %v (%v)", info.Mode(), err)
	}
	if out, _ := p.says(cli.ExitOK, "pool", "list"); !regexp.MustCompile(`demo\s+offline\s+never\s+yes`).MatchString(out) {
		t.Errorf("the pools are:\n%s", out)
	}
	a := agent{p, strings.TrimSpace(string(token))}

	p.env["PASSPHRASE"] = "hunter2"
	out := newOutput()
	ended := make(chan int, 1)
	go func() {
		ended <- run(t.Context(), []string{
			"deploy", "organization/shop/prod", "--operation", "update", "--repo", "file:///shop", "--branch", "main", "--dir", "web",
			"--image", "img", "--env", "A=1=2", "--env", "B=", "--secret-env", "PASSPHRASE", "--pre-run", "make", "--root", "/home/me", "--follow",
		}, world{p.lookup, out, out})
	}()
	out.find(t, "is queued")
	env := a.work("succeeded")
	if got := <-ended; got != cli.ExitOK {
		t.Errorf("deploy --follow ended with %d", got)
	}
	if env["A"] != "1=2" || env["PASSPHRASE"] != "hunter2" || env["PULUMI_CI_STACK"] != "prod" {
		t.Errorf("the job has the variables %v", env)
	}
	const log = "== Setup\nthis is Setup\n== Get source\nthis is Get source\n== Download dependencies\nthis is Download dependencies\n" +
		"== Pre-run command 1\nthis is Pre-run command 1\n== pulumi update\nthis is pulumi update\n"
	if got := out.String(); !strings.HasSuffix(got, log+"== the deployment succeeded\n") {
		t.Errorf("what was followed:\n%s", got)
	}
	for _, which := range [][]string{{}, {"1"}} {
		if got, _ := p.says(cli.ExitOK, append([]string{"logs", "organization/shop/prod"}, which...)...); got != log {
			t.Errorf("the log is:\n%s", got)
		}
	}
	if got, _ := p.says(cli.ExitOK, "status", "organization/shop/prod"); !regexp.MustCompile(`(?s)^succeeded: deployment 1, .*4  pulumi update +succeeded\n$`).MatchString(got) {
		t.Errorf("the status is:\n%s", got)
	}
	if got, _ := p.says(cli.ExitOK, "list", "organization/shop/prod"); !regexp.MustCompile(`(?m)^1 +update +succeeded`).MatchString(got) {
		t.Errorf("the list is:\n%s", got)
	}
}

func TestAFailedDeploymentEndsWithCode1(t *testing.T) {
	p := newPlace(t)
	out, _ := p.says(cli.ExitOK, "pool", "create", "demo")
	a := agent{p, strings.TrimSpace(out)}
	request := filepath.Join(t.TempDir(), "request.json")
	if err := os.WriteFile(request, []byte(`{"cmwaSteps":[{"name":"one","run":"exit 1"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	p.says(cli.ExitOK, "deploy", "organization/a/b", "--file", request)
	a.work("failed")
	if _, said := p.says(cli.ExitFailure, "logs", "--follow", "organization/a/b"); !strings.Contains(said, "has ended as failed") {
		t.Errorf("it said %q", said)
	}
	p.says(cli.ExitOK, "deploy", "organization/a/b", "--file", request)
	if out, _ := p.says(cli.ExitOK, "cancel", "organization/a/b"); out != "deployment 2 is cancelled\n" {
		t.Errorf("cancel said %q", out)
	}
	p.says(cli.ExitFailure, "cancel", "organization/a/b", "2")
	if out, _ := p.says(cli.ExitOK, "status", "organization/a/b", "2"); !strings.HasPrefix(out, "skipped: ") {
		t.Errorf("the status is %q", out)
	}
}

func TestAnAccessTokenMayStandInAFile(t *testing.T) {
	p := newPlace(t)
	delete(p.env, "PULUMI_ACCESS_TOKEN")
	p.says(cli.ExitOK, "pool", "list", "--token-file", filepath.Join(p.folder, "access-token"))
	p.says(cli.ExitOK, "pool", "create", "x", "--access-token-file", filepath.Join(p.folder, "access-token"))
	p.says(cli.ExitUsage, "pool", "list")
}

func TestClient(t *testing.T) {
	t.Run("a redirect is not followed and names the address", func(t *testing.T) {
		var tokens []string
		other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			tokens = append(tokens, r.Header.Get("Authorization"))
			fmt.Fprint(w, "{}")
		}))
		defer other.Close()
		first := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, other.URL+r.URL.Path, http.StatusMovedPermanently)
		}))
		defer first.Close()
		p := &place{t: t, env: map[string]string{"CMWA_CLOUD_URL": first.URL, "PULUMI_ACCESS_TOKEN": "pul-secret"}}
		_, stderr := p.says(cli.ExitFailure, "pool", "list")
		if want := "redirect to " + other.URL; !strings.Contains(stderr, want) || !strings.Contains(stderr, "--url") {
			t.Errorf("the error is %q, want %q and the cure", stderr, want)
		}
		if len(tokens) > 0 {
			t.Errorf("the token followed the redirect: %q", tokens)
		}
	})
}

func TestMistakesAreOneLineThatSaysWhatToDo(t *testing.T) {
	p := newPlace(t)
	folder := t.TempDir()
	for _, c := range []struct {
		code int
		env  map[string]string
		args []string
		says string
	}{
		{cli.ExitUsage, nil, []string{}, "name a command"},
		{cli.ExitUsage, nil, []string{"fly"}, `no command "fly"`},
		{cli.ExitUsage, nil, []string{"pool"}, "name a command"},
		{cli.ExitUsage, nil, []string{"serve"}, "--data FOLDER"},
		{cli.ExitUsage, nil, []string{"serve", "--bogus"}, "bogus"},
		{cli.ExitUsage, nil, []string{"serve", "--data", folder, "--log-format", "xml"}, "text or json"},
		{cli.ExitUsage, nil, []string{"serve", "--data", folder, "--heartbeat-limit", "0s"}, "greater than 0"},
		{cli.ExitUsage, nil, []string{"serve", "--data", folder, "--oidc-issuer", "https://issuer.example"}, "URL=JWKS_FILE"},
		{cli.ExitFailure, nil, []string{"serve", "--data", folder, "--oidc-issuer", "https://issuer.example=" + filepath.Join(folder, "none")}, "no such file"},
		{cli.ExitFailure, nil, []string{"serve", "--data", folder, "--oidc-issuer", "https://issuer.example=/dev/zero"}, "no JWKS document"},
		{cli.ExitFailure, nil, []string{"serve", "--data", folder, "--oidc-issuer", "https://issuer.example=/dev/null"}, "not a JWKS document"},
		{cli.ExitFailure, nil, []string{"serve", "--data", folder, "--listen", "127.0.0.1:99999"}, "choose another address"},
		{cli.ExitFailure, nil, []string{"serve", "--data", p.folder, "--listen", "127.0.0.1:0"}, "another process serves"},
		{cli.ExitUsage, nil, []string{"deploy"}, "needs ORG/PROJECT/STACK"},
		{cli.ExitUsage, nil, []string{"deploy", "a"}, "write ORG/PROJECT/STACK"},
		{cli.ExitUsage, nil, []string{"deploy", "a/b/c", "d"}, `no argument "d"`},
		{cli.ExitUsage, nil, []string{"deploy", "a/b/c"}, "needs --operation"},
		{cli.ExitUsage, nil, []string{"deploy", "a/b/c", "--operation", "update", "--env", "x"}, "NAME=VALUE"},
		{cli.ExitUsage, nil, []string{"deploy", "a/b/c", "--operation", "update", "--secret-env", "NONE"}, "no variable of this name"},
		{cli.ExitFailure, nil, []string{"deploy", "organization/b/c", "--operation", "up"}, "operation must be one of update"},
		{cli.ExitFailure, nil, []string{"deploy", "none/b/c", "--operation", "update"}, "no organization"},
		{cli.ExitFailure, nil, []string{"logs", "organization/b/none"}, "no stack"},
		{cli.ExitFailure, nil, []string{"logs", "organization/b/c"}, "queue one with"},
		{cli.ExitFailure, nil, []string{"pool", "create", "a", "--token-file", filepath.Join(folder, "none", "x")}, "write the pool's token"},
		{cli.ExitFailure, map[string]string{"PULUMI_ACCESS_TOKEN": "wrong"}, []string{"pool", "list"}, "check PULUMI_ACCESS_TOKEN"},
		{cli.ExitFailure, map[string]string{"CMWA_CLOUD_URL": "http://127.0.0.1:1"}, []string{"pool", "list"}, "start it with cmwa-cloud serve"},
		{cli.ExitUsage, map[string]string{"CMWA_CLOUD_URL": "nonsense"}, []string{"pool", "list"}, "must be a URL"},
	} {
		q := *p
		q.env = map[string]string{}
		for _, env := range []map[string]string{p.env, c.env} {
			for name, value := range env {
				q.env[name] = value
			}
		}
		_, said := q.says(c.code, c.args...)
		lines := strings.Split(strings.TrimSpace(said), "\n")
		if last := lines[len(lines)-1]; !strings.HasPrefix(last, "cmwa-cloud: ") || !strings.Contains(last, c.says) {
			t.Errorf("%v said %q, want %q", c.args, last, c.says)
		}
	}
	if left, err := filepath.Glob(filepath.Join(folder, ".*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}
