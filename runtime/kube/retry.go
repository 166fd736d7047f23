package kube

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// temporary reports whether a failed request may succeed later without a change of settings.
func temporary(err error) bool {
	status := apierrors.APIStatus(nil)
	switch {
	case !errors.As(err, &status), fromProxy(err): // no response of the API server
		return true
	case apierrors.IsTooManyRequests(err), apierrors.IsServerTimeout(err), apierrors.IsTimeout(err),
		apierrors.IsInternalError(err), apierrors.IsServiceUnavailable(err), status.Status().Code >= 500:
		return true
	case apierrors.IsForbidden(err):
		return strings.Contains(err.Error(), "exceeded quota")
	}
	return false
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
	case !refusesAgent(err):
		return false
	case d.refusedSince.IsZero():
		d.refusedSince = time.Now()
	}
	return time.Since(d.refusedSince) < d.refusalLimit
}

const missingRight = " cannot " // in each message with which the cluster's authorizer refuses a request

// refusesAgent reports whether the cluster refused the agent's credentials or rights.
func refusesAgent(err error) bool {
	return apierrors.IsUnauthorized(err) || apierrors.IsForbidden(err) && strings.Contains(err.Error(), missingRight)
}

// detached returns a context that is not canceled with ctx, for a request that changes the
// cluster: after a cancellation, the result of such a request would be unknown.
func detached(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(context.WithoutCancel(ctx), limit,
		fmt.Errorf("the Kubernetes API server did not answer within %s", limit))
}
