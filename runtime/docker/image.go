package docker

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
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
