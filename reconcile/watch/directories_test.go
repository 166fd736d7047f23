package watch

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/google/go-cmp/cmp"
)

// tree creates a directory with files, and with links where the content starts with an arrow.
func tree(t testing.TB, entries map[string]string) string {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for path, content := range entries {
		path = filepath.Join(root, path)
		err := os.MkdirAll(filepath.Dir(path), 0o700)
		if target, isLink := cutArrow(content); err == nil && isLink {
			err = os.Symlink(target, path)
		} else if err == nil {
			err = os.WriteFile(path, []byte(content), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func cutArrow(content string) (string, bool) {
	if len(content) > 2 && content[:2] == "->" {
		return content[2:], true
	}
	return "", false
}

func TestResolve(t *testing.T) {
	root := tree(t, map[string]string{
		"a/b/file": "x", "far/real/file": "x", "far/up": "->../a/b", "mounted/..1/file": "x", "mounted/..data": "->..1",
		"mounted/file": "->..data/file", "round": "->round", "loop/a": "->b", "loop/b": "->a",
	})
	above := []string{"/"}
	for at := root; at != "/"; at = filepath.Dir(at) {
		above = append(above, at)
	}
	for path, want := range map[string]struct{ entered, ends []string }{
		"a/b/file":          {[]string{"a", "a/b"}, []string{"a/b"}},
		"a/./b/../b/file":   {[]string{"a", "a/b"}, []string{"a/b"}},
		"a/b":               {[]string{"a", "a/b"}, []string{"a/b"}},
		"a/none/file":       {[]string{"a"}, []string{"a"}},
		"a/b/file/below":    {[]string{"a", "a/b"}, []string{"a/b"}},
		"far/real/../up/no": {[]string{"far", "a", "a/b"}, []string{"far", "a/b"}},
		"mounted/file":      {[]string{"mounted", "mounted/..1"}, []string{"mounted", "mounted/..1"}},
		"round":             {nil, []string{"."}},
		"loop/a":            {[]string{"loop"}, []string{"loop"}},
	} {
		entered, wanted, ends, wantedEnds := map[string]bool{}, map[string]bool{}, map[string]bool{}, map[string]bool{}
		for _, dir := range above {
			wanted[dir] = true
		}
		for _, dir := range want.entered {
			wanted[filepath.Join(root, dir)] = true
		}
		for _, dir := range want.ends {
			wantedEnds[filepath.Join(root, dir)] = true
		}
		_, found := resolve(root+"/"+path, func(dir string) { entered[dir] = true })
		for _, dir := range found {
			ends[dir] = true
		}
		if diff := cmp.Diff(wanted, entered) + cmp.Diff(wantedEnds, ends); diff != "" {
			t.Errorf("the directories of %s differ (-want +got): %s", path, diff)
		}
	}
}

// watchedTree creates a file three levels below a directory, and watches it.
func watchedTree(t testing.TB) (root string, s watchSet, notify *fsnotify.Watcher) {
	t.Helper()
	root = tree(t, map[string]string{"a/b/c/agent.yaml": "x"})
	notify, err := fsnotify.NewBufferedWatcher(64)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = notify.Close() })
	s = New(filepath.Join(root, "a/b/c/agent.yaml")).updateWatches(notify, watches{})
	if s.incomplete {
		t.Fatal("a directory cannot be watched")
	}
	return root, s, notify
}

func TestWatchSet(t *testing.T) {
	root, s, notify := watchedTree(t)
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for i := range 100 { // as in /tmp
		noise := filepath.Join(root, "a", fmt.Sprint("noise-", i))
		do(os.WriteFile(noise, []byte("x"), 0o600))
		do(os.Chmod(noise, 0o640))
		do(os.Rename(noise, noise+"~"))
		do(os.Remove(noise + "~"))
	}
	do(os.WriteFile(filepath.Join(root, "a/b/c/neighbour"), []byte("x"), 0o600))
	do(os.Rename(filepath.Join(root, "a/b"), filepath.Join(root, "a/old")))
	do(os.Mkdir(filepath.Join(root, "a/b"), 0o700))
	do(os.Chmod(filepath.Join(root, "a"), 0o500))
	do(os.Chmod(filepath.Join(root, "a"), 0o700))
	do(os.Rename(filepath.Join(root, "a"), filepath.Join(root, "end")))
	counted, ignored := map[string]bool{}, 0
	for last := filepath.Join(root, "end"); ; {
		select {
		case event := <-notify.Events:
			if event.Name == last {
				want := []string{filepath.Join(root, "a"), filepath.Join(root, "a/b"),
					filepath.Join(root, "a/b/c/neighbour")}
				if got := slices.Sorted(maps.Keys(counted)); !slices.Equal(got, want) {
					t.Errorf("events that match: got %v, want %v", got, want)
				}
				if ignored < 400 {
					t.Errorf("%d events of other files were ignored, want at least 400", ignored)
				}
				return
			}
			if s.matches(event.Name) {
				counted[event.Name] = true
			} else {
				ignored++
			}
		case <-time.After(10 * time.Second):
			t.Fatal("the last event was not received")
		}
	}
}

func BenchmarkUpdateWatches(b *testing.B) {
	root, _, notify := watchedTree(b)
	w := New(filepath.Join(root, "a/b/c/agent.yaml"))
	for b.Loop() {
		w.updateWatches(notify, watches{})
	}
}
