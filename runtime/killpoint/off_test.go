//go:build !killpoints

package killpoint

import (
	"bytes"
	"os/exec"
	"testing"
)

// TestHit builds this package without the tag killpoints, and tests it with the tag.
func TestHit(t *testing.T) {
	t.Run("a usual build inlines Hit, and ignores the variable", func(t *testing.T) {
		t.Setenv("CMWA_KILL_AT", string(Started))
		for _, p := range Points() {
			Hit(p)
		}
		var out bytes.Buffer
		if n, err := Write(Started, &out, []byte("handoff")); n != 7 || err != nil || out.String() != "handoff" {
			t.Errorf("wrote %d bytes, %v: %q", n, err, &out)
		}
		text, err := exec.Command("go", "build", "-gcflags=-m", ".").CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		for _, want := range []string{"can inline Hit", "can inline Write"} {
			if !bytes.Contains(text, []byte(want)) {
				t.Errorf("the compiler does not report %q:\n%s", want, text)
			}
		}
	})
	t.Run("a build with the tag ends at the chosen hit", func(t *testing.T) {
		cmd := exec.Command("go", "test", "-count=1", "-tags=killpoints", "-run=^TestChoose$", ".")
		out, err := cmd.CombinedOutput()
		if err != nil || !bytes.Contains(out, []byte("ok")) {
			t.Errorf("%v: %s", err, out)
		}
	})
}
