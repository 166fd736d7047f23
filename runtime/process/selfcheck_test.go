//go:build linux || darwin

package process

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/selfcheck"
)

func TestSelfChecks(t *testing.T) {
	program := func(t *testing.T, directory string, names ...string) string {
		t.Helper()
		for _, name := range names {
			if err := os.WriteFile(filepath.Join(directory, name), []byte("#!/bin/sh\n"), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		return directory
	}
	results := func(t *testing.T, working, directory, path string) map[string]selfcheck.Result {
		t.Helper()
		all := map[string]selfcheck.Result{}
		tuning := runtime.Tuning{Instance: runtime.InstanceSpec{WorkingDirectory: working}}
		for _, c := range SelfChecks(Options{Directory: directory, Environ: []string{"PATH=" + path}}, tuning) {
			all[c.Name] = c.Run(t.Context())
		}
		return all
	}
	t.Run("a machine with all requirements passes, and no directory is created", func(t *testing.T) {
		above := t.TempDir()
		directory := filepath.Join(above, "a", "jobs")
		for name, got := range results(t, program(t, t.TempDir(), "workflow-runner"), directory,
			program(t, t.TempDir(), jobPrograms...)) {
			if got.Level != selfcheck.LevelOK {
				t.Errorf("%s is %+v, want %s", name, got, selfcheck.LevelOK)
			}
		}
		if entries, err := os.ReadDir(above); err != nil || len(entries) > 0 {
			t.Errorf("the directory above contains %v (%v), want nothing", entries, err)
		}
	})
	t.Run("a machine without a runner, a usable directory and most programs does not pass", func(t *testing.T) {
		file := filepath.Join(program(t, t.TempDir(), "file"), "file")
		got := results(t, t.TempDir(), file, program(t, t.TempDir(), "git"))
		for name, want := range map[string]struct {
			level selfcheck.Level
			part  string
		}{
			"process-runner":    {selfcheck.LevelFailed, "set working_directory"},
			"process-directory": {selfcheck.LevelFailed, "must be a directory that belongs to this user"},
			"process-programs":  {selfcheck.LevelWarning, "do not find pulumi, curl"},
		} {
			if got[name].Level != want.level || !strings.Contains(got[name].Message, want.part) {
				t.Errorf("%s is %+v, want %s with %q", name, got[name], want.level, want.part)
			}
		}
	})
	t.Run("a directory that other users can write to does not pass", func(t *testing.T) {
		directory := t.TempDir()
		if err := os.Chmod(directory, 0o777); err != nil {
			t.Fatal(err)
		}
		if got := results(t, "", directory, "")["process-directory"]; got.Level != selfcheck.LevelFailed {
			t.Errorf("process-directory is %+v, want %s", got, selfcheck.LevelFailed)
		}
	})
}
