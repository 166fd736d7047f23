package main

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// entry is a file of an archive or of a package. Its content is the text, if there is one, else that of the source.
type entry struct {
	path   string
	mode   fs.FileMode
	source string
	text   []byte
	target string // of a symbolic link
}

// programs returns the programs of a platform, in a directory with the prefix.
func (r release) programs(p platform, prefix string) []entry {
	built := func(name, suffix string) entry {
		return entry{path: prefix + "bin/" + name, mode: 0o755, source: filepath.Join(r.directory, name+suffix)}
	}
	suffix := "-" + p.os + "-" + p.architecture
	return []entry{
		built("cmwa", suffix), built("cmwa-cloud", suffix), built("workflow-runner", suffix),
		// Those that the agent puts into containers.
		built("workflow-runner-linux-amd64", ""), built("workflow-runner-linux-arm64", ""),
		// The name of Pulumi's own agent, for scripts that start it.
		{path: prefix + "bin/customer-managed-workflow-agent", mode: 0o777, target: "cmwa"},
	}
}

// files returns the files below a directory, with their paths in it.
func files(directory string) (all []entry, err error) {
	err = fs.WalkDir(os.DirFS(directory), ".", func(name string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			all = append(all, entry{path: name, mode: 0o644, source: filepath.Join(directory, name)})
		}
		return err
	})
	return all, err
}

// under returns the entries with a prefix of their paths.
func under(prefix string, entries []entry) []entry {
	for i := range entries {
		entries[i].path = prefix + entries[i].path
	}
	return entries
}

// archive writes the archive of a platform, in which everything is in one directory.
func (r release) archive(p platform) error {
	name := "cmwa_" + r.version + "_" + p.String()
	shared, err := files(filepath.Join(r.directory, "root/usr/share"))
	if err != nil {
		return err
	}
	entries := slices.Concat(r.programs(p, ""), under("share/", shared), []entry{
		{path: "LICENSE", mode: 0o644, source: filepath.Join(r.directory, "LICENSE")},
		{path: "THIRD_PARTY_NOTICES", mode: 0o644, source: filepath.Join(r.directory, "THIRD_PARTY_NOTICES")},
	})
	return r.write(name+".tar.gz", func(w io.Writer) error { return r.compress(w, under(name+"/", entries)) })
}

// images writes the OCI image layouts of make image.
func (r release) images() error {
	for _, name := range []string{"cmwa-image", "cmwa-cloud-image"} {
		entries, err := files(filepath.Join(r.directory, name))
		if err == nil {
			err = r.write(name+"_"+r.version+".tar", func(w io.Writer) error { return r.tar(w, entries) })
		}
		if err != nil {
			return err
		}
	}
	return nil
}

var (
	chartVersion     = regexp.MustCompile(`(?m)^version:.*$`)
	appVersion       = regexp.MustCompile(`(?m)^appVersion:.*$`)
	chartAnnotations = regexp.MustCompile(`(?m)^annotations:\n`)
)

// imageDigest returns the digest of the index of all architectures of the agent's image.
func (r release) imageDigest() (string, error) {
	path := filepath.Join(r.directory, "cmwa-image/index.json")
	text, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	var layout struct{ Manifests []struct{ Digest string } }
	if err := json.Unmarshal(text, &layout); err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	if len(layout.Manifests) != 1 {
		return "", fmt.Errorf("%s has %d manifests, want 1: run make image", path, len(layout.Manifests))
	}
	return layout.Manifests[0].Digest, nil
}

// chart writes the chart as helm package --version --app-version does, but with the date of the release: helm uses the
// times of the files, which differ between two checkouts. Unlike helm package, it includes README.md, and annotations
// with the digest of the image: the chart uses it as the default of image.digest, and Artifact Hub shows the image.
func (r release) chart() error {
	directory := filepath.Join(r.sources, "examples/chart")
	entries, err := files(directory)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(directory, "Chart.yaml"))
	if err != nil {
		return err
	}
	if !chartVersion.Match(text) || !appVersion.Match(text) || !chartAnnotations.Match(text) {
		return errors.New("examples/chart/Chart.yaml has no line version, no line appVersion or no line annotations")
	}
	digest, err := r.imageDigest()
	if err != nil {
		return err
	}
	text = chartVersion.ReplaceAll(text, []byte("version: "+r.version))
	text = appVersion.ReplaceAll(text, []byte(`appVersion: "v`+r.version+`"`))
	text = chartAnnotations.ReplaceAll(text, fmt.Appendf(nil, `annotations:
  cmwa/image-digest: %[2]s
  artifacthub.io/images: |
    - name: cmwa
      image: registry.invalid/cmwa:v%[1]s@%[2]s
`, r.version, digest))
	entries = slices.DeleteFunc(entries, func(e entry) bool { return e.path == ".helmignore" })
	for i := range entries {
		if entries[i].path == "Chart.yaml" {
			entries[i].text = text
		}
	}
	return r.write("cmwa-"+r.version+".tgz", func(w io.Writer) error { return r.compress(w, under("cmwa/", entries)) })
}

// compress writes the entries as tar.gz. The header of gzip has no name and no time.
func (r release) compress(w io.Writer, entries []entry) error {
	packed := gzip.NewWriter(w)
	return errors.Join(r.tar(packed, entries), packed.Close())
}

// tar writes the entries sorted by path, with their directories.
func (r release) tar(w io.Writer, entries []entry) error {
	slices.SortFunc(entries, func(a, b entry) int { return strings.Compare(a.path, b.path) })
	archive := tar.NewWriter(w)
	written := map[string]bool{".": true}
	for _, e := range entries {
		if err := r.add(archive, e, written); err != nil {
			return fmt.Errorf("add %s: %w", e.path, err)
		}
	}
	return archive.Close()
}

// add adds an entry to an archive, after the directories above it that are not written yet.
func (r release) add(archive *tar.Writer, e entry, written map[string]bool) error {
	var above []string
	for directory := path.Dir(e.path); !written[directory]; directory = path.Dir(directory) {
		written[directory] = true
		above = append(above, directory)
	}
	for _, directory := range slices.Backward(above) {
		header := &tar.Header{Typeflag: tar.TypeDir, Name: directory + "/", Mode: 0o755, ModTime: r.date}
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
	}
	header := &tar.Header{Typeflag: tar.TypeReg, Name: e.path, Mode: int64(e.mode), ModTime: r.date}
	if e.target != "" {
		header.Typeflag, header.Linkname = tar.TypeSymlink, e.target
		return archive.WriteHeader(header)
	}
	content := e.text
	if content == nil {
		var err error
		if content, err = os.ReadFile(e.source); err != nil {
			return err
		}
	}
	header.Size = int64(len(content))
	if err := archive.WriteHeader(header); err != nil {
		return err
	}
	_, err := archive.Write(content)
	return err
}
