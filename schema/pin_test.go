package schema_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/cmwa-project/cmwa/schema"
)

// TestLoadPinnedServiceURL checks that each pool must have the pinned service_url.
func TestLoadPinnedServiceURL(t *testing.T) {
	const pin, file = "https://pulumi.example", "token: pul-a\nservice_url: "
	const place = "agent.yaml:2 service_url"
	for name, c := range map[string]struct {
		file    string
		environ map[string]string
		want    []string // positions of the problems
	}{
		"the same":         {file: file + "https://pulumi.example\n"},
		"with a slash":     {file: file + "https://pulumi.example/\n"},
		"another":          {file: file + "https://other.example\n", want: []string{place}},
		"another path":     {file: file + "https://pulumi.example/x\n", want: []string{place}},
		"without a scheme": {file: file + "pulumi.example\n", want: []string{place}},
		"the default":      {file: "token: pul-a\n", want: []string{"agent.yaml:0 service_url"}},
		"a variable": {
			file:    file + "https://pulumi.example\n",
			environ: map[string]string{"PULUMI_AGENT_SERVICE_URL": "https://other.example"},
			want:    []string{":0 PULUMI_AGENT_SERVICE_URL"},
		},
		"of one pool": {
			file: "service_url: https://pulumi.example\npools:\n- {name: a, token: pul-a}\n" +
				"- {name: b, token: pul-b, service_url: https://other.example}\n",
			want: []string{"agent.yaml:4 pools.1.service_url"},
		},
	} {
		for _, pinned := range []string{pin, pin + "/"} {
			src := source(c.file)
			src.Environ, src.PinnedServiceURL = c.environ, pinned
			config, problems := schema.Load(src)
			var got []string
			for _, problem := range problems.Errors() {
				got = append(got, fmt.Sprintf("%s:%d %s", problem.File, problem.Line, problem.Path))
			}
			if !slices.Equal(got, c.want) || (config == nil) != (len(c.want) > 0) {
				t.Errorf("%s: the problems are at %q, want %q:\n%v", name, got, c.want, problems)
			}
		}
	}
}
