package runner

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// Init is what process 1 of a container does: it starts this program again with
// the same arguments, streams and environment, passes signals on to it, reaps
// every process that has lost its parent, and returns the program's exit code
// once that has ended; the kernel ends what is left. As an ordinary process, the
// runner then needs to know nothing of other people's children.
func Init() (code int, err error) {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT)
	defer signal.Stop(signals)

	program, err := os.Executable()
	if err != nil {
		return 0, fmt.Errorf("find this program: %w", err)
	}
	child, err := syscall.ForkExec(program, os.Args, &syscall.ProcAttr{
		Env: os.Environ(), Files: []uintptr{0, 1, 2},
	})
	if err != nil {
		return 0, fmt.Errorf("start the runner: %w", err)
	}

	ended := make(chan struct{})
	var passing sync.WaitGroup
	passing.Go(func() {
		for {
			select {
			case s := <-signals:
				if s, ok := s.(syscall.Signal); ok {
					_ = syscall.Kill(child, s)
				}
			case <-ended:
				return
			}
		}
	})
	defer passing.Wait()
	defer close(ended)
	return reap(child)
}

// reap waits for children, own and inherited, until one of them has ended that
// matters.
func reap(child int) (code int, err error) {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return 0, fmt.Errorf("wait for the runner: %w", err)
		case pid != child:
		case status.Signaled():
			return 128 + int(status.Signal()), nil
		case status.Exited():
			return status.ExitStatus(), nil
		}
	}
}
