//go:build linux || darwin

package process

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/cmwa-project/cmwa/runtime"
)

// Check returns why no job can be started now: there is no runner that this user may
// execute, no shell, or no parent directory in which directories for jobs can be created. If the
// parent directory was removed, Check creates it again. It reads some kilobytes of the runner.
func (e *Executor) Check(ctx context.Context, tuning runtime.Tuning) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if _, err := findRunner(tuning.Instance.WorkingDirectory); err != nil {
		return err
	}
	if err := checkShell(); err != nil {
		return err
	}
	if _, err := makeParent(e.directory); err != nil {
		return err
	}
	return checkWritable(e.directory)
}

func checkShell() error {
	if err := unix.Access(shellPath, unix.X_OK); err != nil {
		return fmt.Errorf("jobs need %s: install a shell there: %w", shellPath, err)
	}
	return nil
}

func checkWritable(directory string) error {
	if err := unix.Access(directory, unix.W_OK|unix.X_OK); err != nil {
		return fmt.Errorf("cannot write to the directory for jobs %s: "+
			"make it writable for this user, or set TMPDIR to another directory: %w", directory, err)
	}
	return nil
}
