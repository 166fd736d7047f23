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
	noError(b, err)
	defer j.Close()
	for n := 0; b.Loop(); n++ {
		record := newRecord(fmt.Sprint("job-", n))
		noError(b, j.Add(b.Context(), record))
		noError(b, j.SetStage(b.Context(), record.Job, runtime.RecordHandedOff))
		for line := range 10 {
			j.SetProgress(record.Job, runtime.Progress{Step: 1, Lines: line, Status: runtime.Running})
		}
		noError(b, j.SetStage(b.Context(), record.Job, runtime.RecordReported))
		noError(b, j.Remove(b.Context(), record.Job))
	}
}
