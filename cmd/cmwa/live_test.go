package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/schema/position"
)

func TestLivePlan(t *testing.T) {
	t.Run("prints what saving a file would do", func(t *testing.T) {
		old := fileOf(t, "agent.yaml", "token: pul-a\ndeploy_target: process\npolling_interval: 10s\n")
		agent := []string{runningAgent(t, old)}
		noError(t, os.WriteFile(old, []byte("polling_interval: rejected\n"), 0o600)) // what is in force stays
		changed := fileOf(t, "new.yaml", "token: pul-b\ndeploy_target: process\npolling_interval: 20s\n")
		same := fileOf(t, "same.yaml", "deploy_target: process # the same\npolling_interval: 10s\ntoken: pul-a\n")
		for candidate, want := range map[string]output{
			changed: {exitChanges, "pool default: tuned, running jobs continue\n" +
				"  live      token             [secret] (changed)\n" +
				"  live      polling_interval  10s -> 20s\n", ""},
			same: {cli.ExitOK, "no change\n", ""},
		} {
			if got := cmwa(agent, "plan", "--live", "--config", old, candidate); got != want {
				t.Errorf("%+v", got)
			}
		}
		result := cmwa(agent, "plan", "--live", changed, "--format", "json", "--config", old)
		var document planDocument
		if err := json.Unmarshal([]byte(result.stdout), &document); err != nil || result.code != exitChanges ||
			len(document.Reloads) != 1 || strings.Contains(result.stdout, "pul-") {
			t.Errorf("%v: %+v", err, result)
		}
	})

	t.Run("uses the variables of the agent, not those of the command", func(t *testing.T) {
		path := fileOf(t, "agent.yaml", "token: pul-a\ndeploy_target: process\n")
		agent := runningAgent(t, path, "PULUMI_AGENT_POLLING_INTERVAL=20s")
		candidate := fileOf(t, "new.yaml", "token: pul-a\ndeploy_target: process\npolling_interval: 10s\n")
		result := cmwa([]string{agent, "PULUMI_AGENT_POLLING_INTERVAL=30s"},
			"plan", "--live", "--config", path, candidate)
		if result.code != cli.ExitOK || result.stdout != "no change\n" ||
			!strings.Contains(result.stderr, candidate+":3:1: warning: polling_interval: is set by") {
			t.Errorf("%+v", result)
		}
	})

	t.Run("shows what changes in Pods", func(t *testing.T) {
		path := fileOf(t, "agent.yaml", "token: pul-a\ndeploy_target: kubernetes\n")
		candidate := fileOf(t, "new.yaml", "token: pul-a\ndeploy_target: kubernetes\nkubernetes: {memory: 7Gi}\n")
		result := cmwa([]string{runningAgent(t, path)}, "plan", "--live", "--config", path, candidate)
		if result.code != exitChanges || !strings.Contains(result.stdout, "Pods of the next jobs") {
			t.Errorf("%+v", result)
		}
	})

	t.Run("rejects what the agent would reject", func(t *testing.T) {
		path := fileOf(t, "agent.yaml", "token: pul-a\ndeploy_target: process\n")
		agent := []string{runningAgent(t, path)}
		for name, test := range map[string]struct{ file, want string }{
			"a wrong value": {"token: pul-a\nhttp_server_port: many\n",
				":2:19: http_server_port: must be a whole number"},
			"no token": {"deploy_target: process\n", "there is no pool access token"},
			"a file that is not here": {"token_file: /not/here\ndeploy_target: process\n",
				"there is no file /not/here"},
			"a file that is too large": {strings.Repeat("# ", position.MaxFile/2) + "\n", "larger than 1024 KiB"},
		} {
			t.Run(name, func(t *testing.T) {
				result := cmwa(agent, "plan", "--live", "--config", path, fileOf(t, "new.yaml", test.file))
				if result.code != exitInvalid || result.stdout != "" || !strings.Contains(result.stderr, test.want) {
					t.Errorf("%+v", result)
				}
			})
		}
		for _, args := range [][]string{
			{"--live", "--config", path, path + "x"}, {"--live", "--config", path + "x", path},
			{"--config", path, path, path}, {"-", "-"}, {path, t.TempDir()},
		} {
			if result := cmwa(agent, append([]string{"plan"}, args...)...); result.code != exitInvalid ||
				result.stdout != "" || result.stderr == "" {
				t.Errorf("%v: %+v", args, result)
			}
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
