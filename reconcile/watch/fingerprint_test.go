package watch

import (
	"context"
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
	dir := t.TempDir()
	path := filepath.Join(dir, "agent.yaml")
	write := func(path, content string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	rename := func(from, to string) {
		t.Helper()
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	write(path, "first")
	w := New(path)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()

	// written waits until the last change was compared, and returns the result of Written.
	written := func() bool {
		t.Helper()
		for end := time.Now().Add(compareInterval / 2); !w.Compared(); <-time.After(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("the change was not compared")
			}
		}
		return w.Written(path)
	}
	for probe := 0; w.Mode() != Events || probe < 2; probe++ { // until the kernel sends events
		write(path, fmt.Sprint("probe ", probe))
		written()
	}
	for i := range 3 {
		rename(path, filepath.Join(dir, "backup"))
		write(path, fmt.Sprint("created there ", i))
		if !written() {
			t.Error("a file that is created at the path is not reported as written")
		}
		other := filepath.Join(dir, "other")
		write(other, fmt.Sprint("renamed there ", i))
		rename(other, path)
		if written() {
			t.Error("a file that is renamed to the path is reported as written")
		}
	}
}

// TestWrittenMemory checks how long a write counts for Written. A comparison that finds no
// change does not shorten this time, because it may run while the caller reads the file.
func TestWrittenMemory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(path, []byte("one line\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	w := New(path)
	w.Written(path) // clears the record of the new path
	w.written["config"] = time.Now()
	w.compare(true)
	if !w.Written(path) {
		t.Error("a write is not reported after a comparison")
	}
	if w.Written(path) {
		t.Error("a write is reported twice")
	}
	w.written["config"] = time.Now().Add(-writtenMemory)
	if w.Written(path) {
		t.Error("an old write is reported")
	}
}

// TestWrittenWithoutEvents checks that a change counts as written if no event shows how the
// file was changed: when the agent starts, in mode Polling, and before events are processed.
func TestWrittenWithoutEvents(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "config")
	rename := func(content string) {
		t.Helper()
		if err := os.WriteFile(path+".new", []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	written := func(w *Watcher, what string, want bool) {
		t.Helper()
		if got := w.Written(path); got != want {
			t.Errorf("%s: Written returns %v, want %v", what, got, want)
		}
	}
	rename("first")
	w := New(path)
	written(w, "a path that is new", true)
	written(w, "no change", false)

	rename("second")
	written(w, "a change before a comparison", true)
	written(w, "the same change again, still before a comparison", true)
	w.compare(true)
	written(w, "the same change, compared after its events", false)

	rename("third")
	w.compare(true)
	written(w, "a change that is compared after its events", false)
	rename("fourth")
	w.compare(false)
	written(w, "a change that is compared without events", true)
	written(w, "the same change again", false)

	rename("fifth")
	w.Watch(path)
	written(w, "a change between the caller's read and Watch", true)

	rename("sixth")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	for len(w.changed) > 0 { // before Run sends another notification
		<-w.changed
	}
	go func() { done <- w.Run(ctx) }()
	<-w.changed
	written(w, "a change before the directories are watched", true)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
