package docker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/swarm"
	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"github.com/cmwa-project/cmwa/runtime"
)

// maxUser is the largest number of a user or a group that an engine accepts.
const maxUser = 1<<31 - 1

// Check returns why no job could be started now: the engine does not answer,
// there is no runner, shared_volume_directory is not one that folders can be made
// in, the engine has no such network, or it has not the image that replaces every
// job's. It asks the engine one short question, and one more for a network or an
// image that must be there.
//
// docker.volumes are not checked: an engine makes the named volumes and the
// directories that are not there. Whether an image knows docker.user by name
// depends on the image.
func (e *Executor) Check(ctx context.Context, tuning runtime.Tuning) error {
	ctx, cancel := context.WithTimeout(ctx, pingLimit)
	defer cancel()
	place := tuning.Place
	if err := e.programs.findAny(place.WorkingDirectory, e.architecture); err != nil {
		return err
	}
	if err := checkFolder(place.SharedVolumeDirectory); err != nil {
		return err
	}
	if err := checkUser(place.Docker.User); err != nil {
		return err
	}
	if err := e.ping(ctx); err != nil {
		return err
	}
	if err := e.checkNetwork(ctx, place.Docker.Network); err != nil {
		return err
	}
	return e.checkOverride(ctx, place)
}

// checkFolder checks that jobs' folders can be made in shared_volume_directory.
func checkFolder(parent string) error {
	if parent == "" {
		return nil
	}
	parent, err := filepath.Abs(parent)
	if err != nil {
		return fmt.Errorf("shared_volume_directory: %w", err)
	}
	info, err := os.Stat(parent)
	switch {
	case errors.Is(err, os.ErrNotExist), err == nil && !info.IsDir():
		return missingFolder(parent)
	case err == nil:
		err = unix.Access(parent, unix.W_OK|unix.X_OK)
	}
	if err != nil {
		return lockedFolder(parent, err)
	}
	return nil
}

// checkUser checks that the numbers of docker.user are some that an engine
// accepts.
func checkUser(user string) error {
	for part := range strings.SplitSeq(user, ":") {
		if strings.Trim(part, "0123456789") != "" || part == "" {
			continue // a name
		}
		if number, err := strconv.ParseInt(part, 10, 64); err != nil || number > maxUser {
			return fmt.Errorf("docker.user: %s is a number that no user or group can have: set one up to %d", part, maxUser)
		}
	}
	return nil
}

// checkNetwork checks that containers can join a network: that it exists, or the
// container whose network they share runs. What an engine does not allow to be
// asked is no problem. A worker of a swarm does not know the networks of the swarm
// before a container joins them.
func (e *Executor) checkNetwork(ctx context.Context, network string) error {
	other, shared := strings.CutPrefix(network, "container:")
	switch {
	case network == "", network == "default", network == "none", network == "host", network == "bridge":
		return nil
	case shared:
		found, err := e.engine.ContainerInspect(ctx, other, client.ContainerInspectOptions{})
		if errdefs.IsNotFound(err) {
			return fmt.Errorf("the Docker engine at %s has no container %s: create it, or change docker.network", e.host, other)
		}
		if err == nil && found.Container.State != nil && !found.Container.State.Running {
			return fmt.Errorf("the container %s does not run, so no job can share its network: start it, or change docker.network", other)
		}
		return nil
	}
	_, err := e.engine.NetworkInspect(ctx, network, client.NetworkInspectOptions{})
	if !errdefs.IsNotFound(err) {
		return nil
	}
	about, err := e.engine.Info(ctx, client.InfoOptions{})
	if err != nil || about.Info.Swarm.LocalNodeState == swarm.LocalNodeStateActive && !about.Info.Swarm.ControlAvailable {
		return nil
	}
	return fmt.Errorf("the Docker engine at %s has no network %s: create it, or change docker.network", e.host, network)
}

// checkOverride checks that the engine has the image that replaces every job's, if
// it is not pulled.
func (e *Executor) checkOverride(ctx context.Context, place runtime.Place) error {
	if place.OverrideImage == "" || place.PullImage {
		return nil
	}
	if _, err := e.engine.ImageInspect(ctx, place.OverrideImage); errdefs.IsNotFound(err) {
		return fmt.Errorf("the Docker engine at %s has no image %s, which replaces the image of every job, and pull_image is false: load the image there, or set pull_image to true",
			e.host, place.OverrideImage)
	}
	return nil
}
