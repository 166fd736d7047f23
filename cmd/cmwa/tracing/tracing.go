// Package tracing exports a trace of each job to an OpenTelemetry collector.
//
// A trace has one span for the job, from the poll that claimed it to the removal of its instance, and below it a span
// for each stage and each step. The spans are created when the pool no longer has the job, from the times that the pool
// has recorded: a job does not wait for its trace, and without an endpoint no span exists. The ids of the trace and of
// the job's span are computed from the job's id, so that a later run of the agent, which adopts the job, continues the
// trace.
//
// The environment configures the export, with variables of the OpenTelemetry specification
// (https://opentelemetry.io/docs/specs/otel/protocol/exporter/). The headers and the URL of the endpoint may contain a
// token, so no error has their values.
//
// The spans are sent by a client of this package below OpenTelemetry's SDK, and not by otlptracehttp or otlptracegrpc:
// both link gRPC, with which the agent has 38.9 MB in place of 36.7 MB, and it may have 38 MB.
package tracing

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/time/rate"

	"github.com/cmwa-project/cmwa/runtime"
)

const (
	prefix       = "OTEL_EXPORTER_OTLP_"
	closeTimeout = 5 * time.Second // of the last export, when the agent ends
	warnInterval = time.Minute     // between two warnings that spans cannot be exported
)

// Agent describes the agent in each trace.
type Agent struct {
	ID, Version string
}

// Exporter is a [runtime.Tracer].
type Exporter struct {
	provider *sdk.TracerProvider
	tracer   trace.Tracer
}

// Open returns the exporter that the environment configures, or nil if it names no endpoint. It connects to the
// endpoint when the first spans are exported. The libraries of OpenTelemetry have one error handler for the process,
// which Open sets. The error names the variable that is wrong.
func Open(environ func(string) (string, bool), agent Agent, log *slog.Logger) (*Exporter, error) {
	value := func(name string) string {
		text, _ := environ(name)
		return strings.TrimSpace(text)
	}
	// setting returns the value of a variable that may be set for traces alone, and the name of the variable.
	setting := func(name string) (text, variable string) {
		for _, variable = range []string{prefix + "TRACES_" + name, prefix + name} {
			if text = value(variable); text != "" {
				return text, variable
			}
		}
		return "", variable
	}
	if endpoint, _ := setting("ENDPOINT"); endpoint == "" || strings.EqualFold(value("OTEL_SDK_DISABLED"), "true") ||
		value("OTEL_TRACES_EXPORTER") == "none" {
		return nil, nil
	}

	client, err := newClient(setting)
	if err != nil {
		return nil, err
	}
	warnings := rate.Sometimes{Interval: warnInterval}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		warnings.Do(func() { log.Warn("cannot export traces; jobs are not affected", "error", err) })
	}))
	exporter, err := otlptrace.New(context.Background(), client)
	if err != nil {
		return nil, err
	}
	described, err := resource.New(context.Background(), resource.WithAttributes(
		attribute.String("service.name", "cmwa"), attribute.String("service.version", agent.Version),
		attribute.String("service.instance.id", agent.ID),
	), resource.WithTelemetrySDK(), resource.WithFromEnv())
	if err != nil {
		return nil, errors.New("OTEL_RESOURCE_ATTRIBUTES must be a list such as name=value,name=value")
	}
	return newExporter(sdk.WithBatcher(exporter), sdk.WithResource(described)), nil
}

func newExporter(options ...sdk.TracerProviderOption) *Exporter {
	provider := sdk.NewTracerProvider(append(options, sdk.WithIDGenerator(ids{}))...)
	return &Exporter{provider: provider, tracer: provider.Tracer("github.com/cmwa-project/cmwa")}
}

// Close exports what is left, for at most closeTimeout.
func (e *Exporter) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if err := e.provider.Shutdown(ctx); err != nil {
		otel.Handle(err)
	}
}

// Parent implements [runtime.Tracer].
func (e *Exporter) Parent(job *runtime.Job) string {
	ctx, _ := e.tracer.Start(withJob(job), "") // never ends, so it is not exported
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return carrier["traceparent"]
}

