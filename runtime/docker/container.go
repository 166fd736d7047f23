package docker

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"github.com/cmwa-project/cmwa/runtime"
)

// containerOf says what a job's container is to be. It holds nothing secret:
// whoever may ask the engine may read all of it.
func (e *Executor) containerOf(
	job *runtime.Job, img image, name, folder string, runner mount.Mount,
) client.ContainerCreateOptions {
	place := job.Tuning.Place.Docker
	return client.ContainerCreateOptions{
		Name:     name,
		Platform: img.platform,
		Config: &container.Config{
			Image:       img.name,
			User:        place.User,
			Entrypoint:  []string{e.directory + "/" + runnerName},
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
	parent := strings.TrimPrefix(path.Dir(e.directory), "/") + "/"
	err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: parent, Mode: 0o1777, ModTime: time.Now()})
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
func (e *Executor) folderMount(folder string) mount.Mount {
	return mount.Mount{Type: mount.TypeBind, Source: folder, Target: e.directory, ReadOnly: true}
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

// reserved begins the names of the agent's own labels.
const reserved = "cmwa."

// Labels of what an agent makes. Those of a job's container are all that is
// known of the job after a restart.
const (
	labelAgent      = "cmwa.agent"
	labelPool       = "cmwa.pool"
	labelPoolName   = "cmwa.pool-name"
	labelIdentity   = "cmwa.pool-identity" // of the pool, in JSON
	labelJob        = "cmwa.job"
	labelSubject    = "cmwa.subject"
	labelGeneration = "cmwa.generation"
	labelFolder     = "cmwa.folder" // the job's folder below shared_volume_directory
	labelRunner     = "cmwa.runner" // on volumes and their doors: digest of the program
	labelOwner      = "cmwa.owner"  // on doors: see owner
)

// labels are the configured ones and the agent's own. A configured one never
// has the name of an own one, also not of one that this job has not.
func labels(job *runtime.Job, folder string) map[string]string {
	all := map[string]string{}
	for _, label := range job.Tuning.Place.Docker.Labels {
		name, value, _ := strings.Cut(label, "=")
		if name != "" && !strings.HasPrefix(name, reserved) {
			all[name] = value
		}
	}
	maps.Copy(all, map[string]string{
		labelAgent:      job.Agent,
		labelPool:       job.Pool,
		labelPoolName:   job.PoolName,
		labelIdentity:   identityText(job.Identity),
		labelJob:        job.ID,
		labelSubject:    job.Subject,
		labelGeneration: strconv.FormatUint(job.Generation, 10),
	})
	if folder != "" {
		all[labelFolder] = folder
	}
	return all
}

// target is the deploy_target of this executor.
const target = "docker"

// identityText returns the value of labelIdentity.
func identityText(identity runtime.Identity) string {
	text, err := json.Marshal(identity)
	if err != nil {
		panic(err) // strings only
	}
	return string(text)
}

// poolOf returns the pool that the labels name. A label that somebody has damaged
// names a pool that is not configured.
func poolOf(labels map[string]string) runtime.PoolSpec {
	spec := runtime.PoolSpec{Name: labels[labelPoolName]}
	if json.Unmarshal([]byte(labels[labelIdentity]), &spec.Identity) != nil {
		spec.Identity = runtime.Identity{}
	}
	spec.Identity.Target = cmp.Or(spec.Identity.Target, target)
	return spec
}

// namePrefix begins the names of containers and folders of jobs, so that a
// person finds them.
const namePrefix = "pulumi-workflow-"

// newName names a job's container, and its folder if it has one. The job's id
// is only there for people, and as much of it as a name can hold.
func newName(job string) string {
	readable := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' {
			return r
		}
		return -1
	}, job)
	return namePrefix + readable[:min(len(readable), 12)] + "-" + strings.ToLower(rand.Text()[:8])
}

// isID tells whether the text can be the id of a container. Ids become parts of
// URLs, where anything else would name something else.
func isID(id string) bool {
	return len(id) == 64 && strings.Trim(id, "0123456789abcdef") == ""
}

