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

// retry configures the retries of a call.
type retry struct {
	count   int           // attempts after the first
	wait    time.Duration // before the first retry; doubles with each
	maxWait time.Duration // limit of each wait, including a Retry-After
}

// retryDelay returns the wait before the next attempt: the wait of [backoff], or the
// Retry-After if that is longer. Both are limited to the argument most. A Retry-After of 0, or a
// date in the past, does not shorten the wait.
func retryDelay(least, most time.Duration, attempt int, response *http.Response) time.Duration {
	wait := backoff(least, most, attempt)
	if response != nil {
		if asked, ok := retryAfter(response.Header, time.Now()); ok {
			wait = max(wait, asked)
		}
	}
	return min(wait, most)
}

// retryPolicy reports whether a call is retried after an attempt failed with err. It is
// not called after the end of ctx, and it may block.
type retryPolicy func(ctx context.Context, err error) bool

// transient retries after 408, 425, 429 and 5xx except 501. It also retries after an attempt
// without a complete and valid response, except for permanent causes such as a wrong certificate
// or a response that is too large.
func transient(ctx context.Context, err error) bool {
	if status := statusOf(err); status != 0 {
		return transientStatus(status)
	}
	if errors.As(err, new(*tooLargeError)) {
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

// retryAfter returns the wait that a Retry-After requests, in whole seconds or as an HTTP
// date. It reports false without a valid one.
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
