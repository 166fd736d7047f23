package cloud

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// issuance is a service in memory that exchanges the content of a token file for the pool
// tokens pool-1, pool-2 and so on. It accepts every token unless refuses is set.
type issuance struct {
	client *Client
	file   string
	log    *strings.Builder

	mu       sync.Mutex
	answer   func(n int) string // body of the n-th exchange
	status   int                // of exchanges; 0 means 200
	refused  string             // the OIDC token whose exchange is answered with 403
	refuses  bool               // answer all calls except exchanges with 401
	wait     func()             // called during an exchange
	subjects []string           // of all exchanges
	forms    []url.Values       // of all exchanges
	at       []time.Time        // of all exchanges
	calls    []string           // exchanges and polls, with their tokens
}

func newIssuance(t *testing.T, edit func(*runtime.Tuning)) *issuance {
	t.Helper()
	i := &issuance{file: filepath.Join(t.TempDir(), "token"), log: &strings.Builder{}}
	i.answer = func(n int) string { return fmt.Sprintf(`{"access_token":"pool-%d","expires_in":3600}`, n) }
	i.write(t, "subject")
	tuning := *documented()
	tuning.OIDCTokenFile, tuning.RequestTimeout = i.file, 30*time.Second
	tuning.Kinds = []runtime.Kind{runtime.Deployment}
	if edit != nil {
		edit(&tuning)
	}
	i.client = New(Options{
		Identity: runtime.Identity{Service: "https://service.example", Organization: "acme", PoolID: "p"},
		Tuning:   tuning, UserAgent: "test/1", Log: slog.New(slog.NewTextHandler(i.log, nil)),
	})
	i.client.connections.calls.http.Transport = i
	i.client.connections.polls.http.Transport = i
	return i
}

func (i *issuance) write(t *testing.T, subject string) {
	t.Helper()
	noError(t, os.WriteFile(i.file, []byte(subject+"\n"), 0o600))
}

// reload writes a token to the file, and calls Tune as a reload does.
func (i *issuance) reload(t *testing.T, subject string) {
	t.Helper()
	i.write(t, subject)
	tuning := i.client.settings()
	tuning.OIDCSum = "sum of " + subject
	i.client.Tune(tuning)
}

// claim polls for a job.
func (i *issuance) claim(t *testing.T) {
	t.Helper()
	if _, err := i.client.Claim(t.Context()); err != nil {
		t.Error(err)
	}
}

// wantCalls checks all exchanges and polls.
func (i *issuance) wantCalls(t *testing.T, want ...string) {
	t.Helper()
	if !slices.Equal(i.calls, want) {
		t.Errorf("the service received %q, want %q", i.calls, want)
	}
}

// RoundTrip implements [http.RoundTripper].
func (i *issuance) RoundTrip(r *http.Request) (*http.Response, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	answer := func(code int, text string) (*http.Response, error) {
		return &http.Response{StatusCode: code, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(text)),
			Request: r}, nil
	}
	if r.URL.Path != exchangePath {
		i.calls = append(i.calls, "poll with "+r.Header.Get("Authorization"))
		if i.refuses {
			return answer(http.StatusUnauthorized, "")
		}
		return answer(http.StatusNoContent, "")
	}
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	form, err := url.ParseQuery(string(text))
	if err != nil {
		return nil, err
	}
	subject := form.Get("subject_token")
	i.subjects, i.at, i.forms = append(i.subjects, subject), append(i.at, time.Now()), append(i.forms, form)
	i.calls = append(i.calls, "exchange of "+subject)
	if wait := i.wait; wait != nil {
		i.mu.Unlock()
		wait()
		i.mu.Lock()
	}
	if subject == i.refused {
		return answer(http.StatusForbidden, "")
	}
	if i.status != 0 {
		return answer(i.status, i.answer(len(i.subjects)))
	}
	return answer(http.StatusOK, i.answer(len(i.subjects)))
}

// ask returns the current token, which every call requests before it is sent.
func (i *issuance) ask(t *testing.T) string {
	t.Helper()
	token, err := i.client.credentials.current(t.Context(), secret.String{})
	noError(t, err)
	return token.Reveal()
}

