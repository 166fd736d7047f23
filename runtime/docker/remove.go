package docker

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
)

// Remove ends the container, with a TERM first if there is a grace, and removes
// it, its anonymous volumes and the job's folder. A grace is rounded up to whole
// seconds.
func (e *Executor) Remove(ctx context.Context, id string, grace time.Duration) error {
	if !isID(id) {
		return nil
	}
	asked, cancel := context.WithTimeout(ctx, shortLimit)
	defer cancel()
	found, err := e.engine.ContainerInspect(asked, id, client.ContainerInspectOptions{})
	switch {
	case errdefs.IsNotFound(err):
		return e.forget(id, "")
	case err != nil:
		return fmt.Errorf("look at the container to remove: %w", err)
	}
	if state := found.Container.State; state != nil && state.Running && grace > 0 {
		if err := e.stop(ctx, id, grace); err != nil {
			return err
		}
	}
	if err := e.erase(ctx, id); err != nil {
		return err
	}
	folder := ""
	if config := found.Container.Config; config != nil {
		folder = config.Labels[labelFolder]
	}
	return e.forget(id, folder)
}

// forget removes the folder of a job whose container is gone.
func (e *Executor) forget(id, labelled string) error {
	e.mu.Lock()
	remembered := e.folders[id]
	delete(e.folders, id)
	e.mu.Unlock()
	if labelled == "" {
		labelled = remembered
	}
	if labelled == "" {
		return nil
	}
	return removeFolder(labelled)
}

// stop asks a container to end, and makes it end after the grace.
func (e *Executor) stop(ctx context.Context, id string, grace time.Duration) error {
	seconds := int((grace + time.Second - 1) / time.Second)
	ctx, cancel := context.WithTimeout(ctx, time.Duration(seconds)*time.Second+longLimit)
	defer cancel()
	_, err := e.engine.ContainerStop(ctx, id, client.ContainerStopOptions{Timeout: &seconds})
	if err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("stop the container: %w", because(ctx, err))
	}
	return nil
}

// erase removes a container by id or name, running or not. It returns when the
// container is gone, whoever removes it.
func (e *Executor) erase(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, longLimit)
	defer cancel()
	_, err := e.engine.ContainerRemove(ctx, id, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
	switch {
	case err == nil, errdefs.IsNotFound(err):
		return nil
	case errdefs.IsConflict(err) && strings.Contains(err.Error(), "already in progress"):
		return e.awaitRemoval(ctx, id)
	default:
		return fmt.Errorf("remove the container: %w", because(ctx, err))
	}
}

// awaitRemoval waits for somebody else's removal.
func (e *Executor) awaitRemoval(ctx context.Context, id string) error {
	waited := e.engine.ContainerWait(ctx, id, client.ContainerWaitOptions{Condition: container.WaitConditionRemoved})
	select { // one of them comes, with the end of ctx at the latest
	case <-waited.Result:
		return nil
	case err := <-waited.Error:
		if errdefs.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("wait for the container to be removed: %w", because(ctx, err))
	}
}
