package docker

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
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
	"github.com/cmwa-project/cmwa/runtime/killpoint"
)

// containerOptions returns the options of a job's container. They contain no secret,
// because every client of the engine can read them.
func (e *Executor) containerOptions(
	job *runtime.Job, img image, name, directory string, runner mount.Mount,
) client.ContainerCreateOptions {
	spec := job.Tuning.Instance.Docker
	limits := container.Resources{
		Memory: spec.Memory, NanoCPUs: int64(math.Round(spec.CPUs * 1e9)),
		PidsLimit: new(int64(cmp.Or(spec.PidsLimit, -1))), // without a value, Podman would set its own
	}
	var security []string
	if !spec.AllowNewPrivileges {
		security = []string{"no-new-privileges"}
	}
	var storage map[string]string
	if spec.StorageLimit > 0 {
		storage = map[string]string{"size": strconv.FormatInt(spec.StorageLimit, 10)}
	}
	return client.ContainerCreateOptions{
		Name:     name,
		Platform: img.platform,
		Config: &container.Config{
			Image:       img.name,
			User:        spec.User,
			Entrypoint:  []string{e.directory + "/" + runnerName},
			Cmd:         []string{"run"},
			AttachStdin: true,
			OpenStdin:   true,
			StdinOnce:   true,
			StopSignal:  "SIGTERM",
			StopTimeout: new(int(math.Ceil((job.Tuning.CancelGrace + runtime.StopGrace).Seconds()))),
			Labels:      labels(job, directory),
			// A health check of the image is for a service, not for a job.
			Healthcheck: &container.HealthConfig{Test: []string{"NONE"}},
		},
		HostConfig: &container.HostConfig{
			Mounts:        []mount.Mount{runner},
			Resources:     limits,
			SecurityOpt:   security,
			StorageOpt:    storage,
			Binds:         spec.Volumes,
			ExtraHosts:    spec.ExtraHosts,
			NetworkMode:   container.NetworkMode(spec.Network),
			RestartPolicy: container.RestartPolicy{Name: container.RestartPolicyDisabled},
			// The agent must be able to read this log, regardless of the engine's default.
			// The log has the runner's progress, some hundred bytes for each step. The limit is for
			// job_log: both, and for jobs that run as root: they can write to the runner's standard output.
			LogConfig: container.LogConfig{
				Type: "json-file", Config: map[string]string{"max-size": "10m", "max-file": "2"},
			},
		},
	}
}

// runsAsRoot reports whether the processes of a container run as root, given the user of
// the configuration and of the image.
func runsAsRoot(configured, image string) bool {
	user, _, _ := strings.Cut(cmp.Or(configured, image), ":")
	return user == "" || user == "root" || user == "0"
}

// openParent makes the parent directory of the runner writable for every user of a created
// container. Pulumi documents this directory as that of the OIDC token's file (OIDC in
// Deployments), and the engine creates it for root alone. A tmpfs would not work, because a
// tmpfs gets the mode of the directory that it covers.
func (e *Executor) openParent(ctx context.Context, id string) error {
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	parent := strings.TrimPrefix(path.Dir(e.directory), "/") + "/"
	err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: parent, Mode: 0o1777, ModTime: time.Now()})
	if err := errors.Join(err, w.Close()); err != nil {
		return fmt.Errorf("create an archive: %w", err)
	}
	callCtx, cancel := context.WithTimeout(ctx, shortLimit)
	defer cancel()
	_, err = e.engine.CopyToContainer(callCtx, id,
		client.CopyToContainerOptions{DestinationPath: "/", Content: &archive})
	if err != nil {
		return engineError("create a directory in the container", e.host, causeOf(callCtx, err))
	}
	return nil
}

// create creates a container and does not start it. The call is not cancelled
// immediately: the engine might complete it, and the container would be unknown.
func (e *Executor) create(ctx context.Context, options client.ContainerCreateOptions) (string, error) {
	callCtx, cancel := withCancelGrace(ctx, longLimit)
	defer cancel()
	created, err := e.engine.ContainerCreate(callCtx, options)
	if err != nil {
		return "", engineError("create the container", e.host, err)
	}
	for _, warning := range created.Warnings {
		e.log.Debug("container created with a warning", "container", shortID(created.ID), "warning", warning)
	}
	return created.ID, nil
}

