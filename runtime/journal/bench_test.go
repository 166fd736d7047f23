package journal_test

import (
	"fmt"
	"log/slog"
	"testing"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/journal"
)

// BenchmarkJournal measures what the journal costs one job with ten lines of progress.
func BenchmarkJournal(b *testing.B) {
	j, err := journal.Open(b.TempDir(), slog.New(slog.DiscardHandler))
	if err != nil {
		b.Fatal(err)
	}
	defer j.Close()
	for n := 0; b.Loop(); n++ {
		record := newRecord(fmt.Sprint("job-", n))
		if err := j.Add(b.Context(), record); err != nil {
			b.Fatal(err)
		}
		if err := j.SetStage(b.Context(), record.Job, runtime.RecordHandedOff); err != nil {
			b.Fatal(err)
		}
		for line := range 10 {
			j.SetProgress(record.Job, runtime.Progress{Step: 1, Lines: line, Status: runtime.Running})
		}
		if err := j.SetStage(b.Context(), record.Job, runtime.RecordReported); err != nil {
			b.Fatal(err)
		}
		if err := j.Remove(b.Context(), record.Job); err != nil {
			b.Fatal(err)
		}
	}
}
