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

// result is the end of a program.
type result struct {
	reason  error          // why it failed; nil if it did not
	held    *output        // may be kept open by background processes; the caller must drain and close it; may be nil
	stopped bool           // it was stopped, because the context ended
	pulumi  runtime.Pulumi // how pulumi ended in a program that was stopped; empty if it did not run
	took    time.Duration  // from the first signal to the end
}

// supervise runs a program in a new process group, and passes the output of the group to take.
// When ctx ends first, it stops the group in these stages, and the reason is the cause of ctx.
func supervise(ctx context.Context, cmd *exec.Cmd, s stages, take func(piece []byte, now time.Time)) (r result) {
	reader, writer, err := os.Pipe()
	if err != nil {
		return result{reason: fmt.Errorf("start the shell: %w", err)}
	}
	cmd.Stdout, cmd.Stderr = writer, writer
	cmd.SysProcAttr = newProcessGroup()
	started, ended := start(cmd)
	err = <-started
	_ = writer.Close()
	if err != nil {
		_ = reader.Close()
		return result{reason: fmt.Errorf("start the shell: %w", err)}
	}

	out := &output{pipe: reader}
	read := make(chan bool, 1)
	go func() { read <- out.copyTo(take) }()

	select {
	case err := <-ended:
		r.reason = reasonOf(err)
	case <-ctx.Done():
		begin := time.Now()
		r.pulumi, err = stop(cmd.Process.Pid, ended, s)
		r.reason = errors.Join(context.Cause(ctx), err)
		r.stopped, r.took = true, time.Since(begin)
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
