package docker

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/cmwa-project/cmwa/runtime"
)

// List returns the containers whose labels name the agent. A container that was created
// and never started counts as ended at its creation: the agent ended before the start.
// A running container counts as started at its creation. This time is less than a second too
// early, and needs no inspection.
func (e *Executor) List(ctx context.Context, agent string) ([]runtime.Instance, error) {
	listed, err := e.listContainers(ctx, "the containers of jobs", client.Filters{}.Add("label", labelAgent+"="+agent))
	if err != nil {
		return nil, err
	}

	// Convert running containers, and inspect the others for the time of their end.
	var all []runtime.Instance
	for _, c := range listed {
		if c.State == container.StateRunning || c.State == container.StatePaused {
			f := labelledInstance(c.ID, c.Labels)
			f.Running, f.Started = true, time.Unix(c.Created, 0)
			all = append(all, f)
			continue
		}
		found, err := e.inspect(ctx, c.ID)
		switch {
		case errors.Is(err, runtime.ErrNoInstance): // it was removed after the list was made
		case err != nil:
			return nil, err
		default:
			all = append(all, found)
		}
	}
	return all, nil
}

// listContainers returns the containers that pass the filters, running or not. What names them in
// an error.
func (e *Executor) listContainers(
	ctx context.Context, what string, filters client.Filters,
) ([]container.Summary, error) {
	callCtx, cancel := context.WithTimeout(ctx, shortLimit)
	defer cancel()
	listed, err := e.engine.ContainerList(callCtx, client.ContainerListOptions{All: true, Filters: filters})
	if err != nil {
		return nil, engineError("list "+what, e.host, causeOf(ctx, err))
	}
	return listed.Items, nil
}

func labelledInstance(id string, labels map[string]string) runtime.Instance {
	generation, _ := strconv.ParseUint(labels[labelGeneration], 10, 64)
	pool := poolOf(labels)
	return runtime.Instance{
		ID:         id,
		Pool:       pool.Key(),
		PoolName:   pool.Name,
		Identity:   pool.Identity,
		Job:        labels[labelJob],
		WorkflowID: labels[labelSubject],
		Kind:       runtime.Kind(labels[labelKind]),
		Work:       runtime.WorkOf(labels),
		Generation: generation,
	}
}

// inspectContainer returns the description of a container by id or name.
func (e *Executor) inspectContainer(ctx context.Context, id string) (container.InspectResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, shortLimit)
	defer cancel()
	found, err := e.engine.ContainerInspect(ctx, id, client.ContainerInspectOptions{})
	return found.Container, err
}

func (e *Executor) inspect(ctx context.Context, id string) (runtime.Instance, error) {
	found, err := e.inspectContainer(ctx, id)
	switch {
	case errdefs.IsNotFound(err):
		return runtime.Instance{}, runtime.ErrNoInstance
	case err != nil:
		return runtime.Instance{}, engineError("inspect the container of a job", e.host, causeOf(ctx, err))
	case found.Config == nil || found.State == nil:
		return runtime.Instance{}, runtime.ErrNoInstance
	}
	return instanceOf(found), nil
}

func instanceOf(c container.InspectResponse) runtime.Instance {
	f := labelledInstance(c.ID, c.Config.Labels)
	f.Running, f.Started = c.State.Running, parseTime(c.State.StartedAt)
	switch {
	case c.State.Running:
	case c.State.Status == container.StateCreated:
		f.Ended = parseTime(c.Created)
	default:
		f.Ended = parseTime(c.State.FinishedAt)
	}
	return f
}
