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
	noError(t, err)
	digest := schema.Evaluate(source).Digest
	return agentOf(t, func(d *status.Document) {
		d.Agent.Version, d.Config.Path, d.Config.Digest, d.Config.Rejection = cli.Version(), path, digest, nil
		if change != nil {
			change(d)
		}
	})
}

func TestLivePlan(t *testing.T) {
	t.Run("prints what saving a file would do", func(t *testing.T) {
		old := fileOf(t, "agent.yaml", "token: pul-a\ndeploy_target: process\npolling_interval: 10s\n")
		url := agentWithFile(t, old, nil, nil)
		changed := fileOf(t, "new.yaml", "token: pul-b\ndeploy_target: process\npolling_interval: 20s\n")
		same := fileOf(t, "same.yaml", "deploy_target: process # the same\npolling_interval: 10s\ntoken: pul-a\n")
		for candidate, want := range map[string]output{
			changed: {exitChanges, "pool default: tuned, running jobs continue\n" +
				"  live      token             [secret] (changed)\n" +
				"  live      polling_interval  10s -> 20s\n", ""},
			same: {cli.ExitOK, "no change\n", ""},
		} {
			if got := cmwa(nil, "plan", "--live", "--url", url, candidate); got != want {
				t.Errorf("%+v", got)
			}
		}
		result := cmwa(nil, "plan", "--live", "--url", "http://127.0.0.1:1", changed)
		if result.code != exitInvalid || result.stdout != "" || strings.Count(result.stderr, "\n") != 1 ||
			!strings.Contains(result.stderr, "connection refused") {
			t.Errorf("without an agent: %+v", result)
		}
		result = cmwa(nil, "plan", "--live", changed, "--format", "json", "--url", url)
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
			environ []string // of the agent
			change  func(*status.Document)
			want    string
		}{
			"a file that has been changed since": {nil, func(d *status.Document) { d.Config.Digest = "0" },
				"differs from the configuration in force"},
			"the agent's variables": {variables, nil, "with its PULUMI_AGENT_ variables"},
			"another directory": {variables, func(d *status.Document) { d.Agent.Directory = "/srv/agent" },
				"in its working directory /srv/agent"},
			"a refused file": {nil, func(d *status.Document) {
				d.Config.Digest, d.Config.Rejection = "0", &status.Rejection{}
			}, "cmwa status prints why"},
			"another machine": {nil, func(d *status.Document) { d.Config.Path = "/not/here/\x1b[2J.yaml" },
				"cannot be read here"},
			"a relative name": {nil, func(d *status.Document) { d.Config.Path = "agent.yaml" },
				"is this a cmwa agent?"},
			"a device": {nil, func(d *status.Document) { d.Config.Path = "/dev/zero" }, "cannot be read here"},
		} {
			t.Run(name, func(t *testing.T) {
				url := agentWithFile(t, path, test.environ, test.change)
				result := cmwa(nil, "plan", "--live", "--url", url, candidate)
				if result.code != exitInvalid || result.stdout != "" || !strings.Contains(result.stderr, test.want) ||
					strings.Count(result.stderr, "\n") != 1 || strings.ContainsAny(result.stderr, "\x1b") {
					t.Errorf("%+v", result)
				}
			})
		}
		if result := cmwa(variables, "plan", "--live", "--url", agentWithFile(t, path, variables, nil),
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
		} {
			t.Run(name, func(t *testing.T) {
				result := cmwa(nil, "plan", "--live", "--url", url, fileOf(t, "new.yaml", test.file))
				if result.code != exitInvalid || result.stdout != "" || !strings.Contains(result.stderr, test.want) {
					t.Errorf("%+v", result)
				}
			})
		}
		for _, args := range [][]string{
			{"--live", "--url", url, path + "x"},
			{"--url", url, path, path}, {"-", "-"}, {path, filepath.Dir(path)},
		} {
			if result := cmwa(nil, append([]string{"plan"}, args...)...); result.code != exitInvalid ||
				result.stdout != "" || result.stderr == "" {
				t.Errorf("%v: %+v", args, result)
			}
		}
	})

	t.Run("warns about an agent of another version", func(t *testing.T) {
		path := fileOf(t, "agent.yaml", "token: pul-a\ndeploy_target: process\n")
		url := agentWithFile(t, path, nil, func(d *status.Document) { d.Agent.Version = "v0.0.1" })
		if result := cmwa(nil, "plan", "--live", "--url", url, path); result.code != cli.ExitOK ||
			!strings.Contains(result.stderr, "warning: the agent has version v0.0.1") {
			t.Errorf("%+v", result)
		}
	})
}

func TestDryRun(t *testing.T) {
	path := fileOf(t, "agent.yaml", "token: pul-a\ndeploy_target: process\nhttp_server_port: 8081\n"+
		"pools: [{name: two}, {name: one, token: pul-b}]\n")
	want := output{
		cli.ExitOK, "set the agent's HTTP port 0 -> 8081, log, time limits\nstart pool one\nstart pool two\n", "",
	}
	if got := cmwa(nil, "run", "--dry-run", "--config", path); got != want {
		t.Errorf("%+v", got)
	}
	if names, err := os.ReadDir(filepath.Dir(path)); err != nil || len(names) != 1 {
		t.Errorf("%v: %v", err, names)
	}
}
