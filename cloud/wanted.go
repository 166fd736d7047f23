package cloud

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/secret"
)

// Which of the two known calls tells whether a job is wanted.
const (
	askUnknown int32 = iota
	askStatus        // GET /api/deployments/{id}/status
	askCheck         // POST /api/agent-workflows/{kind}:{id}/check
)

// Wanted implements [runtime.Cloud]. Pulumi's documentation names the status
// call; agents of 2.2 were seen to use the check call; some servers have only
// one of them. Whichever answers first is used from then on, and where neither
// exists every job is wanted.
func (c *Client) Wanted(ctx context.Context, job *runtime.Job) (runtime.Verdict, error) {
	asks := c.asks.Load()
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
		lacking = slices.Contains([]int{http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusInternalServerError, http.StatusNotImplemented}, status.Code)
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
	default:
		return runtime.CarryOn, err
	}
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
