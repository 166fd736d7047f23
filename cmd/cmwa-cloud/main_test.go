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
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cmwa-project/cmwa/cloud/server"
	"github.com/cmwa-project/cmwa/cloud/server/servertest"
	"github.com/cmwa-project/cmwa/cmd/cli"
)

func TestMain(m *testing.M) {
	serveKilled()
	goleak.VerifyTestMain(m)
}

// testService is one running service and the environment of its clients.
type testService struct {
	t         testing.TB
	url       string
	directory string
	env       map[string]string
	out, log  *output
	stop      func() // begins the end of the service
}

// output collects the output of a program, and is safe for concurrent use.
type output struct {
	mu      sync.Mutex
	text    bytes.Buffer
	written chan struct{}
}

func newOutput() *output { return &output{written: make(chan struct{}, 1)} }

func (o *output) Write(text []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	select {
	case o.written <- struct{}{}:
	default:
	}
	return o.text.Write(text)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// find waits until the output matches an expression, and returns the match.
func (o *output) find(t testing.TB, expression string) string {
	t.Helper()
	limit := time.After(30 * time.Second)
	for {
		if found := regexp.MustCompile(expression).FindString(o.String()); found != "" {
			return found
		}
		select {
		case <-o.written:
		case <-limit:
			t.Fatalf("no match for %q in:\n%s", expression, o)
		}
	}
}

// newService starts a service. At the end of the test it must stop without an error.
func newService(t testing.TB, flags ...string) *testService {
	t.Helper()
	p := &testService{t: t, directory: servertest.DataDirectory(t), env: map[string]string{}}
	p.start(flags...)
	return p
}

// start starts the service. At the end of the test it must stop without an error.
func (p *testService) start(flags ...string) {
	p.t.Helper()
	p.serve(func(ctx context.Context, s stdio) int {
		return run(ctx, append([]string{"serve", "--listen", "127.0.0.1:0", "--data", p.directory}, flags...), s)
	})
}

// serve calls run, which is a service until ctx ends.
func (p *testService) serve(run func(ctx context.Context, s stdio) int) {
	t := p.t
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	out, log, code := newOutput(), newOutput(), make(chan int, 1)
	go func() { code <- run(ctx, stdio{p.lookup, out, log}) }()
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		stop()
		if got := <-code; got != cli.ExitOK {
			t.Errorf("the service ended with %d:\n%s", got, log)
		}
	})
	p.url, p.out, p.log, p.stop = out.find(t, `https?://[0-9.]+:[0-9]+`), out, log, stop
	token, err := firstToken(p.directory)
	if err != nil {
		t.Fatal(err)
	}
	p.env["CMWA_CLOUD_URL"], p.env["PULUMI_ACCESS_TOKEN"] = p.url, token
}

// firstToken returns the access token of the first start.
func firstToken(directory string) (string, error) {
	text, err := os.ReadFile(filepath.Join(directory, server.AccessTokenFile))
	return strings.TrimSpace(string(text)), err
}

// serveLease serves a directory until ctx ends. An update ends after the lease without its client.
func serveLease(ctx context.Context, s stdio, directory, address string, lease time.Duration) int {
	v := service{listen: address, options: server.Options{
		Directory: directory, UpdateLease: lease, Log: newLogger(s.stderr, "text"),
	}}
	if err := v.serve(ctx, s); err != nil {
		fmt.Fprintln(s.stderr, err)
		return cli.ExitFailure
	}
	return cli.ExitOK
}

func (p *testService) lookup(name string) (string, bool) {
	value, found := p.env[name]
	return value, found
}

// run runs a command line that must end with an exit code, and returns its output.
func (p *testService) run(code int, args ...string) (stdout, stderr string) {
	p.t.Helper()
	var out, err bytes.Buffer
	if got := run(p.t.Context(), args, stdio{p.lookup, &out, &err}); got != code {
		p.t.Fatalf("%v ended with %d, want %d:\n%s%s", args, got, code, &out, &err)
	}
	return out.String(), err.String()
}

