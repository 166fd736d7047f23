package killpoint

import (
	"regexp"
	"testing"
)

func TestPoints(t *testing.T) {
	name, sentence := regexp.MustCompile(`^[a-z]+(_[a-z]+)*$`), regexp.MustCompile(`^[A-Z][^.]*\.$`)
	targets := map[string]bool{"docker": true, "kubernetes": true, "process": true}
	seen := map[Point]bool{}
	for _, e := range Points() {
		if !name.MatchString(string(e.Point)) || seen[e.Point] || !sentence.MatchString(e.Moment) || e.Outcome == "" {
			t.Errorf("%+v needs a unique name, one sentence and an outcome", e)
		}
		seen[e.Point] = true
		for target, reason := range e.Absent {
			if !targets[target] || reason == "" {
				t.Errorf("%s is absent for %q because of %q, want a known target and a reason", e.Point, target, reason)
			}
		}
	}
	if len(seen) < 14 {
		t.Errorf("there are %d points, want at least 14", len(seen))
	}
}
