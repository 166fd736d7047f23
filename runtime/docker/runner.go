package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"github.com/cmwa-project/cmwa/runtime"
)

const runnerName = "workflow-runner" // in a container

type program struct {
	path   string
	digest string // SHA-256 of its bytes, in hexadecimal
}

// machines are the architectures of Go and their codes in ELF.
var machines = map[string]elf.Machine{
	"386":     elf.EM_386,
	"amd64":   elf.EM_X86_64,
	"arm":     elf.EM_ARM,
	"arm64":   elf.EM_AARCH64,
	"loong64": elf.EM_LOONGARCH,
	"ppc64le": elf.EM_PPC64,
	"riscv64": elf.EM_RISCV,
	"s390x":   elf.EM_S390,
}

// programs caches examined files, because the computation of a digest takes longer than all
// other work of the agent for the start of a job. A changed file is examined again.
type programs struct {
	mu    sync.Mutex
	known map[[2]string]examined // by path and architecture
}

// examined is the result for one version of a file.
type examined struct {
	size     int64
	modified time.Time
	program  program
	err      error
}

// find returns the runner for an architecture in a working directory. Pulumi's archive has a
// runner only for amd64, with the name workflow-runner-embeddable (see Pulumi's documentation
// of customer-managed workflow runners). The archive of this agent has a runner for each
// architecture. The first suitable program is used.
func (p *programs) find(directory, arch string) (program, error) {
	var problems []string
	for _, name := range []string{runnerName + "-linux-" + arch, runnerName + "-embeddable", runnerName} {
		path := filepath.Join(directory, name)
		found, err := p.examineFile(path, arch)
		switch {
		case err == nil:
			return found, nil
		case !errors.Is(err, fs.ErrNotExist):
			problems = append(problems, fmt.Sprintf("%s %v", path, err))
		}
	}
	if len(problems) == 0 {
		return program{}, fmt.Errorf("there is no program %s-linux-%s in %s: "+
			"install it next to the agent, or set working_directory to its directory", runnerName, arch, directory)
	}
	return program{}, fmt.Errorf("no runner in %s can run in a %s container: %s; "+
		"install a statically linked runner there, named %s-linux-%s (CGO_ENABLED=0 go build, or make build)",
		directory, arch, strings.Join(problems, ", "), runnerName, arch)
}

// findAny checks that there is a runner for an architecture or for any other: with emulation,
// images can be for another machine than the engine's. The error is that of find for the given
// architecture.
func (p *programs) findAny(directory, arch string) error {
	_, err := p.find(directory, arch)
	if err == nil {
		return nil
	}
	for other := range machines {
		if _, foreign := p.find(directory, other); foreign == nil {
			return nil
		}
	}
	return err
}

// examineFile returns the program in a file, from the cache if the file has not changed.
func (p *programs) examineFile(path, arch string) (program, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return program{}, err
	case !info.Mode().IsRegular():
		return program{}, errors.New("is not a file")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	key := [2]string{path, arch}
	known, ok := p.known[key]
	if !ok || known.size != info.Size() || known.modified != info.ModTime() {
		known = examined{size: info.Size(), modified: info.ModTime()}
		known.program, known.err = examine(path, arch)
		if p.known == nil {
			p.known = map[[2]string]examined{}
		}
		p.known[key] = known
	}
	return known.program, known.err
}

// examine reads a program and checks that it can run in every image of an architecture: it is
// for that architecture and statically linked. It is not the runner of another project.
func examine(path, arch string) (program, error) {
	file, err := os.Open(path)
	if err != nil {
		return program{}, fmt.Errorf("cannot be read: %w", err)
	}
	defer file.Close()

	binary, err := elf.NewFile(file)
	if err != nil {
		return program{}, errors.New("is not a Linux program")
	}
	machine, ok := machines[arch]
	if !ok || binary.Machine != machine {
		return program{}, fmt.Errorf("is for another kind of machine (%v)", binary.Machine)
	}
	for _, part := range binary.Progs {
		if part.Type == elf.PT_INTERP {
			return program{}, errors.New("is not static")
		}
	}

	if err := runtime.CheckRunner(path); err != nil {
		return program{}, err
	}

	sum := sha256.New()
	if _, err := io.Copy(sum, file); err != nil { // from the beginning: elf reads with ReadAt
		return program{}, fmt.Errorf("cannot be read: %w", err)
	}
	return program{path: path, digest: hex.EncodeToString(sum.Sum(nil))}, nil
}

