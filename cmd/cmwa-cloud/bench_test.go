package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
)

// Limits of the time of an update by the journal of this service, as parts of the time with pulumi's file backend, and
// with a service that stores no journal.
const (
	fileRatio    = 0.6
	withoutRatio = 1.15
)

// BenchmarkServeBesideFileBackend measures an update of 300 resources with this service, with the file backend, and
// with a service that stores no journal. The program pulumi collects journal entries for 50 ms before it sends them,
// and changes the next resources after the answer. So the number of operations at a time decides how often it waits.
// Its default is four for each processor: with two processors, the waits alone may take longer than fileRatio allows.
func BenchmarkServeBesideFileBackend(b *testing.B) {
	service := newService(b)
	addresses := map[string]string{
		"file": "file://" + b.TempDir(), "service": service.url, "without": withoutJournal(b, service),
	}
	for name, variable := range map[string]string{"default": "PULUMI_PARALLEL=", "parallel=16": "PULUMI_PARALLEL=16"} {
		b.Run(name, func(b *testing.B) {
			times := map[string][]float64{} // seconds
			for b.Loop() {
				for round := range 3 {
					for kind, address := range addresses {
						c := newCLI(b, service, address, "PULUMI_CONFIG_PASSPHRASE=p", variable)
						c.program("x", manyResources()...)
						stack := fmt.Sprintf("%s-%s-%d", kind, strings.TrimPrefix(name, "parallel="), round)
						c.init(stack)
						start := time.Now()
						c.up(stack)
						times[kind] = append(times[kind], time.Since(start).Seconds())
					}
				}
			}
			median := func(kind string) float64 {
				slices.Sort(times[kind])
				return times[kind][len(times[kind])/2]
			}
			mine := median("service")
			b.ReportMetric(mine, "s/update")
			for other, limit := range map[string]float64{"file": fileRatio, "without": withoutRatio} {
				ratio := mine / median(other)
				b.ReportMetric(ratio, "of-"+other)
				if ratio > limit {
					b.Errorf("an update takes %.2f of the time %q, want at most %.2f", ratio, other, limit)
				}
			}
		})
	}
}

// withoutJournal returns the address of a proxy of the service. The proxy itself answers the requests that store
// journal entries and events, at once and without an effect: no service can make an update faster.
func withoutJournal(b *testing.B, service *testService) string {
	b.Helper()
	target, err := url.Parse(service.url)
	if err != nil {
		b.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(target)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/journalentries") || strings.HasSuffix(r.URL.Path, "/events/batch") {
			if _, err := io.Copy(io.Discard, r.Body); err != nil {
				b.Error(err)
			}
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	b.Cleanup(s.Close)
	return s.URL
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
