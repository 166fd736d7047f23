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

// Wait blocks until the container has ended. It returns an error if the engine stops
// meanwhile. An engine with live restore leaves the container running; then Wait can be
// called again.
func (e *Executor) Wait(ctx context.Context, id string) (runtime.Exit, error) {
	if !isID(id) {
		return runtime.Exit{}, fmt.Errorf("wait for %q: %w", id, runtime.ErrNoInstance)
	}
	exit, err := e.waitForExit(ctx, id)
	if err == nil || errors.Is(err, runtime.ErrNoInstance) {
		return exit, err
	}
	return exit, fmt.Errorf("wait for the container: %w", causeOf(ctx, err))
}

// waitForExit waits for the end of a container, and then inspects the container. Another
// client may remove it between these two calls.
func (e *Executor) waitForExit(ctx context.Context, id string) (runtime.Exit, error) {
	result := e.engine.ContainerWait(ctx, id, client.ContainerWaitOptions{Condition: container.WaitConditionNotRunning})
	var code int
	select { // one channel receives a value, at the latest when ctx ends
	case response := <-result.Result:
		code = int(response.StatusCode)
	case err := <-result.Error:
		if errdefs.IsNotFound(err) {
			return runtime.Exit{}, fmt.Errorf("wait for %s: %w", shortID(id), runtime.ErrNoInstance)
		}
		return runtime.Exit{}, err
	}

	found, err := e.inspectContainer(ctx, id)
	switch {
	case errdefs.IsNotFound(err):
		return runtime.Exit{Code: code, Reason: exitReason(container.State{ExitCode: code}, false)}, nil
	case err != nil:
		return runtime.Exit{}, err
	case found.State == nil:
		return runtime.Exit{}, errors.New("the engine does not report the state of the container")
	case found.State.Status == container.StateCreated:
		return runtime.Exit{Code: runtime.CodeUnknown, Reason: "the container was never started"}, nil
	case found.State.Running:
		return runtime.Exit{}, errors.New("another client has started the container again")
	}

	// Return the exit. If the exit code is not one of the runner's own and has no reason,
	// the reason is the runner's last message.
	limited := found.HostConfig != nil && found.HostConfig.Memory > 0
	exit := runtime.Exit{Code: found.State.ExitCode, Reason: exitReason(*found.State, limited)}
	if exit.Reason == "" && !runtime.IsRunnerCode(exit.Code) {
		exit.Reason = e.lastMessage(ctx, id)
	}
	return exit, nil
}

// exitReason returns why a container ended. It is empty if the runner itself chose the exit
// code, and if no reason is known. Limited reports whether the memory of the container has a limit. An
// engine does not always set OOMKilled (containerd issue 8180).
func exitReason(state container.State, limited bool) string {
	switch {
	case runtime.IsRunnerCode(state.ExitCode):
		return ""
	case state.OOMKilled:
		return "out of memory"
	case state.Error != "":
		return oneLine(errors.New(state.Error))
	case limited && state.ExitCode == 128+int(syscall.SIGKILL):
		return "killed; it may have run out of memory, which docker.memory limits"
	default:
		return runtime.SignalReason(state.ExitCode)
	}
}
