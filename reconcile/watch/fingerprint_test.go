package watch

import (
	"fmt"
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

// TestWritten checks that a file that is created at the path counts as written, since more
// lines may follow, and that a file that is renamed to the path does not.
func TestWritten(t *testing.T) {
	t.Parallel()
	f := watched(t)
	f.w = New(f.path)
	run(t, f.w.Run)

	// written waits until the last change was compared, and returns the result of Written.
	written := func() bool {
		t.Helper()
		f.settle()
		return f.w.Written(f.path)
	}
	for probe := 0; f.w.Mode() != Events || probe < 2; probe++ { // until the kernel sends events
		f.write(f.path, fmt.Sprint("probe ", probe))
		written()
	}
	for i := range 3 {
		f.must(os.Rename(f.path, filepath.Join(f.dir, "backup")))
		f.write(f.path, fmt.Sprint("created there ", i))
		if !written() {
			t.Error("a file that is created at the path is not reported as written")
		}
		f.rename(f.path, fmt.Sprint("renamed there ", i))
		if written() {
			t.Error("a file that is renamed to the path is reported as written")
		}
	}
}

// TestWrittenMemory checks how long a write counts for Written. A comparison that finds no
// change does not shorten this time, because it may run while the caller reads the file.
func TestWrittenMemory(t *testing.T) {
	f := watched(t)
	w := New(f.path)
	w.Written(f.path) // clears the record of the new path
	w.written["agent.yaml"] = time.Now()
	w.compare(true)
	if !w.Written(f.path) {
		t.Error("a write is not reported after a comparison")
	}
	if w.Written(f.path) {
		t.Error("a write is reported twice")
	}
	w.written["agent.yaml"] = time.Now().Add(-writtenMemory)
	if w.Written(f.path) {
		t.Error("an old write is reported")
	}
}

// TestWrittenWithoutEvents checks that a change counts as written if no event shows how the
// file was changed: when the agent starts, in mode Polling, and before events are processed.
func TestWrittenWithoutEvents(t *testing.T) {
	f := watched(t)
	w := New(f.path)
	wantWritten := func(what string, want bool) {
		t.Helper()
		if got := w.Written(f.path); got != want {
			t.Errorf("%s: Written returns %v, want %v", what, got, want)
		}
	}
	wantWritten("a path that is new", true)
	wantWritten("no change", false)

	f.rename(f.path, "second")
	wantWritten("a change before a comparison", true)
	wantWritten("the same change again, still before a comparison", true)
	w.compare(true)
	wantWritten("the same change, compared after its events", false)

	f.rename(f.path, "third")
	w.compare(true)
	wantWritten("a change that is compared after its events", false)
	f.rename(f.path, "fourth")
	w.compare(false)
	wantWritten("a change that is compared without events", true)
	wantWritten("the same change again", false)

	f.rename(f.path, "fifth")
	w.Watch(f.path)
	wantWritten("a change between the caller's read and Watch", true)

	f.rename(f.path, "sixth")
	for len(w.changed) > 0 { // before Run sends another notification
		<-w.changed
	}
	run(t, w.Run)
	<-w.changed
	wantWritten("a change before the directories are watched", true)
}
