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
