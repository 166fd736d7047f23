package docker

import (
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
