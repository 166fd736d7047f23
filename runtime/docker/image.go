package docker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/moby/moby/api/pkg/authconfig"
	"github.com/moby/moby/client"
	"github.com/moby/moby/client/pkg/versions"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/killpoint"
)

// platformAPI is the first version of the engine's API in which a name can have images of
// several platforms, and a request can select a platform.
const platformAPI = "1.49"

type image struct {
	name         string            // from the job or the configuration
	architecture string            // as in GOARCH
	user         string            // user of its processes; empty is root
	platform     *ocispec.Platform // requested by the job; nil lets the engine choose
}

// image returns the image of the job from the engine's store. It pulls the image first if
// pull_image is set.
func (e *Executor) image(ctx context.Context, job *runtime.Job, setup *runtime.Setup) (image, error) {
	spec, definition := job.Tuning.Instance, job.Definition

	img := image{name: definition.Image.Reference}
	if spec.OverrideImage != "" {
		img.name = spec.OverrideImage
		setup.Log("Using the image %s of the agent's configuration instead of %q",
			img.name, definition.Image.Reference)
	}
	if img.name == "" {
		return img, runtime.NewJobFault("the job names no image: set one in the deployment settings of its stack")
	}
	if definition.OS != "" && definition.OS != "linux" {
		return img, runtime.NewJobFault("the job requests an image for %q, "+
			"and this agent runs only Linux containers", definition.OS)
	}
	requested := runtime.GoArchitecture(definition.Architecture)
	if requested != "" {
		img.platform = &ocispec.Platform{OS: "linux", Architecture: requested}
	}

	named, err := reference.ParseAnyReference(img.name)
	if err != nil {
		return img, runtime.NewJobFault("%q is not the name of an image: %w", img.name, err)
	}
	if spec.PullImage {
		if err := e.pull(ctx, job, img, named, setup); err != nil {
			return img, err
		}
	}

	found, err := e.inspectImage(ctx, img)
	switch {
	case errdefs.IsNotFound(err) && !spec.PullImage:
		return img, runtime.NewJobFault("the Docker engine at %s has no image %s, and pull_image is false: "+
			"load the image there, or set pull_image to true", e.host, img.name)
	case errdefs.IsNotFound(err), errdefs.IsInvalidArgument(err):
		return img, runtime.NewJobFault("find the image %s: %s", img.name, oneLine(err))
	case err != nil:
		return img, engineError("find the image "+img.name, e.host, err)
	case found.Os != "" && found.Os != "linux":
		return img, runtime.NewJobFault("the image %s is for %s, and this agent runs only Linux containers",
			img.name, found.Os)
	}
	if !spec.PullImage {
		setup.Log("Using the image %s from the engine (pull_image is false): %s", img.name, shortID(found.ID))
	}
	if found.Config != nil {
		img.user = found.Config.User
	}
	img.architecture = runtime.GoArchitecture(found.Architecture)
	switch {
	case img.architecture == "":
		img.architecture = e.architecture
	case requested != "" && img.architecture != requested:
		return img, runtime.NewJobFault("the job requests %s, and the image %s of the engine is for %s",
			requested, img.name, img.architecture)
	case img.architecture != e.architecture:
		setup.Log("The image is for %s and the engine's machine is %s: this needs emulation there, and is slow",
			img.architecture, e.architecture)
	}
	return img, nil
}

func (e *Executor) inspectImage(ctx context.Context, img image) (client.ImageInspectResult, error) {
	ctx, cancel := context.WithTimeout(ctx, shortLimit)
	defer cancel()
	var options []client.ImageInspectOption
	if img.platform != nil && !versions.LessThan(e.engine.ClientVersion(), platformAPI) {
		options = append(options, client.ImageInspectWithPlatform(img.platform))
	}
	found, err := e.engine.ImageInspect(ctx, img.name, options...)
	if ctx.Err() != nil && err != nil {
		err = fmt.Errorf("%w: %w", err, context.Cause(ctx))
	}
	return found, err
}