// call makes a call that the service answers with 401 while refuses is set.
func (i *issuance) call(ctx context.Context) error {
	return i.client.authorized(ctx, func(token secret.String) error {
		_, _, _, err := i.client.ask(ctx, i.client.current().calls, call{method: "GET", path: pollPath, token: token})
		return err
	})
}

func TestCredentialsCurrent(t *testing.T) {
	inBubble(t, "a token is renewed after 80 % of its lifetime, with the content of the file then", func(t *testing.T) {
		i := newIssuance(t, nil)
		start := time.Now()
		for range 3 * 60 {
			i.write(t, "subject of minute "+time.Since(start).String())
			i.ask(t)
			time.Sleep(time.Minute)
		}
		want := []string{"0s", "48m0s", "1h36m0s", "2h24m0s"}
		if len(i.subjects) != len(want) {
			t.Fatalf("%d exchanges in three hours, want %d", len(i.subjects), len(want))
		}
		for n, after := range want {
			if got := i.subjects[n]; got != "subject of minute "+after || i.at[n].Sub(start).String() != after {
				t.Errorf("exchange %d after %s has %q, want the token of %s", n, i.at[n].Sub(start), got, after)
			}
		}
	})

	inBubble(t, "a failed renewal is retried each minute; the old token is used until it expires", func(t *testing.T) {
		i := newIssuance(t, nil)
		start := time.Now()
		i.ask(t)
		i.status = http.StatusServiceUnavailable
		for time.Since(start) < time.Hour {
			if got := i.ask(t); got != "pool-1" {
				t.Fatalf("after %s the token is %s, want pool-1", time.Since(start), got)
			}
			time.Sleep(10 * time.Second)
		}
		if got := len(i.subjects); got != 1+12 {
			t.Errorf("%d exchanges, want 13: the first and 12 failed renewals", got)
		}
		_, err := i.client.credentials.current(t.Context(), secret.String{})
		wantError(t, err, "exchange the OIDC token") // the token has expired
		i.status = 0
		i.ask(t)
		if text := i.log.String(); strings.Count(text, "token renewal failed") != 1 ||
			!strings.Contains(text, "token renewal resumed") {
			t.Errorf("the log is\n%s\nwant one failure and the recovery", text)
		}
	})

	t.Run("a machine that was suspended renews the token when the wall clock has passed its time", func(t *testing.T) {
		i := newIssuance(t, nil)
		i.ask(t)
		c := i.client.credentials
		c.renewWall = time.Now().Round(0).Add(-time.Second) // the monotonic clock stood still
		if got := i.ask(t); got != "pool-2" {
			t.Errorf("the token is %s, want pool-2", got)
		}
		c.renewWall = time.Now().Round(0).Add(-time.Second)
		i.status = http.StatusServiceUnavailable
		if got := i.ask(t); got != "pool-2" {
			t.Errorf("without the service the token is %s, want the old token pool-2, which may be valid", got)
		}
	})

	inBubble(t, "a wall clock that is set back does not delay the renewal", func(t *testing.T) {
		i := newIssuance(t, nil)
		i.ask(t)
		i.client.credentials.renewWall = time.Now().Round(0).Add(48 * time.Hour)
		time.Sleep(49 * time.Minute)
		if got := i.ask(t); got != "pool-2" {
			t.Errorf("the token is %s, want pool-2", got)
		}
	})

	inBubble(t, "the lifetime begins before a slow response", func(t *testing.T) {
		i := newIssuance(t, nil)
		i.answer = func(n int) string { return fmt.Sprintf(`{"access_token":"pool-%d","expires_in":60}`, n) }
		i.wait = func() { time.Sleep(25 * time.Second) }
		i.ask(t)
		time.Sleep(24 * time.Second) // 49 s after the request
		if i.ask(t); len(i.subjects) != 2 {
			t.Errorf("%d exchanges, want 2", len(i.subjects))
		}
	})

	inBubble(t, "calls at the same time share one exchange", func(t *testing.T) {
		i := newIssuance(t, nil)
		i.wait = func() { time.Sleep(20 * time.Second) }
		var calls sync.WaitGroup
		for range 20 {
			calls.Go(func() { i.ask(t) })
		}
		calls.Wait()
		if len(i.subjects) != 1 {
			t.Errorf("%d exchanges, want 1", len(i.subjects))
		}
	})

	inBubble(t, "calls at the same time share a failed exchange; no call waits for a second one", func(t *testing.T) {
		i := newIssuance(t, nil)
		i.status, i.wait = http.StatusForbidden, func() { time.Sleep(20 * time.Second) }
		start := time.Now()
		var calls sync.WaitGroup
		for range 20 {
			calls.Go(func() {
				_, err := i.client.credentials.current(t.Context(), secret.String{})
				if !errors.Is(err, runtime.ErrUnauthorized) {
					t.Errorf("the error is %v, want ErrUnauthorized", err)
				}
			})
		}
		calls.Wait()
		if took := time.Since(start); took != 20*time.Second || len(i.subjects) != 1 {
			t.Errorf("%d exchanges in %s, want 1 in 20s", len(i.subjects), took)
		}
	})

	inBubble(t, "a call that is cancelled during its exchange does not fail the other calls", func(t *testing.T) {
		i := newIssuance(t, nil)
		ctx, cancel := context.WithCancel(t.Context())
		i.wait = func() { time.Sleep(time.Second) }
		var calls sync.WaitGroup
		calls.Go(func() { _, _ = i.client.credentials.current(ctx, secret.String{}) })
		synctest.Wait()
		calls.Go(func() {
			if got := i.ask(t); got != "pool-2" {
				t.Errorf("the token is %s, want pool-2", got)
			}
		})
		synctest.Wait()
		cancel()
		calls.Wait()
	})
}

