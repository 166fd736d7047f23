package main

import (
	"bytes"
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/schema"
)

// canary is a token that no output may show.
const canary = "pul-c4n4ryc4n4ryc4n4ryc4n4ry"

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

// emptyDirectory makes a new directory the current one.
func emptyDirectory(t *testing.T) {
	t.Helper()
	t.Chdir(t.TempDir())
}

func put(t *testing.T, name, content string, mode fs.FileMode) {
	t.Helper()
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(name, mode); err != nil {
		t.Fatal(err)
	}
}

func content(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func mode(t *testing.T, name string) fs.FileMode {
	t.Helper()
	info, err := os.Lstat(name)
	if err != nil {
		t.Fatal(err)
	}
	return info.Mode()
}

// holds checks the names of the files in the current directory.
func holds(t *testing.T, names ...string) {
	t.Helper()
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if strings.Join(got, " ") != strings.Join(names, " ") {
		t.Errorf("the directory contains %v, want %v", got, names)
	}
}

// settings loads a file, which must have no problems.
func settings(t *testing.T, name string) schema.Pool {
	t.Helper()
	source, err := schema.Find(schema.SearchPaths{Config: name})
	if err != nil {
		t.Fatal(err)
	}
	c, problems := schema.Load(source)
	if len(problems) > 0 {
		t.Fatalf("%v in\n%s", problems, source.Content)
	}
	return c.Pools[0]
}

// ownTokens is a configuration whose pools have their own credentials.
const ownTokens = "# pools\npools:\n- name: a\n  token: pul-a\n" +
	"- name: b\n  oidc_token_file: /run/jwt\n  organization_name: acme\n  runner_pool_id: p\n"

// existing is a configuration with comments and an unknown key.
const existing = "# ours\r\nlog_level: debug # for now\r\nunknown: [1, 2]\r\n" +
	"token:   'pul-old'  # from the console\r\n# end"

func TestConfigureCommand(t *testing.T) {
	t.Run("each flag sets its option", func(t *testing.T) {
		emptyDirectory(t)
		got := runConfigure(t, "", nil, "--config", "x.yaml", "--oidc-token-file", "jwt", "--organization", "acme",
			"--pool-id", "p1", "--service-url", "https://pulumi.example.com", "--target", "process")
		if got.code != cli.ExitOK || got.stderr != "" {
			t.Fatalf("%+v", got)
		}
		p := settings(t, "x.yaml")
		if filepath.Base(p.OIDCTokenFile) != "jwt" || p.OrganizationName != "acme" || p.RunnerPoolID != "p1" ||
			p.ServiceURL != "https://pulumi.example.com" || p.DeployTarget != "process" {
			t.Errorf("%+v", p)
		}
		got = runConfigure(t, canary, nil, "--config", "x.yaml", "--yes", "--token-stdin", "--token-file", "token",
			"--service-url", "http://127.0.0.1:1")
		if p := settings(t, "x.yaml"); got.code != cli.ExitOK || p.Token.Reveal() != canary ||
			content(t, "token") != canary+"\n" {
			t.Errorf("%+v", got)
		}
		holds(t, "token", "x.yaml")
	})
	t.Run("a token is neither a flag nor an argument", func(t *testing.T) {
		for want, lines := range map[string][][]string{
			"configure takes no argument": {{canary}},
			"unknown flag --token:":       {{"--token=" + canary}, {"--token", canary}},
		} {
			for _, args := range lines {
				emptyDirectory(t)
				got := runConfigure(t, "", nil, args...)
				if got.code != cli.ExitUsage || !strings.Contains(got.stderr, want) || got.stdout != "" {
					t.Errorf("%q: %+v", args, got)
				}
				holds(t)
			}
		}
	})
}
