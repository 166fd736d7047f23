package watch_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/reconcile/watch"
)

// below makes a file to watch below a folder, by its path from there.
func below(t *testing.T, folder, path string) *file {
	t.Helper()
	f := &file{t: t, folder: folder, path: filepath.Join(folder, path)}
	f.must(os.MkdirAll(filepath.Dir(f.path), 0o700))
	f.write(f.path, "first")
	return f
}

// replace puts a new folder with a file in it in place of another, as a tool that
// prepares a whole tree does.
func (f *file) replace(folder, path, content string) {
	f.t.Helper()
	folder = filepath.Join(f.folder, folder)
	f.must(os.MkdirAll(filepath.Dir(filepath.Join(folder+".new", path)), 0o700))
	f.write(filepath.Join(folder+".new", path), content)
	f.must(os.Rename(folder, folder+"."+content))
	f.must(os.Rename(folder+".new", folder))
}

// relink puts a link in place of another.
func (f *file) relink(link, target string) {
	f.t.Helper()
	link = filepath.Join(f.folder, link)
	f.must(os.Symlink(target, link+".new"))
	f.must(os.Rename(link+".new", link))
}

func TestAFolderThatIsReplacedHighAboveTheFileIsSeen(t *testing.T) {
	for _, replaced := range []struct{ folder, path string }{
		{"a", "b/c/agent.yaml"}, {"a/b", "c/agent.yaml"}, {"a/b/c", "agent.yaml"},
	} {
		t.Run(replaced.folder, func(t *testing.T) {
			t.Parallel()
			f := below(t, t.TempDir(), "a/b/c/agent.yaml")
			f.start()
			for i := range 3 {
				f.replace(replaced.folder, replaced.path, fmt.Sprint("replaced ", i))
				f.seen(fmt.Sprint("another ", replaced.folder))
				f.write(f.path, fmt.Sprint("edited ", i))
				f.seen("an edit in it")
			}
		})
	}
}

func TestAFolderThatIsReplacedOnTheWayOfALinkIsSeen(t *testing.T) {
	t.Parallel()
	// The way: link -> far/real, far/real/b/agent.yaml -> ../../other/agent.yaml
	f := below(t, t.TempDir(), "far/other/agent.yaml")
	f.must(os.MkdirAll(filepath.Join(f.folder, "far/real/b"), 0o700))
	f.must(os.Symlink("../../other/agent.yaml", filepath.Join(f.folder, "far/real/b/agent.yaml")))
	f.must(os.Symlink(filepath.Join(f.folder, "far/real"), filepath.Join(f.folder, "link")))
	f.path = filepath.Join(f.folder, "link/b/agent.yaml")
	f.start()

	f.replace("far/other", "agent.yaml", "another folder of the file")
	f.seen("another folder of the file")
	f.replace("far/real", "b/agent.yaml", "another target of the link")
	f.seen("another target of the link")
	f.replace("far", "real/b/agent.yaml", "another folder of the link's target")
	f.seen("another folder of the link's target")
	below(t, f.folder, "next/b/agent.yaml")
	f.relink("link", "next")
	f.seen("another link")
	f.replace("next", "b/agent.yaml", "another target of the new link")
	f.seen("another target of the new link")
	f.write(f.path, "an edit at the end")
	f.seen("an edit at the end")
}

func TestFoldersThatChangePlacesAreBothWatchedOn(t *testing.T) {
	t.Parallel()
	f := below(t, t.TempDir(), "blue/b/agent.yaml")
	green := below(t, f.folder, "green/b/agent.yaml")
	f.start()
	f.w.Watch(f.path, green.path)
	f.seen("a path that is new")
	for i := range 4 {
		f.must(os.Rename(filepath.Join(f.folder, "blue"), filepath.Join(f.folder, "aside")))
		f.must(os.Rename(filepath.Join(f.folder, "green"), filepath.Join(f.folder, "blue")))
		f.must(os.Rename(filepath.Join(f.folder, "aside"), filepath.Join(f.folder, "green")))
		f.seen(fmt.Sprint("change of places ", i))
		f.write(f.path, fmt.Sprint("blue ", i))
		f.seen("an edit of the one")
		f.write(green.path, fmt.Sprint("green ", i))
		f.seen("an edit of the other")
	}
}

