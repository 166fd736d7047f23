package runner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	goruntime "runtime"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
)

// command is a program to run in a new process group.
type command struct {
	path      string
	args      []string
	directory string
	environ   []string
	stages    stages // of its end, if it is stopped
}

// result is the end of a program.
type result struct {
	reason  error          // why it failed; nil if it did not
	held    *output        // may be kept open by background processes; the caller must drain and close it; may be nil
	stopped bool           // it was stopped, because the context ended
	pulumi  runtime.Pulumi // how pulumi ended in a program that was stopped; empty if it did not run
	took    time.Duration  // from the first signal to the end
}

// supervise runs a program, and passes the output of its process group to take. When ctx
// ends first, it stops the group, and the reason is the cause of ctx.
func supervise(ctx context.Context, c command, take func(piece []byte, now time.Time)) (r result) {
	// Start the program, with a pipe for its output.
	reader, writer, err := os.Pipe()
	if err != nil {
		return result{reason: fmt.Errorf("start the shell: %w", err)}
	}
	cmd := exec.Command(c.path, c.args...)
	cmd.Dir, cmd.Env = c.directory, c.environ
	cmd.Stdout, cmd.Stderr = writer, writer
	cmd.SysProcAttr = newProcessGroup()
	started, ended := start(cmd)
	err = <-started
	_ = writer.Close()
	if err != nil {
		_ = reader.Close()
		return result{reason: fmt.Errorf("start the shell: %w", err)}
	}

	// Read the output until the program ends, or stop it.
	out := &output{pipe: reader}
	read := make(chan bool, 1)
	go func() { read <- out.copyTo(take) }()

	select {
	case err := <-ended:
		r.reason = reasonOf(err)
	case <-ctx.Done():
		begin := time.Now()
		end := stop(cmd.Process.Pid, ended, c.stages)
		r.reason = errors.Join(context.Cause(ctx), end.err)
		r.stopped, r.pulumi, r.took = true, end.pulumi, time.Since(begin)
	}
	out.shellEnded()
	if <-read {
		r.held = out
		return r
	}
	_ = reader.Close()
	return r
}

// start starts a program on an operating system thread, and keeps this thread until the
// program ends. On Linux, the kernel kills the program when the thread that started it ends
// (Pdeathsig). While the program runs, the thread must end only together with the runner.
func start(cmd *exec.Cmd) (started, ended <-chan error) {
	begin, end := make(chan error, 1), make(chan error, 1)
	go func() {
		goruntime.LockOSThread()
		defer goruntime.UnlockOSThread()
		err := cmd.Start()
		begin <- err
		if err == nil {
			end <- cmd.Wait()
		}
	}()
	return begin, end
}