const markName = "complete" // of the mark, the last file that is copied

func volumeName(runner program) string { return "cmwa-runner-" + runner.digest[:12] }

// volumeMount mounts the volume of a runner. The engine creates the volume if it does not
// exist.
func (e *Executor) volumeMount(runner program, readOnly bool) mount.Mount {
	return mount.Mount{
		Type:          mount.TypeVolume,
		Source:        volumeName(runner),
		Target:        e.directory,
		ReadOnly:      readOnly,
		VolumeOptions: &mount.VolumeOptions{NoCopy: true, Labels: map[string]string{labelRunner: runner.digest}},
	}
}

// fill makes sure that the volume of a created container has the runner. The container is
// not started yet.
//
//  1. If the volume has the mark, it is complete.
//  2. Create the loader container, whose name admits one agent at a time.
//  3. Check the mark again, now that no other agent writes. If the mark is missing, copy the
//     runner and then the mark. Remove the loader container.
//  4. If another agent has a loader container, remove the container if it is abandoned.
//     Wait, and begin again.
func (e *Executor) fill(ctx context.Context, id string, img image, runner program) error {
	ctx, cancel := context.WithTimeout(ctx, fillLimit)
	defer cancel()
	for other := (foreignLoader{}); ; {
		// 1. Check the mark.
		if filled, err := e.isFilled(ctx, id); filled || err != nil {
			return err
		}

		// 2. and 3. Create the loader container, and copy the runner.
		own, err := e.createLoader(ctx, img, runner)
		switch {
		case err == nil:
			return e.copyRunner(ctx, own, runner)
		case !errdefs.IsConflict(err):
			return engineError("create the loader container", e.host, err)
		}

		// 4. Wait for the other agent.
		if err := e.removeStaleLoader(ctx, runner, &other); err != nil {
			return err
		}
		if !runtime.Sleep(ctx, nil, loaderPoll) {
			return fmt.Errorf("wait for another agent to fill the volume %s: %w",
				volumeName(runner), context.Cause(ctx))
		}
	}
}

// isFilled reports whether the volume of a container has the mark.
func (e *Executor) isFilled(ctx context.Context, id string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, shortLimit)
	defer cancel()
	_, err := e.engine.ContainerStatPath(ctx, id, client.ContainerStatPathOptions{Path: e.directory + "/" + markName})
	if err == nil || errdefs.IsNotFound(err) {
		return err == nil, nil
	}
	return false, engineError("check the volume of the runner", e.host, causeOf(ctx, err))
}

const loaderSuffix = "-loader"

func loaderName(runner program) string { return volumeName(runner) + loaderSuffix }

// createLoader creates the loader container. The call is not cancelled immediately: the
// engine might complete it, and the container would be unknown.
func (e *Executor) createLoader(ctx context.Context, img image, runner program) (string, error) {
	ctx, cancel := withCancelGrace(ctx, longLimit)
	defer cancel()
	made, err := e.engine.ContainerCreate(ctx, client.ContainerCreateOptions{
		Name:     loaderName(runner),
		Platform: img.platform,
		Config: &container.Config{
			Image:      img.name,
			Entrypoint: []string{e.directory + "/" + runnerName},
			Labels:     map[string]string{labelRunner: runner.digest, labelOwner: e.owner()},
		},
		HostConfig: &container.HostConfig{NetworkMode: "none", Mounts: []mount.Mount{e.volumeMount(runner, false)}},
	})
	return made.ID, err
}

