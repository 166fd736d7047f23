package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/cmd/cmwa/configure/filetest"
)

// canary is a token that no output may show.
const canary = filetest.Canary

// runConfigure runs cmwa configure with no terminal. The test fails if the output shows the token canary.
func runConfigure(t *testing.T, stdin string, args ...string) output {
	t.Helper()
	got := cmwaReads(stdin, nil, append([]string{"configure"}, args...)...)
	if all := got.stdout + got.stderr; strings.Contains(all, canary[4:12]) {
		t.Errorf("the output shows the token:\n%s", all)
	}
	return got
}

// wantContent checks the content of a file.
func wantContent(t *testing.T, name, want string) {
	t.Helper()
	if got := filetest.Content(t, name); got != want {
		t.Errorf("%s contains %q, want %q", name, got, want)
	}
}

func TestConfigureCommand(t *testing.T) {
	t.Run("each flag sets its option", func(t *testing.T) {
		t.Chdir(t.TempDir())
		got := runConfigure(t, "", "--config", "x.yaml", "--oidc-token-file", "jwt", "--organization", "acme",
			"--pool-id", "p1", "--service-url", "https://pulumi.example.com", "--target", "process")
		if got.code != cli.ExitOK || got.stderr != "" {
			t.Fatalf("%+v", got)
		}
		p := filetest.Settings(t, "x.yaml")
		if filepath.Base(p.OIDCTokenFile) != "jwt" || p.OrganizationName != "acme" || p.RunnerPoolID != "p1" ||
			p.ServiceURL != "https://pulumi.example.com" || p.DeployTarget != "process" {
			t.Errorf("%+v", p)
		}
		got = runConfigure(t, canary, "--config", "x.yaml", "--yes", "--token-stdin", "--token-file", "token",
			"--service-url", "http://127.0.0.1:1")
		if p := filetest.Settings(t, "x.yaml"); got.code != cli.ExitOK || p.Token.Reveal() != canary {
			t.Errorf("%+v", got)
		}
		wantContent(t, "token", canary+"\n")
		filetest.Holds(t, "token", "x.yaml", "x.yaml.bak")
	})
	t.Run("a token is neither a flag nor an argument", func(t *testing.T) {
		for want, lines := range map[string][][]string{
			"configure takes no argument": {{canary}},
			"unknown flag --token:":       {{"--token=" + canary}, {"--token", canary}},
		} {
			for _, args := range lines {
				t.Chdir(t.TempDir())
				got := runConfigure(t, "", args...)
				if got.code != cli.ExitUsage || !strings.Contains(got.stderr, want) || got.stdout != "" {
					t.Errorf("%q: %+v", args, got)
				}
				filetest.Holds(t)
			}
		}
	})
}
