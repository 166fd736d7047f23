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
	oldLoader  = 10 * time.Minute   // age of an abandoned loader container: filling a volume is limited to fillLimit
	idleVolume = 24 * time.Hour     // age from which a sweep removes an unused volume of a runner that no pool has
	oldFolder  = 7 * 24 * time.Hour // age from which another agent's folder without a container is removed
	oldEnded   = 7 * 24 * time.Hour // time since its end from which another agent's job is removed
)

// process is different for each run of the program.
var process = rand.Text()

// ownerFile is in each folder of a job, and names who made it.
const ownerFile = ".owner"

// owner names this agent and this run of it. It is empty without an agent id.
func (e *Executor) owner() string {
	if e.agent == "" {
		return ""
	}
	return e.agent + "/" + process
}

// diedOwner reports whether an owner is an earlier run of this agent. That run has
// ended, since two processes never have one id at a time.
func (e *Executor) diedOwner(owner string) bool {
	agent, run, ok := strings.Cut(owner, "/")
	return ok && agent != "" && agent == e.agent && run != process
}

// Sweep implements [runtime.Sweeper]. It removes at once what an earlier run of
// this agent made, and what other agents made when it is so old that none of them
// uses it any more. Ages are by the engine's clock; if the engine does not tell the
// time, nothing is removed for its age.
//
//  1. Loader containers: the agent died while it filled a volume. They keep the
//     volume in use.
//  2. Volumes of runners that no pool has, which are not in use.
//  3. Containers of jobs of other agents that ended a week ago: an agent removes
//     its own within minutes, unless its id is lost.
//  4. Folders of jobs that have no container.
func (e *Executor) Sweep(ctx context.Context, places []runtime.Place) (removed []string, err error) {
	now := e.engineTime(ctx)
	loaders, loadersErr := e.sweepLoaders(ctx, now)

	current := map[string]bool{}
	shared := map[string]bool{}
	working := map[string]bool{}
	for _, place := range places {
		working[place.WorkingDirectory] = true
		shared[place.SharedVolumeDirectory] = true
	}
	for directory := range working {
		for arch := range machines {
			if runner, err := e.programs.find(directory, arch); err == nil {
				current[volumeName(runner)] = true
			}
		}
	}
	volumes, volumesErr := e.dropVolumes(ctx, current, idleVolume, now)

	ended, endedErr := e.sweepEnded(ctx, now)

	removed, err = slices.Concat(loaders, volumes, ended), errors.Join(loadersErr, volumesErr, endedErr)
	delete(shared, "")
	for parent := range shared {
		folders, foldersErr := e.sweepFolders(ctx, parent)
		removed, err = append(removed, folders...), errors.Join(err, foldersErr)
	}
	return removed, err
}

// engineTime returns the time by the engine's clock, or zero if it does not tell.
func (e *Executor) engineTime(ctx context.Context) time.Time {
	ctx, cancel := context.WithTimeout(ctx, shortLimit)
	defer cancel()
	about, err := e.engine.Info(ctx, client.InfoOptions{})
	if err != nil {
		return time.Time{}
	}
	return instant(about.Info.SystemTime)
}

// old reports whether something that was made at a time has an age now. Nothing
// has, if either is not known.
func old(made, now time.Time, age time.Duration) bool {
	return !made.IsZero() && !now.IsZero() && now.Sub(made) >= age
}

// sweepLoaders removes loader containers that were abandoned.
func (e *Executor) sweepLoaders(ctx context.Context, now time.Time) (removed []string, err error) {
	asked, cancel := context.WithTimeout(ctx, shortLimit)
	defer cancel()
	listed, err := e.engine.ContainerList(asked, client.ContainerListOptions{
		All: true, Filters: client.Filters{}.Add("label", labelRunner),
	})
	if err != nil {
		return nil, refused("list loader containers", e.host, because(ctx, err))
	}
	for _, one := range listed.Items {
		name := strings.TrimPrefix(strings.Join(one.Names, ","), "/")
		if one.State != container.StateCreated || !strings.HasSuffix(name, doorSuffix) {
			continue // not made by an agent
		}
		if !e.diedOwner(one.Labels[labelOwner]) && !old(time.Unix(one.Created, 0), now, oldLoader) {
			continue
		}
		if eraseErr := e.erase(ctx, one.ID); eraseErr != nil {
			err = errors.Join(err, eraseErr)
			continue
		}
		removed = append(removed, "container "+name)
	}
	return removed, err
}

