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

// tree makes a folder with files, and links where the content begins with an arrow.
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

func TestTheWayOfAPathHasEveryFolderFromTheRootOn(t *testing.T) {
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
		for _, folder := range above {
			wanted[folder] = true
		}
		for _, folder := range want.entered {
			wanted[filepath.Join(root, folder)] = true
		}
		for _, folder := range want.ends {
			wantedEnds[filepath.Join(root, folder)] = true
		}
		_, found := follow(root+"/"+path, func(folder string) { entered[folder] = true })
		for _, folder := range found {
			ends[folder] = true
		}
		if diff := cmp.Diff(wanted, entered) + cmp.Diff(wantedEnds, ends); diff != "" {
			t.Errorf("%s: %s", path, diff)
		}
	}
}

// armed is a watch of a file far below a folder.
func armed(t testing.TB) (root string, s sight, notify *fsnotify.Watcher) {
	t.Helper()
	root = tree(t, map[string]string{"a/b/c/agent.yaml": "x"})
	notify, err := fsnotify.NewBufferedWatcher(64)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = notify.Close() })
	s = New(filepath.Join(root, "a/b/c/agent.yaml")).arm(notify, watches{})
	if s.blind {
		t.Fatal("a folder cannot be watched")
	}
	return root, s, notify
}

func TestOnlyWhatIsOnTheWayCountsInAFolderAbove(t *testing.T) {
	root, s, notify := armed(t)
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
	counted, passed := map[string]bool{}, 0
	for last := filepath.Join(root, "end"); ; {
		select {
		case event := <-notify.Events:
			if event.Name == last {
				want := []string{filepath.Join(root, "a"), filepath.Join(root, "a/b"), filepath.Join(root, "a/b/c/neighbour")}
				if got := slices.Sorted(maps.Keys(counted)); !slices.Equal(got, want) {
					t.Errorf("what counts is %v, want %v", got, want)
				}
				if passed < 400 {
					t.Errorf("only %d events of others are passed by", passed)
				}
				return
			}
			if s.counts(event.Name) {
				counted[event.Name] = true
			} else {
				passed++
			}
		case <-time.After(10 * time.Second):
			t.Fatal("the end is not told")
		}
	}
}

func BenchmarkArm(b *testing.B) {
	root, _, notify := armed(b)
	w := New(filepath.Join(root, "a/b/c/agent.yaml"))
	for b.Loop() {
		w.arm(notify, watches{})
	}
}
