// Command image writes the container images of the agent and of the self-hosted service. It needs
// no registry and no engine.
//
//	image -version VERSION [-directory bin]
//
// It reads the files that make image has written to the directory: cmwa, cmwa-cloud and workflow-runner
// for each architecture (cmwa-linux-amd64, ...), LICENSE and THIRD_PARTY_NOTICES. It
// writes there:
//
//   - ca-certificates.crt, the trusted root certificates, as PEM
//   - cmwa-image and cmwa-cloud-image, each an OCI image layout with all architectures. Its index.json
//     names one index by the version; that index has an image for each architecture
//   - cmwa-image.tar and cmwa-cloud-image.tar, the image for this machine's architecture, in the format of
//     docker save, with the tag cmwa/cmwa:VERSION or cmwa/cmwa-cloud:VERSION
//
// It prints the digest of each index and the id of the image in each archive. Equal input
// results in equal output: entries are sorted, and all times are the Unix epoch.
//
// # Decisions
//
// The root certificates are those of golang.org/x/crypto/x509roots/fallback, which
// are generated from Mozilla's list. The version of this module is pinned in go.mod: the
// image does not depend on the packages of the machine that builds it, and an update is a
// change of go.mod. Roots that Mozilla trusts only for certificates issued before a certain
// date are omitted, because PEM cannot express this condition.
//
// The program writes layers with the standard library, and manifests and archives with
// github.com/google/go-containerregistry, which adds three small modules to this build
// tool and supports both formats.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// product is what an image contains.
type product struct {
	name  string // of the program; the repository is cmwa/NAME
	files func(architecture, inputs string) []file
	cmd   []string
	env   []string // without PATH
}

// products are the images that this program writes. Their data directories are not volumes. With an anonymous
// volume, the agent would have another id in each new container, and would not warn about this, because it can write to
// the volume; and the service would lose its data.
var products = []product{
	{"cmwa", agentFiles, []string{"run"}, []string{"STATE_DIRECTORY=" + stateDirectory}},
	{"cmwa-cloud", cloudFiles, []string{"serve", "--data", dataDirectory}, []string{"PORT=8080"}},
}

// architectures are the architectures of the image, with the names of Go.
var architectures = []string{"amd64", "arm64"}

func main() {
	version := flag.String("version", "", "the tag of the image")
	directory := flag.String("directory", "bin", "the directory that is read from and written to")
	flag.Parse()
	if err := run(*version, *directory); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// run writes the certificates and the images.
func run(version, directory string) error {
	if !slices.Contains(architectures, runtime.GOARCH) {
		return fmt.Errorf("no image for this machine: it is made for %v, not for %s", architectures, runtime.GOARCH)
	}
	certificates, err := certificates()
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(directory, certificatesFile), certificates, 0o644); err != nil {
		return err
	}
	for _, p := range products {
		if err := p.write(version, directory); err != nil {
			return err
		}
	}
	return nil
}

// write writes the image of a product, for each architecture.
func (p product) write(version, directory string) error {
	tag, err := name.NewTag("cmwa/"+p.name+":"+version, name.WithDefaultRegistry(""))
	if err != nil || version == "" {
		return errors.Join(fmt.Errorf("the version %q cannot be the tag of an image", version), err)
	}

	// 1. Build the images.
	images := map[string]v1.Image{}
	var index v1.ImageIndex = empty.Index
	for _, architecture := range architectures {
		image, err := p.imageFor(architecture, version, directory)
		if err != nil {
			return fmt.Errorf("make the image for %s: %w", architecture, err)
		}
		images[architecture] = image
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add:        plain{image},
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: architecture}},
		})
	}

	// 2. Write the layout and the archive.
	if err := writeLayout(filepath.Join(directory, p.name+"-image"), version, index); err != nil {
		return fmt.Errorf("write the layout: %w", err)
	}
	archive := filepath.Join(directory, p.name+"-image.tar")
	if err := tarball.WriteToFile(archive+".new", tag, images[runtime.GOARCH]); err != nil {
		return fmt.Errorf("write the archive: %w", err)
	}
	if err := os.Rename(archive+".new", archive); err != nil {
		return err
	}

	// 3. Print digest and id.
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	id, err := images[runtime.GOARCH].ConfigName()
	if err != nil {
		return err
	}
	fmt.Printf("index %s\n%s %s\n", digest, tag, id)
	return nil
}

// imageFor builds the image for one architecture.
func (p product) imageFor(architecture, version, directory string) (v1.Image, error) {
	layer, err := tarball.LayerFromOpener(opener(p.files(architecture, directory)),
		tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching)
	if err != nil {
		return nil, err
	}
	epoch := v1.Time{Time: time.Unix(0, 0).UTC()}
	image, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{
		Architecture: architecture,
		OS:           "linux",
		Created:      epoch,
		RootFS:       v1.RootFS{Type: "layers"},
		Config: v1.Config{
			// Kubernetes' runAsNonRoot needs a number.
			User:         fmt.Sprintf("%d:%d", user, user),
			Entrypoint:   []string{programDirectory + "/" + p.name},
			Cmd:          p.cmd,
			WorkingDir:   "/",
			Env:          append([]string{"PATH=" + programDirectory}, p.env...),
			ExposedPorts: map[string]struct{}{"8080/tcp": {}},
			Labels: map[string]string{
				"org.opencontainers.image.title":    p.name,
				"org.opencontainers.image.version":  version,
				"org.opencontainers.image.licenses": "Apache-2.0",
			},
		},
	})
	if err != nil {
		return nil, err
	}
	image, err = mutate.Append(image, mutate.Addendum{
		Layer: layer, History: v1.History{Created: epoch, CreatedBy: "make image"},
	})
	if err != nil {
		return nil, err
	}
	return mutate.ConfigMediaType(mutate.MediaType(image, types.OCIManifestSchema1), types.OCIConfigJSON), nil
}

// plain is an image without an artifact type in the index. The library would otherwise use
// the media type of the image's configuration as the artifact type. Artifact types are for
// artifacts that are not images.
type plain struct{ v1.Image }

func (plain) ArtifactType() (string, error) { return "", nil }

// writeLayout replaces an OCI image layout with one that has the index. The name of the
// index is the version.
func writeLayout(directory, version string, index v1.ImageIndex) error {
	part := directory + ".new"
	if err := os.RemoveAll(part); err != nil {
		return err
	}
	named := mutate.AppendManifests(empty.Index, mutate.IndexAddendum{
		Add:        index,
		Descriptor: v1.Descriptor{Annotations: map[string]string{"org.opencontainers.image.ref.name": version}},
	})
	if _, err := layout.Write(part, named); err != nil {
		return err
	}
	if err := os.RemoveAll(directory); err != nil {
		return err
	}
	return os.Rename(part, directory)
}
