package main

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cmwa-project/cmwa/cloud/server"
)

// fileRatio limits the time of an update by the journal of this service, as a part of the time with pulumi's file
// backend.
const fileRatio = 0.6

// BenchmarkServeBesideFileBackend measures an update of 300 resources with this service and with the file backend.
func BenchmarkServeBesideFileBackend(b *testing.B) {
	service := newService(b)
	var more []string
	for i := range 300 {
		more = append(more, fmt.Sprintf("  d%d: {type: cmwatest:Delay, properties: {trigger: a}}", i))
	}
	times := map[string][]time.Duration{}
	for b.Loop() {
		for round := range 3 {
			for kind, url := range map[string]string{"file": "file://" + b.TempDir(), "service": service.url} {
				c := newCLI(b, service, url, "PULUMI_CONFIG_PASSPHRASE=p")
				c.program("x", more...)
				stack := fmt.Sprintf("s%d", round)
				c.init(stack)
				began := time.Now()
				c.pulumi("up", "--yes", "--skip-preview", "--stack", stack)
				times[kind] = append(times[kind], time.Since(began))
			}
		}
		median := func(kind string) time.Duration {
			slices.Sort(times[kind])
			return times[kind][len(times[kind])/2]
		}
		mine, its := median("service"), median("file")
		b.ReportMetric(mine.Seconds(), "s/update")
		b.ReportMetric(its.Seconds(), "s/file-backend")
		b.ReportMetric(float64(mine)/float64(its), "ratio")
		if ratio := float64(mine) / float64(its); ratio > fileRatio {
			b.Errorf("an update takes %.2f of the time with the file backend, want at most %.2f", ratio, fileRatio)
		}
	}
}

// BenchmarkServeConcurrentUpdates runs 50 updates of as many stacks at a time, each with 40 requests that change its
// state. It measures the requests per second, and the memory of the service above that of an idle one.
func BenchmarkServeConcurrentUpdates(b *testing.B) {
	const stacks, writes = 50, 40
	for journal, name := range map[bool]string{true: "journal", false: "checkpoints"} {
		b.Run(name, func(b *testing.B) {
			directory, out := b.TempDir(), newOutput()
			program := exec.Command(os.Args[0])
			program.Env = append(os.Environ(), killVariable+"="+directory+",127.0.0.1:0")
			program.Stdout, program.Stderr = out, out
			if err := program.Start(); err != nil {
				b.Fatal(err)
			}
			defer func() { _ = program.Process.Kill(); _ = program.Wait() }()
			k := &killed{address: out.find(b, `127\.0\.0\.1:[0-9]+`), log: out}
			text, err := os.ReadFile(filepath.Join(directory, server.AccessTokenFile))
			if err != nil {
				b.Fatal(err)
			}
			token := strings.TrimSpace(string(text))
			k.token.Store(&token)
			defer http.DefaultClient.CloseIdleConnections()
			idle := residentMB(b, program.Process.Pid)

			for b.Loop() {
				began := time.Now()
				var all errgroup.Group
				for i := range stacks {
					c := &killClient{killed: k, stack: fmt.Sprintf("s%d", i), versions: map[int64]*record{}}
					all.Go(func() error {
						made := map[string]any{"stackName": c.stack}
						code, err := k.call("", "POST", "/api/stacks/organization/p", made, nil)
						if err != nil || code != http.StatusOK && code != http.StatusConflict {
							return fmt.Errorf("make a stack: %d, %w", code, err)
						}
						return c.update(journal, writes)
					})
				}
				if err := all.Wait(); err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(stacks*writes/time.Since(began).Seconds(), "writes/s")
			}
			b.ReportMetric(idle, "MB-idle")
			b.ReportMetric(residentMB(b, program.Process.Pid), "MB-after")
		})
	}
}

// residentMB returns the resident memory of a process (VmRSS, proc(5)).
func residentMB(t testing.TB, pid int) float64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	var kilobytes float64
	for line := range strings.Lines(string(status)) {
		if _, err := fmt.Sscanf(line, "VmRSS: %f kB", &kilobytes); err == nil {
			return kilobytes / 1024
		}
	}
	t.Fatalf("no VmRSS in\n%s", status)
	return 0
}
