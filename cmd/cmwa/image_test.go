package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"crypto/x509"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"testing"
)

// imageVersion is the version of the images that the tests build.
const imageVersion = "image-test"

// imageName is the name of such an image in an engine and in a cluster.
const imageName = "cmwa/cmwa:" + imageVersion

// serviceImageName is the name of the image of the service.
const serviceImageName = "cmwa/cmwa-cloud:" + imageVersion

// madeImage builds the image of these sources once. All tests of a run share it.
var madeImage = sync.OnceValues(func() (image builtImage, err error) {
	directory, err := os.MkdirTemp("", "cmwa-image-")
	if err != nil {
		return builtImage{}, err
	}
	temporary.add(directory)
	return makeImage(directory)
})

// clusterImage makes sure that the cluster holds the image of the agent, [imageName].
var clusterImage = sync.OnceValue(func() error {
	made, err := madeImage()
	if err != nil {
		return err
	}
	archive := filepath.Join(made.directory, "cmwa-image.tar")
	if out, err := exec.Command("../../testdata/toolchain/kube-load", "--archive",
		archive).CombinedOutput(); err != nil {
		return fmt.Errorf("kube-load: %w: %s", err, out)
	}
	return nil
})

// builtImage is the result of make image.
type builtImage struct {
	directory string // contains cmwa-image.tar and cmwa-image
	identity  string // output of make image: the digest of the index and the id of the image
}

// makeImage runs make image in a copy of the sources below a directory.
func makeImage(directory string) (builtImage, error) {
	root, sources := filepath.Join("..", ".."), filepath.Join(directory, "sources")
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		relative, _ := filepath.Rel(root, path)
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (relative == "bin" || strings.HasPrefix(relative, ".") && relative != "."):
			return fs.SkipDir
		case entry.IsDir():
			return os.MkdirAll(filepath.Join(sources, relative), 0o755)
		case !entry.Type().IsRegular():
			return nil
		}
		info, infoErr := entry.Info()
		content, readErr := os.ReadFile(path)
		if err := errors.Join(infoErr, readErr); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(sources, relative), content, info.Mode())
	})
	if err != nil {
		return builtImage{}, err
	}
	cmd := exec.Command("make", "--directory", sources, "--silent", "image", "VERSION="+imageVersion)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return builtImage{}, fmt.Errorf("make image: %w\n%s", err, stderr.String())
	}
	return builtImage{filepath.Join(sources, "bin"), string(out)}, nil
}

// descriptor refers to a blob of an OCI image layout.
type descriptor struct {
	MediaType, ArtifactType string

	Digest string
	Size   int64

	Platform    struct{ OS, Architecture string }
	Annotations map[string]string
}

// imageConfig is the part of an image's configuration that the tests read.
type imageConfig struct {
	OS, Architecture string
	Config           struct {
		User            string
		Entrypoint, Cmd []string
		Env             []string
		WorkingDir      string
		ExposedPorts    map[string]any
		Volumes         map[string]any
		Labels          map[string]string
	}
	RootFS struct {
		Type    string
		DiffIDs []string `json:"diff_ids"`
	}
}

// blob returns the content that a descriptor refers to. It checks the media type, the
// digest and the size.
func blob(t *testing.T, layout string, d descriptor, kind string) []byte {
	t.Helper()
	if d.MediaType != "application/vnd.oci.image."+kind || d.ArtifactType != "" {
		t.Errorf("%s has the type %q and the artifact type %q, want %s", d.Digest, d.MediaType, d.ArtifactType, kind)
	}
	algorithm, hash, _ := strings.Cut(d.Digest, ":")
	content, err := os.ReadFile(filepath.Join(layout, "blobs", algorithm, hash))
	noError(t, err)
	if got := digestOf(content); got != d.Digest || int64(len(content)) != d.Size {
		t.Fatalf("blob %s of %d bytes has the digest %s and %d bytes", d.Digest, d.Size, got, len(content))
	}
	return content
}

