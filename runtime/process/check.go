//go:build linux || darwin

package process

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/cmwa-project/cmwa/runtime"
)

// Check returns why no job could be started now: there is no runner that this
// user may execute, no shell, or no folder that jobs' folders can be made in. A
// folder that was removed is made again. It takes some ten system calls.
func (e *Executor) Check(ctx context.Context, tuning runtime.Tuning) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if _, err := find(tuning.Place.WorkingDirectory); err != nil {
		return err
	}
	if err := checkShell(); err != nil {
		return err
	}
	if _, err := parent(e.folder); err != nil {
		return err
	}
	return checkWritable(e.folder)
}

// checkShell checks that the shell which leads a job can be executed.
func checkShell() error {
	if err := unix.Access(shell, unix.X_OK); err != nil {
		return fmt.Errorf("jobs need %s: install a shell there: %w", shell, err)
	}
	return nil
}

// checkWritable checks that this user can make something in a folder.
func checkWritable(folder string) error {
	if err := unix.Access(folder, unix.W_OK|unix.X_OK); err != nil {
		return fmt.Errorf("cannot write to the folder for jobs %s: make it writable for this user, or set TMPDIR to another place: %w", folder, err)
	}
	return nil
}
