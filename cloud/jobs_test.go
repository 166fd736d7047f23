package cloud

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// script is a transport that returns one answer after the other, and repeats the last
// one. It records the requests.
type script struct {
	answers  []answer
	requests []*http.Request
	bodies   []string
	at       []time.Time
}

type answer struct {
	status int
	header http.Header
	text   string
	err    error
	broken bool // the body ends with an error
	hangs  bool // there is no response before the end of the request's context
}

func (s *script) RoundTrip(r *http.Request) (*http.Response, error) {
	body := ""
	if r.Body != nil {
		text, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		body = string(text)
	}
	s.requests, s.bodies, s.at = append(s.requests, r), append(s.bodies, body), append(s.at, time.Now())
	a := s.answers[min(len(s.requests), len(s.answers))-1]
	if a.hangs {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	if a.err != nil {
		return nil, a.err
	}
	if a.header == nil {
		a.header = http.Header{}
	}
	var text io.Reader = strings.NewReader(a.text)
	if a.broken {
		text = io.MultiReader(text, failing{})
	}
	return &http.Response{StatusCode: a.status, Header: a.header, Body: io.NopCloser(text), Request: r}, nil
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// jobs returns a client with the script as its transport.
func (s *script) jobs(log io.Writer) *Jobs {
	return NewJobs(JobsOptions{
		Service: "https://service.example/", JobID: "a/b c", Token: secret.New("job-token"),
		UserAgent: "tests/1 (linux/amd64)", Transport: s,
		RequestTimeout: 30 * time.Second, RetryCount: 3, RetryWait: time.Second, RetryMaxWait: 10 * time.Second,
		Log: slog.New(slog.NewTextHandler(log, nil)),
	})
}

func newScript(answers ...answer) *script { return &script{answers: answers} }

func TestJobsCalls(t *testing.T) {
	t.Run("every call has the documented form", func(t *testing.T) {
		s := newScript(answer{status: 200, text: `{"steps":[{"name":"Setup"}]}`})
		j := s.jobs(io.Discard)
		at := time.Date(2026, 1, 2, 3, 4, 5, 60, time.UTC)
		if d, err := j.Definition(t.Context()); err != nil || string(d.Raw) != s.answers[0].text {
			t.Errorf("the definition is %s (%v)", d.Raw, err)
		}
		for _, err := range []error{
			j.Status(t.Context(), 2, runtime.Succeeded),
			j.Logs(t.Context(), 3, LogBatch{Offset: 7, Lines: []LogLine{{Time: at, Text: "a\r\n"}}}),
			j.Heartbeat(t.Context()),
		} {
			if err != nil {
				t.Error(err)
			}
		}
		for i, want := range []struct{ call, body string }{
			{"GET /api/workflow/jobs/a%2Fb%20c", ""},
			{"PATCH /api/workflow/jobs/a%2Fb%20c/2/status", `{"status":"succeeded"}`},
			{"POST /api/workflow/jobs/a%2Fb%20c/3/logs",
				`{"offset":7,"lines":[{"t":"2026-01-02T03:04:05.00000006Z","l":"a\r\n"}]}`},
			{"POST /api/workflow/jobs/a%2Fb%20c/heartbeat", `{}`},
		} {
			r := s.requests[i]
			if got := r.Method + " " + r.URL.EscapedPath(); got != want.call || s.bodies[i] != want.body {
				t.Errorf("call %d is %s with %s, want %s with %s", i, got, s.bodies[i], want.call, want.body)
			}
			contentType := ""
			if want.body != "" {
				contentType = "application/json"
			}
			for name, value := range map[string]string{
				"Authorization": "token job-token", "Accept": "application/vnd.pulumi+8",
				"User-Agent": "tests/1 (linux/amd64)", "Content-Type": contentType,
			} {
				if got := r.Header.Get(name); got != value {
					t.Errorf("call %d has %s %q, want %q", i, name, got, value)
				}
			}
		}
	})

	type meaning struct{ gone, unauthorized bool }
	for status, want := range map[int]meaning{
		401: {unauthorized: true}, 404: {gone: true}, 409: {gone: true}, 410: {gone: true}, 412: {gone: true},
		400: {}, 403: {}, 413: {}, 422: {}, 501: {}, 302: {},
	} {
		inBubble(t, fmt.Sprintf("status %d has the documented meaning", status), func(t *testing.T) {
			s := newScript(answer{status: status, header: http.Header{"X-Pulumi-Request-Id": {"r-1"}},
				text: `{"code":7,"message":"because\nof this"}`})
			err := s.jobs(io.Discard).Heartbeat(t.Context())
			var answer *StatusError
			if !errors.As(err, &answer) || answer.Code != status || answer.Message != "because of this" ||
				answer.RequestID != "r-1" {
				t.Errorf("got %v", err)
			}
			got := (meaning{errors.Is(err, runtime.ErrGone), errors.Is(err, runtime.ErrUnauthorized)})
			if got != want {
				t.Errorf("it means %+v, want %+v", got, want)
			}
			if len(s.requests) != 4 {
				t.Errorf("%d requests, want 4", len(s.requests))
			}
		})
	}
}

func TestJobsRetries(t *testing.T) {
	t.Run("temporary failures are retried", func(t *testing.T) {
		for name, a := range map[string]answer{
			"408": {status: 408}, "425": {status: 425}, "429": {status: 429}, "500": {status: 500},
			"503":   {status: 503},
			"reset": {err: errors.New("connection reset")}, "broken": {status: 200, text: "{", broken: true},
			"hangs": {hangs: true},
		} {
			inBubble(t, name, func(t *testing.T) {
				s := newScript(a, a, answer{status: 200})
				if err := s.jobs(io.Discard).Status(t.Context(), 1, runtime.Running); err != nil {
					t.Error(err)
				}
				if len(s.requests) != 3 || s.bodies[2] != `{"status":"running"}` {
					t.Fatalf("sent %q", s.bodies)
				}
				for i, wait := range []time.Duration{time.Second, 2 * time.Second} {
					gap := s.at[i+1].Sub(s.at[i])
					if a.hangs {
						gap -= 30 * time.Second
					}
					if gap < wait*8/10 || gap > wait*12/10 {
						t.Errorf("retry %d comes after %s, want %s", i+1, gap, wait)
					}
				}
			})
		}
	})

	inBubble(t, "the last response is the error", func(t *testing.T) {
		s := newScript(answer{status: 503, text: "<html>\n out of order </html>"})
		err := s.jobs(io.Discard).Heartbeat(t.Context())
		var status *StatusError
		if !errors.As(err, &status) || status.Code != 503 || status.Message != "<html> out of order </html>" ||
			len(s.requests) != 4 {
			t.Errorf("after %d calls: %v", len(s.requests), err)
		}
	})

	for requested, want := range map[string]time.Duration{
		"4": 4 * time.Second, "0": time.Second, "3600": 10 * time.Second,
		"99999999999999999999999":       10 * time.Second,
		"Sat, 01 Jan 2000 00:00:07 GMT": 7 * time.Second, // virtual time begins at that midnight
		"Fri, 31 Dec 1999 00:00:00 GMT": time.Second, "-1": time.Second, "soon": time.Second, "1.5": time.Second,
	} {
		inBubble(t, fmt.Sprintf("a Retry-After of %q is obeyed up to the maximum wait", requested), func(t *testing.T) {
			s := newScript(answer{status: 500, header: http.Header{"Retry-After": {requested}}},
				answer{status: 200})
			noError(t, s.jobs(io.Discard).Heartbeat(t.Context()))
			if gap := s.at[1].Sub(s.at[0]); gap < want*8/10 || gap > want*12/10 {
				t.Errorf("the wait is %s, want %s", gap, want)
			}
		})
	}

	t.Run("no wait exceeds the maximum, and no Retry-After shortens a wait", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			least := time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "least"))
			most := time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "most"))
			var response *http.Response
			if rapid.Bool().Draw(t, "answered") {
				response = &http.Response{Header: http.Header{"Retry-After": {rapid.OneOf(rapid.Just(""),
					rapid.String(),
					rapid.StringMatching(`[0-9]{1,30}`)).Draw(t, "header")}}}
			}
			attempt := rapid.OneOf(rapid.IntRange(0, 40), rapid.IntRange(0, 1<<40)).Draw(t, "attempt")
			shortest := min(least, most)
			for range min(attempt, 64) {
				shortest = min(2*shortest, most)
			}
			shortest -= shortest / 5 // the jitter
			if wait := retryDelay(least, most, attempt, response); wait < shortest || wait > most {
				t.Fatalf("the wait is %s, want %s to %s", wait, shortest, most)
			}
		})
	})

	inBubble(t, "the end of the context ends the call", func(t *testing.T) {
		for _, a := range []answer{{hangs: true}, {status: 503, header: http.Header{"Retry-After": {"9"}}}} {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			begin := time.Now()
			err := newScript(a).jobs(io.Discard).Heartbeat(ctx)
			cancel()
			if !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) != 5*time.Second {
				t.Errorf("after %s: %v", time.Since(begin), err)
			}
		}
	})
}

