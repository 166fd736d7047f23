package agentid

import (
	"os"
	"path/filepath"
	"testing"
)

func TestCheck(t *testing.T) {
	entries := func(folder string) (names []string) {
		_ = filepath.WalkDir(folder, func(path string, _ os.DirEntry, _ error) error {
			names = append(names, path)
			return nil
		})
		return names
	}
	t.Run("a folder that an agent uses is accepted and not changed", func(t *testing.T) {
		folder := t.TempDir()
		agent := take(t, folder, "/etc/agent.yaml")
		before := entries(folder)
		checked, err := Check(folder, "/etc/agent.yaml")
		if err != nil || checked != filepath.Dir(agent.Folder) {
			t.Errorf("Check returned %s, %v", checked, err)
		}
		if after := entries(folder); len(after) != len(before) {
			t.Errorf("Check changed the files from %q to %q", before, after)
		}
	})
	t.Run("a folder that does not exist is not created", func(t *testing.T) {
		above := t.TempDir()
		checked, err := Check(filepath.Join(above, "a", "state"), "")
		if err != nil || checked != above || len(entries(above)) != 1 {
			t.Errorf("Check returned %s, %v; the files are %q, want only %s", checked, err, entries(above), above)
		}
	})
	t.Run("a path that is not a folder or not writable is rejected", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		for _, unusable := range []string{file, filepath.Join(file, "state"), "/proc/cmwa"} {
			if checked, err := Check(unusable, ""); err == nil {
				t.Errorf("Check(%s) accepted the folder %s, want an error", unusable, checked)
			}
		}
	})
}
