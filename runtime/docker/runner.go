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
)

// runnerName is the runner's name inside the job's environment.
const runnerName = "workflow-runner"

// program is a runner program that can run in a container.
type program struct {
	path   string
	digest string // SHA-256 of its bytes, in hexadecimal
}

// machines are the architectures, as Go names them, in the words of ELF.
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

// programs remembers what files were found to be, since a digest costs more
// than all else that a job's start needs of the agent. A file that was changed
// is looked at again.
type programs struct {
	mu    sync.Mutex
	known map[fingerprint]verdict
}

type fingerprint struct {
	path, architecture string
	size               int64
	modified           time.Time
}

type verdict struct {
	program program
	flaw    error
}

// find finds the runner for an architecture in a working directory. Pulumi's own
// archive calls it workflow-runner-embeddable there, and has one for amd64 alone
// (its documentation of customer-managed workflow runners); ours has one for
// each architecture. The first that fits is taken.
func (p *programs) find(directory, arch string) (program, error) {
	var flaws []string
	for _, name := range []string{runnerName + "-linux-" + arch, runnerName + "-embeddable", runnerName} {
		path := filepath.Join(directory, name)
		found, err := p.look(path, arch)
		switch {
		case err == nil:
			return found, nil
		case !errors.Is(err, fs.ErrNotExist):
			flaws = append(flaws, fmt.Sprintf("%s %v", path, err))
		}
	}
	if len(flaws) == 0 {
		return program{}, fmt.Errorf("there is no program %s-linux-%s in %s: install it beside the agent, or set working_directory to where it is", runnerName, arch, directory)
	}
	return program{}, fmt.Errorf("no runner in %s can run in a %s container: %s; put a static one there, named %s-linux-%s (CGO_ENABLED=0 go build, or make build)",
		directory, arch, strings.Join(flaws, ", "), runnerName, arch)
}

// findAny finds the runner for an architecture, or for any other: images can be
// for another machine than the engine's, where emulation is installed. Its error
// is that of the architecture asked for.
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

func (p *programs) look(path, arch string) (program, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return program{}, err
	case !info.Mode().IsRegular():
		return program{}, errors.New("is not a file")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	key := fingerprint{path, arch, info.Size(), info.ModTime()}
	known, ok := p.known[key]
	if !ok {
		known.program, known.flaw = examine(path, arch)
		for old := range p.known {
			if old.path == path && old.architecture == arch {
				delete(p.known, old)
			}
		}
		if p.known == nil {
			p.known = map[fingerprint]verdict{}
		}
		p.known[key] = known
	}
	return known.program, known.flaw
}

// examine reads a program and sees to it that it runs in any image: it is for
// that machine and needs no loader and no libraries.
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
	sum := sha256.New()
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return program{}, fmt.Errorf("cannot be read: %w", err)
	}
	if _, err := io.Copy(sum, file); err != nil {
		return program{}, fmt.Errorf("cannot be read: %w", err)
	}
	return program{path: path, digest: hex.EncodeToString(sum.Sum(nil))}, nil
}

const (
	markName = "complete" // the last file to come into a volume

	doorPatience = 150 * time.Second      // after which a door has been abandoned: its maker gives up earlier
	doorRetry    = 100 * time.Millisecond // between two knocks at a door that another holds
	fillLimit    = 5 * time.Minute        // for getting the runner into the volume, waiting included
	oldVolume    = time.Hour              // age from which an unused volume of another runner is removed when a new one is made
)

// volumeName names the volume that holds a runner.
func volumeName(runner program) string { return "cmwa-runner-" + runner.digest[:12] }

// volumeMount mounts a runner's volume. The engine makes the volume if it is
// not there.
func (e *Executor) volumeMount(runner program, readOnly bool) mount.Mount {
	return mount.Mount{
		Type:          mount.TypeVolume,
		Source:        volumeName(runner),
		Target:        e.directory,
		ReadOnly:      readOnly,
		VolumeOptions: &mount.VolumeOptions{NoCopy: true, Labels: map[string]string{labelRunner: runner.digest}},
	}
}

// fill sees to it that the volume of a container that is created, and not yet
// started, holds the runner:
//
//  1. If the mark is there, that is all.
//  2. Make the door, whose name only one can have at a time. While another has
//     it, look for the mark again; a door that was abandoned is removed.
//  3. Look for the mark once more, now that nobody else writes.
//  4. Put in the runner and then the mark, and remove the door.
func (e *Executor) fill(ctx context.Context, id string, img image, runner program) error {
	ctx, cancel := context.WithTimeout(ctx, fillLimit)
	defer cancel()
	for other := (door{}); ; {
		if full, err := e.marked(ctx, id); full || err != nil {
			return err
		}
		own, err := e.openDoor(ctx, img, runner)
		switch {
		case err == nil:
			return e.carryIn(ctx, own, runner)
		case !errdefs.IsConflict(err):
			return refused("make room for the runner", e.host, err)
		}
		if err := e.clearDoor(ctx, runner, &other); err != nil {
			return err
		}
		timer := time.NewTimer(doorRetry)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("wait for another agent to put the runner into the volume %s: %w", volumeName(runner), context.Cause(ctx))
		}
	}
}

