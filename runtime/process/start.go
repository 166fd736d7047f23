//go:build linux || darwin

package process

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/killpoint"
)

const runnerName = "workflow-runner" // in a working directory

const shellPath = "/bin/sh" // of the supervisor

// supervisorScript starts the runner and writes its exit code. Because of the trap, the
// script continues when it gets a signal that is meant for the runner. The runner would
// inherit an ignored signal, but does not inherit the trap.
const supervisorScript = `trap : HUP INT TERM; "$0" run; code=$?; ` +
	`echo "$code" >"$` + markerVariable + `/` + exitFile + `"`

// Start creates the directory of the job and starts the runner in it.
func (e *Executor) Start(ctx context.Context, job *runtime.Job, setup *runtime.Setup) (id string, err error) {
	setup.Log("Running this job as a process of the agent's machine (%s/%s), without isolation",
		goruntime.GOOS, goruntime.GOARCH)
	if image := job.Definition.Image.Reference; image != "" {
		setup.Log("The image %s is not used", image)
	}

	runner, err := findRunner(job.Tuning.Instance.WorkingDirectory)
	if err != nil {
		return "", err
	}
	id, err = makeDirectory(e.directory, job)
	switch {
	case errors.Is(err, fs.ErrExist), errors.Is(err, unix.ENOTEMPTY):
		return "", fmt.Errorf("start job %s: its directory exists, so it was started before", job.ID)
	case err != nil:
		return "", fmt.Errorf("create the directory of the job: %w", err)
	}
	defer func() {
		if err != nil {
			cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*killTimeout)
			defer cancel()
			err = errors.Join(err, e.Remove(cleanup, id, 0))
			id = ""
		}
	}()
	killpoint.Hit(killpoint.DirectoryCreated)
	inst := &instance{id: id, directory: filepath.Join(e.directory, id)}
	setup.Log("Working in %s", inst.path(rootDirectory))

	text, err := setup.Handoff(ctx, inst.path(rootDirectory))
	if err != nil {
		return id, err
	}
	if ctx.Err() != nil {
		return id, context.Cause(ctx)
	}
	created := setup.Measure(runtime.StageCreate)
	handoff, err := e.startSupervisor(inst, runner)
	created()
	if err != nil {
		return id, err
	}
	killpoint.Hit(killpoint.InstanceCreated)
	defer setup.Measure(runtime.StageStart)()
	if err := writeHandoff(ctx, handoff, text); err != nil {
		return id, inst.handoffError(err)
	}
	killpoint.Hit(killpoint.HandoffSent)
	return id, nil
}

func findRunner(directory string) (string, error) {
	runner := filepath.Join(directory, runnerName)
	info, err := os.Stat(runner)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("there is no program %s: "+
			"install it next to the agent, or set working_directory to its directory", runner)
	case err != nil:
		return "", fmt.Errorf("find the runner: %w", err)
	case info.IsDir() || unix.Access(runner, unix.X_OK) != nil:
		return "", fmt.Errorf("%s is not a program that this user may execute: "+
			"install it again, or make it executable with chmod +x", runner)
	}
	if err := runtime.CheckRunner(runner); err != nil {
		return "", fmt.Errorf("%s %w: install the workflow-runner of this agent's release there, "+
			"or set working_directory to its directory", runner, err)
	}
	return filepath.Abs(runner)
}

// startSupervisor starts the supervisor, which starts the runner, and writes the identity of
// the supervisor to a file. It returns the write end of a pipe to the runner's standard
// input. The runner does nothing before it has read the handoff, and ends if the pipe is
// closed early. Therefore no job runs if the agent ends here.
func (e *Executor) startSupervisor(inst *instance, runner string) (_ *os.File, err error) {
	const create = os.O_CREATE | os.O_EXCL | os.O_WRONLY | os.O_APPEND
	progress, err := os.OpenFile(inst.path(progressFile), create, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start the runner: %w", err)
	}
	defer progress.Close()
	messages, err := os.OpenFile(inst.path(messagesFile), create, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start the runner: %w", err)
	}
	defer messages.Close()
	input, handoff, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start the runner: %w", err)
	}
	defer input.Close()
	defer func() {
		if err != nil {
			_ = handoff.Close()
		}
	}()

	cmd := exec.Command(shellPath, "-c", supervisorScript, runner)
	cmd.Dir = inst.path(rootDirectory)
	cmd.Env = jobEnviron(e.environ, inst.directory)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = input, progress, messages
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the runner: %w", err)
	}
	e.children.Store(inst.id, cmd)

	p, exists, err := inspectProcess(cmd.Process.Pid)
	switch {
	case err != nil:
		return nil, fmt.Errorf("start the runner: find its process: %w", err)
	case !exists:
		return nil, errors.New("start the runner: the system does not report the process that was just started")
	}
	inst.leader = leader{PID: p.pid, Began: p.began, Stamp: p.stamp}
	if err := writeJSON(inst.directory, leaderFile, inst.leader); err != nil {
		return nil, fmt.Errorf("write the leader of the job: %w", err)
	}
	return handoff, nil
}

// writeHandoff writes the handoff and closes the pipe. The end of ctx interrupts the write.
func writeHandoff(ctx context.Context, pipe *os.File, text []byte) error {
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(interrupted)
		_ = pipe.SetWriteDeadline(time.Now())
	})
	_, err := killpoint.Write(killpoint.HandoffHalf, pipe, text)
	if !stop() {
		<-interrupted
		err = errors.Join(context.Cause(ctx), err)
	}
	return errors.Join(err, pipe.Close())
}

func (inst *instance) handoffError(err error) error {
	if message := inst.message(); errors.Is(err, unix.EPIPE) && message != "" {
		return fmt.Errorf("send the handoff: the runner ended immediately: %s", message)
	}
	return fmt.Errorf("send the handoff: %w", err)
}
