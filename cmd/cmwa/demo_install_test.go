package main

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestDemoInstall runs the demo with a PATH that has no Docker programs, and with an
// apt-get that only records its calls and fails.
func TestDemoInstall(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		skipUnlessCI(t, "only root can install packages: run this test as root")
	}
	for name, test := range map[string]struct {
		install   string
		want      string // in the output
		installed bool
	}{
		"no package is installed by default": {
			"", "set INSTALL=1 to install them, or run: apt-get install docker.io", false,
		},
		"INSTALL=1 installs the missing packages":  {"1", "apt-get update", true},
		"any other value of INSTALL installs none": {"no", "set INSTALL=1", false},
	} {
		t.Run(name, func(t *testing.T) {
			// Create a PATH with all programs of the machine except Docker's.
			programs, record := t.TempDir(), filepath.Join(t.TempDir(), "apt-get")
			for _, directory := range filepath.SplitList(os.Getenv("PATH")) {
				files, _ := os.ReadDir(directory)
				for _, file := range files {
					if strings.HasPrefix(file.Name(), "docker") || file.Name() == "apt-get" {
						continue
					}
					err := os.Symlink(filepath.Join(directory, file.Name()), filepath.Join(programs, file.Name()))
					if err != nil && !errors.Is(err, fs.ErrExist) {
						t.Fatal(err)
					}
				}
			}
			script := "#!/bin/sh\necho \"$@\" >>" + record + "\nexit 1\n"
			noError(t, os.WriteFile(filepath.Join(programs, "apt-get"), []byte(script), 0o755))

			// Run the demo, which must end before it builds anything.
			cmd := exec.Command("../../examples/demo/run")
			cmd.Env = append(os.Environ(), "PATH="+programs, "TARGET=docker", "TMPDIR="+t.TempDir(), "INSTALL="+
				test.install,
				"DOCKER_HOST=unix://"+filepath.Join(t.TempDir(), "docker.sock"))
			out, err := cmd.CombinedOutput()
			if err == nil || !strings.Contains(string(out), test.want) ||
				!strings.Contains(string(out), "TARGET=docker needs a Docker engine") {
				t.Errorf("got %v, want a failure that contains %q:\n%s", err, test.want, out)
			}
			if calls, err := os.ReadFile(record); (err == nil) != test.installed {
				t.Errorf("apt-get was called with %q, want called: %t", calls, test.installed)
			}
		})
	}
}
