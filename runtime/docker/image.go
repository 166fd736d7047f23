package docker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/moby/moby/api/pkg/authconfig"
	"github.com/moby/moby/client"
	"github.com/moby/moby/client/pkg/versions"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cmwa-project/cmwa/runtime"
)

// platformAPI is the version of the engine's API since which one name can stand
// for images of several platforms, and a question can say which one is meant.
const platformAPI = "1.49"

// image is an image that the engine has.
type image struct {
	name         string            // as the job or the configuration has it
	architecture string            // as Go names it
	user         string            // whom its processes run as; empty is root
	platform     *ocispec.Platform // asked for by the job; nil leaves the choice to the engine
}

// image finds the job's image in the engine's store, after a pull if the job's
// place wants one.
func (e *Executor) image(ctx context.Context, job *runtime.Job, setup *runtime.Setup) (image, error) {
	place, definition := job.Tuning.Place, job.Definition
	img := image{name: definition.Image.Reference}
	if place.OverrideImage != "" {
		img.name = place.OverrideImage
		setup.Say("Using the image %s, which the agent's configuration puts in place of %q", img.name, definition.Image.Reference)
	}
	if img.name == "" {
		return img, jobFault("the job names no image: set one in the deployment settings of its stack")
	}
	if definition.OS != "" && definition.OS != "linux" {
		return img, jobFault("the job asks for an image for %q, and this agent runs Linux containers only", definition.OS)
	}
	wanted := architecture(definition.Architecture)
	if wanted != "" {
		img.platform = &ocispec.Platform{OS: "linux", Architecture: wanted}
	}
	named, err := reference.ParseAnyReference(img.name)
	if err != nil {
		return img, jobFault("%q is not the name of an image: %w", img.name, err)
	}
	if place.PullImage {
		if err := e.pull(ctx, job, img, named, setup); err != nil {
			return img, err
		}
	}
	found, err := e.inspectImage(ctx, img)
	switch {
	case errdefs.IsNotFound(err) && !place.PullImage:
		return img, jobFault("the Docker engine at %s has no image %s, and pull_image is false: load the image there, or set pull_image to true", e.host, img.name)
	case errdefs.IsNotFound(err), errdefs.IsInvalidArgument(err):
		return img, jobFault("look for the image %s: %s", img.name, words(err))
	case err != nil:
		return img, refused("look for the image "+img.name, e.host, err)
	case found.Os != "" && found.Os != "linux":
		return img, jobFault("the image %s is for %s, and this agent runs Linux containers only", img.name, found.Os)
	}
	if !place.PullImage {
		setup.Say("Using the image %s as the engine has it (pull_image is false): %s", img.name, short(found.ID))
	}
	if found.Config != nil {
		img.user = found.Config.User
	}
	img.architecture = architecture(found.Architecture)
	switch {
	case img.architecture == "":
		img.architecture = e.architecture
	case wanted != "" && img.architecture != wanted:
		return img, jobFault("the job asks for %s, and the image %s that the engine has is for %s", wanted, img.name, img.architecture)
	case img.architecture != e.architecture:
		setup.Say("The image is for %s and the engine's machine is %s: this needs emulation there, and is slow", img.architecture, e.architecture)
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

const (
	pullStall  = 3 * time.Minute  // without any news of a pull
	flushEvery = 3 * time.Second  // between two times that the log of a pull is sent
	flushLimit = 10 * time.Second // for sending it: news can wait, the pull cannot
)

// pull pulls the job's image and tells the job's log of it as it goes.
func (e *Executor) pull(ctx context.Context, job *runtime.Job, img image, parsed reference.Reference, setup *runtime.Setup) error {
	named, ok := parsed.(reference.Named)
	if !ok {
		return jobFault("%s is the id of an image and not a name, and can only be used with pull_image: false", img.name)
	}
	setup.Say("Pulling the image %s", img.name)
	login, err := e.login(ctx, job, named)
	if err != nil {
		e.log.Warn("read the registry's login from the Docker configuration", "job", job.ID, "error", err)
		setup.Say("Warning: pulling without a login: %v", err)
	}
	e.flush(ctx, job, setup)
	header, err := authconfig.Encode(login)
	if err != nil {
		return errors.New("write the registry's login for the engine") // without the cause, which may show it
	}
	if err := e.watchPull(ctx, job, img, header, setup); err != nil {
		return e.pullRefused(ctx, img, err)
	}
	return nil
}

// watchPull lets the engine pull, and follows it to its end.
func (e *Executor) watchPull(ctx context.Context, job *runtime.Job, img image, login string, setup *runtime.Setup) error {
	watched, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	watchdog := time.AfterFunc(e.stall, func() { giveUp(fmt.Errorf("nothing has happened for %v", e.stall)) })
	defer watchdog.Stop()

	options := client.ImagePullOptions{RegistryAuth: login}
	if img.platform != nil {
		options.Platforms = []ocispec.Platform{*img.platform}
	}
	stream, err := e.engine.ImagePull(watched, img.name, options)
	if err != nil {
		return because(watched, err)
	}
	news := newNews(time.Now())
	flushed := time.Now()
	for message, err := range stream.JSONMessages(watched) {
		switch {
		case err != nil:
			return because(watched, err)
		case message.Error != nil:
			return message.Error
		}
		for _, line := range news.lines(message, time.Now()) {
			setup.Say("%s", line)
		}
		if time.Since(flushed) > flushEvery {
			e.flush(ctx, job, setup)
			flushed = time.Now()
		}
		watchdog.Reset(e.stall)
	}
	return nil
}

// because prefers the reason for which a context has ended to what that led to.
func because(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// flush sends what the set-up has said so far. What cannot be sent now goes
// with the handover, or with the failure.
func (e *Executor) flush(ctx context.Context, job *runtime.Job, setup *runtime.Setup) {
	ctx, cancel := context.WithTimeout(ctx, flushLimit)
	defer cancel()
	if err := setup.Flush(ctx); err != nil {
		e.log.Debug("send the log of the set-up", "job", job.ID, "error", err)
	}
}

// final are parts of what registries and engines answer when another pull would
// get the same answer.
var final = []string{"manifest unknown", "not found", "does not exist", "access denied", "unauthorized", "denied:", "no matching manifest", "no basic auth credentials", "incorrect username or password", "unsupported", "invalid"}

// pullRefused explains why an image could not be pulled.
func (e *Executor) pullRefused(ctx context.Context, img image, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	hint := ""
	if _, missing := e.inspectImage(ctx, img); missing == nil {
		hint = "; the engine has the image already: set pull_image to false to use that"
	}
	text := words(err)
	known := errdefs.IsNotFound(err) || errdefs.IsUnauthorized(err) || errdefs.IsPermissionDenied(err)
	for _, part := range final {
		known = known || strings.Contains(strings.ToLower(text), part)
	}
	if known && !client.IsErrConnectionFailed(err) {
		return jobFault("pull the image %s: %s%s", img.name, text, hint)
	}
	return fmt.Errorf("pull the image %s: %s%s", img.name, text, hint)
}
