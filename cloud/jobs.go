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

// JobsOptions is what [NewJobs] makes a client of.
type JobsOptions struct {
	Service        string            // base URL
	JobID          string            //
	Token          secret.String     // the job's
	UserAgent      string            //
	Transport      http.RoundTripper // nil is a pool of connections of its own
	RequestTimeout time.Duration     // of one attempt; 0 is none
	RetryCount     int               // attempts after the first
	RetryWait      time.Duration     // before the first retry; doubles with each
	RetryMaxWait   time.Duration     // ceiling of all waits, a Retry-After included
	Log            *slog.Logger      // nil is silence
}

// Jobs makes the calls about one job, with the job's own token: for the runner,
// and for the agent while it makes the job's environment. A context bounds the
// whole of a call, its retries included. Errors wrap a *[StatusError] when the
// service has answered: [runtime.ErrGone] when it no longer has the job,
// [runtime.ErrUnauthorized] when it rejects the token. Methods are safe for
// concurrent use.
//
// All calls are safe to retry: a status is a level, and lines are addressed by
// their offset. Each failure is retried; a refusal is returned only when it is
// believed, which is not before 30 seconds and three answers: see refusals. A
// success has an empty body or a JSON one; any other body is a failure.
type Jobs struct {
	caller *caller
	path   string
	token  secret.String
	bare   atomic.Bool // the service wants bodies without a Content-Type

	definitions, statuses, logs, heartbeats refusals
}

// NewJobs makes a client. It talks to nobody yet.
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
		}),
	}
}

// Definition fetches the job's definition, also as the service wrote it: the
// runner may know fields that this release of the agent does not. One that cannot
// be used is an error that names what is wrong, once it is believed.
func (j *Jobs) Definition(ctx context.Context) (*Definition, json.RawMessage, error) {
	var definition *Definition
	_, _, text, err := j.caller.do(ctx, call{
		method: http.MethodGet, path: j.path, token: j.token, limit: maxDefinition,
		retry: j.definitions.policy(j.confirmed),
		check: func(text []byte) (err error) {
			if !json.Valid(text) {
				return notJSON(text)
			}
			if definition, err = ParseDefinition(text); err != nil {
				return &unusableError{err}
			}
			return nil
		},
	})
	if err != nil {
		return nil, nil, err
	}
	return definition, text, nil
}

// ParseDefinition reads a job's definition. Its errors do not show values.
func ParseDefinition(text []byte) (*Definition, error) {
	var definition Definition
	if err := json.Unmarshal(text, &definition); err != nil {
		return nil, fmt.Errorf("the definition of the job cannot be read: %w", err)
	}
	if len(definition.Steps) == 0 {
		return nil, errors.New("the definition of the job has no steps")
	}
	return &definition, nil
}

// Status reports the state of a step.
func (j *Jobs) Status(ctx context.Context, step int, status runtime.Status) error {
	body, err := json.Marshal(StepStatus{Status: string(status)})
	if err != nil {
		return fmt.Errorf("write a status: %w", err)
	}
	path := "/" + strconv.Itoa(step) + "/status"
	if err := j.send(ctx, http.MethodPatch, path, body, j.statuses.policy(j.confirmed)); err != nil {
		return fmt.Errorf("report step %d as %s: %w", step, status, err)
	}
	return nil
}

// Logs sends lines of a step. A *[StatusError] with code 413, 400 or 422 is
// returned at once: the batch may be too large for the service.
func (j *Jobs) Logs(ctx context.Context, step int, batch LogBatch) error {
	body, err := json.Marshal(batch)
	if err != nil {
		return fmt.Errorf("write lines: %w", err)
	}
	path := "/" + strconv.Itoa(step) + "/logs"
	if err := j.send(ctx, http.MethodPost, path, body, j.logs.policy(j.confirmed, tooLarge...)); err != nil {
		return fmt.Errorf("send %d lines of step %d: %w", len(batch.Lines), step, err)
	}
	return nil
}

// tooLarge are the statuses by which services refuse a batch that is too large.
var tooLarge = []int{http.StatusRequestEntityTooLarge, http.StatusBadRequest, http.StatusUnprocessableEntity}

// Heartbeat tells the service that the job is alive.
func (j *Jobs) Heartbeat(ctx context.Context) error {
	if err := j.send(ctx, http.MethodPost, "/heartbeat", []byte("{}"), j.heartbeats.policy(j.confirmed)); err != nil {
		return fmt.Errorf("send a heartbeat: %w", err)
	}
	return nil
}

// confirmed reports whether one more call about the job, a heartbeat, is refused
// finally after confirmWait. It returns early when ctx ends.
func (j *Jobs) confirmed(ctx context.Context) bool {
	timer := time.NewTimer(confirmWait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return false
	}
	once := func(context.Context, error) bool { return false }
	return isFinal(j.send(ctx, http.MethodPost, "/heartbeat", []byte("{}"), once))
}

// send makes a call whose answer carries nothing. Pulumi documents a Content-Type
// for bodies and its own runner was observed to send none, so a service that
// refuses the one gets the other.
func (j *Jobs) send(ctx context.Context, method, path string, body []byte, retry retryPolicy) error {
	q := call{method: method, path: j.path + path, token: j.token, body: body, check: wantJSON}
	q.retry = func(ctx context.Context, err error) bool { return !unsupported(err) && retry(ctx, err) }
	bare := j.bare.Load()
	err := j.sendAs(ctx, q, bare)
	if !unsupported(err) {
		return err
	}
	q.retry = retry // a refusal of both forms is a refusal like any other
	if err = j.sendAs(ctx, q, !bare); !unsupported(err) {
		j.bare.Store(!bare)
	}
	return err
}

func (j *Jobs) sendAs(ctx context.Context, q call, bare bool) error {
	if !bare {
		q.contentType = "application/json"
	}
	_, _, _, err := j.caller.do(ctx, q)
	return err
}

func unsupported(err error) bool {
	var status *StatusError
	return errors.As(err, &status) && status.Code == http.StatusUnsupportedMediaType
}
