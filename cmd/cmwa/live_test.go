package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/reconcile/status"
	"github.com/cmwa-project/cmwa/schema"
)

// agentWithFile starts a server that returns the /status of an agent, and returns the
// server's URL. The agent has the configuration of the file at path, which it has read
// with these variables. The function change, which may be nil, changes each response.
func agentWithFile(t *testing.T, path string, environ []string, change func(*status.Document)) string {
	t.Helper()
	source, err := schema.Find(schema.SearchPaths{Config: path, Environ: readEnvironment(environ)})
	if err != nil {
		t.Fatal(err)
	}
	digest := schema.Evaluate(source).Digest
	fixed := fixedStatus(t)
	return agentOf(t, func() status.Document {
		d := fixed
		d.Agent.Version, d.Config.Path, d.Config.Digest, d.Config.Rejection = cli.Version(), path, digest, nil
		if change != nil {
			change(&d)
		}
		return d
	}).URL
}

func TestLivePlan(t *testing.T) {
	t.Run("prints what saving a file would do", func(t *testing.T) {
		old := fileOf(t, "agent.yaml", "token: pul-a\ndeploy_target: process\npolling_interval: 10s\n")
		url := agentWithFile(t, old, nil, nil)
		changed := fileOf(t, "new.yaml", "token: pul-b\ndeploy_target: process\npolling_interval: 20s\n")
		same := fileOf(t, "same.yaml", "deploy_target: process # the same\npolling_interval: 10s\ntoken: pul-a\n")
		for name, test := range map[string]struct {
			args []string
			want output
		}{
			"changes": {[]string{changed}, output{exitChanges, "pool default: tuned, running jobs continue\n" +
				"  live      token             [secret] (changed)\n" +
				"  live      polling_interval  10s -> 20s\n", ""}},
			"no change": {[]string{same}, output{cli.ExitOK, "no change\n", ""}},
		} {
			t.Run(name, func(t *testing.T) {
				if result := tell(nil, append([]string{"plan", "--live", "--url", url},
					test.args...)...); result != test.want {
					t.Errorf("%+v", result)
				}
			})
		}
		result := tell(nil, "plan", "--live", changed, "--format", "json", "--url", url)
		var document planDocument
		if err := json.Unmarshal([]byte(result.stdout), &document); err != nil || result.code != exitChanges ||
			len(document.Reloads) != 1 || strings.Contains(result.stdout, "pul-") {
			t.Errorf("%v: %+v", err, result)
		}
	})

	t.Run("needs the file that is in force", func(t *testing.T) {
		path := fileOf(t, "agent.yaml", "token: pul-a\ndeploy_target: process\n")
		candidate := fileOf(t, "new.yaml", "token: pul-b\ndeploy_target: process\n")
		variables := []string{"PULUMI_AGENT_POLLING_INTERVAL=20s"}
		for name, test := range map[string]struct {
			url     string
			environ []string
			want    string
		}{
			"a file that has been changed since": {agentWithFile(t, path, nil,
				func(d *status.Document) { d.Config.Digest = "0" }), nil, "differs from the configuration in force"},
			"the agent's variables": {agentWithFile(t, path, variables, nil), nil,
				"with its PULUMI_AGENT_ variables"},
			"another directory": {agentWithFile(t, path, variables,
				func(d *status.Document) { d.Agent.Directory = "/srv/agent" }), nil,
				"in its working directory /srv/agent"},
			"a refused file": {agentWithFile(t, path, nil, func(d *status.Document) {
				d.Config.Digest,
					d.Config.Rejection = "0", &status.Rejection{}
			}), nil, "cmwa status prints why"},
			"another machine": {agentWithFile(t, path, nil,
				func(d *status.Document) { d.Config.Path = "/not/here/\x1b[2J.yaml" }), nil, "cannot be read here"},
			"a relative name": {agentWithFile(t, path, nil,
				func(d *status.Document) { d.Config.Path = "agent.yaml" }), nil, "is this a cmwa agent?"},
			"a device": {agentWithFile(t, path, nil,
				func(d *status.Document) { d.Config.Path = "/dev/zero" }), nil, "cannot be read here"},
			"no agent": {"http://127.0.0.1:1", nil, "connection refused"},
		} {
			t.Run(name, func(t *testing.T) {
				result := tell(test.environ, "plan", "--live", "--url", test.url, candidate)
				if result.code != exitInvalid || result.stdout != "" || !strings.Contains(result.stderr, test.want) ||
					strings.Count(result.stderr, "\n") != 1 || strings.ContainsAny(result.stderr, "\x1b") {
					t.Errorf("%+v", result)
				}
			})
		}
		if result := tell(variables, "plan", "--live", "--url", agentWithFile(t, path, variables, nil),
			candidate); result.code != exitChanges {
			t.Errorf("with the agent's variables: %+v", result)
		}
	})

	t.Run("rejects what the agent would reject", func(t *testing.T) {
		path := fileOf(t, "agent.yaml", "token: pul-a\ndeploy_target: process\n")
		url := agentWithFile(t, path, nil, nil)
		for name, test := range map[string]struct{ file, want string }{
			"a wrong value": {"token: pul-a\nhttp_server_port: many\n",
				":2:19: http_server_port: must be a whole number"},
			"no token": {"deploy_target: process\n", "there is no pool access token"},
			"a file that is not here": {"token_file: /not/here\ndeploy_target: process\n",
				"there is no file /not/here"},
			"a target not in this build": {
				"token: pul-a\ndeploy_target: ecs\necs: {cluster: a, subnets: [b], task_definition: c}\n", "ecs",
			},
		} {
			t.Run(name, func(t *testing.T) {
				result := tell(nil, "plan", "--live", "--url", url, fileOf(t, "new.yaml", test.file))
				if result.code != exitInvalid || result.stdout != "" || !strings.Contains(result.stderr, test.want) {
					t.Errorf("%+v", result)
				}
			})
		}
		for _, args := range [][]string{{"--live"}, {"--live", path, path}, {"--url", url, path, path}, {"--live",
			"--format", "xml", path}, {"--live", "--url", url, path + "x"}} {
			if result := tell(nil, append([]string{"plan"}, args...)...); result.code != exitInvalid ||
				result.stdout != "" || result.stderr == "" {
				t.Errorf("%v: %+v", args, result)
			}
		}
	})

	t.Run("warns about an agent of another version", func(t *testing.T) {
		path := fileOf(t, "agent.yaml", "token: pul-a\ndeploy_target: process\n")
		url := agentWithFile(t, path, nil, func(d *status.Document) { d.Agent.Version = "v0.0.1" })
		if result := tell(nil, "plan", "--live", "--url", url, path); result.code != cli.ExitOK ||
			!strings.Contains(result.stderr, "warning: the agent has version v0.0.1") {
			t.Errorf("%+v", result)
		}
	})
}

