package agentid

import (
	"os"
	"path/filepath"
	"testing"
)

func TestCheck(t *testing.T) {
	entries := func(directory string) (names []string) {
		_ = filepath.WalkDir(directory, func(path string, _ os.DirEntry, _ error) error {
			names = append(names, path)
			return nil
		})
		return names
	}
	t.Run("a directory that an agent uses is accepted and not changed", func(t *testing.T) {
		directory := t.TempDir()
		take(t, directory)
		before := entries(directory)
		checked, err := Check(directory)
		if err != nil || checked != directory {
			t.Errorf("Check returned %s, %v", checked, err)
		}
		if after := entries(directory); len(after) != len(before) {
			t.Errorf("Check changed the files from %q to %q", before, after)
		}
	})
	t.Run("a directory that does not exist is not created", func(t *testing.T) {
		above := t.TempDir()
		checked, err := Check(filepath.Join(above, "a", "state"))
		if err != nil || checked != above || len(entries(above)) != 1 {
			t.Errorf("Check returned %s, %v; the files are %q, want only %s", checked, err, entries(above), above)
		}
	})
	t.Run("a path that is not a directory or not writable is rejected", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "file")
		noError(t, os.WriteFile(file, nil, 0o600))
		for _, unusable := range []string{file, filepath.Join(file, "state"), "/proc/cmwa"} {
			if checked, err := Check(unusable); err == nil {
				t.Errorf("Check(%s) accepted the directory %s, want an error", unusable, checked)
			}
		}
	})
}

func TestDirectory(t *testing.T) {
	for _, c := range []struct {
		configured string
		environ    map[string]string
		uid        int
		want       string
	}{
		{"/srv/state", map[string]string{"STATE_DIRECTORY": "/var/lib/a"}, 1, "/srv/state"},
		{"", map[string]string{"STATE_DIRECTORY": "/var/lib/a:/var/lib/b", "HOME": "/h"}, 0, "/var/lib/a"},
		{"", map[string]string{"XDG_STATE_HOME": "/x", "HOME": "/h"}, 1, "/x/cmwa"},
		{"", map[string]string{"XDG_STATE_HOME": "relative", "HOME": "/h"}, 1, "/h/.local/state/cmwa"},
		{"", map[string]string{"HOME": "/root"}, 0, "/var/lib/cmwa"},
		{"", map[string]string{}, 1, ""},
	} {
		environ := func(name string) (string, bool) { value, ok := c.environ[name]; return value, ok }
		got, err := Directory(c.configured, environ, c.uid)
		if got != c.want || (err != nil) != (c.want == "") {
			t.Errorf("for %+v Directory returned %q, %v", c, got, err)
		}
	}
}