// foreignLoader is the loader container of another agent, for which this agent waits.
type foreignLoader struct {
	id   string
	seen time.Time     // when this agent first saw it
	age  time.Duration // its age at that time, by the engine's clock; 0 if unknown
}

// removeStaleLoader removes a loader container if it is abandoned: an earlier process of this
// agent created it, or it is older than loaderTimeout. Because the engine's clock may differ
// from the agent's, the age of a container is its age by the engine's clock when this agent
// first saw it, plus the time since then.
func (e *Executor) removeStaleLoader(ctx context.Context, runner program, other *foreignLoader) error {
	found, err := e.inspectContainer(ctx, loaderName(runner))
	switch {
	case errdefs.IsNotFound(err):
		return nil
	case err != nil:
		return engineError("inspect the loader container", e.host, causeOf(ctx, err))
	}
	if found.ID != other.id {
		*other = foreignLoader{id: found.ID, seen: time.Now()}
		if made, now := parseTime(found.Created), e.engineTime(ctx); !made.IsZero() && now.After(made) {
			other.age = now.Sub(made)
		}
	}
	ended := found.Config != nil && e.isEarlierRun(found.Config.Labels[labelOwner])
	if !ended && other.age+time.Since(other.seen) < loaderTimeout {
		return nil
	}
	e.log.Warn("removing abandoned loader container", "container", loaderName(runner))
	return e.removeContainer(ctx, found.ID)
}

// copyRunner copies the runner through a loader container and removes the container.
func (e *Executor) copyRunner(ctx context.Context, loader string, runner program) (err error) {
	defer func() {
		cleanupCtx, cancel := withCancelGrace(ctx, longLimit)
		defer cancel()
		err = errors.Join(err, e.removeContainer(cleanupCtx, loader))
	}()

	// Copy the runner, unless another agent has done so.
	if filled, err := e.isFilled(ctx, loader); filled || err != nil {
		return err
	}
	archive, err := pack(runner)
	if err != nil {
		return err
	}
	callCtx, cancel := context.WithTimeout(ctx, longLimit)
	defer cancel()
	_, err = e.engine.CopyToContainer(callCtx, loader, client.CopyToContainerOptions{
		DestinationPath: e.directory, Content: bytes.NewReader(archive),
	})
	if err != nil {
		return engineError("copy the runner to the volume "+volumeName(runner), e.host, causeOf(callCtx, err))
	}

	e.log.Info("runner volume filled", "volume", volumeName(runner), "program", runner.path)
	keep := map[string]bool{volumeName(runner): true}
	if _, err := e.dropVolumes(ctx, keep, oldVolume, e.engineTime(ctx)); err != nil {
		e.log.Debug("cannot remove volumes of earlier runners", "error", err)
	}
	return nil
}

// pack returns the archive for a volume. The mark is its last file.
func pack(runner program) ([]byte, error) {
	text, err := os.ReadFile(runner.path)
	if err != nil {
		return nil, fmt.Errorf("read the runner: %w", err)
	}
	if sum := sha256.Sum256(text); hex.EncodeToString(sum[:]) != runner.digest {
		return nil, fmt.Errorf("%s has changed during the start of a job", runner.path)
	}

	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, file := range []struct {
		name    string
		mode    int64
		content []byte
	}{{runnerName, 0o755, text}, {markName, 0o644, []byte(runner.digest + "\n")}} {
		headerErr := w.WriteHeader(&tar.Header{
			Name: file.name, Mode: file.mode, Size: int64(len(file.content)), ModTime: time.Now(),
		})
		_, contentErr := w.Write(file.content)
		err = errors.Join(err, headerErr, contentErr)
	}
	if err := errors.Join(err, w.Close()); err != nil {
		return nil, fmt.Errorf("create the archive of the runner: %w", err)
	}
	return archive.Bytes(), nil
}

// parseTime parses a time of an engine. It returns the zero time for an invalid text and
// for the engine's own zero.
func parseTime(text string) time.Time {
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil || at.Year() <= 1 {
		return time.Time{}
	}
	return at
}
