package watch

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// limit is longer than the delivery of any event takes, and shorter than compareInterval.
const limit = compareInterval / 2

// file is a watched file.
type file struct {
	t    *testing.T
	dir  string
	path string
	w    *Watcher
}

func watched(t *testing.T) *file {
	t.Helper()
	f := &file{t: t, dir: t.TempDir()}
	f.path = filepath.Join(f.dir, "agent.yaml")
	f.write(f.path, "first")
	return f
}

// run calls a function, such as Watcher.Run, in a goroutine. Its context ends with the test, or when stop is called.
// Stop waits until the function has returned.
func run(t testing.TB, function func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- function(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// start starts the Watcher, and waits until the kernel reports changes. No notification is left.
func (f *file) start() {
	f.t.Helper()
	f.w = New(f.path)
	f.detected("a path that is new")
	run(f.t, f.w.Run)
	for probe := 0; ; probe++ { // until the first change is detected
		f.write(f.path, fmt.Sprint("probe ", probe))
		select {
		case <-f.w.Changed():
			f.settle()
			return
		case <-time.After(limit / 8):
			if probe == 8 {
				f.t.Fatal("no change was detected")
			}
		}
	}
}

// settle waits until the Watcher has compared the present content, and discards the notification
// of an earlier change.
func (f *file) settle() {
	f.t.Helper()
	for deadline := time.Now().Add(limit); !f.w.compared(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			f.t.Fatal("the present content was not compared")
		}
	}
	select {
	case <-f.w.Changed():
	default:
	}
}

// compared reports whether the last comparison has seen the present state of all paths. Its
// notification has then been sent.
func (w *Watcher) compared() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, path := range w.paths {
		if w.fingerprints[path] != fingerprintOf(path) {
			return false
		}
	}
	return true
}

// rename renames a file with this content to the path. Unlike write, it is one change: after the
// truncation by write, a comparison may find an empty file.
func (f *file) rename(path, content string) {
	f.t.Helper()
	f.write(path+".renamed", content)
	f.must(os.Rename(path+".renamed", path))
}

func (f *file) write(path, content string) {
	f.t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		f.t.Fatal(err)
	}
}

func (f *file) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

// detected waits for a notification.
func (f *file) detected(what string) {
	f.t.Helper()
	select {
	case <-f.w.Changed():
	case <-time.After(limit):
		f.t.Fatalf("not detected: %s", what)
	}
}

func TestRun(t *testing.T) {
	t.Run("every kind of change is detected", func(t *testing.T) {
		for name, change := range map[string]func(f *file, content string){
			"write in place": func(f *file, content string) { f.write(f.path, content) },
			"append": func(f *file, content string) {
				file, err := os.OpenFile(f.path, os.O_APPEND|os.O_WRONLY, 0)
				f.must(err)
				_, err = file.WriteString(content)
				f.must(err)
				f.must(file.Close())
			},
			"rename to the path": func(f *file, content string) { f.rename(f.path, content) },
			"rename to a backup, then create": func(f *file, content string) {
				f.must(os.Rename(f.path, f.path+"~"))
				f.write(f.path, content)
			},
			"remove, then create": func(f *file, content string) {
				f.must(os.Remove(f.path))
				f.detected("the removal of the file")
				f.write(f.path, content)
			},
			"sed -i": func(f *file, content string) {
				out, err := exec.Command("sed", "-i", "s/^.*$/"+content+"/", f.path).CombinedOutput()
				if err != nil {
					f.t.Fatalf("%v: %s", err, out)
				}
			},
			"replace the directory": func(f *file, content string) {
				f.must(os.Mkdir(f.dir+".new", 0o700))
				f.write(filepath.Join(f.dir+".new", "agent.yaml"), content)
				f.must(os.Rename(f.dir, f.dir+".old"))
				f.must(os.Rename(f.dir+".new", f.dir))
				f.must(os.RemoveAll(f.dir + ".old"))
			},
			"remove the directory, then create it": func(f *file, content string) {
				f.must(os.RemoveAll(f.dir))
				f.detected("the removal of the directory")
				f.must(os.Mkdir(f.dir, 0o700))
				f.write(f.path, content)
			},
			"replace by a link": func(f *file, content string) {
				f.write(filepath.Join(f.dir, content), content)
				f.relink("agent.yaml", content)
			},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				f := watched(t)
				f.start()
				for i := range 5 {
					change(f, fmt.Sprint("content-", i))
					f.detected(fmt.Sprint(name, " ", i))
				}
			})
		}
	})

	t.Run("500 updates of a ConfigMap are detected one by one", func(t *testing.T) {
		t.Parallel()
		f := &file{t: t, dir: t.TempDir()}
		swap(f, f.dir, 0, "generation 0")
		f.path = filepath.Join(f.dir, "agent.yaml")
		f.must(os.Symlink("..data/agent.yaml", f.path))
		f.w = New(f.path)
		f.w.settleDelay = time.Millisecond // 500 delays take long
		f.detected("a path that is new")
		run(t, f.w.Run)
		for generation := 1; generation <= 500; generation++ {
			swap(f, f.dir, generation, fmt.Sprint("generation ", generation))
			f.detected(fmt.Sprint("update ", generation))
			if content, err := os.ReadFile(f.path); err != nil ||
				string(content) != fmt.Sprint("generation ", generation) {
				t.Fatalf("after update %d the content is %q, the error %v", generation, content, err)
			}
		}
	})

	t.Run("unchanged content is not reported", func(t *testing.T) {
		t.Parallel()
		f := watched(t)
		f.start()
		f.rename(f.path, "same")
		f.detected("a change")
		same, err := os.OpenFile(f.path, os.O_WRONLY, 0) // without a truncation, so that the file is never empty
		f.must(err)
		_, err = same.WriteString("same")
		f.must(err)
		f.must(same.Close())
		f.must(os.Chmod(f.path, 0o640))
		f.write(filepath.Join(f.dir, "neighbour"), "x")
		f.must(os.Remove(filepath.Join(f.dir, "neighbour")))
		select {
		case <-f.w.Changed():
			t.Error("unchanged content was reported as a change")
		case <-time.After(time.Second):
		}
	})

	t.Run("busy directory does not hide a change", func(t *testing.T) {
		t.Parallel()
		f := watched(t)
		f.start()
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() {
			defer close(done)
			for i := 0; ctx.Err() == nil; i++ {
				_ = os.WriteFile(filepath.Join(f.dir, fmt.Sprint("noise-", i%100)), []byte("x"), 0o600)
			}
		}()
		f.write(f.path, "written in a busy directory")
		f.detected("a change in a busy directory")
		cancel()
		<-done
	})
}

