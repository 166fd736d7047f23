package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/cmd/cmwa/configure/filetest"
	"github.com/cmwa-project/cmwa/schema"
)

func TestVetWarnsOfWhatRunRefuses(t *testing.T) {
	file := fileOf(t, "agent.yaml", "pools:\n- {name: a, token: pul-0, deploy_target: ecs}\n"+
		"- {name: b, token: pul-1, enabled_workflow_types: [insights_scan], leased_work: never}\n")
	got := cmwa(nil, "vet", file)
	for _, want := range []string{
		":2:42: warning: pools.0.deploy_target: ecs is not in this release; it has docker, kubernetes and process\n",
		":3:51: warning: pools.1.enabled_workflow_types: the pool gets no jobs, because leased_work is never\n",
	} {
		if !strings.Contains(got.stdout, file+want) {
			t.Errorf("vet: there is no %q in\n%s", want, got.stdout)
		}
	}
	if got.code != cli.ExitOK || strings.Count(got.stdout, ": warning: ") != 2 {
		t.Errorf("vet: %+v", got)
	}
	if got := cmwa(nil, "run", "--dry-run", "--config", file); got.code != cli.ExitUsage ||
		!strings.Contains(got.stderr, "ecs is not in this release") {
		t.Errorf("run: %+v", got)
	}
	got = cmwa([]string{"PULUMI_AGENT_DEPLOY_TARGET=ecs"}, "vet", fileOf(t, "agent.yaml", "token: pul-0123\n"))
	if got.code != cli.ExitOK || got.stdout != "warning: PULUMI_AGENT_DEPLOY_TARGET: ecs is not in this release; "+
		"it has docker, kubernetes and process\n" {
		t.Errorf("the variable: %+v", got)
	}
}

// TestPlanJudgesAsTheAgent checks that cmwa plan accepts and rejects the same files as the
// agent does. The result must be the same as with cmwa plan --live and cmwa run.
func TestPlanJudgesAsTheAgent(t *testing.T) {
	t.Parallel()
	const good = "token: pul-0123\ndeploy_target: process\n"
	secret := func(configuration string) string {
		return "apiVersion: v1\nkind: Secret\nmetadata: {name: a}\nstringData:\n  pulumi-workflow-agent.yaml: |\n    " +
			strings.ReplaceAll(strings.TrimSpace(configuration), "\n", "\n    ") + "\n"
	}
	for name, test := range map[string]struct {
		file     string
		refused  bool
		stderr   string // part of the message about the file; empty if there is no message
		positive string // part of the plan, if there is one
	}{
		"a change": {good + "log_level: debug\n", false, "", "info -> debug"},
		"an unknown key": {
			good + "owner: platform\nlog_level: debug\n", false, "owner: unknown key", "info -> debug",
		},
		"an unknown key with strict": {good + "owner: platform\nstrict: true\n", true, "owner: unknown key", ""},
		"a misspelt key":             {good + "log_levl: debug\n", true, `did you mean "log_level"?`, ""},
		"a misspelt service":         {good + "servce_url: https://a\n", true, `did you mean "service_url"?`, ""},
		"a target of another release": {
			"token: pul-0123\ndeploy_target: ecs\necs: {cluster: a, subnets: [b], task_definition: c}\n", true,
			"ecs is not in this release", "",
		},
		"other kinds of work": {
			good + "enabled_workflow_types: [insights_scan]\n", false, "", "enabled_workflow_types",
		},
		"a wrong value": {good + "log_level: loud\n", true, "log_level: must be one of", ""},
		"the misspelt key of a pool": {
			good + "pools: [{name: a, max_concurent_workflows: 2}]\n", true, "did you mean", "",
		},
		"a key of the agent in one pool": {
			good + "pools: [{name: a, strict: true}]\n", true, "it is for the whole agent", "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			old, young := fileOf(t, "old.yaml", good), fileOf(t, "new.yaml", test.file)
			agent, live := []string{runningAgent(t, old)}, []string{"plan", "--live", "--config", old, young}
			answers := map[string]output{
				"plan --live":               cmwa(agent, live...),
				"plan":                      cmwa(nil, "plan", old, young),
				"plan of manifests":         cmwa(nil, "plan", old, fileOf(t, "new.yaml", secret(test.file))),
				"plan from the second file": cmwa(nil, "plan", young, old),
				"run --dry-run":             cmwa(nil, "run", "--dry-run", "--config", young),
			}
			for command, result := range answers {
				invalid := exitInvalid
				if strings.HasPrefix(command, "run") {
					invalid = cli.ExitUsage
				}
				if (result.code == invalid) != test.refused || !strings.Contains(result.stderr, test.stderr) ||
					test.stderr == "" && result.stderr != "" {
					t.Errorf("%s: %+v", command, result)
				}
				if test.refused && result.stdout != "" {
					t.Errorf("%s prints a plan for a refused file:\n%s", command, result.stdout)
				}
			}
			if a, b := answers["plan"], answers["plan --live"]; a.stdout != b.stdout || a.code != b.code ||
				a.stderr != b.stderr || !strings.Contains(a.stdout, test.positive) {
				t.Errorf("plan prints\n%+v\nand plan --live\n%+v", a, b)
			}
		})
	}
}

func TestConfigureTargets(t *testing.T) {
	t.Run("only targets of this release are offered", func(t *testing.T) {
		t.Chdir(t.TempDir())
		got := runConfigure(t, canary+"\n", "--token-stdin", "--target", "ecs")
		if got.code != cli.ExitUsage ||
			!strings.Contains(got.stderr, "ecs is not in this release: write docker, kubernetes or process") {
			t.Errorf("%+v", got)
		}
		filetest.Holds(t)
		if got := cmwa(nil, "__complete", "configure", "--target", "").stdout; got != "docker\nkubernetes\nprocess\n" {
			t.Errorf("shells complete %q", got)
		}
		if help := cmwa(nil, "configure", "--help"); !strings.Contains(help.stdout+help.stderr,
			"where jobs run: docker, kubernetes or process") {
			t.Errorf("%+v", help)
		}
	})

	t.Run("a target of another release in the file is kept", func(t *testing.T) {
		t.Chdir(t.TempDir())
		filetest.Put(t, "agent.yaml", "token: pul-old\ndeploy_target: ecs\n", 0o600)
		got := runConfigure(t, canary+"\n", "--config", "agent.yaml", "--token-stdin", "--yes",
			"--service-url", "http://127.0.0.1:1")
		if got.code != cli.ExitOK || !strings.Contains(filetest.Content(t, "agent.yaml"), "deploy_target: ecs") {
			t.Errorf("%+v", got)
		}
	})
}

func TestTargetsAreInTheSchema(t *testing.T) {
	for _, target := range append(slices.Clone(carriedOut.Targets), "ecs") { // ecs is not in this release
		source := schema.Source{Content: []byte("token: pul-0123\ndeploy_target: " + target + "\n")}
		if config, problems := schema.Load(source); config == nil {
			t.Errorf("%s: %v", target, problems)
		}
	}
}
