package docker

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/cmwa-project/cmwa/runtime"
)

// Remove stops the container: with a SIGTERM and the grace period if this is not 0, and with a
// SIGKILL otherwise. It then removes the container, its anonymous volumes and the directory of
// the job. The grace period is rounded up to whole seconds.
func (e *Executor) Remove(ctx context.Context, id string, grace time.Duration) error {
	if !isID(id) {
		return nil
	}

	// Find the container. Without it, only a directory can be left.
	found, err := e.inspectContainer(ctx, id)
	switch {
	case errdefs.IsNotFound(err):
		return e.removeJobDirectory(id, "")
	case err != nil:
		return fmt.Errorf("inspect the container: %w", err)
	}

	if found.State != nil && found.State.Running && grace > 0 {
		if err := e.stop(ctx, id, grace); err != nil {
			return err
		}
	}
	if err := e.removeContainer(ctx, id); err != nil {
		return err
	}
	directory := ""
	if found.Config != nil {
		directory = found.Config.Labels[labelDirectory]
	}
	return e.removeJobDirectory(id, directory)
}

// Interrupt sends a SIGINT to the first process of the container, which forwards it to the
// runner.
func (e *Executor) Interrupt(ctx context.Context, id string) error {
	if !isID(id) {
		return runtime.ErrNoInstance
	}
	ctx, cancel := context.WithTimeout(ctx, shortLimit)
	defer cancel()
	_, err := e.engine.ContainerKill(ctx, id, client.ContainerKillOptions{Signal: "SIGINT"})
	switch {
	case err == nil, errdefs.IsConflict(err): // a conflict: the container does not run
		return nil
	case errdefs.IsNotFound(err):
		return runtime.ErrNoInstance
	}
	return fmt.Errorf("interrupt the container: %w", causeOf(ctx, err))
}

func (e *Executor) removeJobDirectory(id, labelled string) error {
	if remembered, ok := e.directories.LoadAndDelete(id); ok && labelled == "" {
		labelled = remembered.(string)
	}
	return removeDirectory(labelled)
}

// stop stops a container. The engine kills it after the grace period.
func (e *Executor) stop(ctx context.Context, id string, grace time.Duration) error {
	seconds := int((grace + time.Second - 1) / time.Second)
	ctx, cancel := context.WithTimeout(ctx, time.Duration(seconds)*time.Second+longLimit)
	defer cancel()
	_, err := e.engine.ContainerStop(ctx, id, client.ContainerStopOptions{Timeout: &seconds})
	if err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("stop the container: %w", causeOf(ctx, err))
	}
	return nil
}

// removeContainer removes a container by id or name, running or not. It returns when the
// container is removed, by this call or by another client. An engine that sees a container run,
// and cannot kill it because it has just ended, removes nothing: then the call is repeated.
func (e *Executor) removeContainer(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, longLimit)
	defer cancel()
	for {
		_, err := e.engine.ContainerRemove(ctx, id, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
		switch {
		case err == nil, errdefs.IsNotFound(err):
			return nil
		case errdefs.IsConflict(err) && strings.Contains(err.Error(), "already in progress"):
			return e.awaitRemoval(ctx, id)
		case !strings.Contains(err.Error(), "is not running"):
			return fmt.Errorf("remove the container: %w", causeOf(ctx, err))
		}
		if !runtime.Sleep(ctx, nil, removeRetry) {
			return fmt.Errorf("remove the container: %w", err)
		}
	}
}

func (e *Executor) awaitRemoval(ctx context.Context, id string) error {
	result := e.engine.ContainerWait(ctx, id, client.ContainerWaitOptions{Condition: container.WaitConditionRemoved})
	select { // one of the channels receives, at the latest when ctx ends
	case <-result.Result:
		return nil
	case err := <-result.Error:
		if errdefs.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("wait for the container to be removed: %w", causeOf(ctx, err))
	}
}
