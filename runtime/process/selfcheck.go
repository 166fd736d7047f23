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
	"github.com/cmwa-project/cmwa/runtime/selfcheck"
)

// jobPrograms are the programs that a deployment needs: the steps that the service defines
// fetch the deployment executor and the source, and run pulumi.
var jobPrograms = []string{"pulumi", "git", "curl"}

// SelfChecks returns the checks of the things that jobs need on this machine. They create
// no directory.
func SelfChecks(options Options, tuning runtime.Tuning) []selfcheck.Check {
	return []selfcheck.Check{
		{Name: "process-runner", Run: func(context.Context) selfcheck.Result {
			runner, err := findRunner(tuning.Instance.WorkingDirectory)
			return selfcheck.Error(err, selfcheck.Passed("jobs are run by %s", runner))
		}},
		{Name: "process-shell", Run: func(context.Context) selfcheck.Result {
			return selfcheck.Error(checkShell(), selfcheck.Passed("jobs have the shell %s", shellPath))
		}},
		{Name: "process-directory", Run: func(context.Context) selfcheck.Result {
			directory, err := checkParentUsable(options.Directory)
			return selfcheck.Error(err, selfcheck.Passed("jobs have their directories in %s", directory))
		}},
		{Name: "process-programs", Run: func(context.Context) selfcheck.Result {
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
	existing := directory
	err = checkParent(directory)
	for errors.Is(err, fs.ErrNotExist) && filepath.Dir(existing) != existing {
		existing = filepath.Dir(existing)
		_, err = os.Stat(existing)
	}
	if err != nil {
		return directory, err
	}
	return directory, checkWritable(existing)
}

// checkPrograms checks that the PATH of jobs has the programs that jobs use.
func checkPrograms(agent []string) selfcheck.Result {
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
		return selfcheck.Passed("jobs find %s on the PATH", strings.Join(jobPrograms, ", "))
	}
	return selfcheck.Warned("jobs do not find %s on the PATH %s", strings.Join(missing, ", "), path).
		WithHint("install the programs that the steps of your deployments use, " +
			"or start the agent with a PATH that has them")
}