func digestOf(content []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(content)) }

// layoutImage is one image of an OCI image layout.
type layoutImage struct {
	config imageConfig
	layer  []byte // unpacked
	id     string // digest of the configuration
}

// readLayout checks an OCI image layout, and returns its images by architecture.
func readLayout(t *testing.T, layout string) map[string]layoutImage {
	t.Helper()
	// 1. index.json refers to one index, whose name is the version.
	var entry, index struct{ Manifests []descriptor }
	content := readText(t, filepath.Join(layout, "index.json"))
	decode(t, []byte(content), &entry)
	if len(entry.Manifests) != 1 ||
		entry.Manifests[0].Annotations["org.opencontainers.image.ref.name"] != imageVersion {
		t.Fatalf("index.json is %s", content)
	}
	decode(t, blob(t, layout, entry.Manifests[0], "index.v1+json"), &index)

	// 2. This index refers to a manifest for each platform.
	images := map[string]layoutImage{}
	for _, d := range index.Manifests {
		var manifest struct {
			Config descriptor
			Layers []descriptor
		}
		decode(t, blob(t, layout, d, "manifest.v1+json"), &manifest)
		image := layoutImage{id: manifest.Config.Digest}
		decode(t, blob(t, layout, manifest.Config, "config.v1+json"), &image.config)
		if c := image.config; c.OS != d.Platform.OS || c.Architecture != d.Platform.Architecture || c.OS != "linux" {
			t.Errorf("the image for %+v is for %s/%s", d.Platform, c.OS, c.Architecture)
		}

		// 3. The configuration has the digest of the uncompressed layer.
		root := image.config.RootFS
		if len(manifest.Layers) != 1 || len(root.DiffIDs) != 1 || root.Type != "layers" {
			t.Fatalf("the image for %+v has %+v and the layers %+v", d.Platform, root, manifest.Layers)
		}
		packed, err := gzip.NewReader(bytes.NewReader(blob(t, layout, manifest.Layers[0], "layer.v1.tar+gzip")))
		noError(t, err)
		image.layer, err = io.ReadAll(packed)
		noError(t, err)
		if !packed.ModTime.IsZero() || digestOf(image.layer) != root.DiffIDs[0] {
			t.Errorf("the layer for %+v has the time %s and the digest %s", d.Platform, packed.ModTime,
				digestOf(image.layer))
		}
		images[d.Platform.Architecture] = image
	}
	return images
}

// entries returns the headers of an archive by name, and the contents of its files.
func entries(t testing.TB, archive []byte) (headers map[string]*tar.Header, contents map[string][]byte) {
	t.Helper()
	headers, contents = map[string]*tar.Header{}, map[string][]byte{}
	for reader := tar.NewReader(bytes.NewReader(archive)); ; {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return headers, contents
		}
		noError(t, err)
		headers[header.Name] = header
		contents[header.Name], err = io.ReadAll(reader)
		noError(t, err)
	}
}

// imagePaths lists everything that the image contains.
var imagePaths = []string{
	"etc/", "etc/ssl/", "etc/ssl/certs/", "etc/ssl/certs/ca-certificates.crt",
	"usr/", "usr/local/", "usr/local/bin/",
	"usr/local/bin/cmwa", "usr/local/bin/customer-managed-workflow-agent", "usr/local/bin/workflow-runner",
	"usr/local/bin/workflow-runner-linux-amd64", "usr/local/bin/workflow-runner-linux-arm64",
	"usr/share/", "usr/share/doc/", "usr/share/doc/cmwa/",
	"usr/share/doc/cmwa/LICENSE", "usr/share/doc/cmwa/THIRD_PARTY_NOTICES",
	"var/", "var/lib/", "var/lib/cmwa/",
}

