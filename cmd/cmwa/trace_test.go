package main

import (
	"encoding/hex"
	"io"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	spans "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// traceReceiver is a collector that keeps the spans that agents export over HTTP.
type traceReceiver struct {
	mu    sync.Mutex
	spans []*spans.Span
	text  []byte // everything that it has received
}

// ServeHTTP implements [http.Handler].
func (r *traceReceiver) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	body, err := io.ReadAll(request.Body)
	message := new(collector.ExportTraceServiceRequest)
	if err != nil || proto.Unmarshal(body, message) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.text = append(r.text, body...)
	for _, resource := range message.GetResourceSpans() {
		for _, scope := range resource.GetScopeSpans() {
			r.spans = append(r.spans, scope.GetSpans()...)
		}
	}
}

// find returns the span with a name in the trace that TRACEPARENT names, or nil.
func (r *traceReceiver) find(parent, name string) *spans.Span {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, span := range r.spans {
		if span.GetName() == name && hex.EncodeToString(span.GetTraceId()) == strings.Split(parent, "-")[1] {
			return span
		}
	}
	return nil
}

func (r *traceReceiver) received() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return string(r.text)
}

// traced starts a collector, and returns the variable that names it.
func traced(t *testing.T) (r *traceReceiver, variable string) {
	t.Helper()
	r = new(traceReceiver)
	_, address := serve(t, "tcp", "127.0.0.1:0", r)
	return r, "OTEL_EXPORTER_OTLP_ENDPOINT=http://" + address
}

// TestRunTraces reads the traces of real agents: the steps of a job know their trace, and the trace of a job goes on
// when its agent is killed.
func TestRunTraces(t *testing.T) {
	t.Parallel()
	r, variable := traced(t)
	w := newWorld(t, "process")
	env := []string{variable, "OTEL_BSP_SCHEDULE_DELAY=100"} // in milliseconds
	// trace returns TRACEPARENT of a step, when the span that it names is exported.
	trace := func(stack string) (parent string, root *spans.Span) {
		t.Helper()
		parent = regexp.MustCompile(`00-[0-9a-f]{32}-[0-9a-f]{16}-01`).FindString(w.log(stack))
		if parent == "" {
			t.Fatalf("the step has no TRACEPARENT:\n%s", w.log(stack))
		}
		w.eventually("the trace is exported", func() bool {
			root = r.find(parent, "deployment")
			return root != nil
		})
		if want := strings.Split(parent, "-")[2]; hex.EncodeToString(root.GetSpanId()) != want {
			t.Errorf("the span of the job is %v, want %s", root, want)
		}
		return parent, root
	}
	// check reports an error for each of these spans that is not below another one.
	check := func(parent string, above *spans.Span, names ...string) {
		t.Helper()
		for _, name := range names {
			span := r.find(parent, name)
			if span == nil || string(span.GetParentSpanId()) != string(above.GetSpanId()) ||
				span.GetStartTimeUnixNano() > span.GetEndTimeUnixNano() {
				t.Errorf("the span %q is %v, want a child of %v", name, span, above)
			}
		}
	}
	agent := w.agentWith(env)
	w.queue("one", order{Steps: []step{
		{Name: "first", Run: "echo $TRACEPARENT"}, {Name: "second", Run: "true"},
	}})
	w.await("one", "succeeded")
	parent, root := trace("one")
	check(parent, root, "claim", "definition", "create", "start", "first_line", "run", "remove")
	check(parent, r.find(parent, "run"), "step 1 first", "step 2 second")

	// The next agent continues the trace. The killed one has exported nothing of this job.
	pipe := filepath.Join(w.directory, "two.pipe")
	w.must(syscall.Mkfifo(pipe, 0o600))
	w.queue("two", oneStep("echo running; echo $TRACEPARENT; read line < "+pipe+"; echo finished"))
	w.waitStarted("two")
	agent.signal(syscall.SIGKILL)
	<-agent.done
	w.agentWith(env)
	w.release("two")
	parent, root = trace("two")
	check(parent, root, "run", "remove")
}
