package docker

import (
	"context"
	"errors"
	"strconv"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/cmwa-project/cmwa/runtime"
)

// List finds the containers whose labels name agent and pool. One that was
// created and never started counts as ended when it was created: whoever made it
// has died over it.
func (e *Executor) List(ctx context.Context, agent, pool string) ([]runtime.Found, error) {
	asked, cancel := context.WithTimeout(ctx, shortLimit)
	defer cancel()
	listed, err := e.engine.ContainerList(asked, client.ContainerListOptions{
		All:     true,
		Filters: client.Filters{}.Add("label", labelAgent+"="+agent, labelPool+"="+pool),
	})
	if err != nil {
		return nil, refused("list the containers of jobs", e.host, because(ctx, err))
	}
	var all []runtime.Found
	for _, one := range listed.Items {
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
	generation, _ := strconv.ParseUint(c.Config.Labels[labelGeneration], 10, 64)
	f := runtime.Found{
		ID:         c.ID,
		Job:        c.Config.Labels[labelJob],
		Subject:    c.Config.Labels[labelSubject],
		Generation: generation,
		Running:    c.State.Running,
		Started:    instant(c.State.StartedAt),
	}
	switch {
	case c.State.Running:
	case c.State.Status == container.StateCreated:
		f.Ended = instant(c.Created)
	default:
		f.Ended = instant(c.State.FinishedAt)
	}
	return f
}