func TestJobsContentType(t *testing.T) {
	// forms returns + for each request with a Content-Type, and - for each without one.
	forms := func(s *script) string {
		kinds := ""
		for _, r := range s.requests {
			if r.Header.Get("Content-Type") == "" {
				kinds += "-"
			} else {
				kinds += "+"
			}
		}
		return kinds
	}
	t.Run("after a 415 the header is omitted", func(t *testing.T) {
		s := newScript(answer{status: 415}, answer{status: 200})
		j := s.jobs(io.Discard)
		for range 3 {
			if err := j.Heartbeat(t.Context()); err != nil {
				t.Error(err)
			}
		}
		if got := forms(s); got != "+---" {
			t.Errorf("the calls were %s, want one with the header and then none", got)
		}
	})
	inBubble(t, "a service that accepts neither form gets the usual retries", func(t *testing.T) {
		s := newScript(answer{status: 415})
		j := s.jobs(io.Discard)
		for range 2 {
			var status *StatusError
			if err := j.Heartbeat(t.Context()); !errors.As(err, &status) || status.Code != 415 {
				t.Error(err)
			}
		}
		if got := forms(s); got != "+----+----" { // the other form is retried like any refusal
			t.Errorf("the calls were %s, want each heartbeat once with the header and then four times without", got)
		}
	})
}