func TestDryRun(t *testing.T) {
	path := fileOf(t, "agent.yaml",
		"token: pul-a\ndeploy_target: process\nhttp_server_port: 8081\n"+
			"pools: [{name: two}, {name: one, token: pul-b}]\n")
	result := tell(nil, "run", "--dry-run", "--config", path)
	if want := (output{
		cli.ExitOK, "set the agent's HTTP port 0 -> 8081, log, time limits\nstart pool one\nstart pool two\n", "",
	}); result != want {
		t.Errorf("%+v", result)
	}
	if names, err := os.ReadDir(filepath.Dir(path)); err != nil || len(names) != 1 {
		t.Errorf("%v: %v", err, names)
	}
	for name, test := range map[string]struct{ file, want string }{
		"a wrong value":  {"token: pul-a\nhttp_server_port: many\n", ":2:19: http_server_port:"},
		"another target": {"token: pul-a\ndeploy_target: ecs\n", "ecs is not in this release"},
	} {
		t.Run(name, func(t *testing.T) {
			if result := tell(nil, "run", "--dry-run", "--config", fileOf(t, "agent.yaml",
				test.file)); result.code != cli.ExitUsage || result.stdout != "" ||
				!strings.Contains(result.stderr, test.want) {
				t.Errorf("%+v", result)
			}
		})
	}
}
