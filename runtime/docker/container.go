package docker

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"path"
	"strings"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"github.com/cmwa-project/cmwa/runtime"
)

// containerOf says what a job's container is to be. It holds nothing secret:
// whoever may ask the engine may read all of it.
func containerOf(job *runtime.Job, img image, name, folder string, runner mount.Mount) client.ContainerCreateOptions {
	place := job.Tuning.Place.Docker
	return client.ContainerCreateOptions{
		Name:     name,
		Platform: img.platform,
		Config: &container.Config{
			Image:       img.name,
			User:        place.User,
			Entrypoint:  []string{mountPoint + "/" + runnerName},
			Cmd:         []string{"run"},
			AttachStdin: true,
			OpenStdin:   true,
			StdinOnce:   true,
			StopSignal:  "SIGTERM",
			Labels:      labels(job, folder),
			// The image's own check is of a service, and a job is none.
			Healthcheck: &container.HealthConfig{Test: []string{"NONE"}},
		},
		HostConfig: &container.HostConfig{
			Mounts:        []mount.Mount{runner},
			Resources:     container.Resources{Memory: place.Memory, NanoCPUs: int64(math.Round(place.CPUs * 1e9))},
			Binds:         place.Volumes,
			ExtraHosts:    place.ExtraHosts,
			NetworkMode:   container.NetworkMode(place.Network),
			RestartPolicy: container.RestartPolicy{Name: container.RestartPolicyDisabled},
			// The agent reads this log to its end, whatever the engine's default is.
			// Only the runner's progress is in it: some hundred bytes for each step.
			LogConfig: container.LogConfig{Type: "json-file", Config: map[string]string{"max-size": "10m", "max-file": "2"}},
		},
	}
}

// asRoot tells whether a container's processes are root's, given the user that
// the configuration names, or else the image.
func asRoot(configured, image string) bool {
	user, _, _ := strings.Cut(cmp.Or(configured, image), ":")
	return user == "" || user == "root" || user == "0"
}

// admit lets every user of a created container write where Pulumi documents the
// OIDC token's file to be (OIDC in Deployments): beside the runner, in a
// directory that the engine makes for root alone. A tmpfs would not do, since it
// takes over the mode of the directory that it covers.
func (e *Executor) admit(ctx context.Context, id string) error {
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: strings.TrimPrefix(path.Dir(mountPoint), "/") + "/", Mode: 0o1777, ModTime: time.Now()})
	if err := errors.Join(err, w.Close()); err != nil {
		return fmt.Errorf("pack a directory: %w", err)
	}
	limit, cancel := context.WithTimeout(ctx, shortLimit)
	defer cancel()
	_, err = e.engine.CopyToContainer(limit, id, client.CopyToContainerOptions{DestinationPath: "/", Content: &archive})
	if err != nil {
		return refused("make a directory in the container", e.host, because(limit, err))
	}
	return nil
}

// folderMount mounts a job's own folder.
func folderMount(folder string) mount.Mount {
	return mount.Mount{Type: mount.TypeBind, Source: folder, Target: mountPoint, ReadOnly: true}
}

// create makes a container and starts nothing. The engine is not interrupted:
// it might finish, and nobody would know.
func (e *Executor) create(ctx context.Context, options client.ContainerCreateOptions) (string, error) {
	limit, cancel := patient(ctx, longLimit)
	defer cancel()
	made, err := e.engine.ContainerCreate(limit, options)
	if err != nil {
		return "", refused("create the container", e.host, err)
	}
	for _, warning := range made.Warnings {
		e.log.Debug("the engine warns", "container", short(made.ID), "warning", warning)
	}
	return made.ID, nil
}
