package watch

import (
	"context"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
)

// An overflow of the kernel's queue says that events were lost, and not which. A
// file that is written through memory makes no event (inotify(7)), as if its event
// were one of those.
func TestAnOverflowOfTheQueueIsFollowedByALook(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.yaml")
	if err := os.WriteFile(path, []byte("first"), 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	memory, err := syscall.Mmap(int(file.Fd()), 0, len("first"), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Munmap(memory) }()

	w := New(path)
	<-w.Changed() // a path that is new
	notify, err := fsnotify.NewBufferedWatcher(64)
	if err != nil {
		t.Fatal(err)
	}
	defer notify.Close()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.listen(ctx, notify) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()

	for _, content := range []string{"other", "third"} { // the look at the beginning may see the first
		copy(memory, content)
		notify.Errors <- fsnotify.ErrEventOverflow
		select {
		case <-w.Changed():
		case <-time.After(net / 3):
			t.Fatalf("%q is not seen after an overflow", content)
		}
	}
}

// fsnotify holds a lock while it tells of an error, and the one who makes watches
// waits for that lock: an error must be taken also while watches are made.
func TestAnErrorIsTakenAlsoWhileWatchesAreMade(t *testing.T) {
	w := New(filepath.Join(t.TempDir(), "agent.yaml"))
	notify, err := fsnotify.NewBufferedWatcher(64)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	w.mu.Lock() // which who makes watches needs
	go func() { done <- w.listen(ctx, notify) }()
	for range 3 {
		select {
		case notify.Errors <- syscall.EINVAL:
		case <-time.After(net / 3):
			t.Error("nobody takes the error")
		}
	}
	w.mu.Unlock()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
