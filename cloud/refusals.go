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

// Limits of when a refusal is believed.
const (
	believeTime  = 30 * time.Second // for which it must have been the only answer
	believeCount = 3                // how often it must have come
	confirmWait  = 2 * time.Second  // before a final refusal is confirmed by another call
)

// refusals decides when the refusal of one kind of call about one job is
// believed. A proxy that restarts, or that has lost a session, answers 404 or 401
// in the service's place, so a single answer must not end a job:
//
//  1. A refusal is believed once it has been the only answer for believeTime and
//     has come at least believeCount times.
//  2. Any other answer, another refusal included, starts the count from the
//     beginning. An attempt without an answer changes nothing.
//
// The state outlives a call: what was believed is believed again at once, until
// another answer comes. The zero value has seen nothing. Methods are safe for
// concurrent use.
type refusals struct {
	mu    sync.Mutex
	code  int // of the refusal that was the only answer; 0 is none
	since time.Time
	count int
}

// believed notes how an attempt ended and reports whether it was a refusal that
// is to be believed.
func (r *refusals) believed(err error) bool {
	code, answered := refusalCode(err)
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	switch {
	case !answered:
		return false
	case code != r.code:
		r.code, r.since, r.count = code, now, 0
	}
	r.count++
	return code != 0 && r.count >= believeCount && now.Sub(r.since) >= believeTime
}

// refusalCode returns the status of a refusal, or 0 for any other answer, and
// whether there was an answer at all. A definition that cannot be used, or that is
// too large, is a refusal with the status 200.
func refusalCode(err error) (code int, answered bool) {
	var status *StatusError
	var format *formatError
	var unusable *unusableError
	var large *hugeError
	switch {
	case errors.As(err, &unusable), errors.As(err, &large) && large.limit == maxDefinition:
		return http.StatusOK, true
	case err == nil, errors.As(err, &format), errors.As(err, &large):
		return 0, true
	case !errors.As(err, &status):
		return 0, false
	case transientStatus(status.Code):
		return 0, true
	}
	return status.Code, true
}

// policy is the retry policy of a call about a job. It retries every failure,
// certificate errors included, until the call's context ends or a refusal is
// believed. Immediate names the statuses that the caller itself reacts to, without
// ending the job. A final refusal is believed too if confirm, which makes another
// call about the same job, is refused finally as well.
func (r *refusals) policy(confirm func(context.Context) bool, immediate ...int) retryPolicy {
	return func(ctx context.Context, err error) bool {
		believed := r.believed(err) // which counts every answer
		var status *StatusError
		if believed || errors.As(err, &status) && slices.Contains(immediate, status.Code) {
			return false
		}
		return !isFinal(err) || !confirm(ctx)
	}
}

// isFinal reports whether err is a 409 or 410 in the service's own JSON error form.
func isFinal(err error) bool {
	var status *StatusError
	return errors.As(err, &status) && status.final
}

// formatError is a success whose body is neither empty nor JSON: most often the
// page of a proxy, with which the service has nothing to do.
type formatError struct{ html bool }

func (e *formatError) Error() string {
	if e.html {
		return "the answer is an HTML page and not JSON: a proxy or a login page answers in place of the service; " +
			"check service_url and the proxy"
	}
	return "the answer is not JSON: check that service_url is the service's and that no proxy answers in its place"
}

// wantJSON is the check of a call whose success has an empty body or a JSON one.
func wantJSON(text []byte) error {
	if len(bytes.TrimSpace(text)) == 0 || json.Valid(text) {
		return nil
	}
	return notJSON(text)
}

// notJSON makes an error of a body that is not JSON.
func notJSON(text []byte) error {
	return &formatError{html: bytes.HasPrefix(bytes.TrimSpace(text), []byte("<"))}
}

// unusableError is a definition that is JSON, and that no runner can use: the
// job's own failure.
type unusableError struct{ error }

func (e *unusableError) Unwrap() []error { return []error{e.error, runtime.ErrJob} }
