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

// processID is different for each process of the agent.
var processID = rand.Text()

// ownerFile is the name of a file in each job's directory. The file contains the owner of the
// directory.
const ownerFile = ".owner"

// owner returns a text that identifies this agent and its current process. It is empty if
// the executor has no agent id.
func (e *Executor) owner() string {
	if e.agent == "" {
		return ""
	}
	return e.agent + "/" + processID
}

// isEarlierRun reports whether an owner is an earlier process of this agent. That process
// has ended, because two processes never have the same agent id at the same time.
func (e *Executor) isEarlierRun(owner string) bool {
	agent, run, ok := strings.Cut(owner, "/")
	return ok && agent != "" && agent == e.agent && run != processID
}

// Sweep implements [runtime.Executor]. It removes leftovers of an earlier process of this
// agent immediately, and those of other agents when they are so old that they are not in
// use. The ages of containers and volumes are measured with the engine's clock, and the
// ages of directories with the agent's clock. If the engine does not report its time, no
// container and no volume is removed because of its age.
//
//  1. Loader containers whose agent was killed while it filled a volume. As long as such a
//     container exists, the engine does not remove the volume.
//  2. Unused volumes whose runner no pool has.
//  3. Containers of other agents' jobs that ended a week ago. An agent removes its own
//     ended containers within minutes, unless its agent id is lost.
//  4. Directories of jobs that have no container.
func (e *Executor) Sweep(ctx context.Context, places []runtime.InstanceSpec) (removed []string, err error) {
	now := e.engineTime(ctx)

	// 1. Loader containers.
	loaders, loadersErr := e.sweepLoaders(ctx, now)

	// 2. Volumes, except those of the runners of all pools.
	current := map[string]bool{}
	shared := map[string]bool{}
	for _, spec := range places {
		shared[spec.SharedVolumeDirectory] = true
		for arch := range machines {
			if runner, err := e.programs.find(spec.WorkingDirectory, arch); err == nil {
				current[volumeName(runner)] = true
			}
		}
	}
	volumes, volumesErr := e.dropVolumes(ctx, current, idleVolume, now)

	// 3. Containers of jobs.
	ended, endedErr := e.sweepEnded(ctx, now)
	removed, err = slices.Concat(loaders, volumes, ended), errors.Join(loadersErr, volumesErr, endedErr)

	// 4. Directories.
	delete(shared, "")
	for parent := range shared {
		directories, directoriesErr := e.sweepDirectories(ctx, parent)
		removed, err = append(removed, directories...), errors.Join(err, directoriesErr)
	}
	return removed, err
}

// engineTime returns the time of the engine's clock, or the zero time if the engine does
// not report it.
func (e *Executor) engineTime(ctx context.Context) time.Time {
	ctx, cancel := context.WithTimeout(ctx, shortLimit)
	defer cancel()
	about, err := e.engine.Info(ctx, client.InfoOptions{})
	if err != nil {
		return time.Time{}
	}
	return parseTime(about.Info.SystemTime)
}

// isOlder reports whether an object that was created at the time made has at least this age
// at the time now. It returns false if one of the times is not known.
func isOlder(made, now time.Time, age time.Duration) bool {
	return !made.IsZero() && !now.IsZero() && now.Sub(made) >= age
}

func (e *Executor) sweepLoaders(ctx context.Context, now time.Time) (removed []string, err error) {
	listed, err := e.listContainers(ctx, "loader containers", client.Filters{}.Add("label", labelRunner))
	if err != nil {
		return nil, err
	}
	for _, c := range listed {
		name := strings.TrimPrefix(strings.Join(c.Names, ","), "/")
		if c.State != container.StateCreated || !strings.HasSuffix(name, loaderSuffix) {
			continue // not a loader container: agents create these and never start them
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

// dropVolumes removes the volumes of runners that are at least as old as age, that no
// container uses, and that are not in keep. An agent that needs such a volume creates and
// fills it again.
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
			// Another agent has removed the volume, or a job uses it now.
		default:
			err = errors.Join(err, engineError("remove the volume "+volume.Name, e.host, causeOf(ctx, removeErr)))
		}
	}
	return removed, err
}

// sweepEnded removes the containers of other agents that ended at least oldEnded ago. Those
// agents should have removed them.
func (e *Executor) sweepEnded(ctx context.Context, now time.Time) (removed []string, err error) {
	listed, err := e.listContainers(ctx, "the containers of jobs",
		client.Filters{}.Add("label", labelAgent).Add("status", "created", "exited", "dead"))
	if err != nil {
		return nil, err
	}

	for _, c := range listed {
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

// sweepDirectories removes directories of jobs below a shared_volume_directory. A directory has the
// name of its job's container. If this engine does not have the container, an agent with
// another engine may still use the directory. Therefore the directory is removed only if it is
// very old, or if an earlier process of this agent created it.
func (e *Executor) sweepDirectories(ctx context.Context, parent string) (removed []string, err error) {
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

	for _, entry := range entries {
		directory := filepath.Join(parent, entry.Name())
		if !entry.IsDir() || !strings.HasPrefix(entry.Name(), namePrefix) || !e.abandoned(directory) {
			continue
		}
		_, inspectErr := e.inspectContainer(ctx, entry.Name())
		switch {
		case inspectErr == nil:
			continue // Remove removes the directory with its container
		case !errdefs.IsNotFound(inspectErr):
			inspectErr = engineError("find the container of a directory", e.host, causeOf(ctx, inspectErr))
			return removed, errors.Join(err, inspectErr)
		}
		if removeErr := removeDirectory(directory); removeErr != nil {
			err = errors.Join(err, removeErr)
			continue
		}
		removed = append(removed, "directory "+directory)
	}
	return removed, err
}

// abandoned reports whether no running agent can still create a container for a directory.
func (e *Executor) abandoned(directory string) bool {
	if owner, err := os.ReadFile(filepath.Join(directory, ownerFile)); err == nil && e.isEarlierRun(string(owner)) {
		return true
	}
	info, err := os.Lstat(directory)
	return err == nil && isOlder(info.ModTime(), time.Now(), oldDirectory) // clocks do not differ by days
}
