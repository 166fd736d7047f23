package main

import (
	"fmt"
	"slices"
	"testing"
	"time"
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
