package runner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	goruntime "runtime"
	"syscall"
	"time"
)

// Times of a forced end.
const (
	lookAgain = 20 * time.Millisecond // at a process group that was asked to end
	killTime  = 10 * time.Second      // for what was killed to be gone
)

// command is a program to run in a process group of its own.
type command struct {
	path      string
	args      []string
	directory string
	environ   []string
	grace     time.Duration   // between TERM and KILL
	hurry     <-chan struct{} // closed to kill at once
}

// supervise runs a program, passes on what it and its children write, and
// returns why it failed. When ctx ends first, the group is stopped, and the
// reason is the context's. If processes in the background hold the output,
// it is returned, and the caller drains and closes it.
func supervise(ctx context.Context, c command, take func(piece []byte, now time.Time)) (held *output, reason error) {
	reader, writer, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start the shell: %w", err)
	}
	cmd := exec.Command(c.path, c.args...)
	cmd.Dir, cmd.Env = c.directory, c.environ
	cmd.Stdout, cmd.Stderr = writer, writer
	cmd.SysProcAttr = groupOfItsOwn()
	started, ended := start(cmd)
	err = <-started
	_ = writer.Close()
	if err != nil {
		_ = reader.Close()
		return nil, fmt.Errorf("start the shell: %w", err)
	}

	out := &output{pipe: reader}
	read := make(chan bool, 1)
	go func() { read <- out.copyTo(take) }()

	select {
	case err := <-ended:
		reason = reasonOf(err)
	case <-ctx.Done():
		reason = errors.Join(context.Cause(ctx), stop(cmd.Process.Pid, ended, c))
	}
	out.shellEnded()
	if <-read {
		return out, reason
	}
	_ = reader.Close()
	return nil, reason
}

// start starts a program on a thread that lives as long as the program: on
// Linux it dies with the thread that started it, which is to mean the runner.
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

// stop ends a process group: TERM, and KILL when the grace is over or there is
// no time for it. It waits for the whole group, not for its leader alone. An
// error means that it could not be ended.
func stop(group int, ended <-chan error, c command) error {
	_ = syscall.Kill(-group, syscall.SIGTERM)
	grace := time.NewTimer(c.grace)
	defer grace.Stop()
	ticker := time.NewTicker(lookAgain)
	defer ticker.Stop()
	for ended != nil || !errors.Is(syscall.Kill(-group, 0), syscall.ESRCH) {
		select {
		case <-ended:
			ended = nil
		case <-ticker.C:
		case <-grace.C:
			return kill(group, ended)
		case <-c.hurry:
			return kill(group, ended)
		}
	}
	return nil
}

// kill kills a process group, and waits for its leader if that has not ended.
func kill(group int, ended <-chan error) error {
	_ = syscall.Kill(-group, syscall.SIGKILL)
	if ended == nil {
		return nil
	}
	limit := time.NewTimer(killTime)
	defer limit.Stop()
	select {
	case <-ended:
		return nil
	case <-limit.C:
		return fmt.Errorf("process %d does not end even when it is killed", group)
	}
}
