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
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-retryablehttp"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/secret"
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
}

// Error says the status, the service's words and the request's id.
func (e *StatusError) Error() string {
	text := fmt.Sprintf("the service answers %d", e.Code)
	if name := http.StatusText(e.Code); name != "" {
		text += " " + name
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

// callerOptions is what a caller is made of.
type callerOptions struct {
	service   string // base URL
	userAgent string
	transport http.RoundTripper // nil is a pool of connections of its own
	timeout   time.Duration     // of one attempt, its answer included; 0 is none
	retry     retry
	log       *slog.Logger
}

// caller sends calls to one service and repeats what failed for the moment. Its
// methods are safe for concurrent use.
type caller struct {
	service   string
	userAgent string
	client    *retryablehttp.Client
	log       *slog.Logger

	mu     sync.Mutex
	warned string // the service's last warning
}

func newCaller(o callerOptions) *caller {
	if o.transport == nil {
		o.transport = http.DefaultTransport.(*http.Transport).Clone()
	}
	return &caller{
		service:   strings.TrimRight(o.service, "/"),
		userAgent: o.userAgent,
		log:       o.log,
		client: &retryablehttp.Client{
			HTTPClient:   &http.Client{Transport: o.transport, Timeout: o.timeout, CheckRedirect: followOnlyReads},
			RetryMax:     o.retry.count,
			RetryWaitMin: o.retry.wait,
			RetryWaitMax: o.retry.maxWait,
			Backoff:      pause,
			CheckRetry:   transient,
			ErrorHandler: retryablehttp.PassthroughErrorHandler,
		},
	}
}

// followOnlyReads keeps net/http from turning a redirected POST into a GET whose
// success would mean nothing.
func followOnlyReads(_ *http.Request, via []*http.Request) error {
	if via[0].Method != http.MethodGet {
		return http.ErrUseLastResponse
	}
	if len(via) >= 10 {
		return errors.New("stopped after 10 redirects")
	}
	return nil
}

// call is one question to a service.
type call struct {
	method      string
	path        string        // escaped; starts with /api/
	token       secret.String // empty for a call without one
	body        []byte        // nil for a call without one; must not change any more, even after the call
	contentType string        // of the body; empty sends none
	limit       int64         // of the answer, in bytes; 0 is maxAnswer
}

// do makes a call and returns the answer's status, header and body. An answer
// other than 2xx is a *[StatusError]. A 2xx that arrived in part is repeated as a
// failed attempt is.
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
	request.SetResponseHandler(func(response *http.Response) error {
		text, err = readAnswer(response, q.limit)
		return err
	})
	response, err := c.client.Do(request)
	switch {
	case err != nil && response == nil:
		return 0, nil, nil, err
	case err != nil:
		_ = response.Body.Close()
		return 0, nil, nil, err
	case transientStatus(response.StatusCode): // the last attempt, which nobody has read yet
		text, _ = readAnswer(response, maxAnswer)
	}
	c.hear(response.Header)
	if response.StatusCode/100 != 2 {
		return response.StatusCode, response.Header, nil, refused(response, text)
	}
	return response.StatusCode, response.Header, text, nil
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
	}
	e.Message = words(text)
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
