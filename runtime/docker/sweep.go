package docker

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/cmwa-project/cmwa/runtime"
)

const (
	oldLoader  = 10 * time.Minute    // age of an abandoned loader container; longer than fillLimit
	idleVolume = 24 * time.Hour      // age of a removed volume that is unused and of a runner that no pool has
	oldFolder  = 7 * 24 * time.Hour  // age of a removed folder of another agent without a container
	oldEnded   = runtime.LeftoverAge // time after the end of another agent's job until it is removed
)

// processID is different for each process of the agent.
var processID = rand.Text()

// ownerFile is a file in each folder of a job, with the owner of the folder.
const ownerFile = ".owner"

// owner identifies this agent and this process of it. It is empty without an agent id.
func (e *Executor) owner() string {
	if e.agent == "" {
		return ""
	}
	return e.agent + "/" + processID
}

// isEarlierRun reports whether an owner is an earlier process of this agent. That process
// has ended, because two processes never have the same id at the same time.
func (e *Executor) isEarlierRun(owner string) bool {
	agent, run, ok := strings.Cut(owner, "/")
	return ok && agent != "" && agent == e.agent && run != processID
}

// Sweep implements [runtime.Sweeper]. It removes leftovers of an earlier process of this
// agent immediately, and those of other agents when they are so old that they are not in
// use. Ages are by the engine's clock, and those of folders by the agent's. If the engine
// does not report its time, nothing but folders is removed for its age.
//
//  1. Loader containers: the agent died while it filled a volume. They keep the volume
//     in use.
//  2. Unused volumes of runners that no pool has.
//  3. Containers of jobs of other agents that ended a week ago: an agent removes its
//     own within minutes, unless its id is lost.
//  4. Folders of jobs that have no container.
func (e *Executor) Sweep(ctx context.Context, places []runtime.InstanceSpec) (removed []string, err error) {
	now := e.engineTime(ctx)

	// 1. Loader containers.
	loaders, loadersErr := e.sweepLoaders(ctx, now)

	// 2. Volumes, except those of the runners of all pools.
	current := map[string]bool{}
	shared := map[string]bool{}
	working := map[string]bool{}
	for _, spec := range places {
		working[spec.WorkingDirectory] = true
		shared[spec.SharedVolumeDirectory] = true
	}
	for directory := range working {
		for arch := range machines {
			if runner, err := e.programs.find(directory, arch); err == nil {
				current[volumeName(runner)] = true
			}
		}
	}
	volumes, volumesErr := e.dropVolumes(ctx, current, idleVolume, now)

	// 3. Containers of jobs.
	ended, endedErr := e.sweepEnded(ctx, now)
	removed, err = slices.Concat(loaders, volumes, ended), errors.Join(loadersErr, volumesErr, endedErr)

	// 4. Folders.
	delete(shared, "")
	for parent := range shared {
		folders, foldersErr := e.sweepFolders(ctx, parent)
		removed, err = append(removed, folders...), errors.Join(err, foldersErr)
	}
	return removed, err
}

// engineTime returns the time by the engine's clock; zero if the engine does not report
// it.
func (e *Executor) engineTime(ctx context.Context) time.Time {
	ctx, cancel := context.WithTimeout(ctx, shortLimit)
	defer cancel()
	about, err := e.engine.Info(ctx, client.InfoOptions{})
	if err != nil {
		return time.Time{}
	}
	return parseTime(about.Info.SystemTime)
}

// isOlder reports whether something that was created at a time has at least an age now.
// It returns false if one of the times is not known.
func isOlder(made, now time.Time, age time.Duration) bool {
	return !made.IsZero() && !now.IsZero() && now.Sub(made) >= age
}

// sweepLoaders removes abandoned loader containers.
func (e *Executor) sweepLoaders(ctx context.Context, now time.Time) (removed []string, err error) {
	callCtx, cancel := context.WithTimeout(ctx, shortLimit)
	defer cancel()
	listed, err := e.engine.ContainerList(callCtx, client.ContainerListOptions{
		All: true, Filters: client.Filters{}.Add("label", labelRunner),
	})
	if err != nil {
		return nil, engineError("list loader containers", e.host, causeOf(ctx, err))
	}
	for _, c := range listed.Items {
		name := strings.TrimPrefix(strings.Join(c.Names, ","), "/")
		if c.State != container.StateCreated || !strings.HasSuffix(name, loaderSuffix) {
			continue // not created by an agent
		}
		if !e.isEarlierRun(c.Labels[labelOwner]) && !isOlder(time.Unix(c.Created, 0), now, oldLoader) {
			continue
		}
		if eraseErr := e.removeContainer(ctx, c.ID); eraseErr != nil {
			err = errors.Join(err, eraseErr)
			continue
		}
		removed = append(removed, "container "+name)
	}
	return removed, err
}

