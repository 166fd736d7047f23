package runtimetest

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"sync"
	"testing"
)

// Names of the runner programs in a working directory. The program for containers has the
// architecture at the end of its name.
const (
	hostRunner  = "workflow-runner"        // for this machine
	linuxRunner = "workflow-runner-linux-" // for containers; the architecture follows
)

// Runner builds the runner program, once in each test process, and returns a directory that an
// agent can use as its working directory. The directory contains the program for this machine
// and the program for Linux containers of the same architecture, which an engine on this
// machine runs.
//
// The directory is kept between runs of the tests, because a process does not know which test
// is its last. Each copy of the repository has one directory, whose size is constant.
func Runner(t testing.TB) string {
	t.Helper()
	directory, err := buildRunner()
	if err != nil {
		t.Fatalf("build the runner: %v", err)
	}
	return directory
}

var buildRunner = sync.OnceValues(func() (string, error) {
	module, err := goTool(nil, "list", "-m", "-f", "{{.Dir}}")
	if err != nil {
		return "", err
	}
	directory := filepath.Join(os.TempDir(), fmt.Sprintf("cmwa-test-runner-%d%s", os.Getuid(),
		strings.ReplaceAll(module, string(filepath.Separator), "-")))
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return "", err
	}
	if err := build(module, goruntime.GOOS, filepath.Join(directory, hostRunner)); err != nil {
		return "", err
	}
	if err := build(module, "linux", filepath.Join(directory, linuxRunner+goruntime.GOARCH)); err != nil {
		return "", err
	}
	return directory, nil
})

// ForeignRunner returns a directory with a static Go program of a module that is named
// workflow-runner, like the one of Pulumi's own agent.
func ForeignRunner(t testing.TB, module string) string {
	t.Helper()
	directory := t.TempDir()
	for name, text := range map[string]string{
		"go.mod": "module " + module + "\n", "main.go": "package main\n\nfunc main() {}\n",
	} {
		if err := os.WriteFile(filepath.Join(directory, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	environ := append(os.Environ(), "CGO_ENABLED=0")
	if _, err := goTool(environ, "build", "-C", directory, "-o", hostRunner, "."); err != nil {
		t.Fatalf("build a runner of another module: %v", err)
	}
	return directory
}

// build builds a program under another name and then renames it to its target, because other
// tests may be running the old program.
func build(module, system, target string) error {
	part := fmt.Sprintf("%s.%d", target, os.Getpid())
	defer os.Remove(part)
	environ := append(os.Environ(), "CGO_ENABLED=0", "GOOS="+system)
	if _, err := goTool(environ, "build", "-C", module, "-buildvcs=false", "-trimpath", "-o", part,
		"./cmd/workflow-runner"); err != nil {
		return err
	}
	return os.Rename(part, target)
}

func goTool(environ []string, args ...string) (string, error) {
	cmd := exec.Command("go", args...)
	cmd.Env = environ
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("go %s: %w\n%s", args[0], err, problems.String())
	}
	return strings.TrimSpace(out.String()), nil
}
