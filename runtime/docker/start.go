package docker

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"
	"golang.org/x/sync/errgroup"

	"github.com/cmwa-project/cmwa/runtime"
)

const (
	discardLimit = time.Minute // for removing what a failed start has made
	emulatedTime = time.Second // in which a program for another machine fails, if it does
)

// Start makes the job's container and starts the runner in it. The start of a
// job whose image and runner are at hand costs the engine an inspection of the
// image, a look for the runner's mark and the attachment, beyond what
// docker run does; the latter two run beside the report to the service.
func (e *Executor) Start(ctx context.Context, job *runtime.Job, setup *runtime.Setup) (_ string, err error) {
	// Find the image, pulled if that is configured, and the runner for its machine.
	setup.Say("Preparing the environment of this job on the Docker engine at %s", e.host)
	place := job.Tuning.Place
	img, err := e.image(ctx, job, setup)
	switch {
	case err != nil && place.OverrideImage != "":
		return "", settingsFault(err) // the image is the configuration's choice
	case err != nil:
		return "", err
	}
	runner, err := e.findRunner(place.WorkingDirectory, img)
	if err != nil {
		return "", err
	}
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}

	// Create the container. From here on, an error removes what was made.
	name := newName(job.ID)
	from, folder, err := e.runnerMount(place.SharedVolumeDirectory, name, runner)
	if err != nil {
		return "", err
	}
	id := ""
	defer func() {
		if err != nil {
			err = errors.Join(err, e.discard(ctx, name, folder))
			return
		}
		e.remember(id, folder)
	}()
	id, err = e.create(ctx, e.containerOf(job, img, name, folder, from))
	if err != nil {
		return "", err
	}
	setup.Say("Container created: %s", short(id))
	setup.Say("Starting the container")

	// Put the runner in, attach to its input, and get the handover.
	input, handover, err := e.prepare(ctx, id, setup, func(ctx context.Context) error {
		if folder == "" {
			if err := e.fill(ctx, id, img, runner); err != nil {
				return err
			}
		}
		if asRoot(place.Docker.User, img.user) {
			return nil
		}
		return e.admit(ctx, id)
	})
	if input != nil {
		defer input.Close()
	}
	if err != nil {
		return "", err
	}
	// Start the runner and hand the job over.
	if err := e.launch(ctx, id); err != nil {
		return "", err
	}
	if err := deliver(ctx, input, handover); err != nil {
		return "", e.undelivered(ctx, id, err)
	}
	if img.architecture != e.architecture {
		if err := e.emulated(ctx, id); err != nil {
			return "", err
		}
	}
	return id, nil
}

// findRunner finds the runner program for the machine of an image.
func (e *Executor) findRunner(directory string, img image) (program, error) {
	runner, err := e.programs.find(directory, img.architecture)
	if err != nil && img.architecture != e.architecture {
		return runner, jobFault("%w", err) // jobs for the engine's own machine may work
	}
	return runner, err
}

// runnerMount returns what a job's container mounts to have the runner: the runner's
// volume, or a new folder of this name below shared_volume_directory.
func (e *Executor) runnerMount(shared, name string, runner program) (from mount.Mount, folder string, err error) {
	if shared == "" {
		return e.volumeMount(runner, true), "", nil
	}
	folder, err = makeFolder(shared, name, e.owner(), runner)
	return e.folderMount(folder), folder, err
}

// prepare does at once what needs the created container: it attaches to the
// runner's standard input, puts the runner in, and asks the set-up for the
// handover. The input is to be closed whatever the error.
func (e *Executor) prepare(ctx context.Context, id string, setup *runtime.Setup, fill func(context.Context) error) (input *client.HijackedResponse, handover []byte, err error) {
	group, beside := errgroup.WithContext(ctx)
	group.Go(func() error { return fill(beside) })
	group.Go(func() (err error) {
		input, err = e.attach(beside, id)
		return err
	})
	handover, err = setup.Handover(ctx, "/") // of this goroutine alone
	if done := group.Wait(); done != nil {
		err = errors.Join(done, err)
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return input, handover, err
}

// launch starts the container. The engine is not interrupted.
func (e *Executor) launch(ctx context.Context, id string) error {
	limit, cancel := patient(ctx, longLimit)
	defer cancel()
	if _, err := e.engine.ContainerStart(limit, id, client.ContainerStartOptions{}); err != nil {
		return refused("start the container", e.host, err)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// emulated gives a program for another machine the time to fail. An engine
// without emulation starts it all the same, and it is the program's own start
// that fails then.
func (e *Executor) emulated(ctx context.Context, id string) error {
	limit, cancel := context.WithTimeout(ctx, emulatedTime)
	defer cancel()
	if _, err := e.ended(limit, id); err != nil {
		return nil // it runs, or its end is for Wait to tell
	}
	if message := e.lastWords(ctx, id); strings.Contains(message, "exec format error") {
		return refused("start the container", e.host, errors.New(message))
	}
	return nil
}

// discard removes what a failed start has made.
func (e *Executor) discard(ctx context.Context, name, folder string) error {
	ctx, cancel := patient(ctx, discardLimit)
	defer cancel()
	err := e.erase(ctx, name)
	if folder != "" {
		err = errors.Join(err, removeFolder(folder))
	}
	return err
}

// remember keeps a job's folder for the case that somebody else removes the
// container, and with it the label that tells.
func (e *Executor) remember(id, folder string) {
	if folder == "" {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.folders[id] = folder
}
