package schema_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cmwa-project/cmwa/schema"
)

func TestTemplateRule(t *testing.T) {
	const rules = "pod_template_rules:\n" +
		"  - match: {organization: acme, project: web-*, stack: prod, operation: update}\n" +
		"    patch: {spec: {priority: 1}}\n" +
		"  - {patch: {spec: {priority: 2}}}\n"
	priority := func(n int) map[string]any { return map[string]any{"spec": map[string]any{"priority": n}} }
	inherited := []schema.TemplateRule{
		{Organization: "acme", Project: "web-*", Stack: "prod", Operation: "update", Patch: priority(1)},
		{Patch: priority(2)},
	}

	config := must(t, source("deploy_target: kubernetes\n"+rules+"pools:\n"+
		"  - {name: a, token: pul-a}\n"+
		"  - {name: b, token: pul-b, pod_template_rules: [{patch: {spec: {priority: 3}}}]}\n"+
		"  - {name: c, token: pul-c, pod_template_rules: []}\n"))
	for i, want := range [][]schema.TemplateRule{inherited, {{Patch: priority(3)}}, nil} {
		if diff := cmp.Diff(want, config.Pools[i].PodTemplateRules); diff != "" {
			t.Errorf("pool %s: %s", config.Pools[i].Name, diff)
		}
	}
}
