package main

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/cmwa-project/cmwa/cmd/cli"
)

func TestTokenCommands(t *testing.T) {
	p := newService(t)
	first := p.env["PULUMI_ACCESS_TOKEN"]
	a := agent{p: p}
	login := func(token string) int { return a.call(token, "GET", "/api/user", "", nil) }
	idIn := func(stderr string) string {
		t.Helper()
		id := regexp.MustCompile(`its id is (\S+)\n`).FindStringSubmatch(stderr)
		if id == nil {
			t.Fatalf("stderr has no id: %s", stderr)
		}
		return id[1]
	}

	out, stderr := p.run(cli.ExitOK, "token", "create", "--description", "for CI", "--expires", "90d")
	mine, mineID := strings.TrimSpace(out), idIn(stderr)
	if !strings.HasPrefix(mine, "cmwa-user-") || strings.Contains(stderr, mine) || login(mine) != 200 {
		t.Errorf("token create printed %.10q…, and stderr %q", out, stderr)
	}
	out, stderr = p.run(cli.ExitOK, "token", "create", "--organization", "organization", "--name", "ci", "--admin")
	ci, ciID := strings.TrimSpace(out), idIn(stderr)
	if login(ci) != 200 {
		t.Error("the token of the organization is not accepted")
	}

	list, _ := p.run(cli.ExitOK, "token", "list")
	if !regexp.MustCompile(mineID+` .*for CI`).MatchString(list) || strings.Contains(list, ciID) ||
		strings.Contains(list, mine) {
		t.Errorf("the tokens of the user are:\n%s", list)
	}
	list, _ = p.run(cli.ExitOK, "token", "list", "--organization", "organization", "--all")
	if !regexp.MustCompile(ciID+` +ci +yes +\S+ \S+ +never +\S+ \S+`).MatchString(list) ||
		strings.Contains(list, mineID) {
		t.Errorf("the tokens of the organization are:\n%s", list)
	}

	_, stderr = p.run(cli.ExitFailure, "token", "create", "--organization", "organization", "--name", "ci")
	if !strings.Contains(stderr, "choose another name") {
		t.Errorf("a second token with the name: %s", stderr)
	}
	p.run(cli.ExitFailure, "token", "delete", ciID) // not of the user
	p.run(cli.ExitOK, "token", "delete", ciID, "--organization", "organization")
	p.env["PULUMI_ACCESS_TOKEN"] = mine
	p.run(cli.ExitFailure, "token", "delete", mineID) // itself
	p.env["PULUMI_ACCESS_TOKEN"] = first
	if out, _ := p.run(cli.ExitOK, "token", "delete", mineID); out != "token "+mineID+" is deleted\n" {
		t.Errorf("got %q", out)
	}
	if login(mine) != 401 || login(ci) != 401 {
		t.Errorf("the deleted tokens get %d and %d, want 401", login(mine), login(ci))
	}
}

func TestTokenCreateMistakes(t *testing.T) {
	p := newService(t)
	for _, test := range []struct {
		code int
		args string
		want string
	}{
		{cli.ExitUsage, "--name x", "add --organization"},
		{cli.ExitUsage, "--admin", "add --organization"},
		{cli.ExitUsage, "--organization organization", "needs a --name"},
		{cli.ExitUsage, "--expires soon", "--expires must be a duration"},
		{cli.ExitFailure, "--expires 800d", "--expires must be within 2 years"},
		{cli.ExitFailure, "--organization none --name x", "there is no organization"},
		{cli.ExitUsage, "--output " + filepath.Join(p.directory, "access-token"), "exists"},
	} {
		out, stderr := p.run(test.code, append([]string{"token", "create"}, strings.Fields(test.args)...)...)
		if out != "" || !strings.Contains(stderr, test.want) {
			t.Errorf("token create %s: %q, %q, want %q", test.args, out, stderr, test.want)
		}
	}
	if list, _ := p.run(cli.ExitOK, "token", "list"); strings.Count(list, "\n") != 2 {
		t.Errorf("the tokens after the mistakes:\n%s", list)
	}
}