// dropVolumes removes volumes of runners that have at least an age, that no container
// uses and that are not in keep. An agent that needs such a volume fills it again.
func (e *Executor) dropVolumes(
	ctx context.Context, keep map[string]bool, age time.Duration, now time.Time,
) (removed []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, shortLimit)
	defer cancel()
	unused, err := e.engine.VolumeList(ctx, client.VolumeListOptions{
		Filters: client.Filters{}.Add("label", labelRunner).Add("dangling", "true"),
	})
	if err != nil {
		return nil, engineError("list volumes of runners", e.host, causeOf(ctx, err))
	}
	for _, volume := range unused.Items {
		if keep[volume.Name] || !isOlder(parseTime(volume.CreatedAt), now, age) {
			continue
		}
		_, removeErr := e.engine.VolumeRemove(ctx, volume.Name, client.VolumeRemoveOptions{})
		switch {
		case removeErr == nil:
			removed = append(removed, "volume "+volume.Name)
		case errdefs.IsNotFound(removeErr), errdefs.IsConflict(removeErr):
			// Another agent has removed it, or a job uses it now.
		default:
			err = errors.Join(err, engineError("remove the volume "+volume.Name, e.host, causeOf(ctx, removeErr)))
		}
	}
	return removed, err
}

// sweepEnded removes containers of jobs that ended long ago and that another agent should
// have removed.
func (e *Executor) sweepEnded(ctx context.Context, now time.Time) (removed []string, err error) {
	callCtx, cancel := context.WithTimeout(ctx, shortLimit)
	defer cancel()
	listed, err := e.engine.ContainerList(callCtx, client.ContainerListOptions{
		All:     true,
		Filters: client.Filters{}.Add("label", labelAgent).Add("status", "created", "exited", "dead"),
	})
	if err != nil {
		return nil, engineError("list the containers of jobs", e.host, causeOf(ctx, err))
	}

	// Remove those that ended long ago.
	for _, c := range listed.Items {
		if c.Labels[labelAgent] == e.agent || !isOlder(time.Unix(c.Created, 0), now, oldEnded) {
			continue
		}
		found, lookErr := e.inspect(ctx, c.ID)
		switch {
		case errors.Is(lookErr, runtime.ErrNoInstance):
			continue
		case lookErr != nil:
			return removed, errors.Join(err, lookErr)
		case found.Running || !isOlder(found.Ended, now, oldEnded):
			continue
		}
		if removeErr := e.Remove(ctx, c.ID, 0); removeErr != nil {
			err = errors.Join(err, removeErr)
			continue
		}
		removed = append(removed, "container "+shortID(c.ID)+" of job "+found.Job)
	}
	return removed, err
}

// sweepFolders removes folders of jobs below a shared_volume_directory. A folder has the
// name of its job's container. If this engine does not have the container, an agent with
// another engine may use the folder, so it must be very old, unless an earlier process of
// this agent created it.
func (e *Executor) sweepFolders(ctx context.Context, parent string) (removed []string, err error) {
	parent, err = filepath.Abs(parent)
	if err != nil {
		return nil, fmt.Errorf("shared_volume_directory: %w", err)
	}
	entries, err := os.ReadDir(parent)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil // Check reports it
	case err != nil:
		return nil, fmt.Errorf("shared_volume_directory: %w", err)
	}

	// Remove the abandoned ones without a container.
	for _, entry := range entries {
		folder := filepath.Join(parent, entry.Name())
		if !entry.IsDir() || !strings.HasPrefix(entry.Name(), namePrefix) || !e.abandoned(folder) {
			continue
		}
		callCtx, cancel := context.WithTimeout(ctx, shortLimit)
		_, inspectErr := e.engine.ContainerInspect(callCtx, entry.Name(), client.ContainerInspectOptions{})
		cancel()
		switch {
		case inspectErr == nil:
			continue // is removed with its container
		case !errdefs.IsNotFound(inspectErr):
			inspectErr = engineError("find the container of a folder", e.host, causeOf(ctx, inspectErr))
			return removed, errors.Join(err, inspectErr)
		}
		if removeErr := removeFolder(folder); removeErr != nil {
			err = errors.Join(err, removeErr)
			continue
		}
		removed = append(removed, "folder "+folder)
	}
	return removed, err
}

// abandoned reports whether no running agent can still create a container for a folder.
func (e *Executor) abandoned(folder string) bool {
	if owner, err := os.ReadFile(filepath.Join(folder, ownerFile)); err == nil && e.isEarlierRun(string(owner)) {
		return true
	}
	info, err := os.Lstat(folder)
	return err == nil && isOlder(info.ModTime(), time.Now(), oldFolder) // clocks do not differ by days
}