// dropVolumes removes volumes of runners that have at least an age, that no
// container uses and that are not to be kept. An agent that still needs one fills
// it again.
func (e *Executor) dropVolumes(
	ctx context.Context, keep map[string]bool, age time.Duration, now time.Time,
) (removed []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, shortLimit)
	defer cancel()
	unused, err := e.engine.VolumeList(ctx, client.VolumeListOptions{
		Filters: client.Filters{}.Add("label", labelRunner).Add("dangling", "true"),
	})
	if err != nil {
		return nil, refused("list volumes of runners", e.host, because(ctx, err))
	}
	for _, volume := range unused.Items {
		if keep[volume.Name] || !old(instant(volume.CreatedAt), now, age) {
			continue
		}
		_, removeErr := e.engine.VolumeRemove(ctx, volume.Name, client.VolumeRemoveOptions{})
		switch {
		case removeErr == nil:
			removed = append(removed, "volume "+volume.Name)
		case errdefs.IsNotFound(removeErr), errdefs.IsConflict(removeErr): // another agent was first, or a job uses it now
		default:
			err = errors.Join(err, refused("remove the volume "+volume.Name, e.host, because(ctx, removeErr)))
		}
	}
	return removed, err
}

// sweepEnded removes containers of jobs that another agent should have removed long
// ago.
func (e *Executor) sweepEnded(ctx context.Context, now time.Time) (removed []string, err error) {
	asked, cancel := context.WithTimeout(ctx, shortLimit)
	defer cancel()
	listed, err := e.engine.ContainerList(asked, client.ContainerListOptions{
		All:     true,
		Filters: client.Filters{}.Add("label", labelAgent).Add("status", "created", "exited", "dead"),
	})
	if err != nil {
		return nil, refused("list the containers of jobs", e.host, because(ctx, err))
	}
	for _, one := range listed.Items {
		if one.Labels[labelAgent] == e.agent || !old(time.Unix(one.Created, 0), now, oldEnded) {
			continue
		}
		found, lookErr := e.look(ctx, one.ID)
		switch {
		case errors.Is(lookErr, runtime.ErrNoEnvironment):
			continue
		case lookErr != nil:
			return removed, errors.Join(err, lookErr)
		case found.Running || !old(found.Ended, now, oldEnded):
			continue
		}
		if removeErr := e.Remove(ctx, one.ID, 0); removeErr != nil {
			err = errors.Join(err, removeErr)
			continue
		}
		removed = append(removed, "container "+short(one.ID)+" of job "+found.Job)
	}
	return removed, err
}

// sweepFolders removes folders of jobs below a shared_volume_directory. A folder
// has the name of its job's container. One without a container here may be of an
// agent with another engine, so it must be very old, unless an earlier run of this
// agent made it.
func (e *Executor) sweepFolders(ctx context.Context, parent string) (removed []string, err error) {
	parent, err = filepath.Abs(parent)
	if err != nil {
		return nil, fmt.Errorf("shared_volume_directory: %w", err)
	}
	entries, err := os.ReadDir(parent)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil // the check before a poll reports it
	case err != nil:
		return nil, fmt.Errorf("shared_volume_directory: %w", err)
	}
	for _, entry := range entries {
		folder := filepath.Join(parent, entry.Name())
		if !entry.IsDir() || !strings.HasPrefix(entry.Name(), namePrefix) || !e.abandoned(folder) {
			continue
		}
		asked, cancel := context.WithTimeout(ctx, shortLimit)
		_, inspectErr := e.engine.ContainerInspect(asked, entry.Name(), client.ContainerInspectOptions{})
		cancel()
		switch {
		case inspectErr == nil:
			continue // removed with its container
		case !errdefs.IsNotFound(inspectErr):
			return removed, errors.Join(err, refused("look for the container of a folder", e.host, because(ctx, inspectErr)))
		}
		if removeErr := removeFolder(folder); removeErr != nil {
			err = errors.Join(err, removeErr)
			continue
		}
		removed = append(removed, "folder "+folder)
	}
	return removed, err
}

// abandoned reports whether no running agent can still make a container for a folder.
func (e *Executor) abandoned(folder string) bool {
	if owner, err := os.ReadFile(filepath.Join(folder, ownerFile)); err == nil && e.diedOwner(string(owner)) {
		return true
	}
	info, err := os.Lstat(folder)
	return err == nil && old(info.ModTime(), time.Now(), oldFolder) // clocks do not differ by days
}
