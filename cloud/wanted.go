package cloud

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/secret"
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

// Wanted implements [runtime.Cloud]. Pulumi's documentation names the status
// call; agents of 2.2 were seen to use the check call; some servers have only
// one of them. Whichever answers first is used from then on. Where neither
// exists every job is wanted, and both calls are tried again an hour later; as
// the same answers may mean that the one deployment is unknown, other jobs are
// asked about all the same.
func (c *Client) Wanted(ctx context.Context, job *runtime.Job) (runtime.Verdict, error) {
	asks := c.asks.Load()
	if asks == askUnknown && c.unanswerable(job) {
		return runtime.Unanswered, nil
	}
	var err error
	if asks != askCheck {
		var answer []byte
		err = c.authorized(ctx, func(token secret.String) (err error) {
			_, _, answer, err = c.ask(ctx, c.now().calls, call{method: http.MethodGet, path: "/api/deployments/" + url.PathEscape(job.Subject) + "/status", token: token})
			return err
		})
		if err == nil {
			c.asks.Store(askStatus)
			return verdict(answer), nil
		}
	}
	var status *StatusError
	lacking := false // the call itself; one service was seen to answer 500 for it
	if errors.As(err, &status) {
		lacking = lacksCall(status.Code) || status.Code == http.StatusInternalServerError
	}
	switch {
	case asks == askStatus && errors.Is(err, runtime.ErrGone):
		return runtime.Gone, nil
	case asks == askStatus, asks == askUnknown && !lacking:
		return runtime.CarryOn, err
	}
	var answer []byte
	path := "/api/agent-workflows/" + string(job.Kind) + ":" + url.PathEscape(job.Subject) + "/check"
	err = c.authorized(ctx, func(token secret.String) (err error) {
		_, _, answer, err = c.ask(ctx, c.now().calls, call{method: http.MethodPost, path: path, token: token, body: []byte("{}"), contentType: "application/json"})
		return err
	})
	switch {
	case err == nil:
		c.asks.Store(askCheck)
		return verdict(answer), nil
	case asks == askCheck && errors.Is(err, runtime.ErrGone):
		return runtime.Gone, nil
	case asks == askUnknown && errors.As(err, &status) && lacksCall(status.Code):
		c.hush(job)
		return runtime.Unanswered, nil
	default:
		return runtime.CarryOn, err
	}
}

// lacksCall reports whether a status may say that there is no such call.
func lacksCall(code int) bool {
	return slices.Contains([]int{http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented}, code)
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

// verdict reads the answer to either call: a bare word, or an object with
// status and perhaps complete. What is unknown lets the job carry on.
func verdict(answer []byte) runtime.Verdict {
	var object struct {
		Status   string `json:"status"`
		Complete bool   `json:"complete"`
	}
	if json.Unmarshal(answer, &object.Status) != nil {
		_ = json.Unmarshal(answer, &object)
	}
	switch object.Status {
	case "failed", "skipped":
		return runtime.Ended
	case "succeeded":
		return runtime.Finishing
	}
	if object.Complete {
		return runtime.Finishing
	}
	return runtime.CarryOn
}
