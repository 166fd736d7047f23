package watch

import (
	"path/filepath"
	"syscall"
	"testing"
)

func TestPrintOfDoesNotReadAPipe(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "agent.yaml")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if got, want := printOf(pipe), (print{fault: "not a regular file"}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}
