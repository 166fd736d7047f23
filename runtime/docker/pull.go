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
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cmwa-project/cmwa/runtime"
)

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
