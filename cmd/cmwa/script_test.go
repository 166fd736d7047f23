package main

import (
	"errors"
	"os/exec"
	"strconv"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// testMain runs the tests, and then removes the directories that they share. Within a script,
// the command cmwa is the test program itself.
type testMain struct{ m *testing.M }

func (t testMain) Run() int {
	code := t.m.Run()
	temporary.remove()
	return code
}

func TestMain(m *testing.M) {
	testscript.Main(testMain{m}, map[string]func(){"cmwa": main})
}

// TestScript runs the command lines that need neither an engine nor a service. The scripts
// are in testdata/script of the repository. Each begins with a comment that describes what
// it tests.
//
// In addition to the commands of package testscript, a script has
//
//	exits CODE PROGRAM [ARGUMENT...]
//
// which runs a program and checks its exit code.
func TestScript(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir:                 "../../testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		UpdateScripts:       *update,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": func(ts *testscript.TestScript, not bool, args []string) {
				if not || len(args) < 2 {
					ts.Fatalf("usage: exits CODE PROGRAM [ARGUMENT...]")
				}
				want, err := strconv.Atoi(args[0])
				ts.Check(err)
				code := 0
				if err := ts.Exec(args[1], args[2:]...); err != nil {
					var exit *exec.ExitError
					if !errors.As(err, &exit) {
						ts.Fatalf("%v", err)
					}
					code = exit.ExitCode()
				}
				if code != want {
					ts.Fatalf("exit code %d, want %d", code, want)
				}
			},
		},
	})
}
