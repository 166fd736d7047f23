package runtime_test

import (
	"strings"
	"testing"

	"github.com/cmwa-project/cmwa/runtime"
)

func TestLocalLine(t *testing.T) {
	for _, text := range []string{"", "hello", "hello\n", `{"step":77}`, "step 3 | x"} {
		line := runtime.LocalLine(2, text)
		if line != "step 2 | "+strings.TrimSuffix(text, "\n")+"\n" || !runtime.IsLocalLine(line) {
			t.Errorf("the line of %q is %q", text, line)
		}
	}
	for _, message := range []string{
		"", "step", "step 2", "step two | x", "time=2026-01-02 level=ERROR msg=\"step 2 | x\"", `{"step":2}`,
	} {
		if runtime.IsLocalLine(message) {
			t.Errorf("%q is taken for a line of a step", message)
		}
	}
}
