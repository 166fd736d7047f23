package watch_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cmwa-project/cmwa/reconcile/watch"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// limit is far beyond what any change takes to be seen by an event, and below
// what the slow comparison takes.
const limit = 8 * time.Second

// file is one that is watched.
type file struct {
	t      *testing.T
	folder string
	path   string
	w      *watch.Watcher
}

func watched(t *testing.T) *file {
	t.Helper()
	f := &file{t: t, folder: t.TempDir()}
	f.path = filepath.Join(f.folder, "agent.yaml")
	f.write(f.path, "first")
	return f
}

// start begins to watch, and waits until the kernel tells of changes.
func (f *file) start() {
	f.t.Helper()
	f.w = watch.New(f.path)
	f.seen("a path that is new")
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f.w.Run(ctx) }()
	f.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			f.t.Error(err)
		}
	})
	for probe := 0; ; probe++ { // until the first change is seen
		f.write(f.path, fmt.Sprint("probe ", probe))
		select {
		case <-f.w.Changed():
			return
		case <-time.After(limit / 8):
			if probe == 8 {
				f.t.Fatal("nothing is ever seen")
			}
		}
	}
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

// seen waits for a token.
func (f *file) seen(what string) {
	f.t.Helper()
	select {
	case <-f.w.Changed():
	case <-time.After(limit):
		f.t.Fatalf("not seen: %s", what)
	}
}

func TestEveryWayOfWritingIsSeen(t *testing.T) {
	for name, change := range map[string]func(f *file, content string){
		"in place": func(f *file, content string) { f.write(f.path, content) },
		"append": func(f *file, content string) {
			file, err := os.OpenFile(f.path, os.O_APPEND|os.O_WRONLY, 0)
			f.must(err)
			_, err = file.WriteString(content)
			f.must(err)
			f.must(file.Close())
		},
		"rename over": func(f *file, content string) {
			f.write(f.path+".tmp", content)
			f.must(os.Rename(f.path+".tmp", f.path))
		},
		"backup, then new": func(f *file, content string) {
			f.must(os.Rename(f.path, f.path+"~"))
			f.write(f.path, content)
		},
		"delete and return": func(f *file, content string) {
			f.must(os.Remove(f.path))
			f.seen("the file is gone")
			f.write(f.path, content)
		},
		"sed": func(f *file, content string) {
			out, err := exec.Command("sed", "-i", "s/^.*$/"+content+"/", f.path).CombinedOutput()
			if err != nil {
				f.t.Fatalf("%v: %s", err, out)
			}
		},
		"new folder": func(f *file, content string) {
			f.must(os.Mkdir(f.folder+".new", 0o700))
			f.write(filepath.Join(f.folder+".new", "agent.yaml"), content)
			f.must(os.Rename(f.folder, f.folder+".old"))
			f.must(os.Rename(f.folder+".new", f.folder))
			f.must(os.RemoveAll(f.folder + ".old"))
		},
		"folder gone and back": func(f *file, content string) {
			f.must(os.RemoveAll(f.folder))
			f.seen("the folder is gone")
			f.must(os.Mkdir(f.folder, 0o700))
			f.write(f.path, content)
		},
		"link": func(f *file, content string) {
			f.write(filepath.Join(f.folder, content), content)
			f.must(os.Symlink(content, f.path+".tmp"))
			f.must(os.Rename(f.path+".tmp", f.path))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := watched(t)
			f.start()
			for i := range 5 {
				change(f, fmt.Sprint("content-", i))
				f.seen(fmt.Sprint(name, " ", i))
			}
		})
	}
}

// swap replaces the content of a mounted ConfigMap as the kubelet does: a new
// folder, and a link that is renamed over the old one.
func swap(f *file, volume string, generation int, content string) {
	f.t.Helper()
	folder := fmt.Sprintf("..2026_11_21_%06d", generation)
	f.must(os.Mkdir(filepath.Join(volume, folder), 0o755))
	f.write(filepath.Join(volume, folder, "agent.yaml"), content)
	before, _ := os.Readlink(filepath.Join(volume, "..data"))
	f.must(os.Symlink(folder, filepath.Join(volume, "..data_tmp")))
	f.must(os.Rename(filepath.Join(volume, "..data_tmp"), filepath.Join(volume, "..data")))
	if before != "" {
		f.must(os.RemoveAll(filepath.Join(volume, before)))
	}
}

