package tracing

import (
	"log/slog"
	goruntime "runtime"
	"testing"
	"time"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/cmwa-project/cmwa/runtime"
)

// BenchmarkTracing measures what traces cost. Without an endpoint, Open returns no exporter and starts no goroutine, so
// that a job costs nothing; with one, it is the time that a pool needs for the trace of an ended job.
func BenchmarkTracing(b *testing.B) {
	b.Run("off", func(b *testing.B) {
		before := goruntime.NumGoroutine()
		b.ReportAllocs()
		for b.Loop() {
			if e, err := Open(lookup(nil), Agent{}, slog.New(slog.DiscardHandler)); e != nil || err != nil {
				b.Fatalf("without an endpoint, Open returns %v, %v", e, err)
			}
		}
		if after := goruntime.NumGoroutine(); after != before {
			b.Errorf("there are %d goroutines, and %d before", after, before)
		}
	})
	b.Run("of a job", func(b *testing.B) {
		e := newExporter(sdk.WithBatcher(tracetest.NewNoopExporter()))
		defer e.Close()
		claimed := time.Now().Add(-time.Minute)
		job, state, steps := testJob(), endedJob(claimed), stepsOf(claimed)
		b.ReportAllocs()
		for b.Loop() {
			e.Trace(job, state, steps, runtime.OutcomeSucceeded)
		}
	})
}
