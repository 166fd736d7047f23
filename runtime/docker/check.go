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
	"github.com/moby/moby/api/types/system"
	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"github.com/cmwa-project/cmwa/runtime"
)

const maxUser = 1<<31 - 1 // the largest id of a user or group that an engine accepts

// Check returns why no job can be started now: the engine does not respond, there is no
// runner, no directory can be created in shared_volume_directory, docker.user is out of range,
// the engine does not have the network, it cannot apply docker.storage_limit, or it does not have
// the image that replaces every job's image. It sends the engine one short request, and more if a
// network or an image must exist, or the size of containers is limited.
//
// It does not check docker.volumes: an engine creates named volumes and directories that
// do not exist. Whether an image has the user docker.user by name depends on the image.
func (e *Executor) Check(ctx context.Context, tuning runtime.Tuning) error {
	ctx, cancel := context.WithTimeout(ctx, pingLimit)
	defer cancel()
	spec := tuning.Instance
	if err := e.programs.findAny(spec.WorkingDirectory, e.architecture); err != nil {
		return err
	}
	if err := checkDirectory(spec.SharedVolumeDirectory); err != nil {
		return err
	}
	if err := checkUser(spec.Docker.User); err != nil {
		return err
	}
	if err := e.ping(ctx); err != nil {
		return err
	}
	if err := e.checkNetwork(ctx, spec.Docker.Network); err != nil {
		return err
	}
	if err := e.checkStorage(ctx, spec.Docker.StorageLimit); err != nil {
		return err
	}
	return e.checkOverride(ctx, spec)
}

// checkDirectory checks that jobs' directories can be created in shared_volume_directory.
func checkDirectory(parent string) error {
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
		return missingDirectory(parent)
	case err == nil:
		err = unix.Access(parent, unix.W_OK|unix.X_OK)
	}
	if err != nil {
		return unwritableDirectory(parent, err)
	}
	return nil
}

// checkUser checks that an engine accepts the ids of docker.user.
func checkUser(user string) error {
	for part := range strings.SplitSeq(user, ":") {
		if strings.Trim(part, "0123456789") != "" || part == "" {
			continue // a name
		}
		if number, err := strconv.ParseInt(part, 10, 64); err != nil || number > maxUser {
			return fmt.Errorf("docker.user: %s is not a valid id of a user or group: set one up to %d", part, maxUser)
		}
	}
	return nil
}

// checkNetwork checks that containers can join a network: the network exists, or the
// container whose network they share is running. A request that the engine does not
// permit is no problem. A missing network is no problem on a worker of a swarm, which does
// not know the networks of the swarm before a container joins them.
func (e *Executor) checkNetwork(ctx context.Context, network string) error {
	other, shared := strings.CutPrefix(network, "container:")
	switch {
	case network == "", network == "default", network == "none", network == "host", network == "bridge":
		return nil
	case shared:
		found, err := e.inspectContainer(ctx, other)
		if errdefs.IsNotFound(err) {
			return fmt.Errorf("the Docker engine at %s has no container %s: "+
				"create it, or change docker.network", e.host, other)
		}
		if err == nil && found.State != nil && !found.State.Running {
			return fmt.Errorf("the container %s does not run, so no job can share its network: "+
				"start it, or change docker.network", other)
		}
		return nil
	}

	_, err := e.engine.NetworkInspect(ctx, network, client.NetworkInspectOptions{})
	if !errdefs.IsNotFound(err) {
		return nil
	}
	about, err := e.engine.Info(ctx, client.InfoOptions{})
	if err != nil {
		return nil
	}
	node := about.Info.Swarm
	if node.LocalNodeState == swarm.LocalNodeStateActive && !node.ControlAvailable {
		return nil
	}
	return fmt.Errorf("the Docker engine at %s has no network %s: create it, or change docker.network", e.host, network)
}

const storageHint = "remove docker.storage_limit, or use the storage driver overlay2, " +
	"and keep the engine's data on XFS with the mount option pquota"

// checkStorage checks that the engine can limit the size of containers, if the size is limited. A
// request that the engine does not permit is no problem.
func (e *Executor) checkStorage(ctx context.Context, limit int64) error {
	if limit == 0 {
		return nil
	}
	about, err := e.engine.Info(ctx, client.InfoOptions{})
	if err != nil {
		return nil
	}
	return e.storageProblem(about.Info)
}

// storageProblem returns why the engine cannot limit the size of containers. Whether XFS has the
// mount option pquota is not known before a container is created.
func (e *Executor) storageProblem(info system.Info) error {
	status := map[string]string{}
	for _, entry := range info.DriverStatus {
		status[entry[0]] = entry[1]
	}
	switch filesystem := status["Backing Filesystem"]; {
	case strings.HasPrefix(status["driver-type"], "io.containerd."):
		// The engine accepts a limit and ignores it (github.com/moby/moby/pull/51222).
		return fmt.Errorf("the Docker engine at %s has its images in containerd, and ignores docker.storage_limit: %s",
			e.host, storageHint)
	case info.Driver == "overlay2" && filesystem != "" && filesystem != "xfs":
		return fmt.Errorf("the Docker engine at %s has its data on %s, and cannot apply docker.storage_limit: %s",
			e.host, filesystem, storageHint)
	}
	return nil
}

// checkOverride checks that the engine has the image that replaces every job's image,
// unless this image is pulled for each job.
func (e *Executor) checkOverride(ctx context.Context, spec runtime.InstanceSpec) error {
	if spec.OverrideImage == "" || spec.PullImage {
		return nil
	}
	if _, err := e.engine.ImageInspect(ctx, spec.OverrideImage); errdefs.IsNotFound(err) {
		return fmt.Errorf("the Docker engine at %s has no image %s, which replaces the image of every job, "+
			"and pull_image is false: load the image there, or set pull_image to true",
			e.host, spec.OverrideImage)
	}
	return nil
}
