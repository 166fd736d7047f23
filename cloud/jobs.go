package cloud

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// JobsOptions are the options of [NewJobs].
type JobsOptions struct {
	Service        string // base URL
	JobID          string
	Token          secret.String // of the job
	UserAgent      string
	Transport      http.RoundTripper
	RequestTimeout time.Duration   // of one attempt; 0 means no timeout
	RetryCount     int             // attempts after the first
	RetryWait      time.Duration   // before the first retry; doubles with each
	RetryMaxWait   time.Duration   // limit of each wait, including a Retry-After
	Log            *slog.Logger    // nil logs nothing
	Metrics        runtime.Metrics // counts the calls; nil counts nothing
}

// Jobs makes the calls about one job with the job's token. The runner uses it, and so
// does the agent while it starts the job's instance. A context limits a call with all its
// retries. Errors wrap a *[StatusError] if the service has answered: [runtime.ErrGone]
// if it no longer has the job, [runtime.ErrUnauthorized] if it rejects the token.
// Methods are safe for concurrent use.
//
// All calls are safe to retry: a status can be set twice, and lines have an offset. Each
// failure is retried, at most RetryCount times. A refusal ends the retries when it is
// accepted, after at least 30 seconds and three responses: see refusals. Two refusals end
// them earlier: a 409 or 410 that a heartbeat confirms, and a batch of lines that is too
// large. The body of a success is empty or JSON; any other body is a failure.
type Jobs struct {
	caller        *caller
	path          string
	token         secret.String
	noContentType atomic.Bool // the service accepts bodies only without a Content-Type

	definitions, statuses, logs, heartbeats refusals
}

// jobRoute is the pattern of the paths of all calls about a job.
const jobRoute = "/api/workflow/jobs/{job}"

// NewJobs returns a client. It makes no call.
func NewJobs(o JobsOptions) *Jobs {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Jobs{
		path:  "/api/workflow/jobs/" + url.PathEscape(o.JobID),
		token: o.Token,
		caller: newCaller(callerOptions{
			service:   o.Service,
			userAgent: o.UserAgent,
			transport: o.Transport,
			timeout:   o.RequestTimeout,
			retry:     retry{count: o.RetryCount, wait: o.RetryWait, maxWait: o.RetryMaxWait},
			log:       o.Log,
			metrics:   o.Metrics,
		}),
	}
}

// Definition fetches the job's definition: see [ReadDefinition]. A definition that is invalid, or
// larger than 8 MiB, is retried like a refusal. When the refusal is accepted (see refusals), the
// error is a [runtime.JobFault].
func (j *Jobs) Definition(ctx context.Context) (definition runtime.Definition, err error) {
	_, _, _, err = j.caller.do(ctx, call{
		method: http.MethodGet, path: j.path, route: jobRoute, token: j.token, limit: maxDefinition,
		retry: j.definitions.policy(j.confirmed),
		check: func(text []byte) (err error) {
			if !json.Valid(text) {
				return notJSON(text)
			}
			if definition, err = ReadDefinition(text); err != nil {
				return runtime.JobFault{Cause: err}
			}
			return nil
		},
	})
	if errors.As(err, new(*tooLargeError)) {
		err = runtime.NewJobFault("the definition of the job is larger than %d MiB: shorten the scripts and variables "+
			"of its deployment settings, or move their content to its repository or image", maxDefinition>>20)
	}
	if err != nil {
		return runtime.Definition{}, err
	}
	return definition, nil
}

// Status reports the state of a step.
func (j *Jobs) Status(ctx context.Context, step int, status runtime.Status) error {
	body, _ := json.Marshal(StepStatus{Status: string(status)}) // cannot fail: a string only
	path := "/" + strconv.Itoa(step) + "/status"
	if err := j.send(ctx, http.MethodPatch, path, "/{step}/status", body, j.statuses.policy(j.confirmed)); err != nil {
		return fmt.Errorf("report step %d as %s: %w", step, status, err)
	}
	return nil
}

// Logs sends lines of a step. It returns a *[StatusError] with code 413, 400 or 422 at
// once, because the batch may be too large for the service.
func (j *Jobs) Logs(ctx context.Context, step int, batch LogBatch) error {
	body, err := json.Marshal(batch)
	if err != nil {
		return fmt.Errorf("encode lines: %w", err)
	}
	path := "/" + strconv.Itoa(step) + "/logs"
	err = j.send(ctx, http.MethodPost, path, "/{step}/logs", body, j.logs.policy(j.confirmed, tooLarge...))
	if err != nil {
		return fmt.Errorf("send %d lines of step %d: %w", len(batch.Lines), step, err)
	}
	return nil
}

// StoredLines returns the number of lines of the step that the service has, if an error of
// [Jobs.Logs] contains it. An extension of cmwa-cloud, which refuses lines at another offset.
func StoredLines(err error) (lines int, ok bool) {
	if status, ok := errors.AsType[*StatusError](err); ok && status.nextOffset != nil {
		return *status.nextOffset, true
	}
	return 0, false
}

// tooLarge are the statuses with which services refuse a batch that is too large.
var tooLarge = []int{http.StatusRequestEntityTooLarge, http.StatusBadRequest, http.StatusUnprocessableEntity}

// Heartbeat sends a heartbeat of the job.
func (j *Jobs) Heartbeat(ctx context.Context) error {
	err := j.send(ctx, http.MethodPost, "/heartbeat", "/heartbeat", []byte("{}"), j.heartbeats.policy(j.confirmed))
	if err != nil {
		return fmt.Errorf("send a heartbeat: %w", err)
	}
	return nil
}

// confirmed waits for confirmWait, sends a heartbeat, and reports whether its response is a
// final refusal, too. It returns false at once when ctx ends during the wait.
func (j *Jobs) confirmed(ctx context.Context) bool {
	if !runtime.Sleep(ctx, nil, confirmWait) {
		return false
	}
	noRetry := func(context.Context, error) bool { return false }
	return isFinal(j.send(ctx, http.MethodPost, "/heartbeat", "/heartbeat", []byte("{}"), noRetry))
}

// send makes a call whose response has no data. Pulumi documents a Content-Type for bodies,
// but its runner was observed to send none. If the service refuses one form with 415, send
// tries the other.
func (j *Jobs) send(ctx context.Context, method, path, route string, body []byte, retry retryPolicy) error {
	q := call{method: method, path: j.path + path, route: jobRoute + route, token: j.token, body: body, check: wantJSON}
	const unsupported = http.StatusUnsupportedMediaType
	q.retry = func(ctx context.Context, err error) bool { return statusOf(err) != unsupported && retry(ctx, err) }
	noType := j.noContentType.Load()
	err := j.sendAs(ctx, q, noType)
	if statusOf(err) != unsupported {
		return err
	}
	q.retry = retry // a refusal of both forms is an ordinary refusal
	if err = j.sendAs(ctx, q, !noType); statusOf(err) != unsupported {
		j.noContentType.Store(!noType)
	}
	return err
}

func (j *Jobs) sendAs(ctx context.Context, q call, noType bool) error {
	if !noType {
		q.contentType = "application/json"
	}
	_, _, _, err := j.caller.do(ctx, q)
	return err
}