func TestCredentials(t *testing.T) {
	const exchange, poll = "exchange of ", "poll with token pool-"
	t.Run("a changed OIDC token is exchanged at the next call", func(t *testing.T) {
		i := newIssuance(t, nil)
		i.reload(t, "one")
		i.claim(t)
		i.claim(t)
		i.reload(t, "two")
		i.claim(t)
		i.reload(t, "two") // does not change the token
		i.claim(t)
		i.reload(t, "one")
		i.claim(t)
		i.wantCalls(t, exchange+"one", poll+"1", poll+"1", exchange+"two", poll+"2", poll+"2", exchange+"one", poll+"3")
	})

	t.Run("after the refusal of a new OIDC token, the old pool token stays in use", func(t *testing.T) {
		i := newIssuance(t, nil)
		i.reload(t, "one")
		i.claim(t)
		i.refused = "two"
		i.reload(t, "two")
		i.claim(t)
		i.claim(t) // does not try the exchange again
		if text := i.log.String(); strings.Count(text, "token renewal failed") != 1 || strings.Contains(text, "pool-") {
			t.Errorf("the log is\n%s", text)
		}
		i.reload(t, "three") // is exchanged without waiting for the retry delay
		i.claim(t)
		i.wantCalls(t, exchange+"one", poll+"1", exchange+"two", poll+"1", poll+"1", exchange+"three", poll+"3")
		if text := i.log.String(); !strings.Contains(text, "token renewal resumed") {
			t.Errorf("the log is\n%s", text)
		}
	})

	t.Run("an OIDC token that changes during an exchange is exchanged too", func(t *testing.T) {
		for name, c := range map[string]struct{ refused, first string }{
			"first token accepted": {"", poll + "2"},
			"first token refused":  {"old", poll + "1"},
		} {
			t.Run(name, func(t *testing.T) {
				i := newIssuance(t, nil)
				i.reload(t, "one")
				i.claim(t)
				i.reload(t, "old")
				i.refused, i.wait = c.refused, func() {
					i.wait = nil
					i.reload(t, "new")
				}
				i.claim(t)
				i.claim(t)
				i.wantCalls(t, exchange+"one", poll+"1", exchange+"old", c.first, exchange+"new", poll+"3")
			})
		}
	})

	t.Run("Tune does not wait for an exchange", func(t *testing.T) {
		release, asked := make(chan struct{}), make(chan struct{})
		s := newScene(t, withOIDC(t), func(w http.ResponseWriter, _ *http.Request) {
			close(asked)
			<-release
			w.WriteHeader(http.StatusForbidden)
		})
		done := make(chan struct{})
		go func() { defer close(done); _, _ = s.client.Claim(t.Context()) }()
		<-asked
		tuned := make(chan struct{})
		go func() { defer close(tuned); s.client.Tune(s.client.settings()) }()
		select {
		case <-tuned:
		case <-time.After(5 * time.Second):
			t.Error("Tune waits for the exchange")
		}
		close(release)
		<-done
		<-tuned
	})
}

