package cloud

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/go-retryablehttp"
)

// retry is how often a call is repeated that failed for the moment.
type retry struct {
	count   int           // attempts after the first
	wait    time.Duration // before the first repetition; doubles with each
	maxWait time.Duration // ceiling of all waits, a Retry-After included
}

// pause returns the wait before the next attempt: the doubling one of [backoff],
// or what the service asks for if that is longer. Never longer than most. A
// Retry-After of 0, or a date in the past, does not shorten it.
func pause(least, most time.Duration, attempt int, response *http.Response) time.Duration {
	wait := backoff(least, most, attempt)
	if response != nil {
		if asked, ok := retryAfter(response.Header, time.Now()); ok {
			wait = max(wait, asked)
		}
	}
	return min(wait, most)
}

// retryPolicy reports whether a call is retried after an attempt that failed
// with err. It is not asked once ctx has ended, and it may wait.
type retryPolicy func(ctx context.Context, err error) bool

// transient retries after 408, 425, 429 and 5xx but 501, and when there was no
// answer, unless that has a cause that stays, such as a wrong certificate.
func transient(ctx context.Context, err error) bool {
	var status *StatusError
	var large *hugeError
	switch {
	case errors.As(err, &status):
		return transientStatus(status.Code)
	case errors.As(err, &large):
		return false
	}
	again, _ := retryablehttp.DefaultRetryPolicy(ctx, nil, err)
	return again
}

func transientStatus(code int) bool {
	switch code {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	case http.StatusNotImplemented:
		return false
	}
	return code >= 500
}

// maxRetryAfter is the longest wish that is believed: a wrong clock or unit
// should not silence a caller for days.
const maxRetryAfter = 24 * time.Hour

// retryAfter reads a service's wish not to be asked for a while: whole seconds
// or an HTTP date. It reports false when there is none that makes sense.
func retryAfter(header http.Header, now time.Time) (time.Duration, bool) {
	text := strings.TrimSpace(header.Get("Retry-After"))
	if text == "" {
		return 0, false
	}
	if seconds, err := strconv.ParseUint(text, 10, 63); err == nil || errors.Is(err, strconv.ErrRange) {
		return time.Duration(min(seconds, uint64(maxRetryAfter/time.Second))) * time.Second, true
	}
	date, err := http.ParseTime(text)
	if err != nil {
		return 0, false
	}
	return min(max(0, date.Sub(now)), maxRetryAfter), true
}