func TestImage(t *testing.T) {
	t.Parallel()
	made, err := madeImage()
	noError(t, err)
	directory := made.directory
	images := readLayout(t, filepath.Join(directory, "cmwa-image"))
	id := images[goruntime.GOARCH].id

	t.Run("the layout has an image for each architecture", func(t *testing.T) {
		if got := slices.Sorted(maps.Keys(images)); !slices.Equal(got, []string{"amd64", "arm64"}) {
			t.Errorf("the layout has images for %v, want amd64 and arm64", got)
		}
		for architecture, image := range images {
			c := image.config.Config
			if c.User != "65532:65532" || !slices.Equal(c.Entrypoint, []string{"/usr/local/bin/cmwa"}) ||
				!slices.Equal(c.Cmd, []string{"run"}) || len(c.Volumes) != 0 {
				t.Errorf("the configuration for %s is %+v", architecture, c)
			}
		}
	})
	t.Run("an image has programs, certificates and licences, and nothing else", func(t *testing.T) {
		for architecture, image := range images {
			testImageContents(t, architecture, image.layer)
		}
	})
	t.Run("the archive has the image of this machine's architecture", func(t *testing.T) {
		_, contents := entries(t, []byte(readText(t, filepath.Join(directory, "cmwa-image.tar"))))
		var manifest []struct {
			Config   string
			RepoTags []string
		}
		decode(t, contents["manifest.json"], &manifest)
		if len(manifest) != 1 || !slices.Equal(manifest[0].RepoTags, []string{imageName}) ||
			digestOf(contents[manifest[0].Config]) != id {
			t.Errorf("the manifest is %s, want the image %s", contents["manifest.json"], id)
		}
	})
	t.Run("a second build in another directory has the same digests", func(t *testing.T) {
		again, err := makeImage(t.TempDir())
		noError(t, err)
		if again.identity != made.identity || !strings.Contains(made.identity, "index sha256:") {
			t.Errorf("the two builds print different digests, or no index:\n%s\n%s", made.identity, again.identity)
		}
		for _, name := range []string{"cmwa-image.tar", "cmwa-image/index.json"} {
			if readText(t, filepath.Join(directory, name)) != readText(t, filepath.Join(again.directory, name)) {
				t.Errorf("%s differs", name)
			}
		}
	})
	t.Run("the service has an image of its own", func(t *testing.T) {
		for architecture, image := range readLayout(t, filepath.Join(directory, "cmwa-cloud-image")) {
			testCloudImage(t, architecture, image)
		}
	})
	t.Run("docker", func(t *testing.T) { testImageInDocker(t, directory, id) })
	t.Run("kubernetes", testImageInKubernetes)
}

// testCloudImage checks the image of the service for one architecture.
func testCloudImage(t *testing.T, architecture string, image layoutImage) {
	t.Helper()
	c := image.config.Config
	if c.User != "65532:65532" || !slices.Equal(c.Entrypoint, []string{"/usr/local/bin/cmwa-cloud"}) ||
		!slices.Equal(c.Cmd, []string{"serve", "--data", "/var/lib/cmwa-cloud"}) ||
		!slices.Contains(c.Env, "PORT=8080") || len(c.ExposedPorts) != 1 || len(c.Volumes) != 0 {
		t.Errorf("the configuration for %s is %+v", architecture, c)
	}
	headers, contents := entries(t, image.layer)
	want := []string{
		"etc/", "etc/ssl/", "etc/ssl/certs/", "etc/ssl/certs/ca-certificates.crt",
		"usr/", "usr/local/", "usr/local/bin/", "usr/local/bin/cmwa-cloud",
		"usr/share/", "usr/share/doc/", "usr/share/doc/cmwa-cloud/",
		"usr/share/doc/cmwa-cloud/LICENSE", "usr/share/doc/cmwa-cloud/THIRD_PARTY_NOTICES",
		"var/", "var/lib/", "var/lib/cmwa-cloud/",
	}
	if got := slices.Sorted(maps.Keys(headers)); !slices.Equal(got, want) {
		t.Errorf("the image for %s has %v, want %v", architecture, got, want)
	}
	if data := headers["var/lib/cmwa-cloud/"]; data == nil || data.Uid != 65532 || data.Gid != 65532 {
		t.Errorf("the data directory for %s is %+v", architecture, data)
	}

	// The program of this machine's architecture starts, and is small enough.
	program := contents["usr/local/bin/cmwa-cloud"]
	const limit = 30 << 20
	if len(program) > limit {
		t.Errorf("the program for %s has %d bytes, want at most %d", architecture, len(program), limit)
	}
	if architecture != goruntime.GOARCH {
		return
	}
	path := filepath.Join(t.TempDir(), "cmwa-cloud")
	noError(t, os.WriteFile(path, program, 0o700))
	out, err := exec.Command(path, "version").Output()
	if err != nil || !strings.HasPrefix(string(out), "cmwa-cloud "+imageVersion+"\n") {
		t.Errorf("cmwa-cloud version: %q, %v", out, err)
	}
}