// pull pulls the image of the job and reports the progress in the job's log.
func (e *Executor) pull(
	ctx context.Context, job *runtime.Job, img image, parsed reference.Reference, setup *runtime.Setup,
) error {
	defer setup.Measure(runtime.StagePull)()
	named, ok := parsed.(reference.Named)
	if !ok {
		return runtime.NewJobFault("%s is the id of an image, not a name, and can only be used with pull_image: false",
			img.name)
	}
	setup.Log("Pulling the image %s", img.name)
	login, err := e.login(ctx, job, named)
	if err != nil {
		e.log.Warn("cannot read registry login", "job", job.ID, "error", err)
		setup.Log("Warning: pulling without a login: %v", err)
	}
	e.flushLog(ctx, job, setup)
	header, err := authconfig.Encode(login)
	if err != nil {
		return errors.New("encode the registry login for the engine") // without the cause, which may contain the login
	}
	if err := e.followPull(ctx, job, img, header, setup); err != nil {
		return e.pullError(ctx, img, err)
	}
	return nil
}

func (e *Executor) followPull(
	ctx context.Context, job *runtime.Job, img image, login string, setup *runtime.Setup,
) error {
	pullCtx, cancelPull := context.WithCancelCause(ctx)
	defer cancelPull(nil)
	timer := time.AfterFunc(e.pullTimeout, func() { cancelPull(fmt.Errorf("no progress for %v", e.pullTimeout)) })
	defer timer.Stop()

	options := client.ImagePullOptions{RegistryAuth: login}
	if img.platform != nil {
		options.Platforms = []ocispec.Platform{*img.platform}
	}
	stream, err := e.engine.ImagePull(pullCtx, img.name, options)
	if err != nil {
		return causeOf(pullCtx, err)
	}
	killpoint.Hit(killpoint.ImagePulling)

	progress := newPullProgress(time.Now())
	flushed := time.Now()
	for message, err := range stream.JSONMessages(pullCtx) {
		switch {
		case err != nil:
			return causeOf(pullCtx, err)
		case message.Error != nil:
			return message.Error
		}
		for _, line := range progress.lines(message, time.Now()) {
			setup.Log("%s", line)
		}
		if time.Since(flushed) > flushInterval {
			e.flushLog(ctx, job, setup)
			flushed = time.Now()
		}
		timer.Reset(e.pullTimeout)
	}
	return nil
}

// causeOf returns the cause of a context that has ended, and otherwise err.
func causeOf(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// flushLog sends the log of the set-up. Lines that cannot be sent now are sent with the
// handoff or with the failure.
func (e *Executor) flushLog(ctx context.Context, job *runtime.Job, setup *runtime.Setup) {
	ctx, cancel := context.WithTimeout(ctx, flushLimit)
	defer cancel()
	if err := setup.Flush(ctx); err != nil {
		e.log.Debug("cannot send set-up log", "job", job.ID, "error", err)
	}
}

// permanentErrors are parts of errors of registries and engines after which another pull
// would fail in the same way.
var permanentErrors = []string{
	"manifest unknown", "not found", "does not exist", "access denied", "unauthorized", "denied:",
	"no matching manifest", "no basic auth credentials", "incorrect username or password", "unsupported", "invalid",
}

func (e *Executor) pullError(ctx context.Context, img image, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	hint := ""
	if _, missing := e.inspectImage(ctx, img); missing == nil {
		hint = "; the engine has the image: set pull_image to false to use it"
	}
	text, lost := oneLine(err), isConnectionError(err)
	inText := func(part string) bool { return strings.Contains(strings.ToLower(text), part) }
	known := errdefs.IsNotFound(err) || errdefs.IsUnauthorized(err) || errdefs.IsPermissionDenied(err) ||
		slices.ContainsFunc(permanentErrors, inText)
	if known && !lost {
		return runtime.NewJobFault("pull the image %s: %s%s", img.name, text, hint)
	}
	err = fmt.Errorf("pull the image %s: %s%s", img.name, text, hint)
	if lost {
		return connectionError{err}
	}
	return err
}
