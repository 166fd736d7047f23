package cloud

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-retryablehttp"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// Limits in bytes of what is read from a service.
const (
	maxAnswer     = 1 << 20  // an answer that carries no definition
	maxDefinition = 64 << 20 // a job's definition: it carries whole scripts
	maxMessage    = 1 << 10  // of a service's own words, in an error
)

// StatusError is an answer that is not a success. It is [runtime.ErrGone] for
// the statuses that say that a job is gone or is another's (404, 409, 410,
// 412), and [runtime.ErrUnauthorized] for 401.
type StatusError struct {
	Code       int           // the HTTP status
	Message    string        // the service's own words, cut; may be empty
	RequestID  string        // by which the service's people find it; may be empty
	RetryAfter time.Duration // not to be asked again before; 0 is no such wish
	Location   string        // of a redirect, without user, query and fragment; may be empty

	final bool // 409 or 410 in the service's own JSON error form
}

// Error says the status, the service's words and the request's id.
func (e *StatusError) Error() string {
	text := fmt.Sprintf("the service answers %d", e.Code)
	if name := http.StatusText(e.Code); name != "" {
		text += " " + name
	}
	if e.Location != "" {
		text += ", a redirect to " + e.Location
	}
	if e.Message != "" {
		text += ": " + e.Message
	}
	if e.RequestID != "" {
		text += " (request " + e.RequestID + ")"
	}
	return text
}

// Is reports whether the status means what the sentinel means.
func (e *StatusError) Is(target error) bool {
	switch e.Code {
	case http.StatusNotFound, http.StatusConflict, http.StatusGone, http.StatusPreconditionFailed:
		return target == runtime.ErrGone
	case http.StatusUnauthorized:
		return target == runtime.ErrUnauthorized
	}
	return false
}

// redirectError is a redirect as the answer to a call of a path, with the cure.
type redirectError struct {
	*StatusError
	path string
}

// Error names the address and the service URL to set.
func (e *redirectError) Error() string {
	return fmt.Sprintf("service_url answers with a redirect to %s: set it to %s (status %d)",
		e.Location, strings.TrimSuffix(e.Location, e.path), e.Code)
}

// Unwrap returns the answer.
func (e *redirectError) Unwrap() error { return e.StatusError }

// callerOptions is what a caller is made of.
type callerOptions struct {
	service   string // base URL
	userAgent string
	transport http.RoundTripper // nil is a pool of connections of its own
	timeout   time.Duration     // of one attempt, its answer included; 0 is none
	retry     retry
	log       *slog.Logger
}

// caller sends calls to one service and retries what failed temporarily. Its
// methods are safe for concurrent use.
type caller struct {
	service   string
	userAgent string
	http      *http.Client
	retry     retry
	log       *slog.Logger

	mu     sync.Mutex
	warned string // the service's last warning
}

func newCaller(o callerOptions) *caller {
	if o.transport == nil {
		o.transport = newTransport()
	}
	return &caller{
		service:   strings.TrimRight(o.service, "/"),
		userAgent: o.userAgent,
		log:       o.log,
		retry:     o.retry,
		http:      &http.Client{Transport: o.transport, Timeout: o.timeout, CheckRedirect: followNothing},
	}
}

