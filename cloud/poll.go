package cloud

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptrace"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// Claim implements [runtime.Cloud] with GET /api/deployments/poll, which claims the job
// that it returns.
func (c *Client) Claim(ctx context.Context) (runtime.Claim, error) {
	if !slices.Contains(c.settings().Kinds, runtime.Deployment) {
		return runtime.Claim{Next: c.schedule.skip()}, nil
	}
	if next, err := c.schedule.begin(); err != nil {
		return runtime.Claim{Next: next}, err
	}

	var answer pollAnswer
	var polled, sent bool
	err := c.authorized(ctx, func(token secret.String) (err error) {
		polled = true
		answer, sent, err = c.poll(ctx, token)
		return err
	})
	o := outcome{job: answer.job != nil, retryAfter: answer.retryAfter}
	if err != nil {
		o = c.classify(err, sent)
		o.unsent = o.unsent && !polled
	}
	return runtime.Claim{Job: answer.job, Next: c.schedule.record(o)}, o.err
}

// classify returns the outcome of a failed attempt. If the cause is the token, a redirect, a
// certificate or the network, its error names the hint. Sent means that the service may have
// received the request.
//
// A failure does not count for the circuit breaker if the service answers 400 or 401, or
// refuses the OIDC token. A failure without a request does not count either, because an
// operator may be changing the token.
func (c *Client) classify(err error, sent bool) outcome {
	status, answered := errors.AsType[*StatusError](err)
	exchange, exchanged := errors.AsType[*exchangeError](err)
	switch {
	// The exchange of the OIDC token failed, or the token was refused.
	case exchanged:
		o := outcome{err: err, counts: !exchange.local && !exchange.refused(), unsent: exchange.local, retryable: true}
		if answered && o.counts {
			o.retryable, o.retryAfter = status.Location == "", status.RetryAfter
		}
		return o
	case answered && status.Code == http.StatusUnauthorized && c.credentials.renewable():
		return outcome{err: &rejectedError{status, "it was just issued for the content of oidc_token_file: " +
			"check organization_name and runner_pool_id"}}
	case answered && status.Code == http.StatusUnauthorized:
		return outcome{err: &rejectedError{status, "check that it belongs to this service and pool: " +
			"token, token_file or PULUMI_AGENT_TOKEN"}}

	// The service answered with another status.
	case answered && status.Code == http.StatusBadRequest:
		return outcome{err: err}
	case answered && status.Location != "":
		return outcome{err: &redirectError{status, pollPath}, counts: true, retryAfter: status.RetryAfter}
	case answered:
		retryable := status.Code == http.StatusTooManyRequests ||
			status.Code >= 500 && status.Code != http.StatusNotImplemented
		return outcome{err: err, counts: true, retryable: retryable, retryAfter: status.RetryAfter}

	// There is no response, or no usable one.
	case sent:
		return outcome{counts: true, err: fmt.Errorf("%w: a response was lost; if it was a job, %s",
			err, runtime.DeclaredFailed)}
	case untrusted(err):
		return outcome{counts: true, retryable: true,
			err: fmt.Errorf("%s shows a certificate that is not trusted: %w: "+
				"check service_url, or name the certificates of its authority in ca_file", c.service, err)}
	default:
		return outcome{counts: true, retryable: true, err: fmt.Errorf("cannot reach %s: %w: "+
			"check service_url and the network", c.service, err)}
	}
}

// pollPath is the path of the poll.
const pollPath = "/api/deployments/poll"

// pollAnswer is the service's response to a poll.
type pollAnswer struct {
	job        *runtime.Job // nil if there is none
	retryAfter time.Duration
}

// poll makes one request for a job. Sent reports whether the service may have received
// the request; it is useful if there is an error.
func (c *Client) poll(ctx context.Context, token secret.String) (answer pollAnswer, sent bool, err error) {
	// Limit the wait for the response, and then its arrival.
	var wrote, answered atomic.Bool
	wait := max(c.settings().RequestTimeout, c.minPollTimeout)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	timer := time.AfterFunc(wait, func() {
		if answered.Load() {
			cancel(fmt.Errorf("the response was not complete within %s", c.bodyTimeout))
		} else {
			cancel(fmt.Errorf("no response within %s (request_timeout)", wait))
		}
	})
	defer timer.Stop()
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		WroteHeaders: func() { wrote.Store(true) },
		GotFirstResponseByte: func() {
			answered.Store(true)
			timer.Reset(c.bodyTimeout)
		},
	})

	status, header, text, err := c.current().polls.do(ctx, call{method: http.MethodGet, path: pollPath, token: token})
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return answer, wrote.Load(), withoutURL(err)
	}
	answer.retryAfter, _ = retryAfter(header, time.Now())
	if status == http.StatusNoContent {
		return answer, true, nil
	}

	answer.job, err = readPoll(text)
	if err != nil {
		err = fmt.Errorf("%w (answer to the poll, %d bytes, status %d)", err, len(text), status)
	}
	return answer, true, err
}

// readPoll reads the claimed job from the response to a poll. Its errors contain no token.
func readPoll(text []byte) (*runtime.Job, error) {
	var body Poll
	if !json.Valid(text) && len(text) > 0 {
		return nil, notJSON(text)
	}
	if json.Unmarshal(text, &body) != nil {
		return nil, errors.New("the response does not have the documented form")
	}
	subject := cmp.Or(body.TypeSpecificID, body.DeploymentID)
	if body.JobID == "" || body.JobToken == "" {
		return nil, fmt.Errorf("the response has no job or no token, for the deployment %q", oneLine(subject))
	}
	return &runtime.Job{
		ID: body.JobID, Kind: runtime.Deployment, WorkflowID: subject,
		Token: secret.New(body.JobToken), OIDC: secret.New(body.OIDCToken),
	}, nil
}
