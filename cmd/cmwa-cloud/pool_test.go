package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cmwa-project/cmwa/cmd/cli"
)

func TestTokenFile(t *testing.T) {
	p := newService(t)
	token := p.env["PULUMI_ACCESS_TOKEN"]
	delete(p.env, "PULUMI_ACCESS_TOKEN")
	access := filepath.Join(p.directory, "access-token")
	p.run(cli.ExitOK, "pool", "list", "--token-file", access)
	p.run(cli.ExitOK, "pool", "create", "x", "--access-token-file", access)
	p.run(cli.ExitUsage, "pool", "list")

	out, stderr := p.run(cli.ExitOK, "pool", "create", "y", "--token-file", access)
	if !strings.HasPrefix(out, "pul-") || strings.Contains(stderr, "warning") {
		t.Errorf("stdout begins with %.4q, stderr is %q", out, stderr)
	}
	if text, err := os.ReadFile(access); err != nil || strings.TrimSpace(string(text)) != token {
		t.Errorf("the access token was overwritten (%v)", err)
	}
}

func TestPoolDelete(t *testing.T) {
	p := newService(t)
	out, _ := p.run(cli.ExitOK, "pool", "create", "demo")
	a := agent{p, strings.TrimSpace(out)}
	p.run(cli.ExitOK, "deploy", "organization/a/b", "--file", failingRequest(t))
	a.claim()
	_, stderr := p.run(cli.ExitFailure, "pool", "delete", "demo")
	if want := "the pool has running jobs (1): wait for their end, or use --force"; !strings.Contains(stderr, want) {
		t.Errorf("got %q, want %q", stderr, want)
	}
	if out, _ := p.run(cli.ExitOK, "pool", "delete", "demo", "--force"); out != "pool demo is deleted\n" {
		t.Errorf("got %q", out)
	}
	if out, _ := p.run(cli.ExitOK, "pool", "list"); strings.Contains(out, "demo") {
		t.Errorf("the pool still exists:\n%s", out)
	}
	if code := a.call(a.token, "GET", "/api/deployments/poll", "", nil); code != 401 {
		t.Errorf("a poll with the token of the deleted pool got %d, want 401", code)
	}
}

func TestPoolDeleteOnline(t *testing.T) {
	p := newService(t)
	out, _ := p.run(cli.ExitOK, "pool", "create", "demo")
	a := agent{p, strings.TrimSpace(out)}
	a.call(a.token, "GET", "/api/deployments/poll", "", nil)
	_, stderr := p.run(cli.ExitFailure, "pool", "delete", "demo")
	if want := "used the pool less than 3m0s ago: stop the agent, or use --force"; !strings.Contains(stderr, want) {
		t.Errorf("got %q, want %q", stderr, want)
	}
	p.run(cli.ExitOK, "pool", "delete", "demo", "--force")
}

func TestPoolToken(t *testing.T) {
	p := newService(t)
	out, _ := p.run(cli.ExitOK, "pool", "create", "demo")
	first := strings.TrimSpace(out)
	a := agent{p: p}
	polls := func(token string) int { return a.call(token, "GET", "/api/deployments/poll", "", nil) }
	out, _ = p.run(cli.ExitOK, "pool", "token", "demo")
	if second := strings.TrimSpace(out); polls(first) != 204 || polls(second) != 204 {
		t.Errorf("the tokens get %d and %d, want 204", polls(first), polls(second))
	}
	file := filepath.Join(t.TempDir(), "token")
	arguments := []string{"pool", "token", "demo", "--revoke-others", "--output", file}
	if out, stderr := p.run(cli.ExitOK, arguments...); out != "" || stderr != "the token is in "+file+"\n" {
		t.Errorf("pool token --output printed %q and %q", out, stderr)
	}
	if _, stderr := p.run(cli.ExitUsage, arguments...); !strings.Contains(stderr, file+" exists: name a new file") {
		t.Errorf("pool token --output with an existing file: %q", stderr)
	}
	text, err := os.ReadFile(file)
	if third := strings.TrimSpace(string(text)); err != nil || polls(first) != 401 || polls(third) != 204 {
		t.Errorf("after the revocation (%v) the tokens get %d and %d, want 401 and 204", err, polls(first),
			polls(third))
	}
}

func TestPoolFlag(t *testing.T) {
	p := newService(t)
	out, _ := p.run(cli.ExitOK, "pool", "create", "one")
	a := agent{p, strings.TrimSpace(out)}
	p.run(cli.ExitOK, "pool", "create", "two")
	deploy := []string{"deploy", "organization/a/b", "--operation", "update"}
	_, stderr := p.run(cli.ExitFailure, deploy...)
	want := "there are 2 agent pools and none is the default: choose one with --pool or in the stack's settings"
	if !strings.Contains(stderr, want) {
		t.Errorf("got %q, want %q", stderr, want)
	}
	p.run(cli.ExitOK, append(deploy, "--pool", "one")...)
	a.claim()
}