// short is an id as people write it.
func short(id string) string {
	id = strings.TrimPrefix(id, "sha256:")
	return id[:min(len(id), 12)]
}

// makeFolder makes a job's folder below shared_volume_directory, with the runner
// in it. The runner is a second name of the program where that can be, and a
// copy elsewhere; the job sees it read-only. Owner is written into the folder.
func makeFolder(parent, name, owner string, runner program) (string, error) {
	parent, err := filepath.Abs(parent)
	if err != nil {
		return "", fmt.Errorf("make the job's folder: %w", err)
	}
	folder := filepath.Join(parent, name)
	err = os.Mkdir(folder, 0o755)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", missingFolder(parent)
	case errors.Is(err, fs.ErrPermission):
		return "", lockedFolder(parent, err)
	case err != nil:
		return "", fmt.Errorf("make the job's folder: %w", err)
	}
	err = errors.Join(os.Chmod(folder, 0o755), os.WriteFile(filepath.Join(folder, ownerFile), []byte(owner), 0o644), place(runner.path, filepath.Join(folder, runnerName)))
	if err != nil {
		return "", errors.Join(fmt.Errorf("put the runner into the job's folder: %w", err), os.RemoveAll(folder))
	}
	return folder, nil
}

func missingFolder(parent string) error {
	return fmt.Errorf("shared_volume_directory: there is no directory %s: make it, under the same path for the agent and for the engine's machine", parent)
}

func lockedFolder(parent string, err error) error {
	return fmt.Errorf("shared_volume_directory: this user may not make folders in %s: %w", parent, err)
}

// place makes the program available at another path to every user.
func place(from, to string) error {
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	if info.Mode().Perm()&0o555 == 0o555 && os.Link(from, to) == nil {
		return nil
	}
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(target, source)
	return errors.Join(err, target.Chmod(0o755), target.Close())
}

// removeFolder removes a job's folder. Its path may come from a label, so what
// does not look like such a folder is left alone.
func removeFolder(folder string) error {
	if !filepath.IsAbs(folder) || !strings.HasPrefix(filepath.Base(folder), namePrefix) {
		return nil
	}
	if err := os.RemoveAll(folder); err != nil {
		return fmt.Errorf("remove the job's folder: %w", err)
	}
	return nil
}

const (
	deliverLimit = time.Minute            // for the runner to read its handover
	receiptLimit = 100 * time.Millisecond // for the engine to close the connection afterwards
)

// attach opens a connection to the runner's standard input.
func (e *Executor) attach(ctx context.Context, id string) (*client.HijackedResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, shortLimit)
	defer cancel()
	attached, err := e.engine.ContainerAttach(ctx, id, client.ContainerAttachOptions{Stream: true, Stdin: true})
	if err != nil {
		return nil, refused("attach to the container", e.host, because(ctx, err))
	}
	return &attached.HijackedResponse, nil
}

// deliver writes the handover and ends the input. An engine closes the
// connection when it has passed everything on, which is waited for, but not for
// long: Docker 20.10 forgets to in one case of some fifty, and what was written
// arrives all the same. The end of ctx ends the delivery.
func deliver(ctx context.Context, input *client.HijackedResponse, handover []byte) error {
	if err := input.Conn.SetDeadline(time.Now().Add(deliverLimit)); err != nil {
		return err
	}
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(interrupted)
		_ = input.Conn.SetDeadline(time.Now())
	})
	_, err := input.Conn.Write(handover)
	if err == nil {
		err = input.CloseWrite()
	}
	if !stop() {
		<-interrupted
		return context.Cause(ctx)
	}
	if err != nil {
		return err
	}
	if err := input.Conn.SetReadDeadline(time.Now().Add(receiptLimit)); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, input.Reader); !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return nil
}

// undelivered explains a handover that did not reach the runner: most often the
// runner has ended before it read it, and its last words say why.
func (e *Executor) undelivered(ctx context.Context, id string, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if message := e.lastWords(ctx, id); message != "" {
		return refused("hand the job over to the runner", e.host, errors.New(message))
	}
	return fmt.Errorf("hand the job over to the runner: %w", err)
}
