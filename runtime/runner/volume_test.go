package runner_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	goruntime "runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/cloud"
	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/runner"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// flood returns a script that writes numbered lines: first short ones of a hundred bytes, then
// long ones of a thousand bytes.
func flood(short, long int) string {
	const text = "of a log that is long for its own sake, with a hundred bytes per line, newline and all"
	lines := func(end, dots int) string {
		padded := text + strings.Repeat(".", dots)
		return fmt.Sprintf(`for (; i < %d; i++) printf "line %%07d %%s\n", i, "%s"; `, end, padded)
	}
	return "awk 'BEGIN { i = 0; " + lines(short, 6) + lines(short+long, 906) + "}'"
}

func TestRunLargeLog(t *testing.T) {
	t.Parallel()
	t.Run("log of 50 MB arrives complete", func(t *testing.T) {
		// The short lines fill the log queue, and make batches of batchLines. The long lines make
		// batches of fullBytes. With short lines only, the race detector takes most of the time.
		const short, long, lines = 100_000, 40_000, 140_000
		w := newFixture(t, steps(flood(short, long)))
		w.run(runtime.CodeSucceeded)
		got := w.record().Steps[1].Lines[1:] // after the echo of the script
		if len(got) != lines {
			t.Fatalf("%d of %d lines have arrived", len(got), lines)
		}
		for i, line := range got {
			length := map[bool]int{true: 100, false: 1000}[i < short]
			want := fmt.Sprintf("line %07d ", i)
			if !strings.HasPrefix(line.Text, want) || !strings.HasSuffix(line.Text, "......\n") ||
				len(line.Text) < length || len(line.Text) > length+10 {
				t.Fatalf("line %d is %q", i, line.Text)
			}
			if i > 0 && line.Time.Before(got[i-1].Time) {
				t.Fatalf("line %d is older than the one before it", i)
			}
		}
	})

	t.Run("line of 5 MB arrives in pieces", func(t *testing.T) {
		w := newFixture(t, steps(
			`awk 'BEGIN { for (i = 0; i < 500000; i++) printf "%s", "0123456789"; print "" }'; echo last`))
		w.run(runtime.CodeSucceeded)
		w.wantLog(1, "\n"+strings.Repeat("0123456789", 500_000)+"\nlast\n")
		for _, line := range w.record().Steps[1].Lines {
			if len(line.Text) > 64<<10 {
				t.Errorf("a line has %d bytes", len(line.Text))
			}
		}
	})
}

// counter is a service that accepts every call and counts the lines of logs. It uses much
// less CPU time than the runner that is measured.
type counter struct{ lines, calls atomic.Int64 }

func (c *counter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	c.calls.Add(1)
	c.lines.Add(int64(bytes.Count(text, []byte(`"l":`))))
	_, _ = w.Write([]byte("{}"))
}

// measure runs a job with 20 secrets and one script, and returns the job's duration.
func measure(tb testing.TB, c *counter, script string) time.Duration {
	tb.Helper()
	server := httptest.NewServer(c)
	defer server.Close()
	definition := steps(script)
	definition.Env = map[string]cloud.SecretValue{}
	for i := range 20 {
		value := secret.New(strings.Repeat(fmt.Sprint("part", i), 3+i))
		definition.Env[fmt.Sprint("SECRET_", i)] = cloud.SecretValue{Value: value, Secret: true}
	}
	job := &runtime.Job{
		ID: "job", Service: server.URL, Token: secret.New("job-token"),
		Definition: runtimetest.DefinitionOf(definition),
	}
	h := runtimetest.BaseHandoff(job)
	h.Root = tb.TempDir()
	begin := time.Now()
	code := runner.Run(context.Background(), &h, runner.Options{
		Environ: []string{"PATH=" + os.Getenv("PATH"), "TMPDIR=" + h.Root}, Progress: io.Discard,
	})
	if code != runtime.CodeSucceeded {
		tb.Fatalf("the runner ends with code %d", code)
	}
	return time.Since(begin)
}

// BenchmarkRunLargeLog measures a whole job whose script writes about 50 MB.
func BenchmarkRunLargeLog(b *testing.B) {
	path := b.TempDir() + "/log"
	file, err := os.Create(path)
	noError(b, err)
	for i := range 500_000 {
		fmt.Fprintf(file, "line %07d of a log that is long for its own sake, "+
			"with a hundred bytes per line, newline and all......\n", i)
	}
	noError(b, file.Close())
	info, err := os.Stat(path)
	noError(b, err)
	b.SetBytes(info.Size())
	var c counter
	for b.Loop() {
		c = counter{}
		measure(b, &c, "cat "+path)
		if c.lines.Load() < 500_000 {
			b.Fatalf("%d lines have arrived", c.lines.Load())
		}
	}
	var after goruntime.MemStats
	goruntime.ReadMemStats(&after)
	b.ReportMetric(float64(c.calls.Load()), "calls/op")
	b.ReportMetric(float64(after.HeapSys)/1e6, "MB-heap")
}

// BenchmarkRunQuickJob measures a job that does nothing.
func BenchmarkRunQuickJob(b *testing.B) {
	for b.Loop() {
		measure(b, &counter{}, "true")
	}
}
