// Command release writes the files of a release from what make release has built.
//
//	release -version v1.2.3 -date 2026-01-02T03:04:05Z -platforms "linux/amd64 darwin/arm64" [-directory bin]
//
// It reads from the directory: the programs (cmwa-linux-amd64, ...), LICENSE, THIRD_PARTY_NOTICES, the image layouts
// of make image, and root, into which examples/systemd/install has installed with the prefix /usr. It reads the chart
// and the scripts from the sources. It replaces the directory release in that directory with:
//
//   - cmwa_1.2.3_OS_ARCHITECTURE.tar.gz, the programs, their pages for man and their completions
//   - cmwa_1.2.3_OS_ARCHITECTURE.cdx.json, the modules in these programs as a CycloneDX document
//   - cmwa_1.2.3_ARCHITECTURE.deb and .rpm for Linux
//   - cmwa-image_1.2.3.tar and cmwa-cloud-image_1.2.3.tar, the OCI image layouts
//   - cmwa-1.2.3.tgz, the chart, whose appVersion is the tag of the images
//   - cmwa.rb, a formula for Homebrew, if there are archives for macOS
//   - install.sh, which installs an archive
//   - checksums.txt, for sha256sum --check
//
// Equal input results in equal output, in any directory: entries are sorted and belong to root, and all times are the
// date.
//
// # Decisions
//
// GoReleaser 2.18 would build all of this, but needs Go 1.27. github.com/goreleaser/nfpm, which it uses, writes the
// packages, and github.com/CycloneDX/cyclonedx-go the document. They are in a module of their own, so that their
// dependencies do not change the versions of the linters.
//
// The modules come from the programs themselves (debug/buildinfo): go.mod also has modules that only tests need.
package main

import (
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// release is the input of each file.
type release struct {
	version   string // without the v
	date      time.Time
	platforms []platform
	directory string // has the built files
	sources   string // the root of the repository
	output    string
}

type platform struct{ os, architecture string }

func (p platform) String() string { return p.os + "_" + p.architecture }

func main() {
	version := flag.String("version", "", "such as v1.2.3")
	date := flag.String("date", "", "of the commit, in RFC 3339; default is the Unix epoch")
	platforms := flag.String("platforms", "", "such as linux/amd64, separated by spaces")
	directory := flag.String("directory", "bin", "the directory with the built files")
	sources := flag.String("sources", "../..", "the root of the repository")
	flag.Parse()
	if err := run(*version, *date, *platforms, *directory, *sources); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// semantic matches a version that Go, Debian, RPM, Helm and image registries all accept.
var semantic = regexp.MustCompile(`^v\d+\.\d+\.\d+(-[0-9A-Za-z]+(\.[0-9A-Za-z]+)*)?$`)

// run writes all files of a release.
func run(version, date, platforms, directory, sources string) error {
	r := release{
		version: strings.TrimPrefix(version, "v"), date: time.Unix(0, 0).UTC(),
		directory: directory, sources: sources, output: filepath.Join(directory, "release"),
	}
	if !semantic.MatchString(version) {
		return fmt.Errorf("the version %q is not like v1.2.3 or v1.2.3-rc.1: run make release VERSION=v1.2.3", version)
	}
	if date != "" {
		parsed, err := time.Parse(time.RFC3339, date)
		if err != nil {
			return fmt.Errorf("the date: %w", err)
		}
		r.date = parsed.UTC()
	}
	for _, name := range strings.Fields(platforms) {
		system, architecture, found := strings.Cut(name, "/")
		if !found {
			return fmt.Errorf("the platform %q is not like linux/amd64", name)
		}
		r.platforms = append(r.platforms, platform{system, architecture})
	}
	if err := errors.Join(os.RemoveAll(r.output), os.MkdirAll(r.output, 0o755)); err != nil {
		return err
	}
	for _, p := range r.platforms {
		if err := errors.Join(r.archive(p), r.modules(p), r.packages(p, "deb", "rpm")); err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
	}
	return errors.Join(r.images(), r.chart(), r.scripts(), r.checksums())
}

// write creates a file of the release.
func (r release) write(name string, write func(io.Writer) error) error {
	file, err := os.OpenFile(filepath.Join(r.output, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	return errors.Join(write(file), file.Close())
}

// checksums writes the SHA-256 of each other file. It prints the names.
func (r release) checksums() error {
	entries, err := os.ReadDir(r.output)
	if err != nil {
		return err
	}
	var lines strings.Builder
	for _, entry := range entries {
		sum, err := sumOf(filepath.Join(r.output, entry.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&lines, "%x  %s\n", sum, entry.Name())
	}
	fmt.Print(lines.String())
	return r.write("checksums.txt", func(w io.Writer) error {
		_, err := io.WriteString(w, lines.String())
		return err
	})
}

func sumOf(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	sum := sha256.New()
	_, err = io.Copy(sum, file)
	return sum.Sum(nil), err
}
