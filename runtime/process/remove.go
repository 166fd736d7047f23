//go:build linux || darwin

package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
)

// Remove ends the job in five stages. Each can be repeated:
//
//  1. The supervisor's process group gets SIGTERM, unless the runner has ended.
//  2. The runner has the grace period to end.
//  3. All processes of the job are killed, until none is left.
//  4. Waiting calls of Wait return how the job ended, and the supervisor is reaped if
//     it is a child of this process.
//  5. The directory is renamed, so that it is no instance any more, and removed.
func (e *Executor) Remove(ctx context.Context, id string, grace time.Duration) error {
	inst, err := e.open(id)
	if errors.Is(err, runtime.ErrNoInstance) {
		return e.removeRenamed(id)
	}
	if err != nil {
		return err
	}

	// 1. to 3. End the processes.
	exit, err := inst.stop(ctx, grace)
	if err != nil {
		return fmt.Errorf("end the job: %w", err)
	}

	// 4. Report the exit, and reap the supervisor.
	e.notifyWaiters(id, exit)
	e.reap(id)

	// 5. Remove what an earlier call with this id has left, then rename and remove the directory.
	if err := e.removeRenamed(id); err != nil {
		return err
	}
	if err := os.Rename(inst.directory, e.removedPath(id)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove the directory of a job: %w", err)
	}
	return e.removeRenamed(id)
}

// Interrupt sends a SIGINT to the supervisor's process group, unless the runner has ended.
func (e *Executor) Interrupt(_ context.Context, id string) error {
	inst, err := e.open(id)
	if err != nil {
		return err
	}
	if _, err := inst.exitIfEnded(); !errors.Is(err, errRunning) {
		return nil
	}
	ours, _, err := inst.checkSupervisor()
	if err == nil && ours {
		err = syscall.Kill(-inst.leader.PID, syscall.SIGINT)
	}
	if err != nil {
		return fmt.Errorf("interrupt the job: %w", err)
	}
	return nil
}

// stop ends the processes of the job: stages 1 to 3 of Remove.
func (inst *instance) stop(ctx context.Context, grace time.Duration) (runtime.Exit, error) {
	exit, err := inst.exitIfEnded()
	if errors.Is(err, errRunning) {
		if ours, _, err := inst.checkSupervisor(); err == nil && ours {
			_ = syscall.Kill(-inst.leader.PID, syscall.SIGTERM)
		}
		exit, err = inst.waitFor(ctx, grace)
	}
	if errors.Is(err, errRunning) {
		exit, err = runtime.Exit{
			Code: 128 + int(syscall.SIGKILL), Reason: "killed: it did not end within the grace period",
		}, nil
	}
	if err != nil && !errors.Is(err, runtime.ErrNoInstance) {
		return exit, err
	}
	return exit, inst.kill(ctx)
}

func (inst *instance) waitFor(ctx context.Context, grace time.Duration) (runtime.Exit, error) {
	limit := time.Now().Add(grace)
	for {
		exit, err := inst.exitIfEnded()
		left := time.Until(limit)
		if !mayBeRunning(err) || left <= 0 {
			return exit, err
		}
		if !runtime.Sleep(ctx, nil, min(left, pollInterval)) {
			return runtime.Exit{}, context.Cause(ctx)
		}
	}
}

// kill kills the processes of the job until none is left.
func (inst *instance) kill(ctx context.Context) error {
	limit := time.Now().Add(killTimeout)
	for {
		own, err := inst.processes()
		switch {
		case err != nil || len(own) == 0:
			return err
		case time.Now().After(limit):
			return fmt.Errorf("killed processes do not end: %s", pidList(own))
		}
		for _, p := range own {
			p.kill()
		}
		if !runtime.Sleep(ctx, nil, pollInterval) {
			return context.Cause(ctx)
		}
	}
}

// processes returns the processes of the job that have not ended.
func (inst *instance) processes() ([]proc, error) {
	all, err := listProcesses()
	if err != nil {
		return nil, fmt.Errorf("list the processes of the job: %w", err)
	}
	now, exists, err := inspectProcess(inst.leader.PID)
	if err != nil {
		return nil, fmt.Errorf("find the supervisor of the job: %w", err)
	}

	mark := markerVariable + "=" + inst.directory
	var own []proc
	for _, p := range all {
		if p.ended || p.pid == os.Getpid() {
			continue
		}
		ours := inst.leader.owns(p, now, exists)
		if !ours {
			if ours, err = p.hasVariable(mark); err != nil {
				return nil, fmt.Errorf("list the processes of the job: %w", err)
			}
		}
		if ours {
			own = append(own, p)
		}
	}
	return own, nil
}

// reap reaps a supervisor that is a child of this process and has ended. After that, its
// process id may be reused.
func (e *Executor) reap(id string) {
	if cmd, ok := e.children.LoadAndDelete(id); ok {
		_ = cmd.(*exec.Cmd).Wait() // the exit code is in the directory
	}
}

// removedPath returns the path to which a directory is renamed before its removal.
func (e *Executor) removedPath(id string) string { return filepath.Join(e.directory, oldPrefix+id) }

// removeRenamed removes the directory of an instance that this or an earlier call has renamed.
func (e *Executor) removeRenamed(id string) error {
	if !isID(id) {
		return nil
	}
	return removeAll(e.removedPath(id))
}

func pidList(all []proc) string {
	var text []string
	for _, p := range all {
		text = append(text, fmt.Sprint(p.pid))
	}
	return strings.Join(text, ", ")
}
