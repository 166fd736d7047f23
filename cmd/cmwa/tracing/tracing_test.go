package tracing

import (
	"bytes"
	"context"
	"encoding/pem"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
	grpccodes "google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/cmwa-project/cmwa/runtime"
)

func testJob() *runtime.Job {
	return &runtime.Job{
		ID: "job-1", WorkflowID: "deployment-1", PoolName: "prod", Identity: runtime.Identity{Target: "docker"},
	}
}

// endedJob returns a job that was claimed at a time, and whose second step failed.
func endedJob(claimed time.Time) runtime.JobState {
	at := func(seconds int) time.Time { return claimed.Add(time.Duration(seconds) * time.Second) }
	return runtime.JobState{
		ID: "job-1", WorkflowID: "deployment-1", Kind: runtime.Deployment, Since: claimed, Instance: "3f2a9c",
		Work: runtime.Work{Organization: "acme", Project: "web", Stack: "pr\xffod", Operation: "update", Version: "12"},
		Stages: []runtime.StageTime{
			{Stage: runtime.StageClaim, Start: at(-1), End: claimed},
			{Stage: runtime.StagePull, Start: at(1), End: at(3)},
			{Stage: runtime.StageRun, Start: at(4), End: at(9)},
		},
	}
}

// stepsOf returns the steps of endedJob.
func stepsOf(claimed time.Time) []runtime.StepTime {
	at := func(seconds int) time.Time { return claimed.Add(time.Duration(seconds) * time.Second) }
	return []runtime.StepTime{
		{Step: 0, Name: "prepare", Status: runtime.Succeeded, Start: at(4), End: at(5)},
		{Step: 1, Name: "pulumi update", Status: runtime.Failed, Start: at(5), End: at(8)},
	}
}

func value(span tracetest.SpanStub, key string) string {
	for _, a := range span.Attributes {
		if string(a.Key) == key {
			return a.Value.AsString()
		}
	}
	return ""
}

