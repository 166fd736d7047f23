package schema_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cmwa-project/cmwa/schema"
	"github.com/cmwa-project/cmwa/schema/position"
)

func TestVetPlaceholderTokens(t *testing.T) {
	for token, want := range map[string]string{
		"pul-...":                    "is a placeholder",
		"pul-<your-token>":           "is a placeholder",
		"<your-token>":               "is a placeholder",
		"<c4n4ry>":                   "is a placeholder",
		"${PULUMI_TOKEN}":            "is a placeholder",
		"pul-${TOKEN}":               "is a placeholder",
		"$(TOKEN)":                   "is a placeholder",
		"pul-":                       "is a placeholder",
		"pul-XXXXXXXX":               "is a placeholder",
		"$PULUMI_TOKEN":              "is not a pool access token, which begins with pul-",
		"2":                          "is not a pool access token, which begins with pul-",
		"c4n4ry":                     "is not a pool access token, which begins with pul-",
		"PUL-c4n4ry":                 "is not a pool access token, which begins with pul-",
		"pul-c4n4ry":                 "",
		"pul-0123456789abcdef012345": "",
		"pul-x":                      "",
	} {
		for name, src := range map[string]schema.Source{
			"token":  source("syslog: false\ntoken: '" + token + "'\n"),
			"a pool": source("pools:\n- name: a\n  token: '" + token + "'\n"),
			"two pools": source("pools: [{name: a, enabled_workflow_types: [deployment]}, {name: b, " +
				"enabled_workflow_types: [insights_scan]}]\nservice_url: https://cloud.example.com\n" +
				"token: '" + token + "'\n"),
			"a token file": source("syslog: false\ntoken_file: file\n"),
			"a variable":   source(""),
			"a Secret": source("apiVersion: v1\nkind: Secret\nstringData:\n  pulumi-workflow-agent.yaml: |\n" +
				"    token: '" + token + "'\n"),
		} {
			src.ReadFile = files(map[string]string{"file": token})
			if name == "a variable" {
				src.Environ = map[string]string{"PULUMI_AGENT_TOKEN": token}
			}
			problems := schema.Vet(src)
			if want == "" && len(problems) > 0 ||
				want != "" && (len(problems) != 1 || problems[0].Rule != position.RulePlaceholder ||
					problems[0].Severity != position.Warning || !strings.HasPrefix(problems[0].Message, want) ||
					problems[0].Line == 0 && name != "a variable") {
				t.Errorf("%s, %q: want %q, got %v", name, token, want, problems)
			}
			if strings.Contains(fmt.Sprintf("%+v", problems), "c4n4ry") {
				t.Errorf("%s: the token is shown: %+v", name, problems)
			}
			if config, problems := schema.Load(src); name != "a Secret" && (config == nil || len(problems) > 0) {
				t.Errorf("Load rejects %s, %q: %v", name, token, problems)
			}
		}
	}
}
