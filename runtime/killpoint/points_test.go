package killpoint

import (
	"regexp"
	"testing"
)

func TestPoints(t *testing.T) {
	name := regexp.MustCompile(`^[a-z]+(_[a-z]+)*$`)
	seen := map[Point]bool{}
	for _, p := range Points() {
		if !name.MatchString(string(p)) || seen[p] {
			t.Errorf("%q is not a unique name", p)
		}
		seen[p] = true
	}
	if len(seen) < 14 {
		t.Errorf("there are %d points, want at least 14", len(seen))
	}
}
