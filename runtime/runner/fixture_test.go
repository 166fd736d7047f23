package runner_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/cloud"
	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/runner"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// fixture has one job, a fake service with this job, and the options of a runner.
type fixture struct {
	t        testing.TB
	service  *runtimetest.Service
	job      *runtime.Job
	handoff  runtime.Handoff
	options  runner.Options
	progress lockedBuffer
	log      lockedBuffer
	strict   bool // the test fails if the service rejects a call
}

// lockedBuffer is a buffer that is safe for concurrent use.
type lockedBuffer struct {
	mu      sync.Mutex
	b       bytes.Buffer
	changed chan struct{} // closed by the next write; nil if no goroutine waits for it
}

func (b *lockedBuffer) Write(text []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.changed != nil {
		close(b.changed)
		b.changed = nil
	}
	return b.b.Write(text)
}

// await blocks until the buffer contains the text.
func (b *lockedBuffer) await(t testing.TB, text string) {
	t.Helper()
	limit := time.After(time.Minute)
	for {
		b.mu.Lock()
		found := strings.Contains(b.b.String(), text)
		if b.changed == nil {
			b.changed = make(chan struct{})
		}
		changed := b.changed
		b.mu.Unlock()
		if found {
			return
		}
		select {
		case <-changed:
		case <-limit:
			t.Errorf("%q was not written within a minute", text)
			return
		}
	}
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// noError ends the test if there is an error.
func noError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// steps returns a definition with a step 0 and one step for each script.
func steps(scripts ...string) cloud.Definition {
	definition := cloud.Definition{Steps: []cloud.Step{{Name: "Setup"}}}
	for _, script := range scripts {
		definition.Steps = append(definition.Steps, cloud.Step{Name: "step", Run: script})
	}
	return definition
}

// newFixture creates a job and a service behind filters. The last filter gets each request
// first.
func newFixture(t testing.TB, definition cloud.Definition, filters ...func(http.Handler) http.Handler) *fixture {
	t.Helper()
	service := runtimetest.NewService()
	handler := http.Handler(service)
	for _, filter := range filters {
		handler = filter(handler)
	}
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	id := rand.Text()[:12]
	w := &fixture{t: t, service: service, strict: len(filters) == 0}
	w.job = &runtime.Job{
		ID: "job-" + id, Service: server.URL, Token: secret.New("job-token-" + id),
		Definition: runtimetest.DefinitionOf(definition),
	}
	service.Add(w.job)
	line := runtime.Line{Time: time.Now(), Text: "the agent was here\n"}
	started := runtime.Report{Step: 0, Lines: []runtime.Line{line}, Status: runtime.Running}
	noError(t, service.Report(t.Context(), w.job, started))
	w.handoff = runtimetest.BaseHandoff(w.job)
	w.handoff.Root = t.TempDir()
	w.handoff.SetupLines = 1
	w.options = runner.Options{
		Version:  "test",
		Environ:  []string{"PATH=" + os.Getenv("PATH"), "HOME=" + w.handoff.Root, "TMPDIR=" + t.TempDir()},
		Progress: &w.progress,
		Log:      slog.New(slog.NewTextHandler(&w.log, nil)),
	}
	t.Cleanup(func() {
		for _, violation := range service.Violations() {
			if w.strict {
				t.Errorf("the service refused %s", violation)
			}
		}
		if t.Failed() {
			t.Logf("log of the runner:\n%s", w.log.String())
			t.Logf("record of the service: %+v", w.record())
		}
	})
	return w
}

// run runs the job and checks the exit code.
func (w *fixture) run(want int) {
	w.t.Helper()
	w.runIn(w.t.Context(), want)
}

func (w *fixture) runIn(ctx context.Context, want int) {
	w.t.Helper()
	if code := runner.Run(ctx, &w.handoff, w.options); code != want {
		w.t.Errorf("the runner ends with code %d, want %d", code, want)
	}
}

func (w *fixture) record() runtimetest.Record { return w.service.Record(w.job.ID) }

// wantSteps checks the states of all steps.
func (w *fixture) wantSteps(want ...runtime.Status) {
	w.t.Helper()
	if got := w.record().Statuses(); !slices.Equal(got, want) {
		w.t.Errorf("the steps are %v, want %v", got, want)
	}
}

// wantLog checks that a step's log has all the texts, in this order.
func (w *fixture) wantLog(step int, texts ...string) {
	w.t.Helper()
	remaining := w.record().Text(step)
	for _, text := range texts {
		_, after, found := strings.Cut(remaining, text)
		if !found {
			w.t.Errorf("the log of step %d lacks %q after the texts before it:\n%s", step, text, w.record().Text(step))
			return
		}
		remaining = after
	}
}

// lastProgress returns the last progress that the agent has got.
func (w *fixture) lastProgress() runtime.Progress {
	w.t.Helper()
	var last runtime.Progress
	for line := range strings.Lines(w.progress.String()) {
		if err := json.Unmarshal([]byte(line), &last); err != nil {
			w.t.Fatalf("the progress has the line %q: %v", line, err)
		}
	}
	return last
}

// awaitLog blocks until a step's log has the text.
func (w *fixture) awaitLog(step int, text string) {
	w.t.Helper()
	w.service.Await(w.t, w.job.ID, text, func(r runtimetest.Record) bool {
		return strings.Contains(r.Text(step), text)
	})
}

// awaitHeartbeat blocks until the service has accepted a heartbeat.
func (w *fixture) awaitHeartbeat() {
	w.t.Helper()
	w.service.Await(w.t, w.job.ID, "a heartbeat", func(r runtimetest.Record) bool { return r.Heartbeats > 0 })
}

// expireAfter makes the time limit or grace period of this length expire when the log of a step
// has the text.
func (w *fixture) expireAfter(limit time.Duration, step int, text string) {
	w.options.Expire(limit, func() { w.awaitLog(step, text) })
}

// leftovers returns the files that the runner has left in its temporary directory.
func (w *fixture) leftovers() []string {
	w.t.Helper()
	for _, entry := range w.options.Environ {
		if directory, ok := strings.CutPrefix(entry, "TMPDIR="); ok {
			found, err := filepath.Glob(filepath.Join(directory, "*"))
			noError(w.t, err)
			return found
		}
	}
	return nil
}