// testImageContents checks the files of the image for one architecture.
func testImageContents(t *testing.T, architecture string, layer []byte) {
	t.Helper()
	// 1. No file is missing, and no other file exists.
	headers, contents := entries(t, layer)
	if got := slices.Sorted(maps.Keys(headers)); !slices.Equal(got, imagePaths) {
		t.Errorf("the image for %s has %v", architecture, got)
	}

	// 2. Only the state directory belongs to the agent.
	for name, header := range headers {
		owner, mode := 0, int64(0o755)
		switch {
		case name == "var/lib/cmwa/":
			owner = 65532
		case header.Typeflag == tar.TypeSymlink:
			mode = 0o777
		case header.Typeflag == tar.TypeReg && !strings.HasPrefix(name, "usr/local/bin/"):
			mode = 0o644
		}
		if header.Uid != owner || header.Gid != owner || header.Mode != mode || header.ModTime.Unix() != 0 {
			t.Errorf("%s: %s is of %d:%d, mode %o, time %s",
				architecture, name, header.Uid, header.Gid, header.Mode, header.ModTime)
		}
	}

	// 3. Each program is for its architecture.
	machines := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}
	for name, want := range map[string]elf.Machine{
		"cmwa":                        machines[architecture],
		"workflow-runner-linux-amd64": machines["amd64"],
		"workflow-runner-linux-arm64": machines["arm64"],
	} {
		binary, err := elf.NewFile(bytes.NewReader(contents["usr/local/bin/"+name]))
		if err != nil || binary.Machine != want {
			t.Errorf("%s in the image for %s is %+v, %v", name, architecture, binary, err)
		}
	}
	if own := headers["usr/local/bin/workflow-runner"].Linkname; own != "workflow-runner-linux-"+architecture {
		t.Errorf("workflow-runner in the image for %s is a link to %q", architecture, own)
	}

	if own := headers["usr/local/bin/customer-managed-workflow-agent"].Linkname; own != "cmwa" {
		t.Errorf("customer-managed-workflow-agent in the image for %s is a link to %q", architecture, own)
	}

	// 4. The other files have content.
	certificates := contents["etc/ssl/certs/ca-certificates.crt"]
	count := bytes.Count(certificates, []byte("BEGIN CERTIFICATE"))
	if count < 100 || !x509.NewCertPool().AppendCertsFromPEM(certificates) {
		t.Errorf("the file has %d certificates, or none is valid; want at least 100", count)
	}
	if !bytes.Contains(contents["usr/share/doc/cmwa/THIRD_PARTY_NOTICES"], []byte("cuelang.org/go")) {
		t.Error("the notices do not name the modules")
	}
	if !bytes.Contains(contents["usr/share/doc/cmwa/LICENSE"], []byte("Apache License")) {
		t.Error("the licence is not the Apache License")
	}
}