// marked tells whether the volume of a container bears the mark.
func (e *Executor) marked(ctx context.Context, id string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, shortLimit)
	defer cancel()
	_, err := e.engine.ContainerStatPath(ctx, id, client.ContainerStatPathOptions{Path: e.directory + "/" + markName})
	switch {
	case err == nil:
		return true, nil
	case errdefs.IsNotFound(err):
		return false, nil
	default:
		return false, refused("look for the runner in the volume", e.host, because(ctx, err))
	}
}

const doorSuffix = "-door"

func doorName(runner program) string { return volumeName(runner) + doorSuffix }

// openDoor makes the container through which the volume is filled. The engine
// is not interrupted: it might finish, and nobody would know.
func (e *Executor) openDoor(ctx context.Context, img image, runner program) (string, error) {
	ctx, cancel := patient(ctx, longLimit)
	defer cancel()
	made, err := e.engine.ContainerCreate(ctx, client.ContainerCreateOptions{
		Name:     doorName(runner),
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

// door is a door that another agent holds, as long as this one waits for it.
type door struct {
	id   string
	seen time.Time     // when it was seen first
	age  time.Duration // that it had then, by the engine's clock; 0 if that is not known
}

// clearDoor removes a door that its maker has abandoned: an earlier run of this
// agent, or any agent if the door is older than doorPatience. As the engine's
// clock may differ from ours, that is its age when it was seen first, by the
// engine's clock, and the time since then.
func (e *Executor) clearDoor(ctx context.Context, runner program, other *door) error {
	asked, cancel := context.WithTimeout(ctx, shortLimit)
	defer cancel()
	answer, err := e.engine.ContainerInspect(asked, doorName(runner), client.ContainerInspectOptions{})
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return refused("look who puts the runner into the volume", e.host, because(ctx, err))
	}
	found := answer.Container
	if found.ID != other.id {
		*other = door{id: found.ID, seen: time.Now()}
		if made, now := instant(found.Created), e.engineTime(ctx); !made.IsZero() && now.After(made) {
			other.age = now.Sub(made)
		}
	}
	died := found.Config != nil && e.diedOwner(found.Config.Labels[labelOwner])
	if !died && other.age+time.Since(other.seen) < doorPatience {
		return nil
	}
	e.log.Warn("removing a container that an agent has abandoned while it placed the runner", "container", doorName(runner))
	return e.erase(ctx, found.ID)
}

// carryIn brings the runner through the door and removes the door.
func (e *Executor) carryIn(ctx context.Context, door string, runner program) (err error) {
	defer func() {
		closing, cancel := patient(ctx, longLimit)
		defer cancel()
		err = errors.Join(err, e.erase(closing, door))
	}()
	if full, err := e.marked(ctx, door); full || err != nil {
		return err
	}
	archive, err := pack(runner)
	if err != nil {
		return err
	}
	limit, cancel := context.WithTimeout(ctx, longLimit)
	defer cancel()
	_, err = e.engine.CopyToContainer(limit, door, client.CopyToContainerOptions{
		DestinationPath: e.directory, Content: bytes.NewReader(archive),
	})
	if err != nil {
		return refused("put the runner into the volume "+volumeName(runner), e.host, because(limit, err))
	}
	e.log.Info("placed the runner in a volume of the Docker engine", "volume", volumeName(runner), "program", runner.path)
	if _, err := e.dropVolumes(ctx, map[string]bool{volumeName(runner): true}, oldVolume, e.engineTime(ctx)); err != nil {
		e.log.Debug("remove the volumes of earlier runners", "error", err)
	}
	return nil
}

// pack makes the archive that fills a volume. The mark comes last.
func pack(runner program) ([]byte, error) {
	text, err := os.ReadFile(runner.path)
	if err != nil {
		return nil, fmt.Errorf("read the runner: %w", err)
	}
	if sum := sha256.Sum256(text); hex.EncodeToString(sum[:]) != runner.digest {
		return nil, fmt.Errorf("%s was changed while a job was being started with it", runner.path)
	}
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, file := range []struct {
		name    string
		mode    int64
		content []byte
	}{{runnerName, 0o755, text}, {markName, 0o644, []byte(runner.digest + "\n")}} {
		if err := w.WriteHeader(&tar.Header{Name: file.name, Mode: file.mode, Size: int64(len(file.content)), ModTime: time.Now()}); err != nil {
			return nil, fmt.Errorf("pack the runner: %w", err)
		}
		if _, err := w.Write(file.content); err != nil {
			return nil, fmt.Errorf("pack the runner: %w", err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("pack the runner: %w", err)
	}
	return archive.Bytes(), nil
}

// instant reads a time as engines write it. What cannot be read, and the
// engine's own zero, is the zero time.
func instant(text string) time.Time {
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil || at.Year() <= 1 {
		return time.Time{}
	}
	return at
}
