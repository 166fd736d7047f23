//go:build linux || darwin

package process_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

func TestList(t *testing.T) {
	t.Run("job whose runner was never started has no start time", func(t *testing.T) {
		e, directory, id := startScript(t, "cat >/dev/null; exit 0")
		wait(t, e, id)
		started := func() bool {
			t.Helper()
			found, err := newExecutor(t, directory).List(t.Context(), "agent")
			if err != nil || len(found) != 1 || found[0].Running {
				t.Fatalf("List returns %+v (%v), want one instance that does not run", found, err)
			}
			return !found[0].Started.IsZero()
		}
		if !started() {
			t.Error("a job that has ended has no start time")
		}

		// The agent was killed after it had created the directory and before it started the runner.
		for _, name := range []string{"exit", "leader.json"} {
			noError(t, os.Remove(filepath.Join(directory, id, name)))
		}
		if started() {
			t.Error("a job whose runner was never started has a start time")
		}

		// The machine was restarted since then, and may have lost files.
		labels := filepath.Join(directory, id, "job.json")
		text, err := os.ReadFile(labels)
		noError(t, err)
		text = bytes.Replace(text, []byte(`"boot":"`), []byte(`"boot":"another`), 1)
		noError(t, os.WriteFile(labels, text, 0o600))
		if !started() {
			t.Error("a job of an earlier boot has no start time, but its runner may have run")
		}
	})
}