// agent is an agent of a pool that reports steps without running them.
type agent struct {
	p     *testService
	token string
}

func (a agent) call(token, method, path, body string, answer any) int {
	a.p.t.Helper()
	request, err := http.NewRequest(method, a.p.url+path, strings.NewReader(body))
	if err != nil {
		a.p.t.Fatal(err)
	}
	request.Header.Set("Authorization", "token "+token)
	request.Header.Set("User-Agent", "cmwa/1.2.3 (linux/amd64; host=box; pid=42)")
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

// claimed is a claimed job.
type claimed struct{ JobID, JobToken string }

// claim claims one job.
func (a agent) claim() (job claimed) {
	a.p.t.Helper()
	if a.call(a.token, "GET", "/api/deployments/poll", "", &job) != http.StatusOK {
		a.p.t.Fatal("there is no job")
	}
	return job
}

// work claims one job, logs a line in each step, and ends the last step with a
// status. It returns the variables of the job.
func (a agent) work(end string) map[string]string {
	a.p.t.Helper()
	return a.runJob(a.claim(), end)
}

// runJob logs a line in each step of a claimed job, and ends the last step with a status.
// It returns the variables of the job.
func (a agent) runJob(job claimed, end string) map[string]string {
	a.p.t.Helper()
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
		for _, sent := range [][3]string{{"PATCH", "status", `{"status":"running"}`}, {"POST", "logs", line},
			{"PATCH", "status", `{"status":"` + status + `"}`}} {
			got := a.call(job.JobToken, sent[0], fmt.Sprintf("%s/%d/%s", at, i, sent[1]), sent[2], nil)
			if got != http.StatusOK {
				a.p.t.Errorf("step %d, %s: got status %d, want 200", i, sent[1], got)
			}
		}
	}
	return definition.Env
}

