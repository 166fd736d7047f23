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

// List returns the containers whose labels name the agent. One that was created
// and never started counts as ended when it was created: its agent died before it
// started it. A running one counts as started when it was created, which is less
// than a second earlier and spares an inspection.
func (e *Executor) List(ctx context.Context, agent string) ([]runtime.Found, error) {
	asked, cancel := context.WithTimeout(ctx, shortLimit)
	defer cancel()
	listed, err := e.engine.ContainerList(asked, client.ContainerListOptions{
		All:     true,
		Filters: client.Filters{}.Add("label", labelAgent+"="+agent),
	})
	if err != nil {
		return nil, refused("list the containers of jobs", e.host, because(ctx, err))
	}
	var all []runtime.Found
	for _, one := range listed.Items {
		if one.State == container.StateRunning || one.State == container.StatePaused {
			f := labelled(one.ID, one.Labels)
			f.Running, f.Started = true, time.Unix(one.Created, 0)
			all = append(all, f)
			continue
		}
		found, err := e.look(ctx, one.ID)
		switch {
		case errors.Is(err, runtime.ErrNoEnvironment): // it went this moment
		case err != nil:
			return nil, err
		default:
			all = append(all, found)
		}
	}
	return all, nil
}

// labelled returns what the labels of a container tell.
func labelled(id string, labels map[string]string) runtime.Found {
	generation, _ := strconv.ParseUint(labels[labelGeneration], 10, 64)
	pool := poolOf(labels)
	return runtime.Found{
		ID:         id,
		Pool:       pool.Key(),
		PoolName:   pool.Name,
		Identity:   pool.Identity,
		Job:        labels[labelJob],
		Subject:    labels[labelSubject],
		Generation: generation,
	}
}

// look reads what is known of one container.
func (e *Executor) look(ctx context.Context, id string) (runtime.Found, error) {
	asked, cancel := context.WithTimeout(ctx, shortLimit)
	defer cancel()
	answer, err := e.engine.ContainerInspect(asked, id, client.ContainerInspectOptions{})
	switch {
	case errdefs.IsNotFound(err):
		return runtime.Found{}, runtime.ErrNoEnvironment
	case err != nil:
		return runtime.Found{}, refused("look at the container of a job", e.host, because(ctx, err))
	case answer.Container.Config == nil || answer.Container.State == nil:
		return runtime.Found{}, runtime.ErrNoEnvironment
	}
	return found(answer.Container), nil
}

// found makes of a container what its labels and its state say.
func found(c container.InspectResponse) runtime.Found {
	f := labelled(c.ID, c.Config.Labels)
	f.Running, f.Started = c.State.Running, instant(c.State.StartedAt)
	switch {
	case c.State.Running:
	case c.State.Status == container.StateCreated:
		f.Ended = instant(c.Created)
	default:
		f.Ended = instant(c.State.FinishedAt)
	}
	return f
}