func TestAuthorized(t *testing.T) {
	t.Run("after a 401 there are one exchange and one more call, whose 401 is an error", func(t *testing.T) {
		i := newIssuance(t, nil)
		i.ask(t)
		i.refuses = true
		for round := range 2 {
			if err := i.call(t.Context()); !errors.Is(err, runtime.ErrUnauthorized) {
				t.Errorf("round %d: the error is %v", round, err)
			}
		}
		i.refuses = false
		if err := i.call(t.Context()); err != nil {
			t.Error(err)
		}
		const exchange, poll = "exchange of subject", "poll with token pool-"
		i.wantCalls(t, exchange, poll+"1", exchange, poll+"2", poll+"2", exchange, poll+"3", poll+"3")
	})

	t.Run("the error of a failed exchange replaces a 401", func(t *testing.T) {
		i := newIssuance(t, nil)
		i.ask(t)
		i.refuses, i.status = true, http.StatusForbidden
		i.answer = func(int) string { return `{"error":"access_denied","error_description":"no policy"}` }
		wantError(t, i.call(t.Context()), "access_denied: no policy: check organization_name")
	})

	t.Run("a static token is not exchanged", func(t *testing.T) {
		i := newIssuance(t, func(tuning *runtime.Tuning) {
			tuning.OIDCTokenFile, tuning.Token = "", secret.New("static")
		})
		i.refuses = true
		if err := i.call(t.Context()); !errors.Is(err, runtime.ErrUnauthorized) || len(i.subjects) != 0 {
			t.Errorf("%d exchanges: %v", len(i.subjects), err)
		}
	})
}

func TestExchangeExpiration(t *testing.T) {
	for requested, want := range map[time.Duration]string{0: "", time.Hour: "3600", 90 * time.Minute: "5400",
		1500 * time.Millisecond: "1"} {
		i := newIssuance(t, func(tuning *runtime.Tuning) { tuning.TokenExpiration = requested })
		i.ask(t)
		if got := i.forms[0].Get("expiration"); got != want || i.forms[0].Has("expiration") != (want != "") {
			t.Errorf("token_expiration %s requests %q, want %q", requested, got, want)
		}
	}
}

func TestReadExchanged(t *testing.T) {
	t.Run("each form of expires_in gives a lifetime", func(t *testing.T) {
		for text, want := range map[string]time.Duration{
			`"expires_in":3600`:                 time.Hour,
			`"expires_in":3600.5`:               time.Hour + 500*time.Millisecond,
			`"expires_in":1e3`:                  1000 * time.Second,
			`"expires_in":"3600"`:               time.Hour,
			`"expires_in":" 60 "`:               time.Minute,
			`"expires_in":"1h30m"`:              90 * time.Minute,
			`"expires_in":null`:                 2 * time.Hour,
			`"expires_in":0`:                    2 * time.Hour,
			`"expires_in":-5`:                   2 * time.Hour,
			`"expires_in":"NaN"`:                2 * time.Hour,
			`"expires_in":"soon"`:               2 * time.Hour,
			`"expires_in":{}`:                   2 * time.Hour,
			`"expires_in":1e300`:                maxTokenLifetime,
			`"expires_in":99999999999999999999`: maxTokenLifetime,
			`"x":1`:                             2 * time.Hour,
		} {
			token, got, err := readExchanged([]byte(`{"access_token":"t",`+text+`}`), 0)
			if err != nil || token.Reveal() != "t" || got != want {
				t.Errorf("%s is read as %s (%v), want %s", text, got, err, want)
			}
		}
	})

	t.Run("without expires_in, the lifetime is the requested one, but at most two hours", func(t *testing.T) {
		for requested, want := range map[time.Duration]time.Duration{
			0: 2 * time.Hour, 10 * time.Minute: 10 * time.Minute, 24 * time.Hour: 2 * time.Hour,
		} {
			if _, got, err := readExchanged([]byte(`{"access_token":"t"}`), requested); err != nil || got != want {
				t.Errorf("%s: %s (%v), want %s", requested, got, err, want)
			}
		}
	})

	t.Run("a response without a usable token is an error", func(t *testing.T) {
		for _, text := range []string{``, `null`, `[]`, `{}`, `{"access_token":""}`, `{"access_token":5}`,
			`{"access_token":"a\nb"}`, `{"access_token":"a b"}`, `{"access_token":"ä"}`, `<html>`} {
			if token, _, err := readExchanged([]byte(text), 0); err == nil || !token.Empty() {
				t.Errorf("%s is accepted", text)
			}
		}
	})
}

