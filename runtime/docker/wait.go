package docker

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/cmwa-project/cmwa/runtime"
)

// never is the exit code of a container that has none.
const never = -1

// Wait blocks until the container has ended. An engine that stops meanwhile is an
// error; with live restore the container outlives it, and can be waited for again.
func (e *Executor) Wait(ctx context.Context, id string) (runtime.Exit, error) {
	if !isID(id) {
		return runtime.Exit{}, fmt.Errorf("wait for %q: %w", id, runtime.ErrNoEnvironment)
	}
	exit, err := e.ended(ctx, id)
	switch {
	case err == nil, errors.Is(err, runtime.ErrNoEnvironment):
		return exit, err
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	}
	return exit, fmt.Errorf("wait for the container: %w", err)
}

// ended waits for a container's end, and asks how it was. The container may be
// removed between the two.
func (e *Executor) ended(ctx context.Context, id string) (runtime.Exit, error) {
	waited := e.engine.ContainerWait(ctx, id, client.ContainerWaitOptions{Condition: container.WaitConditionNotRunning})
	var code int
	select { // one of them comes, with the end of ctx at the latest
	case response := <-waited.Result:
		code = int(response.StatusCode)
	case err := <-waited.Error:
		if errdefs.IsNotFound(err) {
			return runtime.Exit{}, fmt.Errorf("wait for %s: %w", short(id), runtime.ErrNoEnvironment)
		}
		return runtime.Exit{}, err
	}
	asked, cancel := context.WithTimeout(ctx, shortLimit)
	defer cancel()
	found, err := e.engine.ContainerInspect(asked, id, client.ContainerInspectOptions{})
	switch {
	case errdefs.IsNotFound(err):
		return runtime.Exit{Code: code, Reason: reason(container.State{ExitCode: code})}, nil
	case err != nil:
		return runtime.Exit{}, err
	case found.Container.State == nil:
		return runtime.Exit{}, errors.New("the engine does not say how it ended")
	}
	state := *found.Container.State
	switch {
	case state.Status == container.StateCreated:
		return runtime.Exit{Code: never, Reason: "it was never started"}, nil
	case state.Running:
		return runtime.Exit{}, errors.New("somebody has started it again")
	}
	exit := runtime.Exit{Code: state.ExitCode, Reason: reason(state)}
	if exit.Reason == "" && !runtime.ChosenCode(exit.Code) {
		exit.Reason = e.lastWords(ctx, id)
	}
	return exit, nil
}

// reason says in words why a container ended, if that was not the runner's
// choice.
func reason(state container.State) string {
	signal := syscall.Signal(state.ExitCode - 128)
	switch {
	case runtime.ChosenCode(state.ExitCode):
		return ""
	case state.OOMKilled:
		return "out of memory"
	case state.Error != "":
		return words(errors.New(state.Error))
	case signal == syscall.SIGKILL:
		return "killed"
	case signal == syscall.SIGTERM:
		return "terminated"
	case signal > 0 && signal < 65:
		return fmt.Sprintf("ended by signal %d (%v)", int(signal), signal)
	default:
		return ""
	}
}
