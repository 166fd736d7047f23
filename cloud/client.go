package cloud

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// Retries of the agent's own calls about a job. They do not follow the
// configuration: a claimed job must be started, and its end reported, if that is
// possible at all. The caller's context limits the time.
const (
	jobRetries = 1000
	jobWait    = time.Second
	jobMaxWait = 15 * time.Second
	linesLimit = time.Minute     // for lines, which matter less than the job's outcome
	beatLimit  = 5 * time.Second // for the heartbeat beside a status; others are sent regularly
)

// Limits of a poll. What is being read may be a job that nobody else will get,
// so request_timeout bounds the wait for the answer, in no case to less than
// leastPoll, and its arrival has a limit of its own.
const (
	leastPoll   = 10 * time.Second
	arrivalTime = 2 * time.Minute
)

// Options is what a Client is made of.
type Options struct {
	Identity  runtime.Identity
	Tuning    runtime.Tuning
	UserAgent string
	Transport *http.Transport // copied; nil is Go's default one with limits for dead connections
	Log       *slog.Logger
}

// Client speaks for one pool. It is a [runtime.Cloud] and a [runtime.PollRetrier],
// safe for concurrent use.
type Client struct {
	service string
	agent   string
	log     *slog.Logger

	transport   *http.Transport // of which all others are copies
	credentials *credentials
	schedule    *schedule
	asks        atomic.Int32  // which call tells whether a job is wanted: see Wanted
	leastPoll   time.Duration // see there
	arrival     time.Duration // of a poll's answer

	mu     sync.Mutex
	tuning runtime.Tuning
	wires  wires
	hushed map[string]time.Time // until when not to ask whether a subject's job is wanted
	doubts map[string]*doubt    // by subject: refusals of the call that tells whether its job is wanted
}

// doubt is what is known of the refusals of one subject's status calls.
type doubt struct {
	refusals
	asked time.Time // last
}

// wires are the connections to the service, which trust the certificates of
// one ca_file.
type wires struct {
	certificates string
	transport    *http.Transport
	single       *http.Transport
	calls        *caller // everything but the poll
	polls        *caller // see New
}

// New makes a client. It sends nothing.
//
// Polls have connections of their own that serve one request each: on one that
// is used again, Go's transport repeats a GET by itself when the connection
// breaks, and a poll that is repeated may claim twice.
func New(o Options) *Client {
	transport := newTransport()
	if o.Transport != nil {
		transport = o.Transport.Clone()
	}
	c := &Client{
		service:   o.Identity.Service,
		agent:     o.UserAgent,
		log:       o.Log,
		transport: transport,
		schedule:  newSchedule(o.Tuning, o.Log),
		tuning:    o.Tuning,
		hushed:    map[string]time.Time{},
		doubts:    map[string]*doubt{},
		leastPoll: leastPoll,
		arrival:   arrivalTime,
	}
	c.wires = c.lay(o.Tuning.CA)
	c.credentials = &credentials{identity: o.Identity, log: o.Log, caller: c.wires.calls, tuning: o.Tuning}
	return c
}

// lay makes connections that trust the system's certificates and these.
func (c *Client) lay(certificates string) wires {
	transport := c.transport.Clone()
	if err := trust(transport, certificates); err != nil {
		c.log.Error("trusting the system's certificates alone", "error", err)
	}
	single := transport.Clone()
	single.DisableKeepAlives = true
	caller := func(transport *http.Transport) *caller { // retries are for schedule to decide
		return newCaller(callerOptions{service: c.service, userAgent: c.agent, transport: transport, log: c.log})
	}
	return wires{
		certificates: certificates, transport: transport, single: single,
		calls: caller(transport), polls: caller(single),
	}
}

// Tune implements [runtime.Cloud]: calls that are under way keep their settings, and
// the calls about a job trust what was trusted at its claim.
func (c *Client) Tune(tuning runtime.Tuning) runtime.NextPoll {
	c.mu.Lock()
	c.tuning = tuning
	old := c.wires
	if tuning.CA != old.certificates {
		c.wires = c.lay(tuning.CA)
		old.transport.CloseIdleConnections()
	}
	calls := c.wires.calls
	c.mu.Unlock()
	c.credentials.tune(tuning, calls)
	return c.schedule.tune(tuning)
}

// Retry implements [runtime.PollRetrier]. If the poll that it allows fails, the wait
// begins again.
func (c *Client) Retry() runtime.NextPoll { return c.schedule.retryNow() }

// Close lets connections go that are not in use. A client that is used all the
// same makes new ones.
func (c *Client) Close() {
	w := c.now()
	w.transport.CloseIdleConnections()
	w.single.CloseIdleConnections()
}