// swap replaces the content of a mounted ConfigMap as the kubelet does: it creates a directory
// and a link to it, and renames this link to ..data, the name of the old link.
func swap(f *file, volume string, generation int, content string) {
	f.t.Helper()
	dir := fmt.Sprintf("..2026_11_21_%06d", generation)
	f.must(os.Mkdir(filepath.Join(volume, dir), 0o755))
	f.write(filepath.Join(volume, dir, "agent.yaml"), content)
	before, _ := os.Readlink(filepath.Join(volume, "..data"))
	f.must(os.Symlink(dir, filepath.Join(volume, "..data_tmp")))
	f.must(os.Rename(filepath.Join(volume, "..data_tmp"), filepath.Join(volume, "..data")))
	if before != "" {
		f.must(os.RemoveAll(filepath.Join(volume, before)))
	}
}

func TestWatch(t *testing.T) {
	t.Run("change that is undone before a comparison is detected", func(t *testing.T) {
		t.Parallel()
		f := watched(t)
		f.w = New(f.path)
		f.detected("a path that is new")
		f.write(f.path, "an edit")
		f.w.Watch(f.path) // as a caller does that has read the edit
		f.detected("the edit")
		f.write(f.path, "first")
		run(t, f.w.Run)
		f.detected("the undone edit")
	})

	// A reader must know which file it has read. Otherwise a later write in place looks
	// like a complete file that was renamed to the path.
	t.Run("other file with the same content is a change", func(t *testing.T) {
		t.Parallel()
		f := watched(t)
		f.start()
		f.write(f.path, "same")
		f.detected("a change")
		f.rename(f.path, "same")
		f.detected("another file with the same content")
	})

	t.Run("new path is watched, and a removed path is not", func(t *testing.T) {
		t.Parallel()
		f := watched(t)
		other := filepath.Join(t.TempDir(), "token")
		f.start()
		f.w.Watch(f.path, other)
		f.detected("a path that is new")
		f.rename(other, "a") // the file did not exist
		f.detected("the creation of the other file")
		f.rename(other, "b")
		f.detected("the change of the other file")
		f.w.Watch(f.path)
		f.write(other, "c")
		select {
		case <-f.w.Changed():
			t.Error("a file that is no longer watched was reported")
		case <-time.After(time.Second):
		}
		f.write(f.path, "still")
		f.detected("the change of the first file")
	})
}

func TestCheck(t *testing.T) {
	t.Parallel()
	f := watched(t)
	f.start()
	f.write(f.path, "changed")
	f.w.Check()
	f.detected("a change")
}