func TestTrace(t *testing.T) {
	memory := tracetest.NewInMemoryExporter()
	e := newExporter(sdk.WithSyncer(memory))
	claimed := time.Now().Add(-time.Minute)
	named := func(name string) tracetest.SpanStub {
		t.Helper()
		spans := memory.GetSpans()
		i := slices.IndexFunc(spans, func(s tracetest.SpanStub) bool { return s.Name == name })
		if i < 0 {
			t.Fatalf("there is no span %q", name)
		}
		return spans[i]
	}

	t.Run("the span of a job has a span for each stage, and its run one for each step", func(t *testing.T) {
		memory.Reset()
		e.Trace(testJob(), endedJob(claimed), stepsOf(claimed), runtime.OutcomeFailed)
		root, run, step := named("deployment update"), named("run"), named("step 1 pulumi update")
		switch {
		case len(memory.GetSpans()) != 6:
			t.Errorf("there are %d spans, want 6", len(memory.GetSpans()))
		case root.Parent.IsValid(), run.Parent.SpanID() != root.SpanContext.SpanID(),
			named("pull").Parent.SpanID() != root.SpanContext.SpanID(),
			step.Parent.SpanID() != run.SpanContext.SpanID():
			t.Errorf("the parents are wrong: %+v", memory.GetSpans())
		case !root.StartTime.Equal(claimed.Add(-time.Second)), time.Since(root.EndTime) > time.Second,
			!step.StartTime.Equal(claimed.Add(5 * time.Second)), !step.EndTime.Equal(claimed.Add(8 * time.Second)):
			t.Errorf("the times are wrong: %+v", memory.GetSpans())
		case root.Status.Code != codes.Error, step.Status.Code != codes.Error, run.Status.Code == codes.Error:
			t.Errorf("the states are wrong: %+v", memory.GetSpans())
		}
		for key, want := range map[string]string{
			"cicd.pipeline.name": "acme/web/pr\uFFFDod", "cicd.pipeline.run.id": "deployment-1", "error.type": "failed",
			"cicd.pipeline.result": "failure", "cmwa.pool": "prod", "cmwa.deploy_target": "docker",
			"cmwa.instance": "3f2a9c",
		} {
			if got := value(root, key); got != want {
				t.Errorf("%s is %q, want %q", key, got, want)
			}
		}
		if got := value(step, "cicd.pipeline.task.run.result"); got != "failure" {
			t.Errorf("the result of the step is %q", got)
		}
	})

	t.Run("a later agent continues the trace of a job that goes on", func(t *testing.T) {
		memory.Reset()
		state := endedJob(claimed)
		state.Stages = state.Stages[:2]
		steps := stepsOf(claimed)
		steps[1].Status, steps[1].End = runtime.Running, time.Time{}
		e.Trace(testJob(), state, steps, "")
		if len(memory.GetSpans()) != 3 {
			t.Errorf("there are %d spans, want 3: the job and its last step do not end", len(memory.GetSpans()))
		}
		pull := named("pull")
		later := newExporter(sdk.WithSyncer(memory))
		later.Trace(testJob(), endedJob(claimed), stepsOf(claimed), runtime.OutcomeSucceeded)
		root := named("deployment update")
		if pull.SpanContext.TraceID() != root.SpanContext.TraceID() ||
			pull.Parent.SpanID() != root.SpanContext.SpanID() {
			t.Errorf("the span %+v does not belong to %+v", pull, root)
		}
		if root.Status.Code == codes.Error || value(root, "cicd.pipeline.result") != "success" {
			t.Errorf("the job succeeded: %+v", root)
		}
	})

	t.Run("Parent names the job's span", func(t *testing.T) {
		memory.Reset()
		parent := e.Parent(testJob())
		e.Trace(testJob(), endedJob(claimed), stepsOf(claimed), runtime.OutcomeLost)
		root := named("deployment update").SpanContext
		if want := "00-" + root.TraceID().String() + "-" + root.SpanID().String() + "-01"; parent != want {
			t.Errorf("TRACEPARENT is %q, want %q", parent, want)
		}
		other := testJob()
		other.WorkflowID = "deployment-2"
		if e.Parent(other) == parent {
			t.Error("another job has the same TRACEPARENT")
		}
	})

	t.Run("a job that is not sampled is not traced", func(t *testing.T) {
		t.Setenv("OTEL_TRACES_SAMPLER", "always_off")
		memory.Reset()
		off := newExporter(sdk.WithSyncer(memory))
		if parent := off.Parent(testJob()); !strings.HasSuffix(parent, "-00") {
			t.Errorf("TRACEPARENT is %q, which asks for spans", parent)
		}
		off.Trace(testJob(), endedJob(claimed), stepsOf(claimed), runtime.OutcomeFailed)
		if len(memory.GetSpans()) > 0 {
			t.Errorf("there are %d spans", len(memory.GetSpans()))
		}
	})
}

// receiver is a collector that keeps what it gets.
type receiver struct {
	collector.UnimplementedTraceServiceServer

	mu       sync.Mutex
	requests []*collector.ExportTraceServiceRequest
	token    string // the authorization of the last request

	refuse error // of each gRPC call
}

// serveGRPC serves the receiver by gRPC until the test ends, and returns its URL.
func serveGRPC(t *testing.T, r *receiver) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server, served := grpc.NewServer(), make(chan error, 1)
	collector.RegisterTraceServiceServer(server, r)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return "http://" + listener.Addr().String()
}

// testClient returns a client with these settings.
func testClient(t *testing.T, settings map[string]string) *client {
	t.Helper()
	c, err := newClient(func(name string) (string, string) { return settings[name], prefix + name })
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (r *receiver) keep(request *collector.ExportTraceServiceRequest, token string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requests, r.token = append(r.requests, request), token
}

// Export implements the service of a collector.
func (r *receiver) Export(
	ctx context.Context, request *collector.ExportTraceServiceRequest,
) (*collector.ExportTraceServiceResponse, error) {
	incoming, _ := metadata.FromIncomingContext(ctx)
	r.keep(request, strings.Join(incoming.Get("authorization"), " "))
	return &collector.ExportTraceServiceResponse{}, r.refuse
}

// ServeHTTP implements the same over HTTP.
func (r *receiver) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	body, err := io.ReadAll(request.Body)
	message := new(collector.ExportTraceServiceRequest)
	if err != nil || request.URL.Path != "/v1/traces" || proto.Unmarshal(body, message) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	r.keep(message, request.Header.Get("Authorization"))
	w.Header().Set("Content-Type", "application/x-protobuf")
}

