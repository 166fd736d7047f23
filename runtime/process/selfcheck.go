//go:build linux || darwin

package process

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cmwa-project/cmwa/runtime"
)

// jobPrograms are the programs that a deployment needs: the steps that the service defines
// fetch the deployment executor and the source, and run pulumi.
var jobPrograms = []string{"pulumi", "git", "curl"}

// SelfChecks returns the checks of the things that jobs need on this machine. They create
// no directory.
func SelfChecks(options Options, tuning runtime.Tuning) []runtime.SelfCheck {
	return []runtime.SelfCheck{
		{Name: "process-runner", Run: func(context.Context) runtime.CheckResult {
			runner, err := findRunner(tuning.Instance.WorkingDirectory)
			return runtime.CheckError(err, runtime.CheckPassed("jobs are run by %s", runner))
		}},
		{Name: "process-shell", Run: func(context.Context) runtime.CheckResult {
			return runtime.CheckError(checkShell(), runtime.CheckPassed("jobs have the shell %s", shellPath))
		}},
		{Name: "process-directory", Run: func(context.Context) runtime.CheckResult {
			directory, err := checkParentUsable(options.Directory)
			return runtime.CheckError(err, runtime.CheckPassed("jobs have their directories in %s", directory))
		}},
		{Name: "process-programs", Run: func(context.Context) runtime.CheckResult {
			return checkPrograms(options.Environ)
		}},
	}
}

// checkParentUsable returns the directory for jobs, and an error if it can neither be used nor
// created.
func checkParentUsable(directory string) (string, error) {
	directory, err := parentPath(directory)
	if err != nil {
		return directory, err
	}
	err = checkParent(directory)
	for above := directory; errors.Is(err, fs.ErrNotExist) && filepath.Dir(above) != above; {
		above = filepath.Dir(above)
		if _, err = os.Stat(above); err == nil {
			return directory, checkWritable(above)
		}
	}
	if err != nil {
		return directory, err
	}
	return directory, checkWritable(directory)
}

// checkPrograms checks that the PATH of jobs has the programs that jobs use.
func checkPrograms(agent []string) runtime.CheckResult {
	path := ""
	for _, entry := range jobEnviron(agent, "") {
		if value, ok := strings.CutPrefix(entry, "PATH="); ok {
			path = value
		}
	}
	exists := func(program string) bool {
		return slices.ContainsFunc(filepath.SplitList(path), func(directory string) bool {
			file := filepath.Join(directory, program)
			info, err := os.Stat(file)
			return err == nil && info.Mode().IsRegular() && unix.Access(file, unix.X_OK) == nil
		})
	}
	missing := slices.DeleteFunc(slices.Clone(jobPrograms), exists)
	if len(missing) == 0 {
		return runtime.CheckPassed("jobs find %s on the PATH", strings.Join(jobPrograms, ", "))
	}
	return runtime.CheckWarned("jobs do not find %s on the PATH %s", strings.Join(missing, ", "), path).
		WithHint("install the programs that the steps of your deployments use, " +
			"or start the agent with a PATH that has them")
}
