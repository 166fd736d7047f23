package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/cmd/cmwa/command"
	"github.com/cmwa-project/cmwa/schema"
)

// foreign are targets that the schema knows and this release does not have.
var foreign = []string{"ecs"}

func TestVetWarnsOfWhatRunRefuses(t *testing.T) {
	for _, target := range foreign {
		file := fileOf(t, "agent.yaml", "pools:\n- {name: a, token: pul-0, deploy_target: "+target+"}\n- {name: b, token: pul-1, enabled_workflow_types: [insights_scan]}\n")
		code, stdout, _ := commandLine(nil, "vet", file)
		for _, want := range []string{
			fmt.Sprintf("%s:2:42: warning: pools.0.deploy_target: %s is not in this release; it has docker, kubernetes and process\n", file, target),
			fmt.Sprintf("%s:3:51: warning: pools.1.enabled_workflow_types: must contain deployment, as this release claims nothing else\n", file),
		} {
			if !strings.Contains(stdout, want) {
				t.Errorf("vet: there is no %q in\n%s", want, stdout)
			}
		}
		if code != cli.ExitOK || strings.Count(stdout, "\n") != 2 {
			t.Errorf("vet: exit code %d\n%s", code, stdout)
		}
		if said := tell(nil, "run", "--dry-run", "--config", file); said.code != cli.ExitUsage || !strings.Contains(said.stderr, target+" is not in this release") {
			t.Errorf("run: %+v", said)
		}
	}
	code, stdout, _ := commandLine([]string{"PULUMI_AGENT_DEPLOY_TARGET=ecs"}, "vet", fileOf(t, "agent.yaml", "token: pul-0123\n"))
	if code != cli.ExitOK || stdout != "warning: PULUMI_AGENT_DEPLOY_TARGET: ecs is not in this release; it has docker, kubernetes and process\n" {
		t.Errorf("the variable: exit code %d, %q", code, stdout)
	}
}

// The verdict of cmwa plan about a file is that of the agent: the same as that of
// cmwa plan --live and of cmwa run.
func TestPlanJudgesAsTheAgent(t *testing.T) {
	const good = "token: pul-0123\ndeploy_target: process\n"
	manifest := func(configuration string) string {
		return "apiVersion: v1\nkind: Secret\nmetadata: {name: a}\nstringData:\n  pulumi-workflow-agent.yaml: |\n    " +
			strings.ReplaceAll(strings.TrimSpace(configuration), "\n", "\n    ") + "\n"
	}
	for name, test := range map[string]struct {
		file     string
		refused  bool
		says     string // of the second file
		positive string // in the plan, if there is one
	}{
		"a change":                       {good + "log_level: debug\n", false, "", "info -> debug"},
		"a key like no other":            {good + "owner: platform\nlog_level: debug\n", false, "owner: unknown key", "info -> debug"},
		"a key like no other, strictly":  {good + "owner: platform\nstrict: true\n", true, "owner: unknown key", ""},
		"a misspelt key":                 {good + "log_levl: debug\n", true, `did you mean "log_level"?`, ""},
		"a misspelt service":             {good + "servce_url: https://a\n", true, `did you mean "service_url"?`, ""},
		"a target of another release":    {"token: pul-0123\ndeploy_target: ecs\necs: {cluster: a}\n", true, "ecs is not in this release", ""},
		"kinds of work of another":       {good + "enabled_workflow_types: [insights_scan]\n", true, "as this release claims nothing else", ""},
		"a wrong value":                  {good + "log_level: loud\n", true, "log_level: must be one of", ""},
		"the misspelt key of a pool":     {good + "pools: [{name: a, max_concurent_workflows: 2}]\n", true, "did you mean", ""},
		"a key of the agent in one pool": {good + "pools: [{name: a, strict: true}]\n", true, "it is for the whole agent", ""},
	} {
		t.Run(name, func(t *testing.T) {
			old, young := fileOf(t, "old.yaml", good), fileOf(t, "new.yaml", test.file)
			live := []string{"plan", "--live", "--url", agentWithFile(t, old, nil, nil)}
			answers := map[string]told{
				"plan --live":               tell(nil, append(live, young)...),
				"plan":                      tell(nil, "plan", old, young),
				"plan of manifests":         tell(nil, "plan", old, fileOf(t, "new.yaml", manifest(test.file))),
				"plan from the second file": tell(nil, "plan", young, old),
				"run --dry-run":             tell(nil, "run", "--dry-run", "--config", young),
			}
			for command, said := range answers {
				invalid := exitInvalid
				if strings.HasPrefix(command, "run") {
					invalid = cli.ExitUsage
				}
				if (said.code == invalid) != test.refused || !strings.Contains(said.stderr, test.says) || test.says == "" && said.stderr != "" {
					t.Errorf("%s: %+v", command, said)
				}
				if test.refused && said.stdout != "" {
					t.Errorf("%s: there is a plan:\n%s", command, said.stdout)
				}
			}
			if a, b := answers["plan"], answers["plan --live"]; a.stdout != b.stdout || a.code != b.code || a.stderr != b.stderr || !strings.Contains(a.stdout, test.positive) {
				t.Errorf("plan says\n%+v\nand plan --live\n%+v", a, b)
			}
		})
	}
}

func TestConfigureOffersTheTargetsOfThisRelease(t *testing.T) {
	emptyFolder(t)
	for _, target := range foreign {
		got := runConfigure(t, canary+"\n", nil, "--token-stdin", "--target", target)
		if got.code != cli.ExitUsage || !strings.Contains(got.stderr, target+" is not in this release: write docker, kubernetes or process") {
			t.Errorf("%s: %+v", target, got)
		}
		holds(t)
	}
	for _, shell := range command.Shells() {
		script := tell(nil, "completion", shell).stdout
		if strings.Contains(script, "ecs process") || !strings.Contains(script, "docker kubernetes process") {
			t.Errorf("the script for %s does not offer docker, kubernetes and process alone", shell)
		}
	}
	if help := tell(nil, "configure", "--help"); !strings.Contains(help.stdout+help.stderr, "where jobs run: docker, kubernetes or process") {
		t.Errorf("%+v", help)
	}
}

func TestConfigureKeepsATargetOfAnotherRelease(t *testing.T) {
	emptyFolder(t)
	put(t, "agent.yaml", "token: pul-old\ndeploy_target: ecs\n", 0o600)
	got := runConfigure(t, canary+"\n", nil, "--config", "agent.yaml", "--token-stdin", "--yes")
	if got.code != cli.ExitOK || !strings.Contains(content(t, "agent.yaml"), "deploy_target: ecs") {
		t.Errorf("%+v", got)
	}
}

func TestTargetsAreInTheSchema(t *testing.T) {
	for _, target := range append(slices.Clone(carriedOut.Targets), foreign...) {
		source := schema.Source{Content: []byte("token: pul-0123\ndeploy_target: " + target + "\n")}
		if config, problems := schema.Load(source); config == nil {
			t.Errorf("%s: %v", target, problems)
		}
	}
}