// repeats are the responses of a service that repeats a secret in an error.
var repeats = []string{
	`{"code":400,"message":"cannot verify %s"}`,
	`{"error":"invalid_grant","error_description":"cannot verify %s"}`,
	`{"error":"%s"}`,
	`{"error":{"detail":"%s"}}`,
	`<html>%s</html>`,
	`{"message":"` + strings.Repeat("x", maxMessage-60) + ` %s"}`, // the error cuts this message within the secret
}

func TestNewStatusError(t *testing.T) {
	t.Run("no message shows a token that the service repeats", func(t *testing.T) {
		signature := strings.Repeat("s1gn4tur3-", 5)
		subject := "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJyZXBvOmFjbWUvaW5mcmEifQ." + signature
		const pool = "pul-0123456789abcdef0123456789abcdef"
		for _, text := range repeats {
			for _, repeated := range []string{subject, signature} {
				i := newIssuance(t, nil)
				i.write(t, subject)
				i.status, i.answer = http.StatusBadRequest, func(int) string { return fmt.Sprintf(text, repeated) }
				_, err := i.client.credentials.current(t.Context(), secret.String{})
				if err == nil || strings.Contains(err.Error(), signature[:20]) {
					t.Errorf("after the response %.60s the error is %v, want one without the token", text, err)
				}
			}

			// The same with a pool token.
			s := newScene(t, func(o *Options) { o.Tuning.Token = secret.New(pool) },
				func(w http.ResponseWriter, _ *http.Request) {
					w.Header().Set("X-Pulumi-Warning", "do not use "+pool)
					w.Header().Set("X-Pulumi-Request-ID", pool)
					w.WriteHeader(http.StatusForbidden)
					fmt.Fprintf(w, text, pool)
				})
			_, err := s.client.Claim(t.Context())
			if shown := fmt.Sprint(err, s.log); err == nil || strings.Contains(shown, pool[:20]) {
				t.Errorf("after the response %.60s the error and the log are %s, want no token", text, shown)
			}
		}
	})

	t.Run("the error has the message of each form of a body", func(t *testing.T) {
		for text, want := range map[string]string{
			`{"code":400,"message":"Bad Request: no"}`:                       "no",
			`{"code":"400","message":"no"}`:                                  "no",
			`{"error":"invalid_grant","error_description":"it has expired"}`: "invalid_grant: it has expired",
			`{"error":"invalid_grant"}`:                                      "invalid_grant",
			`{"error_description":"it has expired"}`:                         "it has expired",
			`{"message":null,"error":"x","error_description":5}`:             "x",
			`{"message":"m","error":"x"}`:                                    "m",
			`{"error":{"message":"deep"}}`:                                   `{"error":{"message":"deep"}}`,
			`plain text`:                                                     "plain text",
			``:                                                               "",
		} {
			recorder := httptest.NewRecorder()
			recorder.WriteHeader(http.StatusBadRequest)
			got := newStatusError(call{}, recorder.Result(), []byte(text)).Error()
			if want != "" {
				want = ": " + want
			}
			if got != "service answered 400 Bad Request"+want {
				t.Errorf("%s is shown as %q", text, got)
			}
		}
	})
}