// check reports an error unless the receiver has got the whole trace of one job.
func (r *receiver) check(t *testing.T) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	spans := 0
	var service string
	for _, request := range r.requests {
		for _, resource := range request.GetResourceSpans() {
			for _, a := range resource.GetResource().GetAttributes() {
				if a.GetKey() == "service.name" {
					service = a.GetValue().GetStringValue()
				}
			}
			for _, scope := range resource.GetScopeSpans() {
				spans += len(scope.GetSpans())
			}
		}
	}
	if spans != 6 || service != "platform" || r.token != "Bearer tr4ce-t0ken" {
		t.Errorf("%d spans of %q with the token %q", spans, service, r.token)
	}
}

func TestOpen(t *testing.T) {
	quiet := slog.New(slog.DiscardHandler)
	export := func(t *testing.T, endpoint, protocol string, r *receiver) {
		t.Helper()
		t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
		t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
		t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer tr4ce-t0ken")
		t.Setenv("OTEL_SERVICE_NAME", "platform")
		e, err := Open(os.LookupEnv, Agent{"agent-1", "v1.2.3"}, quiet)
		if err != nil || e == nil {
			t.Fatalf("Open returned %v, %v", e, err)
		}
		e.Trace(testJob(), endedJob(time.Now()), stepsOf(time.Now()), runtime.OutcomeSucceeded)
		e.Close()
		r.check(t)
	}
	t.Run("exports over HTTP", func(t *testing.T) {
		r := new(receiver)
		server := httptest.NewServer(r)
		defer server.Close()
		export(t, server.URL, "", r)
	})
	t.Run("exports with gRPC", func(t *testing.T) {
		r := new(receiver)
		export(t, serveGRPC(t, r), "grpc", r)
	})
	t.Run("exports to a server with a certificate of its own authority", func(t *testing.T) {
		r := new(receiver)
		server := httptest.NewTLSServer(r)
		defer server.Close()
		file := filepath.Join(t.TempDir(), "ca.pem")
		authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
		if err := os.WriteFile(file, authority, 0o600); err != nil {
			t.Fatal(err)
		}
		t.Setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", file)
		export(t, server.URL, "", r)
	})
	t.Run("a gRPC call that is refused is an error with its status", func(t *testing.T) {
		refusing := &receiver{refuse: status.Error(grpccodes.Unauthenticated, "the token tr4ce is wrong")}
		c := testClient(t, map[string]string{"ENDPOINT": serveGRPC(t, refusing), "PROTOCOL": "grpc"})
		err := c.UploadTraces(t.Context(), nil)
		if err == nil || err.Error() != "the collector responds with gRPC status 16" {
			t.Errorf("UploadTraces returned %v", err)
		}
	})
	t.Run("a server that does not know gRPC is an error", func(t *testing.T) {
		server := httptest.NewUnstartedServer(new(receiver))
		server.Config.Protocols = new(http.Protocols)
		server.Config.Protocols.SetUnencryptedHTTP2(true)
		server.Start()
		defer server.Close()
		c := testClient(t, map[string]string{"ENDPOINT": server.URL, "PROTOCOL": "grpc"})
		if err := c.UploadTraces(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "status 400") {
			t.Errorf("UploadTraces returned %v", err)
		}
	})
	t.Run("a redirect does not send the headers to another host", func(t *testing.T) {
		other := new(receiver)
		target := httptest.NewServer(other)
		defer target.Close()
		redirecting := httptest.NewServer(http.RedirectHandler(target.URL+"/v1/traces", http.StatusTemporaryRedirect))
		defer redirecting.Close()
		c := testClient(t, map[string]string{"ENDPOINT": redirecting.URL, "HEADERS": "api-key=tr4ce"})
		if err := c.UploadTraces(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "307") {
			t.Errorf("UploadTraces returned %v", err)
		}
		if len(other.requests) > 0 {
			t.Error("the other host got the spans and the headers")
		}
	})
	t.Run("without an endpoint there is no exporter", func(t *testing.T) {
		for _, variables := range []map[string]string{
			{}, {"OTEL_EXPORTER_OTLP_HEADERS": "a=b"},
			{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "True"},
			{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_TRACES_EXPORTER": "none"},
		} {
			if e, err := Open(lookup(variables), Agent{}, quiet); e != nil || err != nil {
				t.Errorf("with %v Open returned %v, %v", variables, e, err)
			}
		}
	})
	t.Run("the error for a wrong value names the variable, and has no secret", func(t *testing.T) {
		const endpoint = "OTEL_EXPORTER_OTLP_ENDPOINT"
		for wrong, value := range map[string]string{
			"OTEL_EXPORTER_OTLP_PROTOCOL":        "http/json",
			"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "user:tr4ce@collector:4317",
			"OTEL_EXPORTER_OTLP_HEADERS":         "authorization tr4ce",
			"OTEL_EXPORTER_OTLP_TRACES_HEADERS":  "Authorization: Basic tr4ce==",
			"OTEL_EXPORTER_OTLP_CERTIFICATE":     "no/such/file", "OTEL_RESOURCE_ATTRIBUTES": "tr4ce",
		} {
			t.Setenv(wrong, value) // for the libraries of OpenTelemetry
			variables := lookup(map[string]string{endpoint: "http://127.0.0.1:1", wrong: value})
			e, err := Open(variables, Agent{}, quiet)
			if e != nil || err == nil || !strings.Contains(err.Error(), wrong) ||
				strings.Contains(err.Error(), "tr4ce") {
				t.Errorf("with %s=%s Open returned %v", wrong, value, err)
			}
			t.Setenv(wrong, "")
		}
	})
	t.Run("temporary failures are retried, others are not", func(t *testing.T) {
		for status, want := range map[int]int{http.StatusServiceUnavailable: 3, http.StatusUnauthorized: 1} {
			synctest.Test(t, func(t *testing.T) {
				sent := 0
				c := &client{url: "http://collector", headers: http.Header{}, http: &http.Client{
					Transport: roundTrip(func(*http.Request) (*http.Response, error) {
						sent++
						code := status
						if sent == 3 {
							code = http.StatusOK
						}
						return &http.Response{StatusCode: code, Status: http.StatusText(code), Body: http.NoBody}, nil
					}),
				}}
				if err := c.UploadTraces(t.Context(), nil); sent != want || (err == nil) != (want == 3) {
					t.Errorf("status %d: sent %d times, want %d; %v", status, sent, want, err)
				}
			})
		}
	})
	t.Run("a collector that does not respond is logged once, without the token", func(t *testing.T) {
		server := httptest.NewServer(http.NotFoundHandler())
		server.Close()
		secret := strings.Replace(server.URL, "//", "//tr4ce@", 1) + "/?key=tr4ce"
		t.Setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", secret)
		t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer tr4ce-t0ken")
		var log bytes.Buffer
		e, err := Open(os.LookupEnv, Agent{}, slog.New(slog.NewTextHandler(&log, nil)))
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			e.Trace(testJob(), endedJob(time.Now()), stepsOf(time.Now()), runtime.OutcomeSucceeded)
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			err := e.provider.ForceFlush(ctx)
			cancel()
			if err == nil {
				t.Error("the export does not fail")
			}
			otel.Handle(err) // as the batches do
		}
		e.Close()
		if text := log.String(); strings.Count(text, "cannot export traces") != 1 || strings.Contains(text, "tr4ce") {
			t.Errorf("the log is\n%s", text)
		}
	})
}

// roundTrip is an [http.RoundTripper].
type roundTrip func(*http.Request) (*http.Response, error)

// RoundTrip implements [http.RoundTripper].
func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func lookup(variables map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		text, ok := variables[name]
		return text, ok
	}
}
