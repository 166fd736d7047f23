package schema_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cmwa-project/cmwa/schema"
	"github.com/cmwa-project/cmwa/schema/position"
)

func TestLoadOverlaidKeys(t *testing.T) {
	const hint = "remove the key from the file; or unset the variable, and start the agent again"
	for name, test := range map[string]struct {
		file     string
		variable string // without the prefix
		want     string // the warning; may be empty
	}{
		"a duration": {"polling_interval: 9s", "POLLING_INTERVAL=3s",
			"agent.yaml:2:1: polling_interval: is set by PULUMI_AGENT_POLLING_INTERVAL; the file's 9s has no effect"},
		"a longer duration": {"polling_interval: 1m30s", "POLLING_INTERVAL=3s", "agent.yaml:2:1: " +
			"polling_interval: is set by PULUMI_AGENT_POLLING_INTERVAL; the file's 1m30s has no effect"},
		"the same duration": {"polling_interval: 60s", "POLLING_INTERVAL=1m", ""},
		"a number": {"max_concurrent_workflows: 8", "MAX_CONCURRENT_WORKFLOWS=2", "agent.yaml:2:1: " +
			"max_concurrent_workflows: is set by PULUMI_AGENT_MAX_CONCURRENT_WORKFLOWS; the file's 8 has no effect"},
		"a choice": {"log_level: warn", "LOG_LEVEL=debug",
			"agent.yaml:2:1: log_level: is set by PULUMI_AGENT_LOG_LEVEL; the file's warn has no effect"},
		"a boolean": {"pull_image: false", "PULL_IMAGE=1",
			"agent.yaml:2:1: pull_image: is set by PULUMI_AGENT_PULL_IMAGE; the file's false has no effect"},
		"a text, which may contain a secret": {"service_url: https://canary.example.com", "SERVICE_URL=https://a",
			"agent.yaml:2:1: service_url: is set by PULUMI_AGENT_SERVICE_URL; the file's value has no effect"},
		"a text with the same meaning": {"service_url: https://a/", "SERVICE_URL=https://a", ""},
		"a secret": {"owner: x\ntoken: pul-canary", "TOKEN=pul-other",
			"agent.yaml:3:1: token: is set by PULUMI_AGENT_TOKEN; the file's value has no effect"},
		"the same secret": {"owner: x\ntoken: pul-canary", "TOKEN=pul-canary", ""},
		"a list": {"docker: {volumes: ['canary:/a']}", "DOCKER_VOLUMES=a:/b c:/d",
			"agent.yaml:2:10: docker.volumes: is set by PULUMI_AGENT_DOCKER_VOLUMES; the file's value has no effect"},
		"the same list": {"docker: {volumes: ['a:/b', 'c:/d']}", "DOCKER_VOLUMES=a:/b c:/d", ""},
		"a key of a mapping": {"docker:\n  memory: 1g", "DOCKER_MEMORY=2g",
			"agent.yaml:3:3: docker.memory: is set by PULUMI_AGENT_DOCKER_MEMORY; the file's value has no effect"},
		"a wrong value": {"polling_interval: canary", "POLLING_INTERVAL=3s", "agent.yaml:2:1: " +
			"polling_interval: is set by PULUMI_AGENT_POLLING_INTERVAL; the file's value has no effect"},
		"no value":          {"polling_interval:", "POLLING_INTERVAL=3s", ""},
		"an empty variable": {"polling_interval: 9s", "POLLING_INTERVAL= ", ""},
		"a key of an entry of pools": {"pools: [{name: a, token: pul-a, polling_interval: 9s}]",
			"POLLING_INTERVAL=3s", ""},
		"a token file": {"owner: x\ntoken_file: canary", "TOKEN=pul-other",
			"agent.yaml:3:1: token_file: has no effect: PULUMI_AGENT_TOKEN sets the token"},
		"a token file for pools": {"pools: [{name: a}, {name: b, token: pul-b}, {name: c, " +
			"enabled_workflow_types: [insights_scan]}]\nenabled_workflow_types: [deployment]\ntoken_file: canary",
			"TOKEN=pul-other", "agent.yaml:4:1: token_file: has no effect: PULUMI_AGENT_TOKEN sets the token"},
		"a token and a variable for a token file": {"owner: x\ntoken: pul-canary", "TOKEN_FILE=file",
			"agent.yaml:3:1: token: has no effect: PULUMI_AGENT_TOKEN_FILE sets the token"},
	} {
		t.Run(name, func(t *testing.T) {
			first := "token: pul-x\n"
			if strings.Contains(test.file, "token:") || strings.Contains(test.file, "token_file") {
				first = "syslog: false\n"
			}
			variable, value, _ := strings.Cut(test.variable, "=")
			src := source(first + test.file + "\n")
			src.Environ = map[string]string{"PULUMI_AGENT_" + variable: value}
			src.ReadFile = files(map[string]string{"file": "pul-file"})
			for reader, problems := range map[string]position.Problems{
				"an agent": schema.Evaluate(src).Problems, "vet": schema.Vet(src),
			} {
				var messages []string
				for _, p := range problems {
					if p.Rule != position.RuleOverlaid {
						continue
					}
					if p.Severity != position.Warning || p.Hint != hint {
						t.Errorf("%s: %v", reader, p)
					}
					p.Hint = ""
					messages = append(messages, p.String())
				}
				if got := strings.Join(messages, "\n"); got != test.want {
					t.Errorf("%s: got  %s\nwant %s", reader, got, test.want)
				}
				if text := fmt.Sprintf("%v %+v %#v", problems, problems, problems); strings.Contains(text, "canary") {
					t.Errorf("%s: the value is shown: %s", reader, text)
				}
			}
		})
	}

	t.Run("problems about different secrets have the same text but are not equal", func(t *testing.T) {
		environ := map[string]string{"PULUMI_AGENT_TOKEN": "pul-a"}
		one, same := loadWith("token: pul-b\n", environ), loadWith("token: pul-b\n", environ)
		other := loadWith("token: pul-c\n", environ)
		if len(one) != 1 || one[0] != same[0] || one[0] == other[0] || one[0].String() != other[0].String() {
			t.Errorf("got %v, the same %v, and with another token %v", one, same, other)
		}
	})
}
