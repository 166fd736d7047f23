package main

import (
	"bytes"
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/cmd/cmwa/configure/filetest"
)

// canary is a token that no output may show.
const canary = filetest.Canary

// configured is the result of cmwa configure without a terminal.
type configured struct {
	code           int
	stdout, stderr string
}

// runConfigure runs cmwa configure in a new directory, with no terminal.
func runConfigure(t *testing.T, stdin string, environ []string, args ...string) configured {
	t.Helper()
	var stdout, stderr bytes.Buffer
	ctx := context.Background()
	code := execute(ctx, ctx, append([]string{"configure"}, args...),
		stdio{environ, strings.NewReader(stdin), &stdout, &stderr})
	if out := stdout.String() + stderr.String(); strings.Contains(out, canary[4:12]) {
		t.Errorf("the output shows the token:\n%s", out)
	}
	return configured{code, stdout.String(), stderr.String()}
}

func TestConfigureCommand(t *testing.T) {
	t.Run("each flag sets its option", func(t *testing.T) {
		t.Chdir(t.TempDir())
		got := runConfigure(t, "", nil, "--config", "x.yaml", "--oidc-token-file", "jwt", "--organization", "acme",
			"--pool-id", "p1", "--service-url", "https://pulumi.example.com", "--target", "process")
		if got.code != cli.ExitOK || got.stderr != "" {
			t.Fatalf("%+v", got)
		}
		p := filetest.Settings(t, "x.yaml")
		if filepath.Base(p.OIDCTokenFile) != "jwt" || p.OrganizationName != "acme" || p.RunnerPoolID != "p1" ||
			p.ServiceURL != "https://pulumi.example.com" || p.DeployTarget != "process" {
			t.Errorf("%+v", p)
		}
		got = runConfigure(t, canary, nil, "--config", "x.yaml", "--yes", "--token-stdin", "--token-file", "token",
			"--service-url", "http://127.0.0.1:1")
		if p := filetest.Settings(t, "x.yaml"); got.code != cli.ExitOK || p.Token.Reveal() != canary ||
			filetest.Content(t, "token") != canary+"\n" {
			t.Errorf("%+v", got)
		}
		filetest.Holds(t, "token", "x.yaml", "x.yaml.bak")
	})
	t.Run("a token is neither a flag nor an argument", func(t *testing.T) {
		for want, lines := range map[string][][]string{
			"configure takes no argument": {{canary}},
			"unknown flag --token:":       {{"--token=" + canary}, {"--token", canary}},
		} {
			for _, args := range lines {
				t.Chdir(t.TempDir())
				got := runConfigure(t, "", nil, args...)
				if got.code != cli.ExitUsage || !strings.Contains(got.stderr, want) || got.stdout != "" {
					t.Errorf("%q: %+v", args, got)
				}
				filetest.Holds(t)
			}
		}
	})
}
