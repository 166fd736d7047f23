package docker

import (
	"context"
	"errors"
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/cmwa-project/cmwa/runtime"
)

// noExitCode is the exit code of a container that has none.
const noExitCode = -1

// Wait blocks until the container has ended. It returns an error if the engine stops
// meanwhile; with live restore the container survives that, and Wait can be called again.
func (e *Executor) Wait(ctx context.Context, id string) (runtime.Exit, error) {
	if !isID(id) {
		return runtime.Exit{}, fmt.Errorf("wait for %q: %w", id, runtime.ErrNoInstance)
	}
	exit, err := e.waitForExit(ctx, id)
	switch {
	case err == nil, errors.Is(err, runtime.ErrNoInstance):
		return exit, err
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	}
	return exit, fmt.Errorf("wait for the container: %w", err)
}

// waitForExit waits for the end of a container, and then inspects it. Another client may
// remove the container in between.
func (e *Executor) waitForExit(ctx context.Context, id string) (runtime.Exit, error) {
	// Wait for the end.
	result := e.engine.ContainerWait(ctx, id, client.ContainerWaitOptions{Condition: container.WaitConditionNotRunning})
	var code int
	select { // one of them is sent, at the latest when ctx ends
	case response := <-result.Result:
		code = int(response.StatusCode)
	case err := <-result.Error:
		if errdefs.IsNotFound(err) {
			return runtime.Exit{}, fmt.Errorf("wait for %s: %w", shortID(id), runtime.ErrNoInstance)
		}
		return runtime.Exit{}, err
	}

	// Inspect the container.
	callCtx, cancel := context.WithTimeout(ctx, shortLimit)
	defer cancel()
	found, err := e.engine.ContainerInspect(callCtx, id, client.ContainerInspectOptions{})
	switch {
	case errdefs.IsNotFound(err):
		return runtime.Exit{Code: code, Reason: exitReason(container.State{ExitCode: code})}, nil
	case err != nil:
		return runtime.Exit{}, err
	case found.Container.State == nil:
		return runtime.Exit{}, errors.New("the engine does not report the state of the container")
	}
	state := *found.Container.State
	switch {
	case state.Status == container.StateCreated:
		return runtime.Exit{Code: noExitCode, Reason: "the container was never started"}, nil
	case state.Running:
		return runtime.Exit{}, errors.New("another client has started the container again")
	}

	// Return the exit, with the last message of a runner that did not choose its end.
	exit := runtime.Exit{Code: state.ExitCode, Reason: exitReason(state)}
	if exit.Reason == "" && !runtime.IsRunnerCode(exit.Code) {
		exit.Reason = e.lastMessage(ctx, id)
	}
	return exit, nil
}

// exitReason returns why a container ended, if the runner did not choose the end.
func exitReason(state container.State) string {
	switch {
	case runtime.IsRunnerCode(state.ExitCode):
		return ""
	case state.OOMKilled:
		return "out of memory"
	case state.Error != "":
		return oneLine(errors.New(state.Error))
	default:
		return runtime.SignalReason(state.ExitCode)
	}
}