const reserved = "cmwa." // prefix of the agent's labels

// Labels of containers and volumes. After a restart the executor finds the jobs only by the
// labels of their containers.
const (
	labelAgent      = "cmwa.agent"
	labelPool       = "cmwa.pool"
	labelPoolName   = "cmwa.pool-name"
	labelIdentity   = "cmwa.pool-identity" // identity of the pool, in JSON
	labelJob        = "cmwa.job"
	labelSubject    = "cmwa.subject"
	labelGeneration = "cmwa.generation"
	labelKind       = "cmwa.kind"      // of leased work; deployments have none
	labelDirectory  = "cmwa.directory" // directory of the job below shared_volume_directory
	labelRunner     = "cmwa.runner"    // on volumes and loader containers: digest of the program
	labelOwner      = "cmwa.owner"     // on loader containers: see owner
)

// labels returns the configured labels and those of the agent. Configured labels with the
// prefix of the agent's labels are ignored.
func labels(job *runtime.Job, directory string) map[string]string {
	all := job.Definition.Work.Labels()
	for _, label := range job.Tuning.Instance.Docker.Labels {
		name, value, _ := strings.Cut(label, "=")
		if name != "" && !strings.HasPrefix(name, reserved) {
			all[name] = value
		}
	}
	maps.Copy(all, map[string]string{
		labelAgent:      job.Agent,
		labelPool:       job.Pool,
		labelPoolName:   job.PoolName,
		labelIdentity:   job.Identity.Text(),
		labelJob:        job.ID,
		labelSubject:    job.WorkflowID,
		labelGeneration: strconv.FormatUint(job.Generation, 10),
	})
	if job.Kind.Leased() {
		all[labelKind] = string(job.Kind)
	}
	if directory != "" {
		all[labelDirectory] = directory
	}
	return all
}

// poolOf returns the pool that the labels name. A damaged label names a pool that is not
// configured.
func poolOf(labels map[string]string) runtime.PoolSpec {
	return runtime.PoolSpec{
		Name:     labels[labelPoolName],
		Identity: runtime.ParseIdentity(labels[labelIdentity], "docker"),
	}
}

// namePrefix is the prefix of the names of containers and directories of jobs, which shows
// their origin.
const namePrefix = "pulumi-workflow-"

// newName returns a new name for the container and the directory of a job. So that people can
// recognize the job, the name contains the beginning of the job's id.
func newName(job string) string {
	readable := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' {
			return r
		}
		return -1
	}, job)
	return namePrefix + readable[:min(len(readable), 12)] + "-" + strings.ToLower(rand.Text()[:8])
}

// isID reports whether a text can be the id of a container. Ids become parts of URLs,
// where other texts could change the path.
func isID(id string) bool {
	return len(id) == 64 && strings.Trim(id, "0123456789abcdef") == ""
}

func shortID(id string) string {
	id = strings.TrimPrefix(id, "sha256:")
	return id[:min(len(id), 12)]
}

// makeDirectory creates the directory of a job below shared_volume_directory, with the runner
// in it. The runner is a hard link to the program if possible, and a copy otherwise; the
// job's mount is read-only. Owner is written to a file in the directory.
func makeDirectory(parent, name, owner string, runner program) (string, error) {
	parent, err := filepath.Abs(parent)
	if err != nil {
		return "", fmt.Errorf("create the directory of the job: %w", err)
	}
	directory := filepath.Join(parent, name)
	err = os.Mkdir(directory, 0o755)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", missingDirectory(parent)
	case errors.Is(err, fs.ErrPermission):
		return "", unwritableDirectory(parent, err)
	case err != nil:
		return "", fmt.Errorf("create the directory of the job: %w", err)
	}
	err = errors.Join(
		os.Chmod(directory, 0o755),
		os.WriteFile(filepath.Join(directory, ownerFile), []byte(owner), 0o644),
		linkOrCopy(runner.path, filepath.Join(directory, runnerName)),
	)
	if err != nil {
		err = fmt.Errorf("copy the runner into the directory of the job: %w", err)
		return "", errors.Join(err, os.RemoveAll(directory))
	}
	return directory, nil
}

func missingDirectory(parent string) error {
	return fmt.Errorf("shared_volume_directory: there is no directory %s: "+
		"create it, under the same path for the agent and for the engine's machine", parent)
}

