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
)

// program is the runner's name in a working directory.
const program = "workflow-runner"

// shell runs the supervisor.
const shell = "/bin/sh"

// supervisor is the script that leads the job's session. The trap keeps it
// alive through the TERM that is meant for the runner, and is, unlike an ignored
// signal, not handed on to it.
const supervisor = `trap : HUP INT TERM; "$0" run; code=$?; echo "$code" >"$` + marker + `/` + exitFile + `"`

// Start makes the job's folder and starts the runner in it.
func (e *Executor) Start(ctx context.Context, job *runtime.Job, setup *runtime.Setup) (id string, err error) {
	setup.Say("Running this job as a process of the agent's machine (%s/%s), which isolates nothing", goruntime.GOOS, goruntime.GOARCH)
	if image := job.Definition.Image.Reference; image != "" {
		setup.Say("The image %s is not used", image)
	}
	runner, err := find(job.Tuning.Place.WorkingDirectory)
	if err != nil {
		return "", err
	}
	id, err = makeFolder(e.folder, job)
	switch {
	case errors.Is(err, fs.ErrExist), errors.Is(err, unix.ENOTEMPTY):
		return "", fmt.Errorf("start job %s: its folder is there already, so it was started before", job.ID)
	case err != nil:
		return "", fmt.Errorf("make the folder of a job: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.discard(ctx, id))
			id = ""
		}
	}()
	v := &environment{id: id, folder: filepath.Join(e.folder, id)}
	setup.Say("Working in %s", v.path(rootFolder))
	text, err := setup.Handover(ctx, v.path(rootFolder))
	if err != nil {
		return id, err
	}
	if ctx.Err() != nil {
		return id, context.Cause(ctx)
	}
	handover, err := e.launch(v, runner)
	if err != nil {
		return id, err
	}
	if err := feed(ctx, handover, text); err != nil {
		return id, v.refusal(err)
	}
	return id, nil
}

// find finds the runner program, and says what to do if there is none.
func find(directory string) (string, error) {
	runner := filepath.Join(directory, program)
	info, err := os.Stat(runner)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("there is no program %s: install it beside the agent, or set working_directory to where it is", runner)
	case err != nil:
		return "", fmt.Errorf("look for the runner: %w", err)
	case info.IsDir() || unix.Access(runner, unix.X_OK) != nil:
		return "", fmt.Errorf("%s is not a program that this user may execute: install it again, or make it executable with chmod +x", runner)
	}
	return filepath.Abs(runner)
}

// launch starts supervisor and runner and writes down who they are. It returns
// the end of a pipe that leads to the runner's standard input; until that is
// written to, the runner does nothing, and when it is closed early, it ends. So
// an agent that dies here leaves nothing that works.
func (e *Executor) launch(v *environment, runner string) (_ *os.File, err error) {
	progress, err := os.OpenFile(v.path(progressFile), os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start the runner: %w", err)
	}
	defer progress.Close()
	messages, err := os.OpenFile(v.path(messagesFile), os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start the runner: %w", err)
	}
	defer messages.Close()
	input, handover, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start the runner: %w", err)
	}
	defer input.Close()
	defer func() {
		if err != nil {
			_ = handover.Close()
		}
	}()

	cmd := exec.Command(shell, "-c", supervisor, runner)
	cmd.Dir = v.path(rootFolder)
	cmd.Env = environ(e.environ, v.folder)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = input, progress, messages
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the runner: %w", err)
	}
	e.mu.Lock()
	e.children[v.id] = cmd
	e.mu.Unlock()
	p, there, err := look(cmd.Process.Pid)
	switch {
	case err != nil:
		return nil, fmt.Errorf("start the runner: look at its process: %w", err)
	case !there:
		return nil, errors.New("start the runner: the system does not know the process that was just started")
	}
	v.leader = leader{PID: p.pid, Began: p.began, Stamp: p.stamp}
	if err := writeJSON(v.folder, leaderFile, v.leader); err != nil {
		return nil, fmt.Errorf("write down who leads the job: %w", err)
	}
	return handover, nil
}

// feed writes the handover and closes the pipe. The end of ctx ends it.
func feed(ctx context.Context, pipe *os.File, text []byte) error {
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(interrupted)
		_ = pipe.SetWriteDeadline(time.Now())
	})
	_, err := pipe.Write(text)
	if !stop() {
		<-interrupted
		err = errors.Join(context.Cause(ctx), err)
	}
	return errors.Join(err, pipe.Close())
}

// refusal explains a handover that could not be written.
func (v *environment) refusal(err error) error {
	if message := v.message(); errors.Is(err, unix.EPIPE) && message != "" {
		return fmt.Errorf("hand the job over: the runner ended at once: %s", message)
	}
	return fmt.Errorf("hand the job over: %w", err)
}

// discard removes what a failed start has made.
func (e *Executor) discard(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*killLimit)
	defer cancel()
	return e.Remove(ctx, id, 0)
}