// followNothing makes a redirect an answer like any other. A call that follows
// one would take its token to another place, and a POST would become a GET whose
// success means nothing.
func followNothing(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// call is one request to a service.
type call struct {
	method      string
	path        string                  // escaped; starts with /api/
	token       secret.String           // empty for a call without one
	body        []byte                  // nil for a call without one; must not change any more, even after the call
	contentType string                  // of the body; empty sends none
	limit       int64                   // of the answer, in bytes; 0 is maxAnswer
	check       func(text []byte) error // reports what is wrong with the body of a success; nil accepts any
	retry       retryPolicy             // nil is transient
}

// do makes a call and returns the answer's status, header and body. An answer
// other than 2xx is a *[StatusError]. A 2xx that arrived in part, or that the
// call's check rejects, is a failed attempt. When ctx ends, the error names the
// last failure too.
func (c *caller) do(ctx context.Context, q call) (status int, header http.Header, text []byte, err error) {
	var body any
	if q.body != nil {
		body = q.body
	}
	request, err := retryablehttp.NewRequestWithContext(ctx, q.method, c.service+q.path, body)
	if err != nil {
		return 0, nil, nil, fmt.Errorf("service URL: %w", err)
	}
	c.address(request.Header, q)
	request.SetResponseHandler(func(response *http.Response) (err error) {
		status, header = response.StatusCode, response.Header
		c.hear(header)
		text, err = readAnswer(response, q.limit)
		switch {
		case err != nil:
			return err
		case status/100 != 2:
			return refused(response, text)
		case q.check != nil:
			return q.check(text)
		}
		return nil
	})

	// The policy sees each attempt's error after the answer has been read.
	policy := q.retry
	if policy == nil {
		policy = transient
	}
	var last error
	client := &retryablehttp.Client{
		HTTPClient: c.http, RetryMax: c.retry.count, RetryWaitMin: c.retry.wait, RetryWaitMax: c.retry.maxWait,
		Backoff: pause, ErrorHandler: retryablehttp.PassthroughErrorHandler,
		CheckRetry: func(ctx context.Context, response *http.Response, err error) (bool, error) {
			switch {
			case ctx.Err() != nil:
				return false, context.Cause(ctx)
			case err == nil && response != nil:
				return false, nil // the answer is read next, or was good
			}
			last = err
			return policy(ctx, err), nil
		},
	}
	response, err := client.Do(request)
	if response != nil {
		_ = response.Body.Close()
	}
	switch {
	case err != nil && ctx.Err() != nil && last != nil && !errors.Is(last, ctx.Err()):
		// The last failure is not wrapped: errors.Is would find a refusal in it
		// that is not believed.
		return status, header, nil, fmt.Errorf("%w; the last attempt: %s", context.Cause(ctx), last.Error())
	case err != nil:
		return status, header, nil, err
	}
	return status, header, text, nil
}

// address sets the header of a call.
func (c *caller) address(header http.Header, q call) {
	header.Set("Accept", AcceptV8)
	header.Set("User-Agent", c.userAgent)
	if !q.token.Empty() {
		header.Set("Authorization", AuthScheme+" "+q.token.Reveal())
	}
	if q.contentType != "" {
		header.Set("Content-Type", q.contentType)
	}
}

// hear passes on what a service wants its users to know, once.
func (c *caller) hear(header http.Header) {
	warning := words([]byte(header.Get("X-Pulumi-Warning")))
	c.mu.Lock()
	defer c.mu.Unlock()
	if warning != "" && warning != c.warned {
		c.warned = warning
		c.log.Warn("the service warns", "warning", warning)
	}
}

// readAnswer reads an answer's body to its end and closes it.
func readAnswer(response *http.Response, limit int64) ([]byte, error) {
	defer response.Body.Close()
	if limit == 0 {
		limit = maxAnswer
	}
	text, err := io.ReadAll(io.LimitReader(response.Body, limit+1))
	if response.StatusCode/100 != 2 {
		return text, nil // the status says enough
	}
	if err != nil {
		return nil, fmt.Errorf("read the service's answer: %w", err)
	}
	if int64(len(text)) > limit {
		return nil, &hugeError{limit}
	}
	return text, nil
}

// hugeError is an answer that nobody reads to its end, however often it comes.
type hugeError struct{ limit int64 }

func (e *hugeError) Error() string {
	return fmt.Sprintf("the service's answer is larger than %d MiB", e.limit>>20)
}

// refused makes an error of an answer.
func refused(response *http.Response, text []byte) *StatusError {
	var body ErrorBody
	e := &StatusError{Code: response.StatusCode, RequestID: words([]byte(response.Header.Get("X-Pulumi-Request-ID")))}
	if json.Unmarshal(text, &body) == nil && body.Message != "" {
		text = []byte(body.Message)
		e.final = body.Code == e.Code && (e.Code == http.StatusConflict || e.Code == http.StatusGone)
	}
	e.Message = words(text)
	if to, err := response.Location(); err == nil && e.Code/100 == 3 {
		e.Message = "" // a page that repeats the address
		e.Location = words([]byte((&url.URL{Scheme: to.Scheme, Host: to.Host, Path: to.Path}).String()))
	}
	e.RetryAfter, _ = retryAfter(response.Header, time.Now())
	return e
}

// words makes one short, printable line of what a stranger says.
func words(text []byte) string {
	cut := len(text) > maxMessage
	if cut {
		text = text[:maxMessage]
	}
	text = bytes.ToValidUTF8(text, nil)
	line := strings.Join(strings.Fields(strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, string(text))), " ")
	if cut {
		line += " …"
	}
	return line
}
