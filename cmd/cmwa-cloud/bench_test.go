package main

import (
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
)

// fileRatio limits the time of an update by the journal of this service, as a part of the time with pulumi's file
// backend.
const fileRatio = 0.6

// BenchmarkServeBesideFileBackend measures an update of 300 resources with this service and with the file backend.
func BenchmarkServeBesideFileBackend(b *testing.B) {
	service := newService(b)
	times := map[string][]time.Duration{}
	for b.Loop() {
		for round := range 3 {
			for kind, url := range map[string]string{"file": "file://" + b.TempDir(), "service": service.url} {
				c := newCLI(b, service, url, "PULUMI_CONFIG_PASSPHRASE=p")
				c.program("x", manyResources()...)
				stack := fmt.Sprintf("s%d", round)
				c.init(stack)
				start := time.Now()
				c.up(stack)
				times[kind] = append(times[kind], time.Since(start))
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
			k := &killed{directory: b.TempDir(), address: "127.0.0.1:0", log: newOutput()}
			program, out, err := k.start()
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = program.Process.Kill(); _ = program.Wait() }()
			k.address = out.find(b, `127\.0\.0\.1:[0-9]+`)
			if err := k.readToken(); err != nil {
				b.Fatal(err)
			}
			defer http.DefaultClient.CloseIdleConnections()
			idle := residentMB(b, program.Process.Pid)

			for b.Loop() {
				start := time.Now()
				var all errgroup.Group
				for i := range stacks {
					c := newKillClient(k, i)
					all.Go(func() error {
						if err := c.makeStack(); err != nil {
							return err
						}
						return c.update(journal, writes)
					})
				}
				if err := all.Wait(); err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(stacks*writes/time.Since(start).Seconds(), "writes/s")
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