// now returns the connections to use.
func (c *Client) now() wires {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.wires
}

func (c *Client) settings() runtime.Tuning {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.tuning
}

// Claim implements [runtime.Cloud] with GET /api/deployments/poll, which has
// the claim as its side effect.
func (c *Client) Claim(ctx context.Context) (runtime.Claim, error) {
	if !slices.Contains(c.settings().Kinds, runtime.Deployment) {
		return runtime.Claim{Next: c.schedule.skip()}, nil
	}
	if next, err := c.schedule.begin(); err != nil {
		return runtime.Claim{Next: next}, err
	}
	var answer pollAnswer
	var sent bool
	err := c.authorized(ctx, func(token secret.String) (err error) {
		answer, sent, err = c.poll(ctx, token)
		return err
	})
	o := outcome{job: answer.job != nil, retryAfter: answer.retryAfter}
	if err != nil {
		o = c.classify(err, sent)
	}
	return runtime.Claim{Job: answer.job, Next: c.schedule.record(o)}, o.err
}

// classify returns how an attempt ended that failed. Its error names the cure. Sent
// reports whether the service may have understood the request.
//
// A failure does not count if the service works and refuses the poll, or if no
// request was made: an operator may be changing the token.
func (c *Client) classify(err error, sent bool) outcome {
	var status *StatusError
	var exchange *exchangeError
	answered := errors.As(err, &status)
	switch {
	case errors.As(err, &exchange):
		o := outcome{err: err, counts: !exchange.local && !exchange.refused(), retryable: true}
		if answered && o.counts {
			o.retryable, o.retryAfter = status.Location == "", status.RetryAfter
		}
		return o
	case errors.Is(err, runtime.ErrUnauthorized) && c.credentials.renewable():
		return outcome{err: fmt.Errorf("%w: %w: the token that oidc_token_file was just exchanged for: "+
			"check organization_name and runner_pool_id", runtime.ErrUnauthorized, err)}
	case errors.Is(err, runtime.ErrUnauthorized):
		return outcome{err: fmt.Errorf("%w: %w: check token, token_file or PULUMI_AGENT_TOKEN: "+
			"it must be the token of an agent pool at %s", runtime.ErrUnauthorized, err, c.service)}
	case answered && status.Code == http.StatusBadRequest:
		return outcome{err: err}
	case answered && status.Location != "":
		return outcome{err: &redirectError{status, pollPath}, counts: true, retryAfter: status.RetryAfter}
	case answered:
		retryable := status.Code == http.StatusTooManyRequests ||
			status.Code >= 500 && status.Code != http.StatusNotImplemented
		return outcome{err: err, counts: true, retryable: retryable, retryAfter: status.RetryAfter}
	case sent:
		return outcome{counts: true, err: fmt.Errorf("%w: an answer was lost; if it was a job, %s",
			err, runtime.DeclaredFailed)}
	case untrusted(err):
		return outcome{counts: true, retryable: true, err: fmt.Errorf("%s shows a certificate that is not trusted: %w: "+
			"check service_url, or name the certificates of its authority in ca_file", c.service, err)}
	default:
		return outcome{counts: true, retryable: true, err: fmt.Errorf("cannot reach %s: %w: "+
			"check service_url and the network", c.service, err)}
	}
}

// pollPath is the path of the poll.
const pollPath = "/api/deployments/poll"

// pollAnswer is the service's answer to a poll.
type pollAnswer struct {
	job        *runtime.Job // nil if there is none
	retryAfter time.Duration
}

// poll makes one request for a job. Sent reports whether the service may have
// understood the request although there is an error.
func (c *Client) poll(ctx context.Context, token secret.String) (answer pollAnswer, sent bool, err error) {
	// Limit the wait for the answer, and then its arrival.
	var wrote, answered atomic.Bool
	wait := max(c.settings().RequestTimeout, c.leastPoll)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	timer := time.AfterFunc(wait, func() {
		if answered.Load() {
			cancel(fmt.Errorf("the answer did not arrive within %s", c.arrival))
		} else {
			cancel(fmt.Errorf("no answer within %s (request_timeout)", wait))
		}
	})
	defer timer.Stop()
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		WroteHeaders: func() { wrote.Store(true) },
		GotFirstResponseByte: func() {
			answered.Store(true)
			timer.Reset(c.arrival)
		},
	})

	// Make the request.
	status, header, text, err := c.now().polls.do(ctx, call{method: http.MethodGet, path: pollPath, token: token})
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return answer, wrote.Load(), plain(err)
	}
	answer.retryAfter, _ = retryAfter(header, time.Now())
	if status == http.StatusNoContent {
		return answer, true, nil
	}

	// Read the job from the answer.
	var body Poll
	if !json.Valid(text) && len(text) > 0 {
		return answer, true, fmt.Errorf("%w (answer to the poll, %d bytes, status %d)", notJSON(text), len(text), status)
	}
	if json.Unmarshal(text, &body) != nil {
		return answer, true, fmt.Errorf("the answer to the poll (%d bytes, status %d) is not the JSON that is documented",
			len(text), status)
	}
	subject := body.TypeSpecificID
	if subject == "" {
		subject = body.DeploymentID
	}
	if body.JobID == "" || body.JobToken == "" {
		return answer, true, fmt.Errorf("the answer to the poll names no job and no token (deployment %q, status %d)",
			words([]byte(subject)), status)
	}
	answer.job = &runtime.Job{
		ID: body.JobID, Kind: runtime.Deployment, Subject: subject,
		Token: secret.New(body.JobToken), OIDC: secret.New(body.OIDCToken),
	}
	return answer, true, nil
}