func TestDeploy(t *testing.T) {
	p := newService(t)
	file := filepath.Join(t.TempDir(), "pool.token")
	if out, _ := p.run(cli.ExitOK, "pool", "create", "demo", "--output", file, "--default"); out != "" {
		t.Errorf("pool create --output printed %q, want nothing", out)
	}
	token, err := os.ReadFile(file)
	if err != nil || !strings.HasPrefix(string(token), "pul-") {
		t.Fatalf("the token's file: %v", err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the token's file has mode %v (%v)", info.Mode(), err)
	}
	pools, _ := p.run(cli.ExitOK, "pool", "list")
	if !regexp.MustCompile(`demo\s+offline\s+never\s+yes`).MatchString(pools) {
		t.Errorf("the pools are:\n%s", pools)
	}
	a := agent{p, strings.TrimSpace(string(token))}

	p.env["PASSPHRASE"] = "hunter2"
	out := newOutput()
	ended := make(chan int, 1)
	go func() {
		ended <- run(t.Context(), []string{
			"deploy", "organization/shop/prod", "--operation", "update", "--repo", "file:///shop", "--branch", "main",
			"--dir", "web",
			"--image", "img", "--env", "A=1=2", "--env", "B=", "--secret-env", "PASSPHRASE", "--pre-run", "make",
			"--root", "/home/me", "--follow",
		}, stdio{p.lookup, out, out})
	}()
	out.find(t, "is queued")
	env := a.work("succeeded")
	if got := <-ended; got != cli.ExitOK {
		t.Errorf("deploy --follow ended with %d", got)
	}
	if env["A"] != "1=2" || env["PASSPHRASE"] != "hunter2" || env["PULUMI_CI_STACK"] != "prod" {
		t.Errorf("the job has the variables %v", env)
	}
	const log = "== Setup\nthis is Setup\n== Get source\nthis is Get source\n" +
		"== Download dependencies\nthis is Download dependencies\n" +
		"== Pre-run command 1\nthis is Pre-run command 1\n== pulumi update\nthis is pulumi update\n"
	if got := out.String(); !strings.HasSuffix(got, log+"== the deployment succeeded\n") {
		t.Errorf("deploy --follow printed:\n%s", got)
	}
	for _, which := range [][]string{{}, {"1"}} {
		if got, _ := p.run(cli.ExitOK, append([]string{"logs", "organization/shop/prod"}, which...)...); got != log {
			t.Errorf("the log is:\n%s", got)
		}
	}
	got, _ := p.run(cli.ExitOK, "status", "organization/shop/prod")
	if !regexp.MustCompile(`(?s)^succeeded: deployment 1, .*4  pulumi update +succeeded\n$`).MatchString(got) {
		t.Errorf("the status is:\n%s", got)
	}
	got, _ = p.run(cli.ExitOK, "list", "organization/shop/prod")
	if !regexp.MustCompile(`(?m)^1 +update +succeeded`).MatchString(got) {
		t.Errorf("the list is:\n%s", got)
	}
}

func TestClient(t *testing.T) {
	t.Run("a redirect is not followed, and the error names its address", func(t *testing.T) {
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
		p := &testService{t: t, env: map[string]string{
			"CMWA_CLOUD_URL": first.URL, "PULUMI_ACCESS_TOKEN": "pul-secret",
		}}
		_, stderr := p.run(cli.ExitFailure, "pool", "list")
		if want := "redirect to " + other.URL; !strings.Contains(stderr, want) || !strings.Contains(stderr, "--url") {
			t.Errorf("the error is %q, want %q and --url", stderr, want)
		}
		if len(tokens) > 0 {
			t.Errorf("the address of the redirect received the tokens %q", tokens)
		}
	})
}

func TestUsageErrors(t *testing.T) {
	p := newService(t)
	directory := t.TempDir()
	missing := filepath.Join(directory, "none")
	deploy := func(args ...string) []string {
		return append([]string{"deploy", "a/b/c", "--operation", "update"}, args...)
	}
	serve := func(args ...string) []string { return append([]string{"serve", "--data", directory}, args...) }
	for _, c := range []struct {
		code int
		env  map[string]string
		args []string
		want string
	}{
		{cli.ExitUsage, nil, []string{}, "missing command"},
		{cli.ExitUsage, nil, []string{"fly"}, `unknown command "fly"`},
		{cli.ExitUsage, nil, []string{"depoly"}, "did you mean deploy?"},
		{cli.ExitUsage, nil, []string{"pool"}, "missing command"},
		{cli.ExitUsage, nil, []string{"pool", "remove"}, `unknown command "remove"`},
		{cli.ExitUsage, nil, []string{"pool", "crate"}, "did you mean create?"},
		{cli.ExitUsage, nil, []string{"serve"}, "--data DIRECTORY"},
		{cli.ExitUsage, nil, []string{"serve", "--bogus"}, "unknown flag --bogus"},
		{cli.ExitUsage, nil, []string{"serve", "--dta", directory}, "unknown flag --dta: did you mean --data?"},
		{cli.ExitUsage, nil, serve("--log-format", "xml"), "--log-format must be one of text, json"},
		{cli.ExitUsage, nil, serve("--heartbeat-limit", "0s"), "greater than 0"},
		{cli.ExitUsage, nil, serve("--heartbeat-limit", "10"), "a duration such as 10m"},
		{cli.ExitUsage, nil, serve("--oidc-issuer", "https://issuer.example"), "URL=JWKS_FILE"},
		{cli.ExitFailure, nil, serve("--oidc-issuer", "https://issuer.example="+missing), "no such file"},
		{cli.ExitFailure, nil, serve("--oidc-issuer", "https://issuer.example=/dev/zero"), "no JWKS document"},
		{cli.ExitFailure, nil, serve("--oidc-issuer", "https://issuer.example=/dev/null"), "not a JWKS document"},
		{cli.ExitFailure, nil, serve("--listen", "127.0.0.1:99999"), "choose another address"},
		{cli.ExitFailure, nil, []string{"serve", "--data", p.directory, "--listen", "127.0.0.1:0"},
			"another process serves"},
		{cli.ExitUsage, nil, []string{"deploy"}, "usage: cmwa-cloud deploy ORG/PROJECT/STACK"},
		{cli.ExitUsage, nil, []string{"deploy", "a"}, "write ORG/PROJECT/STACK"},
		{cli.ExitUsage, nil, []string{"deploy", "a/b/c", "d"}, "usage: cmwa-cloud deploy ORG/PROJECT/STACK"},
		{cli.ExitUsage, nil, []string{"deploy", "a/b/c"}, "needs --operation"},
		{cli.ExitUsage, nil, []string{"deploy", "a/b/c", "--opration", "update"}, "did you mean --operation?"},
		{cli.ExitUsage, nil, []string{"deploy", "a/b/c", "--operation", "up"},
			"--operation must be one of update, preview, refresh, destroy, detect-drift, remediate-drift: did you " +
				"mean update?"},
		{cli.ExitUsage, nil, deploy("--env", "x"), "NAME=VALUE"},
		{cli.ExitUsage, nil, deploy("--secret-env", "NONE"), "no variable of this name"},
		{cli.ExitUsage, nil, deploy("--branch", "x", "--commit", "abcdef"), "--branch and --commit"},
		{cli.ExitFailure, nil, []string{"deploy", "none/b/c", "--operation", "update"}, "no organization"},
		{cli.ExitFailure, nil, []string{"deploy", "organization/b/c", "--operation", "update", "--commit", "x",
			"--repo", "u"},
			"--commit must be the hexadecimal hash of a commit"},
		{cli.ExitFailure, nil, []string{"deploy", "organization/b/c", "--operation", "update", "--dir", "../x",
			"--repo", "u"},
			"--dir must be a directory inside the repository"},
		{cli.ExitFailure, nil, []string{"deploy", "organization/b/c", "--operation", "update", "--pool", "none"},
			`there is no agent pool "none": see cmwa-cloud pool list`},
		{cli.ExitFailure, nil, []string{"logs", "organization/b/none"}, "no stack"},
		{cli.ExitFailure, nil, []string{"logs", "organization/b/c"}, "queue one with"},
		{cli.ExitFailure, nil, []string{"pool", "create", "a", "--output", filepath.Join(missing, "x")},
			"write the token"},
		{cli.ExitFailure, nil, []string{"pool", "delete", "none"}, `there is no agent pool "none"`},
		{cli.ExitFailure, nil, []string{"pool", "token", "none"}, `there is no agent pool "none"`},
		{cli.ExitFailure, map[string]string{"PULUMI_ACCESS_TOKEN": "wrong"}, []string{"pool", "list"},
			"check PULUMI_ACCESS_TOKEN"},
		{cli.ExitFailure, map[string]string{"CMWA_CLOUD_URL": "http://127.0.0.1:1"}, []string{"pool", "list"},
			"start it with cmwa-cloud serve"},
		{cli.ExitUsage, map[string]string{"CMWA_CLOUD_URL": "nonsense"}, []string{"pool", "list"}, "must be a URL"},
		{cli.ExitUsage, map[string]string{"PULUMI_ACCESS_TOKEN": ""}, []string{"pool", "list"}, "--token-file"},
	} {
		q := *p
		q.env = map[string]string{}
		for _, env := range []map[string]string{p.env, c.env} {
			for name, value := range env {
				q.env[name] = value
			}
		}
		_, stderr := q.run(c.code, c.args...)
		lines := strings.Split(strings.TrimSpace(stderr), "\n")
		if last := lines[len(lines)-1]; !strings.HasPrefix(last, "cmwa-cloud: ") || !strings.Contains(last, c.want) {
			t.Errorf("%v: got %q, want %q", c.args, last, c.want)
		}
	}
	if left, err := filepath.Glob(filepath.Join(directory, ".*")); err != nil || len(left) > 0 {
		t.Errorf("failed commands have left the files %v", left)
	}
}

func TestNewProgramHelp(t *testing.T) {
	p := &testService{t: t, env: map[string]string{}}
	for name, args := range map[string][]string{
		"flag": {"--help"}, "command": {"help"}, "flag of a command": {"deploy", "--help"},
		"help of a command": {"help", "deploy"}, "help of a group": {"help", "pool"},
		"help in a group": {"help", "pool", "create"}, "short flag": {"serve", "-h"},
	} {
		t.Run(name+" goes to standard output", func(t *testing.T) {
			stdout, stderr := p.run(cli.ExitOK, args...)
			if !strings.Contains(stdout, "Usage:\n  cmwa-cloud") || stderr != "" {
				t.Errorf("stdout %q, stderr %q", stdout, stderr)
			}
		})
	}
	t.Run("flags have two dashes", func(t *testing.T) {
		stdout, _ := p.run(cli.ExitOK, "help", "deploy")
		if !strings.Contains(stdout, "\n  --operation update|preview|") || strings.Contains(stdout, "\n  -operation") {
			t.Errorf("got\n%s", stdout)
		}
	})
	t.Run("every command is listed", func(t *testing.T) {
		stdout, _ := p.run(cli.ExitOK, "help")
		for _, name := range []string{"serve", "config", "backup", "restore", "pool", "stack", "settings", "queue",
			"pause", "resume", "deploy", "list", "status", "logs", "cancel", "completion",
			"version", "help"} {
			if !strings.Contains(stdout, "\n  "+name+" ") {
				t.Errorf("%s is missing in\n%s", name, stdout)
			}
		}
		stdout, _ = p.run(cli.ExitOK, "help", "pool")
		for _, name := range []string{"create", "list", "show", "token", "delete"} {
			if !strings.Contains(stdout, "\n  "+name+" ") {
				t.Errorf("pool %s is missing in\n%s", name, stdout)
			}
		}
	})
	t.Run("version", func(t *testing.T) {
		flag, _ := p.run(cli.ExitOK, "--version")
		command, _ := p.run(cli.ExitOK, "version")
		if flag != command || !strings.HasPrefix(flag, "cmwa-cloud ") {
			t.Errorf("--version prints %q, version prints %q", flag, command)
		}
	})
}

func TestNewProgramCompletion(t *testing.T) {
	p := &testService{t: t, env: map[string]string{}}
	t.Run("bash completes commands, groups, flags and values", func(t *testing.T) {
		bash, err := exec.LookPath("bash")
		switch {
		case err != nil && os.Getenv("CI") == "true":
			t.Fatal(err)
		case err != nil:
			t.Skip(err)
		}
		script, _ := p.run(cli.ExitOK, "completion", "bash")
		for line, want := range map[string]string{
			"dep":                   "deploy",
			"pool de":               "delete",
			"pool delete --fo":      "--force",
			"pool token --rev":      "--revoke-others",
			"serve --oidc-i":        "--oidc-issuer",
			"deploy --operation re": "refresh remediate-drift",
			"deploy --operation d":  "destroy detect-drift",
		} {
			args := strings.Fields(line)
			stdout, _ := p.run(cli.ExitOK, append([]string{"__complete"}, args...)...)
			run := fmt.Sprintf("cmwa-cloud() { echo -n \"$COMPLETIONS\"; }\n%s\n"+
				"COMP_WORDS=(cmwa-cloud %s) COMP_CWORD=%d\n_cmwa_cloud\necho \"${COMPREPLY[*]}\"", script, line,
				len(args))
			cmd := exec.Command(bash, "--norc", "-c", run)
			cmd.Env = append(os.Environ(), "COMPLETIONS="+stdout)
			out, err := cmd.Output()
			if got := strings.TrimSpace(string(out)); err != nil || got != want {
				t.Errorf("%s: got %q (%v), want %q", line, got, err, want)
			}
		}
	})
}
