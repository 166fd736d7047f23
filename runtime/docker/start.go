package docker

import (
	"context"
	"errors"
	"strings"

	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"
	"golang.org/x/sync/errgroup"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/killpoint"
)

// Start creates the container of the job and starts the runner in it. If the engine already
// has the image and the volume with the runner, a start makes three more calls than docker
// run: an inspection of the image, a check of the runner's volume, and the attachment. The
// last two calls run concurrently with [runtime.Setup.Handoff], which sends the log of step
// 0 to the service.
func (e *Executor) Start(ctx context.Context, job *runtime.Job, setup *runtime.Setup) (_ string, err error) {
	setup.Log("Preparing a container for this job on the Docker engine at %s", e.host)
	spec := job.Tuning.Instance
	img, err := e.image(ctx, job, setup)
	if err != nil {
		if spec.OverrideImage != "" {
			err = settingsFault(err) // the configuration has chosen the image
		}
		return "", runtime.FailureImage.Wrap(err)
	}
	runner, err := e.findRunner(spec.WorkingDirectory, img)
	if err != nil {
		return "", err
	}
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}

	name := newName(job.ID)
	from, directory, err := e.runnerMount(spec.SharedVolumeDirectory, name, runner)
	if err != nil {
		return "", err
	}
	if directory != "" {
		killpoint.Hit(killpoint.DirectoryCreated)
	}
	defer func() {
		if errors.Is(err, runtime.ErrConnectionLost) {
			setup.Withdraw(ctx)
		}
		if err != nil {
			err = errors.Join(err, e.discard(ctx, name, directory))
		}
	}()
	created := setup.Measure(runtime.StageCreate)
	id, err := e.create(ctx, e.containerOptions(job, img, name, directory, from))
	created()
	if err != nil {
		return "", err
	}
	killpoint.Hit(killpoint.InstanceCreated)
	setup.Log("Container created: %s", shortID(id))
	setup.Log("Starting the container")

	defer setup.Measure(runtime.StageStart)()
	input, handoff, err := e.prepare(ctx, id, setup, func(ctx context.Context) error {
		if directory == "" {
			if err := e.fill(ctx, id, img, runner); err != nil {
				return err
			}
		}
		if runsAsRoot(spec.Docker.User, img.user) {
			return nil
		}
		return e.openParent(ctx, id)
	})
	if input != nil {
		defer input.Close()
	}
	if err != nil {
		return "", err
	}

	if err := e.startContainer(ctx, id); err != nil {
		return "", err
	}
	if complete, err := e.writeHandoff(ctx, input, handoff); err != nil {
		input.Close() // if the engine still forwards input, this ends the input
		if err := e.handoffError(ctx, id, complete, err); err != nil {
			return "", err
		}
	}
	killpoint.Hit(killpoint.HandoffSent)
	if img.architecture != e.architecture {
		if err := e.checkEmulation(ctx, id); err != nil {
			return "", err
		}
	}
	if directory != "" {
		e.directories.Store(id, directory)
	}
	return id, nil
}

func (e *Executor) findRunner(directory string, img image) (program, error) {
	runner, err := e.programs.find(directory, img.architecture)
	if err != nil && img.architecture != e.architecture {
		return runner, runtime.NewJobFault("%w", err) // other jobs, for the engine's architecture, may succeed
	}
	return runner, err
}

// runnerMount returns the mount with the runner for a job's container: the volume of the
// runner, or a new directory with this name below shared_volume_directory.
func (e *Executor) runnerMount(shared, name string, runner program) (from mount.Mount, directory string, err error) {
	if shared == "" {
		return e.volumeMount(runner, true), "", nil
	}
	directory, err = makeDirectory(shared, name, e.owner(), runner)
	return mount.Mount{Type: mount.TypeBind, Source: directory, Target: e.directory, ReadOnly: true}, directory, err
}

// prepare concurrently runs the tasks that need the created container: it attaches to the
// runner's standard input, copies the runner, and gets the handoff from the set-up. The
// caller must close the input if it is not nil, also after an error.
func (e *Executor) prepare(
	ctx context.Context, id string, setup *runtime.Setup, fill func(context.Context) error,
) (input *client.HijackedResponse, handoff []byte, err error) {
	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(func() error { return fill(groupCtx) })
	group.Go(func() (err error) {
		input, err = e.attach(groupCtx, id)
		if err == nil {
			killpoint.Hit(killpoint.Attached)
		}
		return err
	})
	handoff, err = setup.Handoff(ctx, "/") // must be called from this goroutine
	err = errors.Join(group.Wait(), err)
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return input, handoff, err
}

// startContainer starts the container. If ctx ends, the call continues for at most
// cancelGrace.
func (e *Executor) startContainer(ctx context.Context, id string) error {
	callCtx, cancel := withCancelGrace(ctx, longLimit)
	defer cancel()
	if _, err := e.engine.ContainerStart(callCtx, id, client.ContainerStartOptions{}); err != nil {
		return engineError("start the container", e.host, err)
	}
	return context.Cause(ctx)
}

// checkEmulation returns an error if a program for another architecture fails with "exec
// format error" within emulationWait. An engine without emulation starts the container
// without an error; then the program fails.
func (e *Executor) checkEmulation(ctx context.Context, id string) error {
	callCtx, cancel := context.WithTimeout(ctx, emulationWait)
	defer cancel()
	if _, err := e.waitForExit(callCtx, id); err != nil {
		return nil // the container still runs, or Wait reports how it ended
	}
	if message := e.lastMessage(ctx, id); strings.Contains(message, "exec format error") {
		return engineError("start the container", e.host, errors.New(message))
	}
	return nil
}

// discard removes the container and the directory of a failed start.
func (e *Executor) discard(ctx context.Context, name, directory string) error {
	ctx, cancel := withCancelGrace(ctx, discardLimit)
	defer cancel()
	return errors.Join(e.removeContainer(ctx, name), removeDirectory(directory))
}
