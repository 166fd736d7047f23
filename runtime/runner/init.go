package runner

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// StopSignals returns the signals that request the stop of a job. The kubelet sends the stop
// signal of the image, which is SIGTERM by default: the images of nginx use SIGQUIT, those of
// httpd SIGWINCH, and others SIGUSR1 or SIGUSR2.
func StopSignals() []os.Signal {
	return []os.Signal{
		syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH,
	}
}

// Init runs as process 1 of a container. It starts this program again with the same
// arguments, streams and environment, forwards signals to it, and reaps every orphaned
// process. It returns the exit code of the started program when that ends. When process 1
// then exits, the kernel kills the remaining processes of the container. The runner is the
// started program: an ordinary process whose only children are those that it starts.
func Init() (code int, err error) {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, append(StopSignals(), syscall.SIGINT)...)
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
	var forwarding sync.WaitGroup
	forwarding.Go(func() {
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
	defer forwarding.Wait()
	defer close(ended)
	return reap(child)
}

// reap reaps own and adopted children until the given child ends, and returns its exit
// code.
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
