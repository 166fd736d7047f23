package docker

import (
	"debug/elf"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
)

// binaryFor returns the smallest 64-bit program for a machine.
func binaryFor(machine elf.Machine, dynamic bool) []byte {
	header := elf.Header64{
		Ident: [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB),
			byte(elf.EV_CURRENT)},
		Type:    uint16(elf.ET_EXEC),
		Machine: uint16(machine),
		Version: uint32(elf.EV_CURRENT),
		Phoff:   64, Ehsize: 64, Phentsize: 56, Phnum: 1,
	}
	part := elf.Prog64{Type: uint32(elf.PT_LOAD)}
	if dynamic {
		part.Type = uint32(elf.PT_INTERP)
	}
	text, _ := binary.Append(nil, binary.LittleEndian, header)
	text, _ = binary.Append(text, binary.LittleEndian, part)
	return text
}

// workingDirectory creates a working directory with programs.
func workingDirectory(t *testing.T, files map[string][]byte) string {
	t.Helper()
	directory := t.TempDir()
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(directory, name), content, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return directory
}

// amd64 returns a working directory with a runner for amd64, which no test starts.
func amd64(t *testing.T) string {
	return workingDirectory(t, map[string][]byte{runnerName: binaryFor(elf.EM_X86_64, false)})
}

func TestProgramsFind(t *testing.T) {
	t.Run("first suitable runner is used", func(t *testing.T) {
		intel, arm, dynamic := binaryFor(elf.EM_X86_64, false), binaryFor(elf.EM_AARCH64,
			false), binaryFor(elf.EM_X86_64, true)
		for _, c := range []struct {
			name, arch, want string
			files            map[string][]byte
		}{
			{"ArchiveOfThisAgent", "arm64", "workflow-runner-linux-arm64",
				map[string][]byte{"workflow-runner-linux-arm64": arm, "workflow-runner-linux-amd64": intel,
					"workflow-runner": intel}},
			{"ArchiveOfPulumi", "amd64", "workflow-runner-embeddable",
				map[string][]byte{"workflow-runner-embeddable": intel, "workflow-runner": dynamic}},
			{"OnlyWorkflowRunner", "amd64", "workflow-runner", map[string][]byte{"workflow-runner": intel}},
			{"AfterAnUnsuitableRunner", "amd64", "workflow-runner",
				map[string][]byte{"workflow-runner-embeddable": arm, "workflow-runner": intel}},
		} {
			t.Run(c.name, func(t *testing.T) {
				found, err := new(programs).find(workingDirectory(t, c.files), c.arch)
				if err != nil || filepath.Base(found.path) != c.want || len(found.digest) != 64 {
					t.Errorf("find returned %+v (%v), want %s", found, err, c.want)
				}
			})
		}
	})

	t.Run("error has the reason for each unsuitable runner", func(t *testing.T) {
		directory := workingDirectory(t, map[string][]byte{
			"workflow-runner-linux-amd64": binaryFor(elf.EM_X86_64, true),
			"workflow-runner-embeddable":  []byte("#!/bin/sh\n"),
			"workflow-runner":             binaryFor(elf.EM_AARCH64, false),
		})
		_, err := new(programs).find(directory, "amd64")
		if err == nil || errors.Is(err, runtime.ErrJobFault) {
			t.Fatalf("find returned %v, want an error that is no job fault", err)
		}
		for _, part := range []string{"amd64 is not static", "embeddable is not a Linux program",
			"workflow-runner is for another kind of machine", "CGO_ENABLED=0"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("the error does not have %q: %v", part, err)
			}
		}
	})

	t.Run("runner of another project is refused", func(t *testing.T) {
		_, err := new(programs).find(runtimetest.ForeignRunner(t, "example.com/vendor"), goruntime.GOARCH)
		if err == nil || !strings.Contains(err.Error(), "is a program of another project (example.com/vendor)") {
			t.Errorf("find returned %v", err)
		}
	})

	t.Run("replaced runner is examined again", func(t *testing.T) {
		directory := amd64(t)
		path := filepath.Join(directory, runnerName)
		var known programs
		before, err := known.find(directory, "amd64")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, append(binaryFor(elf.EM_X86_64, false), 1), 0o755); err != nil {
			t.Fatal(err)
		}
		after, err := known.find(directory, "amd64")
		if err != nil || after.digest == before.digest {
			t.Errorf("after a change of its size the runner is still %+v (%v)", after, err)
		}
		if err := os.WriteFile(path, append(binaryFor(elf.EM_X86_64, false), 2), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, time.Time{}, time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		last, err := known.find(directory, "amd64")
		if err != nil || last.digest == after.digest {
			t.Errorf("after a change of its time the runner is still %+v (%v)", last, err)
		}
		if len(known.known) != 1 {
			t.Errorf("%d versions of one file are in the cache, want 1", len(known.known))
		}
	})
}

func TestRemoveDirectory(t *testing.T) {
	kept := t.TempDir()
	for _, path := range []string{kept, "", "/", "pulumi-workflow-relative",
		kept + "/pulumi-workflow-x/.."} {
		if err := removeDirectory(path); err != nil {
			t.Errorf("removeDirectory(%q) returned %v, want no error", path, err)
		}
	}
	if _, err := os.Stat(kept); err != nil {
		t.Errorf("a directory that is not that of a job was removed: %v", err)
	}
}

func TestMakeDirectory(t *testing.T) {
	directory, shared := amd64(t), t.TempDir()
	path := filepath.Join(directory, runnerName)
	if err := os.Chmod(path, 0o700); err != nil {
		t.Fatal(err)
	}
	made, err := makeDirectory(shared, newName("job"), "", program{path: path})
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(made, runnerName))
	if err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("the runner in the directory is %v (%v), want it executable for all users", info, err)
	}
}
