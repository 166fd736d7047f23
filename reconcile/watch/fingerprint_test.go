package watch

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

func TestFingerprintOfFIFO(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "agent.yaml")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if got, want := fingerprintOf(pipe), (fingerprint{readError: "not a regular file"}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// TestWrittenMemory checks how long a write counts. A comparison that finds no change may run
// while the caller reads the file.
func TestWrittenMemory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(path, []byte("one line\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	w := New(path)
	w.written["config"] = time.Now()
	w.compare()
	if !w.Written(path) {
		t.Error("a comparison hides a write")
	}
	if w.Written(path) {
		t.Error("a write is reported twice")
	}
	w.written["config"] = time.Now().Add(-writtenMemory)
	if w.Written(path) {
		t.Error("an old write is reported")
	}
}
