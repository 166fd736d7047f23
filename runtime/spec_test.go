package runtime_test

import (
	"testing"

	"github.com/cmwa-project/cmwa/runtime"
)

func TestLocation(t *testing.T) {
	for want, i := range map[string]runtime.Identity{
		"docker":                       {Target: "docker"},
		"kubernetes":                   {Target: "kubernetes"},
		"kubernetes:jobs":              {Target: "kubernetes", Namespace: "jobs"},
		"kubernetes::prod":             {Target: "kubernetes", Context: "prod"},
		"kubernetes:jobs:arn:c%2Fa%25": {Target: "kubernetes", Namespace: "jobs", Context: "arn:c/a%"},
	} {
		if got := i.Location(); got != want || runtime.ParseLocation(got) != i {
			t.Errorf("%+v: got %s, which is %+v; want %s", i, got, runtime.ParseLocation(got), want)
		}
	}
}

func TestTemplateRuleMatches(t *testing.T) {
	work := runtime.Work{Organization: "acme", Project: "web-shop", Stack: "production", Operation: "update"}
	for _, c := range []struct {
		rule runtime.TemplateRule
		want bool
	}{
		{runtime.TemplateRule{}, true},
		{runtime.TemplateRule{Organization: "acme", Project: "web-*", Stack: "prod*", Operation: "update"}, true},
		{runtime.TemplateRule{Organization: "acme", Operation: "preview"}, false},
		{runtime.TemplateRule{Organization: "Acme"}, false},
		{runtime.TemplateRule{Project: "web"}, false},
		{runtime.TemplateRule{Stack: "[a-"}, false},
	} {
		if got := c.rule.Matches(work); got != c.want {
			t.Errorf("%+v: got %v, want %v", c.rule, got, c.want)
		}
	}
	if (runtime.TemplateRule{Stack: "production"}).Matches(runtime.Work{}) {
		t.Error("a job without names matches a rule for one stack")
	}
}
