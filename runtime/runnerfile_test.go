package runtime_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
)

func TestCheckRunner(t *testing.T) {
	if version := fmt.Sprintf("version %d", runtime.HandoffVersion); !strings.HasSuffix(runtime.RunnerMark, version) {
		t.Errorf("RunnerMark is %q, want the end %q", runtime.RunnerMark, version)
	}
	script := t.TempDir()
	if err := os.WriteFile(filepath.Join(script, "workflow-runner"), []byte("#!/bin/sh\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ directory, want string }{
		"runner of this release": {runtimetest.Runner(t), ""},
		"runner of another project": {
			runtimetest.ForeignRunner(t, "example.com/vendor"), "another project (example.com/vendor)",
		},
		"runner of another release": {
			runtimetest.ForeignRunner(t, "github.com/cmwa-project/cmwa"), "of another release",
		},
		"script": {script, ""},
	} {
		t.Run(name, func(t *testing.T) {
			err := runtime.CheckRunner(filepath.Join(c.directory, "workflow-runner"))
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("CheckRunner returns %v, want %q", err, c.want)
			}
		})
	}
}
