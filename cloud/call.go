package cloud

import (
	"cmp"
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
	"github.com/cmwa-project/cmwa/schema/printable"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// Limits in bytes of what is read from a service.
const (
	maxAnswer     = 1 << 20 // a response that carries no definition
	maxDefinition = 8 << 20 // a job's definition: it contains whole scripts
	maxMessage    = 1 << 10 // a service's message in an error
)

// StatusError is a response with an error status. It is [runtime.ErrGone] for the
// statuses that mean that the job does not exist or belongs to another runner (404, 409,
// 410, 412), and [runtime.ErrUnauthorized] for 401.
type StatusError struct {
	Code       int           // HTTP status
	Message    string        // of the service, shortened; may be empty
	RequestID  string        // identifies the request at the service; may be empty
	RetryAfter time.Duration // requested by the service; 0 if it requested nothing
	Location   string        // of a redirect, without user, query and fragment; may be empty

	final      bool // 409 or 410 in the JSON error form of the service
	nextOffset *int // of the step's next line, if the response refuses lines at a wrong offset; otherwise nil
}

// Error returns the status, the message of the service and the id of the request.
func (e *StatusError) Error() string {
	text := fmt.Sprintf("service answered %d", e.Code)
	name := http.StatusText(e.Code)
	if name != "" {
		text += " " + name
	}
	if e.Location != "" {
		text += ", a redirect to " + e.Location
	}
	// Pulumi Cloud begins its messages with the name of the status.
	if message := strings.TrimPrefix(strings.TrimPrefix(e.Message, name), ": "); message != "" {
		text += ": " + message
	}
	if e.RequestID != "" {
		text += " (request " + e.RequestID + ")"
	}
	return text
}

// Is reports whether the status corresponds to target.
func (e *StatusError) Is(target error) bool {
	switch e.Code {
	case http.StatusNotFound, http.StatusConflict, http.StatusGone, http.StatusPreconditionFailed:
		return target == runtime.ErrGone
	case http.StatusUnauthorized:
		return target == runtime.ErrUnauthorized
	}
	return false
}

// statusOf returns the status of a response with an error status, and 0 for any other error.
func statusOf(err error) int {
	if status, ok := errors.AsType[*StatusError](err); ok {
		return status.Code
	}
	return 0
}

// rejectedError is a 401 in answer to a call with the pool's token.
type rejectedError struct {
	*StatusError
	hint string
}

// Error names the token's settings and the request.
func (e *rejectedError) Error() string {
	text := "service rejected the token (401): " + e.hint
	if e.RequestID != "" {
		text += " (request " + e.RequestID + ")"
	}
	return text
}

// Unwrap returns the response.
func (e *rejectedError) Unwrap() error { return e.StatusError }

// redirectError is a redirect in answer to a call. Path is the path of the call.
type redirectError struct {
	*StatusError
	path string
}

// Error names the target of the redirect, and the service_url to set.
func (e *redirectError) Error() string {
	return fmt.Sprintf("service_url answers with a redirect to %s: set it to %s (status %d)",
		e.Location, strings.TrimSuffix(e.Location, e.path), e.Code)
}

// Unwrap returns the response.
func (e *redirectError) Unwrap() error { return e.StatusError }

// callerOptions are the options of a caller.
type callerOptions struct {
	service   string // base URL
	userAgent string
	transport http.RoundTripper
	timeout   time.Duration // of one attempt with its response; 0 means no timeout
	retry     retry
	log       *slog.Logger
	metrics   runtime.Metrics // nil records nothing
}

// caller sends calls to one service and retries temporary failures. Its methods are safe
// for concurrent use.
type caller struct {
	callerOptions
	http *http.Client

	mu     sync.Mutex
	warned string // last warning of the service that was logged
}

func newCaller(o callerOptions) *caller {
	o.service = strings.TrimRight(o.service, "/")
	if o.metrics == nil {
		o.metrics = runtime.NoMetrics{}
	}
	return &caller{
		callerOptions: o,
		http:          &http.Client{Transport: o.transport, Timeout: o.timeout, CheckRedirect: followNothing},
	}
}

// followNothing makes a redirect an ordinary response. A followed redirect would send the
// token to another address, and turn a POST into a GET.
func followNothing(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// call is one request to a service.
type call struct {
	method      string
	path        string                  // escaped; begins with /api/
	route       string                  // pattern of the path without ids, for metrics; empty means the path
	token       secret.String           // empty for a call without one
	masked      secret.String           // another secret, which no error shows; may be empty
	body        []byte                  // nil for a call without one; must not change, even after the call
	contentType string                  // of the body; empty sends no header
	limit       int64                   // of the response, in bytes; 0 means maxAnswer
	check       func(text []byte) error // returns an error for an invalid body of a success; nil accepts all
	retry       retryPolicy             // nil means transient
}

// do makes a call and returns the status, header and body of the response. A response other
// than 2xx is a *[StatusError]. A 2xx with an incomplete body, or a body that check
// rejects, is a failed attempt. If ctx ends, the error contains the last failure.
func (c *caller) do(ctx context.Context, q call) (status int, header http.Header, text []byte, err error) {
	var body any
	if q.body != nil {
		body = q.body
	}
	request, err := retryablehttp.NewRequestWithContext(ctx, q.method, c.service+q.path, body)
	if err != nil {
		return 0, nil, nil, fmt.Errorf("service URL: %w", err)
	}
	c.setHeader(request.Header, q)
	var started time.Time // of the current attempt
	request.SetResponseHandler(func(response *http.Response) (err error) {
		status, header = response.StatusCode, response.Header
		c.logWarning(q, header)
		text, err = readAnswer(response, q.limit)
		c.record(q, status, started)
		switch {
		case err != nil:
			return err
		case status/100 != 2:
			return newStatusError(q, response, text)
		case q.check != nil:
			return q.check(text)
		}
		return nil
	})

	// CheckRetry is called if there is no response, and before and after a response is read.
	policy := q.retry
	if policy == nil {
		policy = transient
	}
	var last error
	client := &retryablehttp.Client{
		HTTPClient: c.http, RetryMax: c.retry.count, RetryWaitMin: c.retry.wait, RetryWaitMax: c.retry.maxWait,
		Backoff: retryDelay, ErrorHandler: retryablehttp.PassthroughErrorHandler,
		RequestLogHook: func(retryablehttp.Logger, *http.Request, int) { started = time.Now() },
		CheckRetry: func(ctx context.Context, response *http.Response, err error) (bool, error) {
			if response == nil {
				c.record(q, 0, started)
			}
			switch {
			case ctx.Err() != nil:
				return false, context.Cause(ctx)
			case err == nil && response != nil:
				return false, nil // called before the response is read, or after a success
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
		// The last failure is not wrapped. It may be a refusal that is not accepted (see
		// refusals), which errors.Is must not find.
		return status, header, nil, fmt.Errorf("%w; the last attempt: %s", context.Cause(ctx), last.Error())
	case err != nil:
		return status, header, nil, err
	}
	return status, header, text, nil
}

// record counts one attempt of a call. Code is 0 without a response.
func (c *caller) record(q call, code int, started time.Time) {
	route := q.method + " " + cmp.Or(q.route, q.path)
	c.metrics.ServiceCall(runtime.ServiceCall{Route: route, Code: code, Took: time.Since(started)})
}

// setHeader sets the header fields of a call.
func (c *caller) setHeader(header http.Header, q call) {
	header.Set("Accept", AcceptV8)
	header.Set("User-Agent", c.userAgent)
	if !q.token.Empty() {
		header.Set("Authorization", AuthScheme+" "+q.token.Reveal())
	}
	if q.contentType != "" {
		header.Set("Content-Type", q.contentType)
	}
}

// logWarning logs a warning of the service for its users, unless it is the one logged last.
func (c *caller) logWarning(q call, header http.Header) {
	warning := q.line(header.Get("X-Pulumi-Warning"))
	c.mu.Lock()
	defer c.mu.Unlock()
	if warning != "" && warning != c.warned {
		c.warned = warning
		c.log.Warn("service warning", "warning", warning)
	}
}

// readAnswer reads a response's body and closes it. A success over the limit is an error.
func readAnswer(response *http.Response, limit int64) ([]byte, error) {
	defer response.Body.Close()
	limit = cmp.Or(limit, maxAnswer)
	text, err := io.ReadAll(io.LimitReader(response.Body, limit+1))
	if response.StatusCode/100 != 2 {
		return text, nil // the status is an error already
	}
	if err != nil {
		return nil, fmt.Errorf("read the response: %w", err)
	}
	if int64(len(text)) > limit {
		return nil, &tooLargeError{limit}
	}
	return text, nil
}

// tooLargeError is a response over its limit. The policy transient does not retry the call.
// The policy of calls about a job retries it: see refusals.
type tooLargeError struct{ limit int64 }

func (e *tooLargeError) Error() string {
	return fmt.Sprintf("the service's response is larger than %d MiB", e.limit>>20)
}

// newStatusError returns the error for a response with an error status. Some services repeat
// the secrets of a call in the response: the error does not show them.
func newStatusError(q call, response *http.Response, text []byte) *StatusError {
	e := &StatusError{Code: response.StatusCode, RequestID: q.line(response.Header.Get("X-Pulumi-Request-ID"))}
	message, code := readErrorBody(text)
	e.final = code == e.Code && (e.Code == http.StatusConflict || e.Code == http.StatusGone)
	e.Message = q.line(message)
	var body ErrorBody
	if json.Unmarshal(text, &body) == nil && body.NextOffset != nil && *body.NextOffset >= 0 {
		e.nextOffset = body.NextOffset
	}
	if to, err := response.Location(); err == nil && e.Code/100 == 3 {
		e.Message = "" // the page only repeats the address
		e.Location = q.line((&url.URL{Scheme: to.Scheme, Host: to.Host, Path: to.Path}).String())
	}
	e.RetryAfter, _ = retryAfter(response.Header, time.Now())
	return e
}

// readErrorBody returns the message and the code in the body of an error, in the form of
// [ErrorBody] or in that of RFC 6749, section 5.2. Code is 0 except in the first form. If
// the body has neither form, its text is the message.
func readErrorBody(text []byte) (message string, code int) {
	var body map[string]any
	if json.Unmarshal(text, &body) != nil {
		return string(text), 0
	}
	if message, _ = body["message"].(string); message != "" {
		if number, _ := body["code"].(float64); number == float64(int(number)) {
			code = int(number)
		}
		return message, code
	}
	name, _ := body["error"].(string)
	description, _ := body["error_description"].(string)
	switch {
	case name != "" && description != "":
		return name + ": " + description, 0
	case name+description != "":
		return name + description, 0
	}
	return string(text), 0
}

// line returns a text of the service as one short line, without the secrets of the call.
// It removes the secrets from the printable text, because invalid bytes can split a secret,
// and before it is shortened, which can cut a secret.
func (q call) line(text string) string {
	text = printable.OneLine(strings.ToValidUTF8(text, ""))
	for _, hidden := range []secret.String{q.token, q.masked} {
		if hidden.Empty() {
			continue
		}
		text = strings.ReplaceAll(text, hidden.Reveal(), secret.Mark)
		text = strings.ReplaceAll(text, url.QueryEscape(hidden.Reveal()), secret.Mark)
		if parts := strings.Split(hidden.Reveal(), "."); len(parts) == 3 && len(parts[2]) >= minSignature {
			text = strings.ReplaceAll(text, parts[2], secret.Mark) // the signature alone
		}
	}
	return printable.Shorten(text, maxMessage)
}

// minSignature is the length of the shortest signature of a JWT in base64url: 32 bytes.
const minSignature = 43

// oneLine returns a text of a service as one short, printable line.
func oneLine(text string) string { return printable.Shorten(printable.OneLine(text), maxMessage) }