func unwritableDirectory(parent string, err error) error {
	return fmt.Errorf("shared_volume_directory: this user cannot create directories in %s: %w", parent, err)
}

// linkOrCopy makes the program available at another path for every user.
func linkOrCopy(from, to string) error {
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

// removeDirectory removes the directory of a job. The path may come from a label, so a path that
// cannot be the directory of a job is ignored.
func removeDirectory(directory string) error {
	if !filepath.IsAbs(directory) || !strings.HasPrefix(filepath.Base(directory), namePrefix) {
		return nil
	}
	if err := os.RemoveAll(directory); err != nil {
		return fmt.Errorf("remove the directory of the job: %w", err)
	}
	return nil
}

func (e *Executor) attach(ctx context.Context, id string) (*client.HijackedResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, shortLimit)
	defer cancel()
	attached, err := e.engine.ContainerAttach(ctx, id, client.ContainerAttachOptions{Stream: true, Stdin: true})
	if err != nil {
		return nil, engineError("attach to the container", e.host, causeOf(ctx, err))
	}
	return &attached.HijackedResponse, nil
}

// writeHandoff writes the handoff and closes the input. An engine closes the connection when it
// has forwarded the data. writeHandoff waits only closeTimeout for this: in one of about fifty
// cases, Docker 20.10 forwards the data and does not close the connection. The end of ctx
// interrupts the call. Complete reports whether all of the handoff was written, also if
// there is an error.
func (e *Executor) writeHandoff(
	ctx context.Context, input *client.HijackedResponse, handoff []byte,
) (complete bool, err error) {
	if err := input.Conn.SetDeadline(time.Now().Add(handoffTimeout)); err != nil {
		return false, err
	}

	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(interrupted)
		_ = input.Conn.SetDeadline(time.Now())
	})
	written, err := killpoint.Write(killpoint.HandoffHalf, input.Conn, handoff)
	complete = written == len(handoff)
	if err == nil {
		err = input.CloseWrite()
	}
	if !stop() {
		<-interrupted
		return complete, context.Cause(ctx)
	}
	if err != nil {
		return complete, err
	}

	if err := input.Conn.SetReadDeadline(time.Now().Add(e.closeTimeout)); err != nil {
		return complete, err
	}
	if _, err := io.Copy(io.Discard, input.Reader); !errors.Is(err, os.ErrDeadlineExceeded) {
		return complete, err
	}
	return complete, nil
}

// handoffError returns why the handoff did not reach the runner. Complete reports whether all of
// the handoff was written. A runner with a part of the handoff ends with [runtime.CodeUsage],
// because the engine closes the runner's input with the connection. A runner that ended before
// it read the handoff has another code, and its last message is the reason. If the runner may
// have the whole handoff, handoffError returns nil, also if the runner has ended or ctx has
// ended: Wait then returns the end of the runner, and the caller stops a running job with its
// grace period.
func (e *Executor) handoffError(ctx context.Context, id string, complete bool, err error) error {
	exit, ended := e.awaitEarlyExit(ctx, id)
	switch {
	case complete && (!ended || exit.Code != runtime.CodeUsage):
		e.log.Debug("connection broke after the handoff", "container", shortID(id), "error", err)
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case ended && exit.Code != runtime.CodeUsage && runtime.SignalReason(exit.Code) == "":
		if message := e.lastMessage(ctx, id); message != "" {
			return engineError("send the handoff to the runner", e.host, errors.New(message))
		}
	case isConnectionError(err):
		return engineError("send the handoff to the runner", e.host, err)
	}
	return fmt.Errorf("send the handoff to the runner: %w", err)
}

// awaitEarlyExit waits up to handoffErrorLimit for the end of a container whose handoff failed.
// It tries again if the connection fails, because the engine may be restarting. Ended is false
// if the container runs or if its state is unknown.
func (e *Executor) awaitEarlyExit(ctx context.Context, id string) (exit runtime.Exit, ended bool) {
	ctx, cancel := context.WithTimeout(ctx, e.handoffErrorLimit)
	defer cancel()
	for {
		exit, err := e.waitForExit(ctx, id)
		if err == nil {
			return exit, true
		}
		if !isConnectionError(err) || !runtime.Sleep(ctx, nil, handoffErrorPause) {
			return exit, false
		}
	}
}