func TestAFolderThatIsMovedAndRemovedLeavesTheWatchOfTheOthersAlone(t *testing.T) {
	t.Parallel()
	f := below(t, t.TempDir(), "a/b/agent.yaml")
	f.start()
	for i := range 30 {
		content := fmt.Sprint("replaced ", i)
		f.replace("a", "b/agent.yaml", content)
		f.must(os.RemoveAll(filepath.Join(f.folder, "a."+content)))
		f.seen(content)
		if mode := f.w.Mode(); mode != watch.Events {
			t.Fatalf("after replacement %d the mode is %s", i, mode)
		}
	}
}

func TestAFolderThatIsNotThereIsNoReasonToPoll(t *testing.T) {
	t.Parallel()
	f := watched(t)
	f.start()
	f.w.Watch(f.path, filepath.Join(f.folder, "none/at/all"), filepath.Join(f.path, "below/a/file"))
	f.seen("paths that are new")
	f.write(f.path, "changed")
	f.seen("a change")
	if mode := f.w.Mode(); mode != watch.Events {
		t.Errorf("the mode is %s", mode)
	}
}

// unprivileged runs a test once more as a user whom permissions bind, if the
// present one is not; then it is done.
func unprivileged(t *testing.T) (done bool) {
	t.Helper()
	if os.Geteuid() != 0 {
		return false
	}
	again := exec.Command("/proc/self/exe", "-test.v", "-test.run=^"+t.Name()+"$") // whose folder may be closed
	again.Dir, again.Env = "/", append(os.Environ(), "TMPDIR=/tmp")
	again.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if out, err := again.CombinedOutput(); err != nil {
		t.Errorf("as nobody: %v\n%s", err, out)
	}
	return true
}

// mode waits until the mode is another.
func (f *file) mode(want watch.Mode) {
	f.t.Helper()
	for end := time.Now().Add(limit); f.w.Mode() != want; f.w.Look() {
		if time.Now().After(end) {
			f.t.Fatalf("the mode is %s, want %s", f.w.Mode(), want)
		}
		<-time.After(10 * time.Millisecond)
	}
}

func TestAFolderThatMayBeEnteredAndNotReadIsPolled(t *testing.T) {
	if unprivileged(t) {
		return
	}
	f := below(t, t.TempDir(), "closed/agent.yaml")
	closed := filepath.Dir(f.path)
	f.must(os.Chmod(closed, 0o311))
	defer func() { _ = os.Chmod(closed, 0o700) }() // so that it can be removed
	f.start()
	f.mode(watch.Polling)
	for i := range 3 {
		f.write(f.path, fmt.Sprint("closed ", i))
		f.seen("an edit in a folder that cannot be watched")
	}
	f.must(os.Chmod(closed, 0o700))
	f.mode(watch.Events)
	f.write(f.path, "open")
	f.seen("an edit in a folder that can be watched")
	f.must(os.Chmod(closed, 0o311))
	f.mode(watch.Polling)
}

func TestEventsCountAlsoBelowAFolderThatCannotBeWatched(t *testing.T) {
	if unprivileged(t) {
		return
	}
	f := below(t, t.TempDir(), "closed/open/agent.yaml")
	closed := filepath.Join(f.folder, "closed")
	f.must(os.Chmod(closed, 0o311))
	defer func() { _ = os.Chmod(closed, 0o700) }() // so that it can be removed
	f.start()
	f.mode(watch.Polling)
	began := time.Now()
	for i := range 10 { // at 2 s each, if they were polled
		f.write(f.path, fmt.Sprint("edit ", i))
		f.seen("an edit in a folder that can be watched")
	}
	if took := time.Since(began); took > limit {
		t.Errorf("ten edits are seen in %s", took)
	}
}
