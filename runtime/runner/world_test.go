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

// world is one job, a strict service that knows it, and a runner for it.
type world struct {
	t        testing.TB
	service  *runtimetest.Service
	job      *runtime.Job
	handover runtime.Handover
	options  runner.Options
	progress lockedBuffer
	log      lockedBuffer
	strict   bool // the service must have refused nothing
}

// lockedBuffer is a buffer that may be read while it is written.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(text []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(text)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// steps makes a definition whose steps run the scripts, behind a step 0.
func steps(scripts ...string) cloud.Definition {
	definition := cloud.Definition{Steps: []cloud.Step{{Name: "Setup"}}}
	for _, script := range scripts {
		definition.Steps = append(definition.Steps, cloud.Step{Name: "step", Run: script})
	}
	return definition
}

// newWorld makes a job and a service whose answers pass through the filters, the
// last of which meets a request first.
func newWorld(t testing.TB, definition cloud.Definition, filters ...func(http.Handler) http.Handler) *world {
	t.Helper()
	service := runtimetest.NewService()
	handler := http.Handler(service)
	for _, filter := range filters {
		handler = filter(handler)
	}
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	id := rand.Text()[:12]
	w := &world{t: t, service: service, strict: len(filters) == 0}
	w.job = &runtime.Job{ID: "job-" + id, Service: server.URL, Token: secret.New("job-token-" + id), Definition: runtimetest.DefinitionOf(definition)}
	service.Add(w.job)
	said := runtime.Line{Time: time.Now(), Text: "the agent was here\n"}
	if err := service.Report(t.Context(), w.job, runtime.Report{Step: 0, Lines: []runtime.Line{said}, Status: runtime.Running}); err != nil {
		t.Fatal(err)
	}
	w.handover = runtimetest.Offer(w.job)
	w.handover.Root = t.TempDir()
	w.handover.SetupLines = 1
	w.options = runner.Options{
		Version:  "test",
		Environ:  []string{"PATH=" + os.Getenv("PATH"), "HOME=" + w.handover.Root, "TMPDIR=" + t.TempDir()},
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
			t.Logf("the runner's own log:\n%s", w.log.String())
			t.Logf("what the service has: %+v", w.record())
		}
	})
	return w
}

// run runs the job and checks the exit code.
func (w *world) run(want int) {
	w.t.Helper()
	w.runIn(w.t.Context(), want)
}

func (w *world) runIn(ctx context.Context, want int) {
	w.t.Helper()
	if code := runner.Run(ctx, &w.handover, w.options); code != want {
		w.t.Errorf("the runner ends with code %d, want %d", code, want)
	}
}

func (w *world) record() runtimetest.Record { return w.service.Record(w.job.ID) }

// wantSteps checks the states of all steps.
func (w *world) wantSteps(want ...runtime.Status) {
	w.t.Helper()
	if got := w.record().Statuses(); !slices.Equal(got, want) {
		w.t.Errorf("the steps are %v, want %v", got, want)
	}
}

// wantLog checks that a step's log has all the texts, in this order.
func (w *world) wantLog(step int, texts ...string) {
	w.t.Helper()
	rest := w.record().Text(step)
	for _, text := range texts {
		_, after, found := strings.Cut(rest, text)
		if !found {
			w.t.Errorf("the log of step %d lacks %q behind what came before:\n%s", step, text, w.record().Text(step))
			return
		}
		rest = after
	}
}

// last is what the agent knows in the end.
func (w *world) last() runtime.Progress {
	w.t.Helper()
	var last runtime.Progress
	for line := range strings.Lines(w.progress.String()) {
		if err := json.Unmarshal([]byte(line), &last); err != nil {
			w.t.Fatalf("the progress has the line %q: %v", line, err)
		}
	}
	return last
}

// begun waits until a step's log has the text.
func (w *world) begun(step int, text string) {
	w.t.Helper()
	w.service.Await(w.t, w.job.ID, text, func(r runtimetest.Record) bool { return strings.Contains(r.Text(step), text) })
}

// leftovers are the files that a runner has left in its temporary folder.
func (w *world) leftovers() []string {
	w.t.Helper()
	for _, entry := range w.options.Environ {
		if folder, ok := strings.CutPrefix(entry, "TMPDIR="); ok {
			found, err := filepath.Glob(filepath.Join(folder, "*"))
			if err != nil {
				w.t.Fatal(err)
			}
			return found
		}
	}
	return nil
}
