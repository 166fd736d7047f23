package schema_test

import (
	"fmt"
	"testing"

	"github.com/cmwa-project/cmwa/schema"
)

const twoObjects = `apiVersion: v1
kind: Secret
metadata: {name: a}
stringData:
  pulumi-workflow-agent.yaml: |
    token: pul-a
    deploy_target: kubernetes
    log_level: debug
---
apiVersion: v1
kind: ConfigMap
metadata: {name: b}
data:
  worker-pod.json: |
    {"spec": {"hostname": "h"}}
`

func TestConfigurations(t *testing.T) {
	t.Run("are loaded with the templates of the manifest", func(t *testing.T) {
		sources, ok := schema.Configurations(schema.Source{
			Path: "m.yaml", Content: []byte(twoObjects), Environ: map[string]string{"PULUMI_AGENT_LOG_LEVEL": "error"},
		})
		if !ok || len(sources) != 1 {
			t.Fatalf("got %d configurations and ok %t, want one configuration", len(sources), ok)
		}
		c, problems := schema.Load(sources[0])
		if c == nil || len(problems) > 0 {
			t.Fatal(problems)
		}
		if p := c.Pools[0]; p.Token.Reveal() != "pul-a" || c.LogLevel != "debug" ||
			fmt.Sprint(p.PodTemplate) != "map[spec:map[hostname:h]]" {
			t.Errorf("the configuration is %+v, want the token, the level and the template of the manifest", c)
		}
	})

	t.Run("have problems with the lines of the manifest", func(t *testing.T) {
		const content = "apiVersion: v1\nkind: ConfigMap\ndata:\n  pulumi-workflow-agent.yaml: |\n" +
			"    token_file: /t\n    log_level: loud\n"
		sources, _ := schema.Configurations(schema.Source{Path: "m.yaml", Content: []byte(content)})
		_, problems := schema.Load(sources[0])
		if len(problems) != 1 || problems[0].Line != 6 || problems[0].File != "m.yaml" {
			t.Error(problems)
		}
	})

	t.Run("are those that Vet finds", func(t *testing.T) {
		for content, want := range map[string]int{
			"":                                      -1,
			"token: a\n":                            -1,
			"\xff":                                  -1,
			"apiVersion: v1\nkind: Pod\nspec: {}\n": -1,
			"apiVersion: v1\nkind: Service\n":       0,
			"apiVersion: v1\nkind: ConfigMap\ndata: {worker-pod.json: '{}'}\n":           0,
			"apiVersion: v1\nkind: ConfigMap\ndata: {pulumi-workflow-agent.yaml: [a]}\n": 0,
			"apiVersion: v1\nkind: ConfigMap\ndata: {pulumi-workflow-agent.yaml: '{'}\n": 1,
			"apiVersion: v1\nkind: Secret\ndata: {pulumi-deployment-agent.yaml: e30=}\n": 1,
			twoObjects + "---\n" + twoObjects:                                            2,
		} {
			sources, ok := schema.Configurations(schema.Source{Path: "m.yaml", Content: []byte(content)})
			if got := len(sources); ok != (want >= 0) || got != max(want, 0) {
				t.Errorf("%q: got %d configurations and ok %t, want %d (-1 is not ok)", content, got, ok, want)
			}
		}
	})
}