func TestJobsRedirect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		location := "https://user@elsewhere.example/login?to=x"
		s := newScript(answer{status: 302, header: http.Header{"Location": {location}}})
		err := s.jobs(io.Discard).Status(t.Context(), 1, runtime.Succeeded)
		var status *StatusError
		if !errors.As(err, &status) || status.Code != 302 || status.Location != "https://elsewhere.example/login" {
			t.Errorf("after %d calls: %v", len(s.requests), err)
		}
		for _, r := range s.requests {
			if r.URL.Host != "service.example" || r.Method != http.MethodPatch {
				t.Errorf("the redirect was followed with %s %s", r.Method, r.URL)
			}
		}
	})
}

func TestLogWarning(t *testing.T) {
	var log strings.Builder
	s := newScript(answer{status: 200, header: http.Header{"X-Pulumi-Warning": {"this agent is old"}}})
	j := s.jobs(&log)
	for range 3 {
		if err := j.Heartbeat(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if n := strings.Count(log.String(), "this agent is old"); n != 1 {
		t.Errorf("the warning is logged %d times:\n%s", n, log.String())
	}
}

func TestJobsErrors(t *testing.T) {
	for _, a := range []answer{{status: 400, text: "no"}, {err: errors.New("no route")},
		{status: 200, text: "no JSON"}} {
		synctest.Test(t, func(t *testing.T) {
			_, err := newScript(a).jobs(io.Discard).Definition(t.Context())
			if err == nil || strings.Contains(fmt.Sprintf("%v %+v %#v", err, err, err), "job-token") {
				t.Errorf("the error is %v", err)
			}
		})
	}
}
