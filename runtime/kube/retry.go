package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/cmwa-project/cmwa/runtime"
)

// transientResponses are the errors of the API server that a later attempt may not get, in
// addition to 429 and 5xx. Admission sends most of them with a status that normally means a
// permanent refusal, because it passes on an error of its own requests. A status of 0 means any.
var transientResponses = []struct {
	status int32
	text   string // part of the message
}{
	// Several objects are created at once, and each changes the usage of the same quota. After
	// three conflicts, admission passes on the conflict of the quota itself.
	{http.StatusConflict, "Operation cannot be fulfilled on resourcequotas"},
	{http.StatusConflict, "Operation cannot be fulfilled on clusterresourcequotas"}, // of OpenShift
	{0, "quota evaluation timed out"},
	{http.StatusForbidden, "status unknown for quota"}, // the quota is new
	{http.StatusForbidden, "exceeded quota"},           // until another Pod ends

	// The API server has started, or has lost its database for a moment.
	{http.StatusForbidden, "not yet ready to handle request"},
	{http.StatusForbidden, "at this time because there was an error enforcing limit ranges"},
	{0, "etcdserver: request timed out"}, // also "..., possibly due to previous leader failure"
	{0, "etcdserver: leader changed"},
	{0, "etcdserver: no leader"},
	{0, "etcdserver: too many requests"},
}

// answered reports whether the API server itself has sent the error, or has sent an object that
// cannot be used.
func answered(err error) bool {
	return errors.As(err, new(apierrors.APIStatus)) && !fromProxy(err) || errors.Is(err, errRelabeled)
}

// temporary reports whether a failed request may succeed later without a change of settings.
func temporary(err error) bool {
	response := apierrors.APIStatus(nil)
	if !errors.As(err, &response) || fromProxy(err) { // no response of the API server
		return true
	}
	status := response.Status()
	if status.Code == http.StatusTooManyRequests || status.Code >= http.StatusInternalServerError {
		return true
	}
	for _, r := range transientResponses {
		if (r.status == 0 || r.status == status.Code) && strings.Contains(status.Message, r.text) {
			return true
		}
	}
	return false
}

// retry are the rules by which a request that changes the cluster is sent again.
type retry struct {
	deadline     time.Time         // of the last attempt; if zero, ctx limits the attempts
	refusalLimit time.Duration     // how long a request is retried that is refused because of the agent's rights
	conflicts    bool              // retry conflicts, after a tenth of the delay
	timeOut      <-chan struct{}   // tests close it to let the deadline pass; otherwise nil
	explain      func(error) error // returns the error for the user
	log          func(error) error // logs why a request is retried, once for each reason in a row; may be nil
}

// do sends a request until it succeeds. Errors that may be temporary are retried, with the delays
// of createBackoff and [runtime.Jitter]. After the end of ctx the error wraps the cause of ctx. An error of log ends
// the attempts.
func (r retry) do(ctx context.Context, request func() error) error {
	lastReason, policy := "", retryPolicy{refusalLimit: r.refusalLimit}
	for delay := createBackoff.First; ; delay = createBackoff.Next(delay) {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		err := request()
		wait := delay
		switch {
		case err == nil:
			return nil
		case r.conflicts && isConflict(err):
			wait = delay / 10
		case !policy.allows(err):
			return r.explain(err)
		case r.log != nil && lastReason != err.Error():
			lastReason = err.Error()
			if err := r.log(err); err != nil {
				return err
			}
		}

		wait = runtime.Jitter(wait)
		if !r.deadline.IsZero() {
			left := time.Until(r.deadline)
			if left <= 0 {
				return r.explain(err)
			}
			wait = min(wait, left)
		}
		if !runtime.Sleep(ctx, r.timeOut, wait) {
			return fmt.Errorf("%w: %w", context.Cause(ctx), r.explain(err))
		}
		select {
		case <-r.timeOut:
			r.deadline = time.Now()
		default:
		}
	}
}

// retryPolicy decides whether a failed request is retried. The zero value does not retry
// requests that were refused.
type retryPolicy struct {
	refusalLimit time.Duration // how long refused requests are retried
	refusedSince time.Time     // first refusal of the current series; zero if there is none
}

// allows reports whether to retry a request that failed with err.
func (d *retryPolicy) allows(err error) bool {
	switch {
	case temporary(err):
		d.refusedSince = time.Time{}
		return true
	case !apierrors.IsUnauthorized(err) && !lacksRight(err):
		return false
	case d.refusedSince.IsZero():
		d.refusedSince = time.Now()
	}
	return time.Since(d.refusedSince) < d.refusalLimit
}

func (e *Executor) refusalLimit() time.Duration { return min(refusalLimit, e.stuckLimit) }

// missingRight matches each message with which the cluster's authorizer refuses a request. A
// message of an admission webhook may contain "cannot" too, and is no missing right.
var missingRight = regexp.MustCompile(`is forbidden: User ".*" cannot `)

// lacksRight reports whether the agent's service account lacks the right for a request.
func lacksRight(err error) bool {
	return apierrors.IsForbidden(err) && missingRight.MatchString(err.Error())
}

// detached returns a context that is not canceled with ctx, for a request that changes the
// cluster: after a cancellation, the result of such a request would be unknown.
func detached(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(context.WithoutCancel(ctx), limit,
		fmt.Errorf("the Kubernetes API server did not answer within %s", limit))
}
