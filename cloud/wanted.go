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

// Which of the two known calls tells whether a job is wanted.
const (
	askUnknown int32 = iota
	askStatus        // GET /api/deployments/{id}/status
	askCheck         // POST /api/agent-workflows/{kind}:{id}/check
)

// silence is how long a service that has neither call is not asked again about
// the same work.
const silence = time.Hour

// doubtLimit is how long the refusals of a job's status are kept after the last
// one. It is longer than the longest job_status_loop_interval, 24 hours.
const doubtLimit = 2 * 24 * time.Hour

// errNoCall stands for the answers of a service that seems to have neither call.
var errNoCall = &StatusError{Code: http.StatusNotImplemented}

// Wanted implements [runtime.Cloud]. Pulumi's documentation names the status
// call; agents of 2.2 were seen to use the check call; some servers have only
// one of them.
//
//  1. The first call that answers with a status of a job, in one of the documented
//     words, is used from then on. Any other success decides nothing.
//  2. Where neither call exists every job is wanted. Once that is believed (see
//     refusals), both calls are tried again an hour later; as the same answers may
//     mean that the one deployment is unknown, other jobs are asked about all the
//     same.
//  3. A refusal of the call in use means that the job is gone only once it is
//     believed: see refusals.
func (c *Client) Wanted(ctx context.Context, job *runtime.Job) (runtime.Verdict, error) {
	asks := c.asks.Load()
	if asks == askUnknown && c.unanswerable(job) {
		return runtime.Unanswered, nil
	}
	subject := url.PathEscape(job.Subject)
	calls := []struct {
		asks         int32
		method, path string
		body         []byte
	}{
		{askStatus, http.MethodGet, "/api/deployments/" + subject + "/status", nil},
		{askCheck, http.MethodPost, "/api/agent-workflows/" + string(job.Kind) + ":" + subject + "/check", []byte("{}")},
	}
	unclear := false // a call answered with a success that tells nothing
	for _, q := range calls {
		if asks != askUnknown && asks != q.asks {
			continue
		}

		// Make the call.
		var answer []byte
		err := c.authorized(ctx, func(token secret.String) (err error) {
			request := call{method: q.method, path: q.path, token: token, body: q.body, check: wantJSON}
			if q.body != nil {
				request.contentType = "application/json"
			}
			_, _, answer, err = c.ask(ctx, c.now().calls, request)
			return err
		})

		// Decide what its answer means.
		verdict, known := verdict(answer)
		switch {
		case asks != askUnknown && c.believed(job, err) && errors.Is(err, runtime.ErrGone):
			return runtime.Gone, nil
		case asks != askUnknown && err != nil:
			return runtime.CarryOn, err
		case err == nil && known:
			c.believed(job, nil)
			c.asks.Store(q.asks)
			return verdict, nil
		case err == nil:
			unclear = true
		case !lacksCall(err, q.asks):
			c.believed(job, err)
			return runtime.CarryOn, err
		}
	}
	switch {
	case asks != askUnknown:
		return runtime.CarryOn, nil
	case unclear:
		c.believed(job, nil)
		return runtime.CarryOn, nil
	case c.believed(job, errNoCall):
		c.hush(job)
	}
	return runtime.Unanswered, nil
}

// believed notes how a call about a job's status ended and reports whether it was
// a refusal that is to be believed. It keeps nothing of a job whose last answer was
// no refusal, or that was not asked about for doubtLimit.
func (c *Client) believed(job *runtime.Job, err error) bool {
	c.mu.Lock()
	now := time.Now()
	maps.DeleteFunc(c.doubts, func(_ string, d *doubt) bool { return now.Sub(d.asked) > doubtLimit })
	if code, answered := refusalCode(err); answered && code == 0 {
		delete(c.doubts, job.Subject)
		c.mu.Unlock()
		return false
	}
	d := c.doubts[job.Subject]
	if d == nil {
		d = &doubt{}
		c.doubts[job.Subject] = d
	}
	d.asked = now
	c.mu.Unlock()
	return d.refusals.believed(err)
}

// lacksCall reports whether err may say that there is no such call. One service was
// seen to answer 500 for the status call, and web applications answer paths that
// they do not know with their start page.
func lacksCall(err error, asks int32) bool {
	var status *StatusError
	if !errors.As(err, &status) {
		return errors.As(err, new(*formatError))
	}
	switch status.Code {
	case http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented:
		return true
	case http.StatusInternalServerError:
		return asks == askStatus
	}
	return false
}

// unanswerable reports whether the service was found, not long ago, to have no
// answer about a job.
func (c *Client) unanswerable(job *runtime.Job) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Before(c.hushed[job.Subject])
}

// hush notes that the service has no answer about a job.
func (c *Client) hush(job *runtime.Job) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(c.hushed, func(_ string, until time.Time) bool { return now.After(until) })
	if len(c.hushed) == 0 {
		c.log.Info("the service does not say whether jobs are still wanted: every job runs to its end", "asking again in", silence)
	}
	c.hushed[job.Subject] = now.Add(silence)
}

// verdict reads the answer to either call: a bare word, or an object with status
// and perhaps complete. It reports false for one that tells nothing about a job.
func verdict(answer []byte) (verdict runtime.Verdict, known bool) {
	var object struct {
		Status   string `json:"status"`
		Complete bool   `json:"complete"`
	}
	if json.Unmarshal(answer, &object.Status) != nil {
		_ = json.Unmarshal(answer, &object)
	}
	switch object.Status {
	case "failed", "skipped":
		return runtime.Ended, true
	case "succeeded":
		return runtime.Finishing, true
	case "not-started", "accepted", "running":
		known = true
	}
	if object.Complete {
		return runtime.Finishing, true
	}
	return runtime.CarryOn, known
}
