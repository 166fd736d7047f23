package watch

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// below creates a file to watch, at a path relative to a directory.
func below(t *testing.T, dir, path string) *file {
	t.Helper()
	f := &file{t: t, dir: dir, path: filepath.Join(dir, path)}
	f.must(os.MkdirAll(filepath.Dir(f.path), 0o700))
	f.write(f.path, "first")
	return f
}

// replace replaces a directory by a new directory that contains one file, as a tool does that
// prepares a whole tree.
func (f *file) replace(dir, path, content string) {
	f.t.Helper()
	dir = filepath.Join(f.dir, dir)
	f.must(os.MkdirAll(filepath.Dir(filepath.Join(dir+".new", path)), 0o700))
	f.write(filepath.Join(dir+".new", path), content)
	f.must(os.Rename(dir, dir+"."+content))
	f.must(os.Rename(dir+".new", dir))
}

// relink replaces a link.
func (f *file) relink(link, target string) {
	f.t.Helper()
	link = filepath.Join(f.dir, link)
	f.must(os.Symlink(target, link+".new"))
	f.must(os.Rename(link+".new", link))
}

func TestUpdateWatches(t *testing.T) {
	t.Run("replaced directory above the file is detected", func(t *testing.T) {
		for _, replaced := range []struct{ dir, path string }{
			{"a", "b/c/agent.yaml"}, {"a/b", "c/agent.yaml"}, {"a/b/c", "agent.yaml"},
		} {
			t.Run(replaced.dir, func(t *testing.T) {
				t.Parallel()
				f := below(t, t.TempDir(), "a/b/c/agent.yaml")
				f.start()
				for i := range 3 {
					f.replace(replaced.dir, replaced.path, fmt.Sprint("replaced ", i))
					f.detected(fmt.Sprint("the replacement of ", replaced.dir))
					f.write(f.path, fmt.Sprint("edited ", i))
					f.detected("an edit in the new directory")
				}
			})
		}
	})

	t.Run("replaced directory on the path of a link is detected", func(t *testing.T) {
		t.Parallel()
		// The path: link -> far/real, far/real/b/agent.yaml -> ../../other/agent.yaml
		f := below(t, t.TempDir(), "far/other/agent.yaml")
		f.must(os.MkdirAll(filepath.Join(f.dir, "far/real/b"), 0o700))
		f.must(os.Symlink("../../other/agent.yaml", filepath.Join(f.dir, "far/real/b/agent.yaml")))
		f.must(os.Symlink(filepath.Join(f.dir, "far/real"), filepath.Join(f.dir, "link")))
		f.path = filepath.Join(f.dir, "link/b/agent.yaml")
		f.start()

		f.replace("far/other", "agent.yaml", "another directory of the file")
		f.detected("another directory of the file")
		f.replace("far/real", "b/agent.yaml", "another target of the link")
		f.detected("another target of the link")
		f.replace("far", "real/b/agent.yaml", "another directory of the link's target")
		f.detected("another directory of the link's target")
		below(t, f.dir, "next/b/agent.yaml")
		f.relink("link", "next")
		f.detected("another link")
		f.replace("next", "b/agent.yaml", "another target of the new link")
		f.detected("another target of the new link")
		f.write(f.path, "an edit at the end")
		f.detected("an edit at the end")
	})

	t.Run("directories that swap places stay watched", func(t *testing.T) {
		t.Parallel()
		f := below(t, t.TempDir(), "blue/b/agent.yaml")
		green := below(t, f.dir, "green/b/agent.yaml")
		f.start()
		f.w.Watch(f.path, green.path)
		f.detected("a path that is new")
		for i := range 4 {
			f.must(os.Rename(filepath.Join(f.dir, "blue"), filepath.Join(f.dir, "aside")))
			f.must(os.Rename(filepath.Join(f.dir, "green"), filepath.Join(f.dir, "blue")))
			f.must(os.Rename(filepath.Join(f.dir, "aside"), filepath.Join(f.dir, "green")))
			f.detected(fmt.Sprint("swap ", i))
			f.write(f.path, fmt.Sprint("blue ", i))
			f.detected("an edit of the file in blue")
			f.write(green.path, fmt.Sprint("green ", i))
			f.detected("an edit of the file in green")
		}
	})

	t.Run("moved and removed directory does not end other watches", func(t *testing.T) {
		t.Parallel()
		f := below(t, t.TempDir(), "a/b/agent.yaml")
		f.start()
		for i := range 30 {
			content := fmt.Sprint("replaced ", i)
			f.replace("a", "b/agent.yaml", content)
			f.must(os.RemoveAll(filepath.Join(f.dir, "a."+content)))
			f.detected(content)
			if mode := f.w.Mode(); mode != Events {
				t.Fatalf("after replacement %d the mode is %s", i, mode)
			}
		}
	})

	t.Run("missing directory does not cause polling", func(t *testing.T) {
		t.Parallel()
		f := watched(t)
		f.start()
		f.w.Watch(f.path, filepath.Join(f.dir, "none/at/all"), filepath.Join(f.path, "below/a/file"))
		f.detected("paths that are new")
		f.write(f.path, "changed")
		f.detected("a change")
		if mode := f.w.Mode(); mode != Events {
			t.Errorf("the mode is %s, want events", mode)
		}
	})

	t.Run("directory without read permission is polled", func(t *testing.T) {
		if unprivileged(t) {
			return
		}
		f := below(t, t.TempDir(), "closed/agent.yaml")
		closed := filepath.Dir(f.path)
		f.must(os.Chmod(closed, 0o311))
		defer func() { _ = os.Chmod(closed, 0o700) }() // or t.TempDir could not be removed
		f.start()
		f.mode(Polling)
		for i := range 3 {
			f.write(f.path, fmt.Sprint("closed ", i))
			f.detected("an edit in a directory that cannot be watched")
		}
		f.must(os.Chmod(closed, 0o700))
		f.mode(Events)
		f.write(f.path, "open")
		f.detected("an edit in a directory that can be watched")
		f.must(os.Chmod(closed, 0o311))
		f.mode(Polling)
	})

	t.Run("events are used below a directory that cannot be watched", func(t *testing.T) {
		if unprivileged(t) {
			return
		}
		f := below(t, t.TempDir(), "closed/open/agent.yaml")
		closed := filepath.Join(f.dir, "closed")
		f.must(os.Chmod(closed, 0o311))
		defer func() { _ = os.Chmod(closed, 0o700) }() // or t.TempDir could not be removed
		f.start()
		f.mode(Polling)
		const edits = 10
		byEvents := 0
		for i := range edits {
			f.rename(f.path, fmt.Sprint("edit ", i))
			f.detected("an edit in a directory that can be watched")
			if !f.w.Written(f.path) { // only an event shows that the file was renamed
				byEvents++
			}
		}
		if byEvents <= edits/2 { // a comparison of mode Polling may come before an event
			t.Errorf("events have shown %d of %d edits, want nearly all", byEvents, edits)
		}
	})
}

// unprivileged runs the test again, in another process as a user without privileges, if the
// present user is root. It then returns true, and the caller must return.
func unprivileged(t *testing.T) (done bool) {
	t.Helper()
	if os.Geteuid() != 0 {
		return false
	}
	// With this path the other user needs no access to the directory of the program.
	again := exec.Command("/proc/self/exe", "-test.v", "-test.run=^"+t.Name()+"$")
	again.Dir, again.Env = "/", append(os.Environ(), "TMPDIR=/tmp")
	again.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if out, err := again.CombinedOutput(); err != nil {
		t.Errorf("as user 65534: %v\n%s", err, out)
	}
	return true
}

// mode waits for a mode.
func (f *file) mode(want Mode) {
	f.t.Helper()
	for end := time.Now().Add(time.Minute); f.w.Mode() != want; f.w.Check() {
		if time.Now().After(end) {
			f.t.Fatalf("the mode is %s, want %s", f.w.Mode(), want)
		}
		<-time.After(10 * time.Millisecond)
	}
}