// Definition implements [runtime.Cloud].
func (c *Client) Definition(ctx context.Context, job *runtime.Job) (runtime.Definition, error) {
	definition, raw, err := c.jobs(job).Definition(ctx)
	if err != nil {
		return runtime.Definition{}, err
	}
	out := runtime.Definition{
		Image:        runtime.Image{Reference: definition.Image.Reference, Default: definition.Image.IsDefault},
		OS:           definition.OS,
		Architecture: definition.Architecture,
		Timeout:      time.Duration(definition.Timeout),
		Steps:        len(definition.Steps),
		Raw:          raw,
	}
	if login := definition.Image.Credentials; login != nil {
		out.Image.Username, out.Image.Password = login.Username, login.Password.Value
	}
	return out, nil
}

// Report implements [runtime.Cloud].
func (c *Client) Report(ctx context.Context, job *runtime.Job, report runtime.Report) error {
	jobs := c.jobs(job)
	if report.Status == "" && len(report.Lines) == 0 {
		return jobs.Heartbeat(ctx)
	}
	if report.Status == runtime.Running {
		if err := jobs.Status(ctx, report.Step, runtime.Running); err != nil {
			return err
		}
		beating, cancel := context.WithTimeout(ctx, beatLimit)
		err := jobs.Heartbeat(beating)
		cancel()
		if err != nil {
			c.log.Debug("heartbeat for a job that is being set up", "job", job.ID, "error", err)
		}
	}
	if len(report.Lines) > 0 {
		batch := LogBatch{Offset: report.Offset}
		for _, line := range report.Lines {
			batch.Lines = append(batch.Lines, LogLine{Time: line.Time, Text: line.Text})
		}
		telling, cancel := context.WithTimeout(ctx, linesLimit)
		err := jobs.Logs(telling, report.Step, batch)
		cancel()
		switch {
		case errors.Is(err, runtime.ErrGone), err != nil && ctx.Err() != nil:
			return err
		case err != nil: // log trouble never fails a job
			c.log.Warn("lines of a job's log could not be sent", "job", job.ID, "step", report.Step, "error", err)
			if report.Status != runtime.Failed && report.Status != runtime.Succeeded {
				return fmt.Errorf("%w: %w", runtime.ErrUntold, err)
			}
		}
	}
	if report.Status == runtime.Failed || report.Status == runtime.Succeeded {
		return jobs.Status(ctx, report.Step, report.Status)
	}
	return nil
}

// jobs is the client for the calls about one job. One that was claimed under
// another ca_file is served by connections that are not kept.
func (c *Client) jobs(job *runtime.Job) *Jobs {
	w := c.now()
	transport := w.transport
	if job.Tuning.CA != w.certificates {
		transport = c.lay(job.Tuning.CA).single
	}
	return NewJobs(JobsOptions{
		Service: c.service, JobID: job.ID, Token: job.Token, UserAgent: c.agent, Transport: transport,
		RequestTimeout: c.settings().RequestTimeout,
		RetryCount:     jobRetries, RetryWait: jobWait, RetryMaxWait: jobMaxWait, Log: c.log,
	})
}

// ask makes one call within request_timeout, its answer included.
func (c *Client) ask(ctx context.Context, by *caller, q call) (int, http.Header, []byte, error) {
	ctx, cancel := context.WithTimeout(ctx, c.settings().RequestTimeout)
	defer cancel()
	status, header, text, err := by.do(ctx, q)
	return status, header, text, plain(err)
}

// plain takes the URL off an error of net/http, which names the call and not
// what to do about it.
func plain(err error) error {
	var inner *url.Error
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return errors.New("no answer within request_timeout")
	case errors.As(err, &inner):
		return inner.Err
	}
	return err
}
