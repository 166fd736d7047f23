package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/schema"
)

// The limits of the CPU time of cmwa vet, as ratios to that of cue vet.
const (
	vetLimit         = 2.0 // for a typical file
	vetTemplateLimit = 3.0 // for a file with a Pod template
)

// vetRounds is the number of runs of each program. The programs take turns, so that other
// load of the machine affects all of them.
const vetRounds = 31

// BenchmarkVetBesideCUE compares the CPU time of cmwa vet with that of cue vet for the same
// file, and with that of a Go program that does nothing. The limits apply to cue vet with
// the smallest input: only the schema files that the configuration needs, without defaults
// and documentation. The benchmark also shows cue vet with the output of cmwa schema, with
// which cue also checks Pod templates.
func BenchmarkVetBesideCUE(b *testing.B) {
	bin, err := programs()
	if err != nil {
		b.Fatal(err)
	}
	cue := built(b, "go", "tool", "-modfile=../../testdata/toolchain/go.mod", "-n", "cue")
	directory := b.TempDir()
	nothing := filepath.Join(directory, "nothing")
	source := filepath.Join(directory, "nothing.go")
	text, err := schema.CUE()
	if err != nil {
		b.Fatal(err)
	}
	definition := filepath.Join(directory, "schema.cue")
	for name, content := range map[string][]byte{
		source: []byte("package main\n\nfunc main() {}\n"), definition: text,
	} {
		if err := os.WriteFile(name, content, 0o600); err != nil {
			b.Fatal(err)
		}
	}
	built(b, "go", "build", "-o", nothing, source)

	for _, c := range []struct {
		name, file string
		least      []string // the schema files that the configuration needs
		limit      float64
	}{
		{"typical", "../../examples/docker.yaml", []string{"../../schema/schema.cue"}, vetLimit},
		{"pools", "../../examples/pools.yaml", []string{"../../schema/schema.cue"}, vetLimit},
		{
			"template", "../../examples/kubernetes.yaml",
			[]string{
				"../../schema/schema.cue", "../../schema/podtemplate/pod.cue", "../../schema/podtemplate/overlay.cue",
			},
			vetTemplateLimit,
		},
	} {
		b.Run(c.name, func(b *testing.B) {
			commands := [][]string{
				{filepath.Join(bin, "cmwa"), "vet", c.file},
				append(append([]string{cue, "vet", "-d", "#Config"}, c.least...), c.file),
				{cue, "vet", "-d", "#Config", definition, c.file},
				{nothing},
			}
			spent := make([][]time.Duration, len(commands))
			for b.Loop() {
				for range vetRounds {
					for i, command := range commands {
						spent[i] = append(spent[i], cpuOf(b, command...))
					}
				}
			}
			ours, its := median(spent[0]), median(spent[1])
			ratio := float64(ours) / float64(its)
			b.ReportMetric(milliseconds(ours), "ms/cmwa-vet")
			b.ReportMetric(milliseconds(its), "ms/cue-vet")
			b.ReportMetric(milliseconds(median(spent[3])), "ms/nothing")
			b.ReportMetric(ratio, "ratio")
			var table strings.Builder
			fmt.Fprintf(&table, "CPU time, user and system, of %d runs each: %s\n", len(spent[0]),
				filepath.Base(c.file))
			for i, name := range []string{
				"cmwa vet", "cue vet", "cue vet of the exported schema", "an empty program",
			} {
				fmt.Fprintf(&table, "  %-30s  median %6.1f ms  least %6.1f ms\n", name,
					milliseconds(median(spent[i])), milliseconds(slices.Min(spent[i])))
			}
			b.Logf("%s  ratio %.2f (limit %.1f)", table.String(), ratio, c.limit)
			if ratio > c.limit {
				b.Errorf("cmwa vet takes %.2f times the CPU time of cue vet", ratio)
			}
		})
	}
}

// built runs a command of the Go toolchain and returns its output.
func built(b *testing.B, command ...string) string {
	b.Helper()
	out, err := exec.Command(command[0], command[1:]...).Output()
	if err != nil {
		b.Fatalf("%s: %v", strings.Join(command, " "), err)
	}
	return strings.TrimSpace(string(out))
}

// cpuOf returns the CPU time of one run of a program, which must find no error. Warnings
// are allowed, for example of a target that this release lacks.
func cpuOf(b *testing.B, command ...string) time.Duration {
	b.Helper()
	cmd := exec.Command(command[0], command[1:]...)
	if out, err := cmd.CombinedOutput(); err != nil {
		b.Fatalf("%s: %v: %s", strings.Join(command, " "), err, out)
	}
	return cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
