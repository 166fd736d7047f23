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

// pause is the wait before a repetition: what the service wishes, on whatever
// status, or else the doubling one of [backoff]. Never longer than most.
func pause(least, most time.Duration, attempt int, response *http.Response) time.Duration {
	if response != nil {
		if wish, ok := retryAfter(response.Header, time.Now()); ok {
			return min(wish, most)
		}
	}
	return min(backoff(least, most, attempt), most)
}

// transient decides whether a call is repeated: after 408, 425, 429 and 5xx but
// 501, and when there was no answer at all; never once ctx has ended.
func transient(ctx context.Context, response *http.Response, err error) (bool, error) {
	if ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	var huge *hugeError
	switch {
	case errors.As(err, &huge):
		return false, nil
	case err != nil:
		return retryablehttp.DefaultRetryPolicy(ctx, nil, err)
	}
	return transientStatus(response.StatusCode), nil
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
