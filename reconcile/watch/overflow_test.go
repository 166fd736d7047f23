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

func TestListen(t *testing.T) {
	// An overflow of the kernel's queue means that events were lost. The test writes the file
	// through mmap, which causes no event (inotify(7)), as if the event was lost.
	t.Run("overflow causes a comparison", func(t *testing.T) {
		f := watched(t)
		file, err := os.OpenFile(f.path, os.O_RDWR, 0)
		f.must(err)
		defer file.Close()
		memory, err := syscall.Mmap(int(file.Fd()), 0, len("first"), syscall.PROT_READ|syscall.PROT_WRITE,
			syscall.MAP_SHARED)
		f.must(err)
		defer func() { _ = syscall.Munmap(memory) }()

		w := New(f.path)
		<-w.Changed() // a path that is new
		notify, err := fsnotify.NewBufferedWatcher(64)
		f.must(err)
		defer notify.Close()
		defer run(t, func(ctx context.Context) error { return w.listen(ctx, notify) })()

		// The comparison at the start of listen may detect the first change.
		for _, content := range []string{"other", "third"} {
			copy(memory, content)
			notify.Errors <- fsnotify.ErrEventOverflow
			select {
			case <-w.Changed():
			case <-time.After(compareInterval / 3):
				t.Fatalf("%q was not detected after an overflow", content)
			}
		}
	})

	// fsnotify holds a lock while it sends an error, and adding a watch needs that lock.
	// Errors must therefore be received also while watches are added.
	t.Run("errors are received while watches are added", func(t *testing.T) {
		w := New(filepath.Join(t.TempDir(), "agent.yaml"))
		notify, err := fsnotify.NewBufferedWatcher(64)
		if err != nil {
			t.Fatal(err)
		}
		w.mu.Lock() // blocks the goroutine that adds watches
		run(t, func(ctx context.Context) error { return w.listen(ctx, notify) })
		for range 3 {
			select {
			case notify.Errors <- syscall.EINVAL:
			case <-time.After(compareInterval / 3):
				t.Error("the error was not received")
			}
		}
		w.mu.Unlock()
	})
}
