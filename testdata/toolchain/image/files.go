package main

import (
	"archive/tar"
	"bytes"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// user is the user and the group of the program in an image.
const user = 65532

// Directories in the image. The executor for Kubernetes copies workflow-runner from
// programDirectory. The first file in which Go looks for trusted certificates on Linux is
// certificatesFile in trustDirectory.
const (
	programDirectory = "/usr/local/bin"
	noticesDirectory = "/usr/share/doc/" // followed by the name of the program
	stateDirectory   = "/var/lib/cmwa"
	dataDirectory    = "/var/lib/cmwa-cloud"
	trustDirectory   = "/etc/ssl/certs"
)

// certificatesFile is the name of the file with trusted certificates, in the image and in
// the output directory.
const certificatesFile = "ca-certificates.crt"

// file is an entry of the image's file system: a file if it has a source, a
// symbolic link if it has a target, otherwise a directory.
type file struct {
	path   string
	mode   int64
	owner  int
	source string
	target string
}

func directory(path string) file { return file{path: path, mode: 0o755} }

// agentFiles returns the sorted file system of the agent's image for one architecture. It has the
// runner for each architecture, because the image of a job may have another architecture
// than the image of the agent.
func agentFiles(architecture, inputs string) []file {
	programs := []file{
		program("cmwa", architecture, inputs),
		// The name of the program in the image of Pulumi's own agent, for manifests with a command.
		{path: programDirectory + "/customer-managed-workflow-agent", mode: 0o777, target: "cmwa"},
		{path: programDirectory + "/workflow-runner", mode: 0o777, target: "workflow-runner-linux-" + architecture},
	}
	for _, each := range architectures {
		name := "workflow-runner-linux-" + each
		programs = append(programs, file{
			path: programDirectory + "/" + name, mode: 0o755, source: filepath.Join(inputs, name),
		})
	}
	return filesAround(programs, "cmwa", stateDirectory, inputs)
}

// cloudFiles returns the sorted file system of the service's image for one architecture.
func cloudFiles(architecture, inputs string) []file {
	return filesAround([]file{program("cmwa-cloud", architecture, inputs)}, "cmwa-cloud", dataDirectory, inputs)
}

func program(name, architecture, inputs string) file {
	return file{
		path: programDirectory + "/" + name, mode: 0o755, source: filepath.Join(inputs, name+"-linux-"+architecture),
	}
}

// filesAround returns the programs of an image, and what every image has: certificates, licences, and a directory that
// the program can write to.
func filesAround(programs []file, name, writable, inputs string) []file {
	input := func(name string) string { return filepath.Join(inputs, name) }
	files := []file{
		directory("/etc"), directory("/etc/ssl"), directory(trustDirectory),
		{path: trustDirectory + "/" + certificatesFile, mode: 0o644, source: input(certificatesFile)},
		directory("/usr"), directory("/usr/local"), directory(programDirectory),
	}
	notices := noticesDirectory + name
	return append(append(files, programs...),
		directory("/usr/share"), directory("/usr/share/doc"), directory(notices),
		file{path: notices + "/LICENSE", mode: 0o644, source: input("LICENSE")},
		file{path: notices + "/THIRD_PARTY_NOTICES", mode: 0o644, source: input("THIRD_PARTY_NOTICES")},
		directory("/var"), directory("/var/lib"),
		file{path: writable, mode: 0o755, owner: user},
	)
}

// opener returns a function that opens the files as a layer.
func opener(files []file) tarball.Opener {
	return func() (io.ReadCloser, error) {
		reader, writer := io.Pipe()
		go func() { writer.CloseWithError(writeLayer(writer, files)) }()
		return reader, nil
	}
}

// writeLayer writes the files as a tar archive.
func writeLayer(w io.Writer, files []file) error {
	archive := tar.NewWriter(w)
	for _, f := range files {
		header := &tar.Header{
			Name: strings.TrimPrefix(f.path, "/"), Mode: f.mode, Uid: f.owner, Gid: f.owner,
			ModTime: time.Unix(0, 0), Format: tar.FormatUSTAR,
		}
		if err := writeFile(archive, header, f); err != nil {
			return fmt.Errorf("add %s: %w", f.path, err)
		}
	}
	return archive.Close()
}

// writeFile adds one file to an archive.
func writeFile(archive *tar.Writer, header *tar.Header, f file) error {
	if f.target != "" {
		header.Typeflag, header.Linkname = tar.TypeSymlink, f.target
		return archive.WriteHeader(header)
	}
	if f.source == "" {
		header.Typeflag, header.Name = tar.TypeDir, header.Name+"/"
		return archive.WriteHeader(header)
	}
	source, err := os.Open(f.source)
	if err != nil {
		return err
	}
	defer source.Close()
	info, err := source.Stat()
	if err != nil {
		return err
	}
	header.Typeflag, header.Size = tar.TypeReg, info.Size()
	if err := archive.WriteHeader(header); err != nil {
		return err
	}
	_, err = io.Copy(archive, source)
	return err
}

// certificates returns the trusted root certificates as PEM. The text before the
// certificates describes their source. PEM decoders ignore it.
func certificates() ([]byte, error) {
	const module = "golang.org/x/crypto/x509roots/fallback"
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return nil, errors.New("this program was built without module support")
	}
	var out bytes.Buffer
	for _, dependency := range info.Deps {
		if dependency.Path == module {
			fmt.Fprintf(&out, "Root certificates that Mozilla trusts for servers, from %s %s (BSD-3-Clause).\n"+
				"They are generated from Mozilla's certdata.txt, which is under the Mozilla Public License 2.0.\n"+
				"Source: go mod download %s@%s\n\n", module, dependency.Version, module, dependency.Version)
		}
	}
	for root := range bundle.Roots() {
		if root.Constraint != nil {
			continue
		}
		if err := pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}); err != nil {
			return nil, err
		}
	}
	return out.Bytes(), nil
}
