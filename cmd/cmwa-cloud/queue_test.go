package main

import (
	"regexp"
	"strings"
	"testing"

	"github.com/cmwa-project/cmwa/cmd/cli"
)

// matches checks that a text has a match for each expression.
func matches(t *testing.T, text string, expressions ...string) {
	t.Helper()
	for _, expression := range expressions {
		if !regexp.MustCompile(`(?m)` + expression).MatchString(text) {
			t.Errorf("no match for %s in\n%s", expression, text)
		}
	}
}

func TestQueueCommand(t *testing.T) {
	p := newService(t)
	out, _ := p.run(cli.ExitOK, "pool", "create", "demo", "--description", "for tests")
	a := agent{p, strings.TrimSpace(out)}
	request := failingRequest(t)

	out, _ = p.run(cli.ExitOK, "pool", "show", "demo")
	matches(t, out, `^demo: id [0-9a-f-]{36}, made at 20\d\d-`, `^for tests$`, `^no agent used it in the last hour$`)

	p.run(cli.ExitOK, "deploy", "organization/a/one", "--file", request)
	a.work("succeeded")
	p.run(cli.ExitOK, "deploy", "organization/a/two", "--file", request)
	out, stderr := p.run(cli.ExitOK, "queue")
	matches(t, out, `^STACK +VERSION +OPERATION +STATUS +POOL +AGENT +CREATED\na/two +1 .* not-started +- +- +20`,
		`^a/one +1 .* succeeded +demo +box \(pid 42\) +20`)
	if stderr != "" {
		t.Errorf("the queue is not paused, but stderr has %q", stderr)
	}

	out, _ = p.run(cli.ExitOK, "pool", "show", "demo")
	matches(t, out, `^HOST +PID +ADDRESS +VERSION +PLATFORM +STATUS +LAST SEEN\n`+
		`box +42 +127.0.0.1 +1.2.3 +linux/amd64 +online +20`)
	_, stderr = p.run(cli.ExitFailure, "pool", "show", "none")
	matches(t, stderr, `there is no agent pool "none"`)
}

func TestPauseCommand(t *testing.T) {
	p := newService(t)
	out, _ := p.run(cli.ExitOK, "pool", "create", "demo")
	a := agent{p, strings.TrimSpace(out)}
	const stack = "organization/a/one"
	p.run(cli.ExitOK, "deploy", stack, "--file", failingRequest(t))
	poll := func(want int) {
		t.Helper()
		if got := a.call(a.token, "GET", "/api/deployments/poll", "", nil); got != want {
			t.Errorf("a poll got %d, want %d", got, want)
		}
	}

	out, _ = p.run(cli.ExitOK, "pause")
	matches(t, out, `^the organization is paused$`)
	poll(204)
	_, stderr := p.run(cli.ExitOK, "queue", "--org", "organization")
	matches(t, stderr, `^the organization is paused: no deployment starts until cmwa-cloud resume$`)
	p.run(cli.ExitOK, "pause", stack)
	p.run(cli.ExitOK, "resume")
	poll(204)
	out, _ = p.run(cli.ExitOK, "resume", stack)
	matches(t, out, `^organization/a/one is resumed$`)
	poll(200)

	_, stderr = p.run(cli.ExitUsage, "pause", stack, "--org", "organization")
	matches(t, stderr, `name a stack or --org, not both`)
	_, stderr = p.run(cli.ExitFailure, "pause", "organization/a/none")
	matches(t, stderr, `there is no stack organization/a/none`)
	_, stderr = p.run(cli.ExitFailure, "resume", "--org", "none")
	matches(t, stderr, `there is no organization "none"`)
}

func TestStackList(t *testing.T) {
	p := newService(t)
	out, _ := p.run(cli.ExitOK, "stack", "list")
	matches(t, out, `\ASTACK +RESOURCES +LAST UPDATE\n\z`)
	for _, name := range []string{"b", "a"} {
		p.run(cli.ExitOK, "deploy", "organization/project/"+name, "--file", failingRequest(t))
	}
	out, _ = p.run(cli.ExitOK, "stack", "list", "--org", "organization")
	matches(t, out, `\A.*\norganization/project/a +\S+ +never\norganization/project/b +\S+ +never\n\z`)
	out, _ = p.run(cli.ExitOK, "stack", "list", "--org", "other")
	matches(t, out, `\ASTACK +RESOURCES +LAST UPDATE\n\z`)
}

func TestSettings(t *testing.T) {
	p := newService(t)
	p.env["TOKEN"] = "s3cret"
	const stack = "organization/a/one"
	p.run(cli.ExitOK, "pool", "create", "mine")
	_, stderr := p.run(cli.ExitFailure, "settings", "get", stack)
	matches(t, stderr, `there is no stack`)

	out, _ := p.run(cli.ExitOK, "settings", "set", stack, "--repo", "https://git.example/r", "--branch", "main",
		"--pool", "mine", "--env", "A=1", "--secret-env", "TOKEN")
	matches(t, out, `^the settings of organization/a/one are changed$`)
	p.run(cli.ExitOK, "settings", "set", stack, "--branch", "other")
	out, _ = p.run(cli.ExitOK, "settings", "get", stack)
	matches(t, out, `"repoUrl": "https://git.example/r"`, `"branch": "other"`, `"A": "1"`,
		`"agentPoolID": "[0-9a-f-]{36}"`, `"ciphertext"`)
	if strings.Contains(out, "s3cret") {
		t.Errorf("the settings contain a secret:\n%s", out)
	}

	_, stderr = p.run(cli.ExitUsage, "settings", "set", stack)
	matches(t, stderr, `settings set needs a setting`)
	_, stderr = p.run(cli.ExitUsage, "settings", "set", stack, "--operation", "update")
	matches(t, stderr, `unknown flag --operation`)
	_, stderr = p.run(cli.ExitFailure, "settings", "set", stack, "--pool", "none")
	matches(t, stderr, `there is no agent pool "none"`)
}