func TestFiveHundredSwapsOfAConfigMapAreSeenOneByOne(t *testing.T) {
	t.Parallel()
	f := &file{t: t, folder: t.TempDir()}
	swap(f, f.folder, 0, "generation 0")
	f.path = filepath.Join(f.folder, "agent.yaml")
	f.must(os.Symlink("..data/agent.yaml", f.path))
	f.w = watch.New(f.path)
	f.seen("a path that is new")
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f.w.Run(ctx) }()
	defer func() { cancel(); <-done }()
	for generation := 1; generation <= 500; generation++ {
		swap(f, f.folder, generation, fmt.Sprint("generation ", generation))
		f.seen(fmt.Sprint("swap ", generation))
		if content, err := os.ReadFile(f.path); err != nil || string(content) != fmt.Sprint("generation ", generation) {
			t.Fatalf("swap %d: read %q, %v", generation, content, err)
		}
	}
}

func TestWhatDoesNotChangeTheContentIsNotSaid(t *testing.T) {
	t.Parallel()
	f := watched(t)
	f.start()
	f.write(f.path, "same")
	for quiet := false; !quiet; { // a comparison may have met the file while it was empty
		select {
		case <-f.w.Changed():
		case <-time.After(500 * time.Millisecond):
			quiet = true
		}
	}
	f.write(f.path, "same")
	f.must(os.Chmod(f.path, 0o640))
	f.write(filepath.Join(f.folder, "neighbour"), "x")
	f.must(os.Remove(filepath.Join(f.folder, "neighbour")))
	select {
	case <-f.w.Changed():
		t.Error("no change is said to be one")
	case <-time.After(time.Second):
	}
}

func TestWatch(t *testing.T) {
	t.Run("a change that was read before any comparison and then undone is seen", func(t *testing.T) {
		t.Parallel()
		f := watched(t)
		f.w = watch.New(f.path)
		f.seen("a path that is new")
		f.write(f.path, "an edit")
		f.w.Watch(f.path) // by a reader of the edit
		f.seen("the edit")
		f.write(f.path, "first")
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- f.w.Run(ctx) }()
		f.seen("the edit back")
		cancel()
		f.must(<-done)
	})
}

// A reader must know which file it has read, or it takes a later write in place for
// another file that was renamed there complete.
func TestWatchOtherFileWithTheSameContent(t *testing.T) {
	t.Parallel()
	f := watched(t)
	f.start()
	f.write(f.path, "same")
	f.seen("a change")
	other := filepath.Join(f.folder, "other")
	f.write(other, "same")
	f.must(os.Rename(other, f.path))
	f.seen("another file with the same content")
}

// TestWritten: a file that was made in the place of another one may have more lines to
// come, and one that was renamed there is complete.
func TestWritten(t *testing.T) {
	t.Parallel()
	f := watched(t)
	f.start()
	written := func(what string) {
		t.Helper()
		for end := time.Now().Add(limit); !f.w.Written(f.path); <-time.After(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s is not reported as written", what)
			}
		}
	}
	f.w.Written(f.path)
	for i := range 3 {
		f.must(os.Rename(f.path, filepath.Join(f.folder, "backup")))
		f.write(f.path, fmt.Sprint("made there ", i))
		written("a file that is made there")
		f.seen("a file that is made there")
		other := filepath.Join(f.folder, "other")
		f.write(other, fmt.Sprint("renamed there ", i))
		f.must(os.Rename(other, f.path))
		f.seen("a file that is renamed there")
		if f.w.Written(f.path) {
			t.Error("a file that is renamed there is reported as written")
		}
	}
}

func TestFilesThatAreNamedLaterAreWatchedToo(t *testing.T) {
	t.Parallel()
	f := watched(t)
	other := filepath.Join(t.TempDir(), "token")
	f.start()
	f.w.Watch(f.path, other)
	f.seen("a path that is new")
	f.write(other, "a") // it was not there
	f.seen("the other file has come")
	f.write(other, "b")
	f.seen("the other file has changed")
	f.w.Watch(f.path)
	f.write(other, "c")
	select {
	case <-f.w.Changed():
		t.Error("a file that is not watched any more is said to change")
	case <-time.After(time.Second):
	}
	f.write(f.path, "still")
	f.seen("the first file")
}

func TestABusyFolderDoesNotHideAChange(t *testing.T) {
	t.Parallel()
	f := watched(t)
	f.start()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ctx.Err() == nil; i++ {
			_ = os.WriteFile(filepath.Join(f.folder, fmt.Sprint("noise-", i%100)), []byte("x"), 0o600)
		}
	}()
	f.write(f.path, "in the noise")
	f.seen("a change in a busy folder")
	cancel()
	<-done
}

func TestLookComparesWithoutAnEvent(t *testing.T) {
	t.Parallel()
	f := watched(t)
	f.start()
	f.write(f.path, "changed")
	f.w.Look()
	f.seen("a change")
}
