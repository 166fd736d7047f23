package cloud

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// The call that returns the status of a job.
const (
	callUnknown int32 = iota
	callStatus        // GET /api/deployments/{id}/status
	callCheck         // POST /api/agent-workflows/{kind}:{id}/check
)

// errNoCall represents the responses of a service that has neither call.
var errNoCall = &StatusError{Code: http.StatusNotImplemented}

// JobStatus implements [runtime.Cloud]. Pulumi documents the status call, agents of
// version 2.2 use the check call, and some services have only one of them.
//
//  1. The first call that returns one of the documented statuses is used from then on.
//     Any other success decides nothing.
//  2. If the responses mean that neither call exists, the job continues. When these responses
//     have been accepted (see refusals), both calls are next tried an hour later. The responses
//     may also mean that the service does not know this deployment, so calls about other
//     jobs are still made.
//  3. Once a call is in use, a refusal of it that is accepted (see refusals) and that is
//     [runtime.ErrGone] means that the service no longer has the job.
func (c *Client) JobStatus(ctx context.Context, job *runtime.Job) (runtime.JobStatus, error) {
	known := c.statusCall.Load()
	if known == callUnknown && c.unanswerable(job) {
		return runtime.Unanswered, nil
	}
	subject := url.PathEscape(job.WorkflowID)
	calls := []struct {
		id           int32
		method, path string
		route        string
		body         []byte
	}{
		{callStatus, http.MethodGet, "/api/deployments/" + subject + "/status", "/api/deployments/{id}/status", nil},
		{callCheck, http.MethodPost, "/api/agent-workflows/" + string(job.Kind) + ":" + subject + "/check",
			"/api/agent-workflows/{subject}/check", []byte("{}")},
	}
	unclear := false // a call succeeded without a known status
	for _, q := range calls {
		if known != callUnknown && known != q.id {
			continue
		}

		var answer []byte
		err := c.authorized(ctx, func(token secret.String) (err error) {
			request := call{method: q.method, path: q.path, route: q.route, token: token, body: q.body, check: wantJSON}
			if q.body != nil {
				request.contentType = "application/json"
			}
			_, _, answer, err = c.ask(ctx, c.current().calls, request)
			return err
		})

		status, documented := parseJobStatus(answer)
		switch {
		case known != callUnknown && c.refusalAccepted(job, err) && errors.Is(err, runtime.ErrGone): // 3.
			return runtime.Gone, nil
		case known != callUnknown && err != nil:
			return runtime.Continue, err
		case err == nil && documented: // 1.
			c.refusalAccepted(job, nil)
			c.statusCall.Store(q.id)
			return status, nil
		case err == nil:
			unclear = true
		case !lacksCall(err, q.id):
			c.refusalAccepted(job, err)
			return runtime.Continue, err
		}
	}

	// 2. No call has returned a status.
	switch {
	case known != callUnknown:
		return runtime.Continue, nil
	case unclear:
		c.refusalAccepted(job, nil)
		return runtime.Continue, nil
	case c.refusalAccepted(job, errNoCall):
		c.suppress(job)
	}
	return runtime.Unanswered, nil
}

// refusalAccepted records the result of a status call, and reports whether it is an
// accepted refusal. A response that is not a refusal removes the job's entry. Entries of all
// jobs without a call for refusalRetention are removed, too.
func (c *Client) refusalAccepted(job *runtime.Job, err error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(c.refusals, func(_ string, d *subjectRefusals) bool { return now.Sub(d.last) > refusalRetention })
	if code, answered := refusalCode(err); answered && code == 0 {
		delete(c.refusals, job.WorkflowID)
		return false
	}
	d := c.refusals[job.WorkflowID]
	if d == nil {
		d = &subjectRefusals{}
		c.refusals[job.WorkflowID] = d
	}
	d.last = now
	return d.accepted(err)
}

// lacksCall reports whether err may mean that the service does not have the call. One
// service answers 500 to the status call, and web applications answer unknown paths with
// their start page.
func lacksCall(err error, id int32) bool {
	switch statusOf(err) {
	case 0:
		return errors.As(err, new(*formatError))
	case http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented:
		return true
	case http.StatusInternalServerError:
		return id == callStatus
	}
	return false
}

// unanswerable reports whether calls about a job are suppressed.
func (c *Client) unanswerable(job *runtime.Job) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Before(c.suppressed[job.WorkflowID])
}

// suppress prevents status calls about a job for suppressTime.
func (c *Client) suppress(job *runtime.Job) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(c.suppressed, func(_ string, until time.Time) bool { return now.After(until) })
	if len(c.suppressed) == 0 {
		c.log.Info("service reports no job status: jobs cannot be cancelled", "retry_in", suppressTime)
	}
	c.suppressed[job.WorkflowID] = now.Add(suppressTime)
}

// parseJobStatus decodes the response to either call: a string, or an object with the field
// "status" and possibly "complete". It reports false for a response without a documented
// status.
func parseJobStatus(answer []byte) (status runtime.JobStatus, documented bool) {
	var object struct {
		Status   string `json:"status"`
		Complete bool   `json:"complete"`
	}
	if json.Unmarshal(answer, &object.Status) != nil {
		_ = json.Unmarshal(answer, &object)
	}
	switch object.Status {
	case "failed", "skipped":
		return runtime.Cancelled, true
	case "succeeded":
		return runtime.Completing, true
	case "not-started", "accepted", "running":
		documented = true
	}
	if object.Complete {
		return runtime.Completing, true
	}
	return runtime.Continue, documented
}