// Trace implements [runtime.Tracer].
func (e *Exporter) Trace(
	job *runtime.Job, state runtime.JobState, steps []runtime.StepTime, outcome runtime.Outcome,
) {
	// The poll that returned the job is a part of its trace.
	begin, end := state.Since, time.Now()
	for _, stage := range state.Stages {
		if stage.Start.Before(begin) {
			begin = stage.Start
		}
	}
	ctx, root := e.tracer.Start(withJob(job), jobName(state), trace.WithTimestamp(begin),
		trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(attributes(job, state)...))
	run := ctx
	for _, stage := range state.Stages {
		child, span := e.tracer.Start(ctx, string(stage.Stage), trace.WithTimestamp(stage.Start))
		span.End(trace.WithTimestamp(stage.End))
		if stage.Stage == runtime.StageRun {
			run = child
		}
	}
	for _, step := range steps {
		result := taskResults[step.Status]
		if step.End.IsZero() { // the job ended within the step
			if outcome == "" {
				continue // or it goes on
			}
			step.End, result = end, results[outcome]
		}
		name := fmt.Sprintf("step %d", step.Step)
		if step.Name != "" {
			name += " " + step.Name
		}
		_, span := e.tracer.Start(run, name, trace.WithTimestamp(step.Start))
		span.SetAttributes(attribute.String("cicd.pipeline.task.name", step.Name),
			attribute.String("cicd.pipeline.task.run.result", result))
		if result != taskResults[runtime.Succeeded] {
			span.SetStatus(codes.Error, "the step did not succeed")
		}
		span.End(trace.WithTimestamp(step.End))
	}
	if outcome == "" {
		return // a span that does not end is not exported
	}
	root.SetAttributes(attribute.String("cicd.pipeline.result", results[outcome]))
	if outcome != runtime.OutcomeSucceeded {
		root.SetStatus(codes.Error, string(outcome))
		root.SetAttributes(attribute.String("error.type", string(outcome)))
	}
	root.End(trace.WithTimestamp(end))
}

// The values of cicd.pipeline.result and cicd.pipeline.task.run.result:
// https://opentelemetry.io/docs/specs/semconv/registry/attributes/cicd/.
var (
	results = map[runtime.Outcome]string{
		runtime.OutcomeSucceeded: "success", runtime.OutcomeFailed: "failure",
		runtime.OutcomeCancelled: "cancellation", runtime.OutcomeLost: "error",
	}
	taskResults = map[runtime.Status]string{runtime.Succeeded: "success", runtime.Failed: "failure"}
)

// jobName names the span of a job by its kind and operation. Stacks are attributes: a name has few values.
func jobName(state runtime.JobState) string {
	return strings.TrimSpace(string(state.Kind) + " " + state.Work.Operation)
}

// attributes returns the attributes of the span of a job. They follow the conventions for CI/CD
// (https://opentelemetry.io/docs/specs/semconv/cicd/), as far as these have a name.
func attributes(job *runtime.Job, state runtime.JobState) (all []attribute.KeyValue) {
	work := state.Work
	for _, a := range [][2]string{
		{"cicd.pipeline.name", work.FullStack()}, {"cicd.pipeline.run.id", state.WorkflowID},
		{"cicd.pipeline.run.url.full", work.URL}, {"cmwa.job", state.ID}, {"cmwa.pool", job.PoolName},
		{"cmwa.deploy_target", job.Identity.Target}, {"cmwa.instance", state.Instance},
		{"cmwa.operation", work.Operation}, {"cmwa.version", work.Version},
	} {
		if a[1] != "" {
			all = append(all, attribute.String(a[0], strings.ToValidUTF8(a[1], "\uFFFD")))
		}
	}
	return all
}

// ids is a [sdk.IDGenerator] that computes the ids of the span of a job from the job.
type ids struct{}

type jobKey struct{}

func withJob(job *runtime.Job) context.Context {
	return context.WithValue(context.Background(), jobKey{}, job.WorkflowID+" "+job.ID)
}

func (ids) NewIDs(ctx context.Context) (of trace.TraceID, span trace.SpanID) {
	name, _ := ctx.Value(jobKey{}).(string)
	sum := sha256.Sum256([]byte("cmwa job " + name))
	copy(of[:], sum[:16])
	copy(span[:], sum[16:])
	return of, span
}

func (ids) NewSpanID(context.Context, trace.TraceID) (span trace.SpanID) {
	_, _ = rand.Read(span[:]) // never returns an error
	return span
}
