package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/cmwa-project/cmwa/cmd/cli"
)

// failingRequest writes a deployment request with one step, which fails, to a file, and
// returns the path of the file.
func failingRequest(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "request.json")
	if err := os.WriteFile(file, []byte(`{"cmwaSteps":[{"name":"one","run":"exit 1"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestFollow(t *testing.T) {
	p := newService(t)
	out, _ := p.run(cli.ExitOK, "pool", "create", "demo")
	a := agent{p, strings.TrimSpace(out)}
	p.run(cli.ExitOK, "deploy", "organization/a/b", "--file", failingRequest(t))
	a.work("failed")
	if _, stderr := p.run(cli.ExitFailure, "logs", "--follow", "organization/a/b"); !strings.Contains(stderr,
		"has ended as failed") {
		t.Errorf("logs --follow: got %q", stderr)
	}
}

func TestCancelCommand(t *testing.T) {
	p := newService(t)
	const stack = "organization/a/b"
	request := failingRequest(t)
	out, _ := p.run(cli.ExitOK, "pool", "create", "demo")
	a := agent{p, strings.TrimSpace(out)}
	want := func(t *testing.T, what, got, expression string) {
		t.Helper()
		if !regexp.MustCompile(expression).MatchString(got) {
			t.Errorf("%s: got\n%s\nwant a match for %s", what, got, expression)
		}
	}

	// Deployment 1 is cancelled while it is queued, deployment 2 while it runs.
	p.run(cli.ExitOK, "deploy", stack, "--file", request)
	if out, _ := p.run(cli.ExitOK, "cancel", stack); out != "deployment 1 is cancelled\n" {
		t.Errorf("cancel: got %q", out)
	}
	p.run(cli.ExitOK, "deploy", stack, "--file", request)
	job := a.claim()
	a.call(job.JobToken, "PATCH", "/api/workflow/jobs/"+job.JobID+"/0/status", `{"status":"running"}`, nil)
	p.run(cli.ExitOK, "cancel", stack, "2")

	t.Run("status", func(t *testing.T) {
		out, _ := p.run(cli.ExitOK, "status", stack, "1")
		want(t, "deployment 1", out, `^cancelled: deployment 1, `)
		out, _ = p.run(cli.ExitOK, "status", stack)
		want(t, "deployment 2", out, `(?s)^cancelled: deployment 2, .*0  Setup +cancelled\n +1  one +not-started\n$`)
	})
	t.Run("list", func(t *testing.T) {
		out, _ := p.run(cli.ExitOK, "list", stack)
		want(t, "list", out, `(?ms)^2 +cancelled .*^1 +cancelled `)
	})
	t.Run("logs", func(t *testing.T) {
		for _, version := range []string{"1", "2"} {
			out, _ := p.run(cli.ExitOK, "logs", stack, version)
			want(t, "log of deployment "+version, out, `(?m)^== deployment cancelled at [0-9-]+T[0-9:]+Z\n\z`)
		}
		_, stderr := p.run(cli.ExitFailure, "logs", stack, "--follow")
		want(t, "follow", stderr, `^cmwa-cloud: the deployment has ended as cancelled\n$`)
	})
	t.Run("second cancel", func(t *testing.T) {
		_, stderr := p.run(cli.ExitFailure, "cancel", stack, "2")
		want(t, "cancel", stderr, `^cmwa-cloud: deployment 2 was cancelled at [0-9-]+T[0-9:]+Z\n$`)
	})
}
