package main

import (
	"regexp"
	"strings"
	"testing"

	"github.com/cmwa-project/cmwa/cmd/cli"
)

// twoPools is a configuration with two pools.
const twoPools = `polling_interval: 10s
docker: {volumes: ["cache:/root/.cache"], network: builds}
pools:
  - name: linux
    token: pul-c4n4ry-linux
  - name: arm
    token: pul-c4n4ry-arm
    deploy_target: kubernetes
    polling_interval: 20s
    docker: {network: arm}
    pod_template:
      spec: {containers: [{name: pulumi-workflow, env: [{name: PASSWORD, value: c4n4ry}]}]}
`

func TestConfigTellsWhyThereIsNone(t *testing.T) {
	inFolder(t, "agent.yaml", "token: pul-c4n4ry\npolling_interval: 3\nlog_level: trace\n")
	said := tell(nil, "config", "--config", "agent.yaml")
	for _, want := range []string{"agent.yaml:2:19: polling_interval: must be a duration", "agent.yaml:3:12: log_level: must be one of"} {
		if !strings.Contains(said.stderr, want) {
			t.Errorf("it is not said: %s:\n%s", want, said.stderr)
		}
	}
	if said.code != cli.ExitUsage || said.stdout != "" || strings.Contains(said.stderr, "c4n4ry") {
		t.Errorf("%+v", said)
	}
	if said := tell(nil, "config", "--config", "missing.yaml"); said.code != cli.ExitUsage || !strings.Contains(said.stderr, "missing.yaml") {
		t.Errorf("%+v", said)
	}
}

func TestConfigWarnsAndGoesOn(t *testing.T) {
	inFolder(t, "agent.yaml", "token: pul-x\nowner: platform\n")
	said := tell(nil, "config", "--config", "agent.yaml")
	if said.code != 0 || !strings.Contains(said.stderr, `warning: agent.yaml:2:1: owner: unknown key`) || !strings.Contains(said.stdout, "polling_interval: 1m\n") {
		t.Errorf("%+v", said)
	}
}

func TestConfigCommand(t *testing.T) {
	inFolder(t, "agent.yaml", twoPools)
	for args, want := range map[string]string{
		"":                       "\nlog_level: debug\n",
		"--origin":               "\nlog_level: debug +# PULUMI_AGENT_LOG_LEVEL\n",
		"--format json":          `\n  "log_level": "debug",\n`,
		"--format json --origin": `\n  "log_level": {\n    "origin": "PULUMI_AGENT_LOG_LEVEL",\n    "value": "debug"\n`,
	} {
		line := append([]string{"config", "--config", "agent.yaml"}, strings.Fields(args)...)
		said := tell([]string{"PULUMI_AGENT_LOG_LEVEL=debug"}, line...)
		if said.code != 0 || said.stderr != "" || !regexp.MustCompile(want).MatchString(said.stdout) {
			t.Errorf("%s: %+v", args, said)
		}
		if strings.Contains(said.stdout, "c4n4ry") {
			t.Errorf("%s: a secret is shown:\n%s", args, said.stdout)
		}
	}
}
