package cloud

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
)

// refusalMinCount is the number of consecutive refusals with one status after which a refusal is
// accepted.
const refusalMinCount = 3

// refusals decides when to accept the refusals of one kind of call about one job. A
// proxy that restarts, or that has lost a session, answers 404 or 401 in place of the
// service, so a single response must not end a job:
//
//  1. A refusal is accepted when it was the only answer for refusalMinDuration, and came
//     at least refusalMinCount times.
//  2. Any other response, also a refusal with another status, resets the duration and the
//     count.
//  3. The time between two refusals counts for at most refusalMaxGap, and not at all if an
//     attempt between them had no response. A proxy that restarts often refuses, then does
//     not answer, and then refuses again: the time without responses must not count.
//
// The state is kept between calls: an accepted refusal stays accepted until another
// answer comes. The zero value is ready for use. Methods are safe for concurrent use.
type refusals struct {
	mu       sync.Mutex
	code     int // of the last response if it was a refusal, otherwise 0
	count    int // of consecutive responses with this code
	duration time.Duration
	last     time.Time // of the last response; zero if an attempt since then had none
}

// accepted records the result of an attempt, and reports whether it is an accepted
// refusal.
func (r *refusals) accepted(err error) bool {
	code, answered := refusalCode(err)
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	switch {
	case !answered: // 3.
		r.last = time.Time{}
		return false
	case code != r.code: // 2.
		r.code, r.count, r.duration = code, 0, 0
	case !r.last.IsZero():
		r.duration += min(now.Sub(r.last), refusalMaxGap) // 3.
	}
	r.count++
	r.last = now

	// 1.
	return code != 0 && r.count >= refusalMinCount && r.duration >= refusalMinDuration
}

// refusalCode returns the status of a refusal, or 0 for any other response, and reports
// whether there was a response. An invalid or too large definition is a refusal with the
// status 200.
func refusalCode(err error) (code int, answered bool) {
	status := statusOf(err)
	large, isLarge := errors.AsType[*tooLargeError](err)
	switch {
	case errors.As(err, new(runtime.JobFault)), isLarge && large.limit == maxDefinition:
		return http.StatusOK, true
	case err == nil, errors.As(err, new(*formatError)), isLarge, transientStatus(status):
		return 0, true
	}
	return status, status != 0
}

// policy returns the retry policy of a call about a job. It retries every failure, including
// certificate errors, until the call's context ends or a refusal is accepted. It does not
// retry the statuses in immediate, which the caller handles. A final refusal is also
// accepted if confirm, which makes another call about the job, gets a final refusal.
func (r *refusals) policy(confirm func(context.Context) bool, immediate ...int) retryPolicy {
	return func(ctx context.Context, err error) bool {
		accepted := r.accepted(err) // also of the immediate statuses, so that every response counts
		if accepted || slices.Contains(immediate, statusOf(err)) {
			return false
		}
		return !isFinal(err) || !confirm(ctx)
	}
}

// isFinal reports whether err is a 409 or 410 in the JSON error form of the service.
func isFinal(err error) bool {
	status, ok := errors.AsType[*StatusError](err)
	return ok && status.final
}

// formatError is a response whose body is not JSON, most often the page of a proxy.
type formatError struct{ html bool }

func (e *formatError) Error() string {
	if e.html {
		return "the response is an HTML page and not JSON: a proxy or a login page answers in place of the service; " +
			"check service_url and the proxy"
	}
	return "the response is not JSON: check service_url, and that no proxy answers in place of the service"
}

// wantJSON is the check of a call whose success has an empty body or a JSON body.
func wantJSON(text []byte) error {
	if len(bytes.TrimSpace(text)) == 0 || json.Valid(text) {
		return nil
	}
	return notJSON(text)
}

// notJSON returns the error for a body that is not JSON.
func notJSON(text []byte) error {
	return &formatError{html: bytes.HasPrefix(bytes.TrimSpace(text), []byte("<"))}
}
