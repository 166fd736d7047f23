package cloud

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// scene is a client and its fake service. A handler of the test answers the client's calls.
type scene struct {
	client *Client
	url    string
	log    *strings.Builder

	mu    sync.Mutex
	calls []string // method, path and token
}

func newScene(t *testing.T, edit func(*Options), handler http.HandlerFunc) *scene {
	s := &scene{log: &strings.Builder{}}
	server := httptest.NewServer(s.record(handler))
	t.Cleanup(server.Close)
	s.at(server.URL, edit)
	return s
}

// record records each call before the handler answers it.
func (s *scene) record(handler http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.calls = append(s.calls, r.Method+" "+r.URL.Path+" "+r.Header.Get("Authorization"))
		s.mu.Unlock()
		handler(w, r)
	})
}

// at makes the client for the service at a URL.
func (s *scene) at(url string, edit func(*Options)) {
	s.url = url
	tuning := documented()
	tuning.Token, tuning.RequestTimeout, tuning.Kinds = secret.New("pul-pool"), 10*time.Second,
		[]runtime.Kind{runtime.Deployment}
	tuning.RetryWait, tuning.RetryMaxWait = time.Millisecond, time.Millisecond
	o := Options{Identity: runtime.Identity{Service: url}, Tuning: tuning, UserAgent: "test/1",
		Log: slog.New(slog.NewTextHandler(s.log, nil))}
	if edit != nil {
		edit(&o)
	}
	s.client = New(o)
}

func (s *scene) wantCalls(t *testing.T, want ...string) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if got := strings.Join(s.calls, "\n"); got != strings.Join(want, "\n") {
		t.Errorf("the service received\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
}

func TestPoll(t *testing.T) {
	t.Run("a claimed job has the data of the response", func(t *testing.T) {
		s := newScene(t, nil, func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Accept") != AcceptV8 || r.Header.Get("User-Agent") != "test/1" {
				t.Errorf("the poll has the headers %v", r.Header)
			}
			w.Header().Set("Retry-After", "7")
			fmt.Fprint(w, `{"jobID":"j","runID":"r","deploymentID":"d","jobToken":"job-secret","oidcToken":"",`+
				`"new":true}`)
		})
		claim, err := s.client.Claim(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		job := claim.Job
		if job.ID != "j" || job.WorkflowID != "d" || job.Token.Reveal() != "job-secret" || !job.OIDC.Empty() {
			t.Errorf("claimed %+v", job)
		}
		if wait := held(claim.Next); claim.Next.Reason != reasonRetryAfter || wait > 7*time.Second ||
			wait < 6*time.Second {
			t.Errorf("the next poll is delayed by %s (%s), want the 7 s of the Retry-After", wait,
				claim.Next.Reason)
		}
		s.wantCalls(t, "GET /api/deployments/poll token pul-pool")
	})

	t.Run("an empty queue is not an error", func(t *testing.T) {
		s := newScene(t, nil, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
		if claim, err := s.client.Claim(t.Context()); err != nil || claim.Job != nil {
			t.Errorf("claimed %v, %v", claim.Job, err)
		}
	})

	t.Run("no poll for a pool without deployments", func(t *testing.T) {
		s := newScene(t, func(o *Options) { o.Tuning.Kinds = []runtime.Kind{runtime.InsightsScan} },
			func(http.ResponseWriter, *http.Request) {})
		if claim, err := s.client.Claim(t.Context()); err != nil || claim.Job != nil {
			t.Errorf("claimed %v, %v", claim.Job, err)
		}
		s.wantCalls(t)
	})

	t.Run("after an incomplete or invalid response the poll is not retried", func(t *testing.T) {
		for name, answer := range map[string]http.HandlerFunc{
			"connection closed before the response": func(w http.ResponseWriter, _ *http.Request) {
				conn, _, err := http.NewResponseController(w).Hijack()
				if err == nil {
					_ = conn.Close()
				}
			},
			"connection closed within the response": func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Length", "1000")
				fmt.Fprint(w, `{"jobID":"j","jobToken":"job-secret"`)
			},
			"answer that is not JSON": func(w http.ResponseWriter, _ *http.Request) {
				fmt.Fprint(w,
					`<html>job-secret</html>`)
			},
			"answer without a job": func(w http.ResponseWriter, _ *http.Request) {
				fmt.Fprint(w,
					`{"runID":"job-secret"}`)
			},
		} {
			t.Run(name, func(t *testing.T) {
				s := newScene(t, nil, answer)
				claim, err := s.client.Claim(t.Context())
				switch {
				case err == nil || !strings.Contains(err.Error(), "a response was lost") ||
					strings.Contains(err.Error(), "job-secret"):
					t.Errorf("the error is %v", err)
				case claim.Next.Reason != "":
					t.Errorf("the next poll is %v, want no retry", claim.Next)
				}
				s.wantCalls(t, "GET /api/deployments/poll token pul-pool")
			})
		}
	})

	t.Run("a busy service is polled again later", func(t *testing.T) {
		s := newScene(t, nil, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "90")
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprint(w, `{"code":503,"message":"down for a while"}`)
		})
		claim, err := s.client.Claim(t.Context())
		if err == nil || held(claim.Next) < 80*time.Second || !strings.Contains(err.Error(), "down for a while") {
			t.Errorf("the error is %v with %v, want a delay of 90 s and the message of the service", err, claim.Next)
		}
		s.wantCalls(t, "GET /api/deployments/poll token pul-pool")
	})
}

func TestClaimWithoutDeployments(t *testing.T) {
	fragile := func(o *Options) { o.Tuning.RetryCount, o.Tuning.BreakerFailures = 0, 1 }
	s := newScene(t, fragile, func(w http.ResponseWriter,
		_ *http.Request) {
		w.WriteHeader(http.StatusInternalServerError)
	})
	deployments := s.client.settings()
	deployments.PollingInterval = time.Minute
	none := deployments
	none.Kinds = []runtime.Kind{runtime.InsightsScan}
	failed, err := s.client.Claim(t.Context())
	if err == nil || failed.Next.Reason != reasonBreaker {
		t.Fatalf("the claim returns %v, %v; want an open breaker", err, failed.Next)
	}
	s.client.Tune(none)
	claim, err := s.client.Claim(t.Context())
	if wait := left(claim.Next); err != nil || claim.Next.Reason != "" || wait < 50*time.Second || wait > time.Minute {
		t.Errorf("without deployments the claim returns %v, %v; want the polling interval", err, claim.Next)
	}
	if next := s.client.Tune(deployments); next != failed.Next {
		t.Errorf("with deployments again the next poll is %v, want that of the open breaker, %v", next, failed.Next)
	}
	if strings.Contains(s.log.String(), "polling resumed") {
		t.Errorf("the log reports that polling resumed, although there was no poll:\n%s", s.log)
	}
	s.wantCalls(t, "GET /api/deployments/poll token pul-pool")
}

func TestClassify(t *testing.T) {
	t.Run("the error for a service that is down names service_url", func(t *testing.T) {
		s := newScene(t, func(o *Options) { o.Identity.Service = "http://127.0.0.1:1" }, func(http.ResponseWriter,
			*http.Request) {
		})
		claim, err := s.client.Claim(t.Context())
		if err == nil || claim.Next.Reason == "" ||
			!strings.Contains(err.Error(), "cannot reach http://127.0.0.1:1: ") ||
			!strings.Contains(err.Error(), "service_url") {
			t.Errorf("the error is %v", err)
		}
	})

	t.Run("a rejected token does not open the breaker", func(t *testing.T) {
		s := newScene(t, nil, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) })
		for range 10 {
			claim, err := s.client.Claim(t.Context())
			if !errors.Is(err, runtime.ErrUnauthorized) || claim.Next.Reason != "" ||
				!strings.Contains(err.Error(), "service rejected the token (401): check that it belongs to this "+
					"service "+
					"and pool: token, token_file or PULUMI_AGENT_TOKEN") || strings.Contains(err.Error(), "pul-pool") {
				t.Fatalf("the error is %v", err)
			}
		}
	})
}

// issuer returns a service that exchanges OIDC tokens: the n-th exchange returns pool
// token n.
func issuer(t *testing.T, valid func(token string) bool) http.HandlerFunc {
	count := 0
	return func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/api/oauth/token" {
			if r.Header.Get("Authorization") != "" || r.FormValue("audience") != "urn:pulumi:org:acme" ||
				r.FormValue("scope") != "runner:pool-1" ||
				r.FormValue("subject_token") != "subject" || r.FormValue("expiration") != "7200" {
				t.Errorf("the form of the exchange is %v", r.Form)
			}
			count++
			fmt.Fprintf(w, `{"access_token":"pool-%d","expires_in":3600}`, count)
			return
		}
		if !valid(strings.TrimPrefix(r.Header.Get("Authorization"), "token ")) {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	}
}

func withOIDC(t *testing.T) func(*Options) {
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(" subject\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return func(o *Options) {
		o.Identity.Organization, o.Identity.PoolID = "acme", "pool-1"
		o.Tuning.OIDCTokenFile, o.Tuning.TokenExpiration, o.Tuning.Token = file, 2*time.Hour, secret.String{}
	}
}

func TestExchange(t *testing.T) {
	t.Run("the exchange is made once, and again when the service refuses the token", func(t *testing.T) {
		var revoked sync.Map
		s := newScene(t, withOIDC(t), issuer(t, func(token string) bool {
			_,
				gone := revoked.Load(token)
			return !gone
		}))
		for range 3 {
			if _, err := s.client.Claim(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		revoked.Store("pool-1", true)
		if _, err := s.client.Claim(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.wantCalls(t,
			"POST /api/oauth/token ", "GET /api/deployments/poll token pool-1",
			"GET /api/deployments/poll token pool-1",
			"GET /api/deployments/poll token pool-1",
			"GET /api/deployments/poll token pool-1", "POST /api/oauth/token ",
			"GET /api/deployments/poll token pool-2")
	})

	t.Run("an unreadable file is reported by its key and not by its path", func(t *testing.T) {
		const canary = "pul-c4n4ry"
		directory := t.TempDir()
		file := func(name, text string) string {
			name = filepath.Join(directory, canary+name)
			if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			return name
		}
		pipe := filepath.Join(directory, canary+"pipe")
		if err := syscall.Mkfifo(pipe, 0o600); err != nil {
			t.Fatal(err)
		}
		for name, c := range map[string]struct{ path, want string }{
			"a token in place of a path": {canary, "the file does not exist"},
			"a missing file":             {filepath.Join(directory, canary), "the file does not exist"},
			"a path below a file":        {filepath.Join(file("file", "x"), "token"), "the file does not exist"},
			"a long token in place of a path": {canary + strings.Repeat("x", 5000),
				"the value is too long for a file's name"},
			"an invalid path":       {canary + "\x00", "the file cannot be read"},
			"a directory":           {directory, "it is not a regular file"},
			"a pipe":                {pipe, "it is not a regular file"},
			"an empty file":         {file("empty", ""), "the file is empty"},
			"a file of white space": {file("white", " \n"), "the file is empty"},
			"a large file": {file("large", strings.Repeat("x", maxTokenFile+1)),
				"the file is larger than 64 KiB"},
		} {
			t.Run(name, func(t *testing.T) {
				edit := withOIDC(t)
				s := newScene(t, func(o *Options) { edit(o); o.Tuning.OIDCTokenFile = c.path },
					func(http.ResponseWriter,
						*http.Request) {
					})
				_, err := s.client.Claim(t.Context())
				if err == nil {
					t.Fatal("got no error")
				}
				for _, part := range []string{"read oidc_token_file: " + c.want, "not the token itself"} {
					if !strings.Contains(err.Error(), part) {
						t.Errorf("%q does not have %q", err, part)
					}
				}
				var path *fs.PathError
				if text := fmt.Sprintf("%v %+v %#v", err, err, err); strings.Contains(text, canary) ||
					strings.Contains(text, directory) || errors.As(err, &path) {
					t.Errorf("the path shows in %s", text)
				}
				s.wantCalls(t)
			})
		}
		err := tokenFileError(&fs.PathError{Op: "open", Path: canary, Err: syscall.EACCES})
		if err.Error() != "this user "+
			"is not allowed to read the file" {
			t.Errorf("a file of another user: the error is %q", err)
		}
	})

	t.Run("a failure names what to check", func(t *testing.T) {
		for name, c := range map[string]struct {
			answer  http.HandlerFunc
			want    []string
			again   bool // the next poll is a retry
			refused bool // the error is ErrUnauthorized
		}{
			"refused": {func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(http.StatusForbidden)
				fmt.Fprint(w, `{"message":"no policy for this issuer"}`)
			}, []string{"no policy for this issuer", "runner_pool_id", "organization_name"}, false, true},
			"unauthorized": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) },
				[]string{"401", "oidc_token_file"}, false, true},
			"no such call": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) },
				[]string{"404", "service_url"}, false, true},
			"busy": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) },
				[]string{"502", "health"}, true, false},
			"redirected": {func(w http.ResponseWriter, r *http.Request) {
				http.Redirect(w, r, "https://other.example"+r.URL.Path, http.StatusMovedPermanently)
			}, []string{"service_url answers with a redirect to https://other.example/api/oauth/token: set it to " +
				"https://other.example (status 301)"}, false, false},
			"nonsense": {func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `<html>`) },
				[]string{"no access_token", "service_url"}, true, false},
			"connection closed": {func(w http.ResponseWriter, _ *http.Request) {
				if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
					_ = conn.Close()
				}
			}, []string{"network"}, true, false},
		} {
			t.Run(name, func(t *testing.T) {
				s := newScene(t, withOIDC(t), c.answer)
				claim, err := s.client.Claim(t.Context())
				if err == nil {
					t.Fatal("got no error")
				}
				if again := claim.Next.Reason != ""; again != c.again ||
					errors.Is(err, runtime.ErrUnauthorized) != c.refused {
					t.Errorf("retried: %v, refused: %v; want %v, %v", again, errors.Is(err, runtime.ErrUnauthorized),
						c.again,
						c.refused)
				}
				for _, part := range append(c.want, "exchange the OIDC token") {
					if !strings.Contains(err.Error(), part) {
						t.Errorf("%q does not have %q", err, part)
					}
				}
				for _, wrong := range []string{"PULUMI_AGENT_TOKEN", "a response was lost", "subject"} {
					if strings.Contains(err.Error(), wrong) {
						t.Errorf("%q has %q", err, wrong)
					}
				}
			})
		}
	})

	t.Run("the old token is used until it expires", func(t *testing.T) {
		down := false
		s := newScene(t, withOIDC(t), func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.URL.Path != "/api/oauth/token":
				w.WriteHeader(http.StatusNoContent)
			case down:
				w.WriteHeader(http.StatusServiceUnavailable)
			default:
				fmt.Fprint(w, `{"access_token":"pool-1","expires_in":3600}`)
			}
		})
		claim := func() error { _, err := s.client.Claim(t.Context()); return err }
		due := func() { // makes a renewal due
			s.client.credentials.renew = time.Now().Add(-time.Second)
		}
		if err := claim(); err != nil {
			t.Fatal(err)
		}
		down = true
		for range 2 {
			due()
			for range 3 {
				if err := claim(); err != nil {
					t.Fatalf("a token that is valid for most of an hour is not used: %v", err)
				}
			}
		}
		exchanges := 0
		for _, call := range s.calls {
			if strings.Contains(call, "/oauth/") {
				exchanges++
			}
		}
		if exchanges != 3 || strings.Count(s.log.String(), "token renewal failed") != 1 {
			t.Errorf("%d exchanges, want 3 and one logged failure; the log is\n%s", exchanges, s.log)
		}
		down = false
		due()
		if err := claim(); err != nil || !strings.Contains(s.log.String(), "token renewal resumed") {
			t.Errorf("the claim returns %v, want nil and a logged recovery; the log is\n%s", err, s.log)
		}
		down = true
		due()
		s.client.credentials.expires = time.Now().Add(-time.Second)
		if err := claim(); err == nil || !strings.Contains(err.Error(), "exchange the OIDC token") {
			t.Errorf("after the token has expired the error is %v, want that of the exchange", err)
		}
	})
}

func TestReadTokenFileRefusesAPipe(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "token")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readTokenFile(pipe); err == nil || err.Error() != "it is not a regular file" {
		t.Error(err)
	}
}

// exchanger is a service that exchanges the OIDC token X for the pool token pool-X. It
// refuses one OIDC token, and calls a function of the test during each exchange.
type exchanger struct {
	*scene
	refuses atomic.Value // the OIDC token that it refuses, or ""
	within  atomic.Value // a func(), called during each exchange
}

func newExchanger(t *testing.T) *exchanger {
	e := &exchanger{}
	e.refuses.Store("")
	e.within.Store(func() {})
	e.scene = newScene(t, withOIDC(t), func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/oauth/token" {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		subject := r.FormValue("subject_token")
		e.within.Load().(func())()
		if subject == e.refuses.Load() {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		fmt.Fprintf(w, `{"access_token":"pool-%s","expires_in":3600}`, subject)
	})
	return e
}

// writeToken writes a token to the file, and calls Tune as a reload does.
func (e *exchanger) writeToken(t *testing.T, subject string) {
	tuning := e.client.settings()
	if err := os.WriteFile(tuning.OIDCTokenFile, []byte(subject), 0o600); err != nil {
		t.Fatal(err)
	}
	tuning.OIDCSum = "sum of " + subject
	e.client.Tune(tuning)
}

func (e *exchanger) claim(t *testing.T) {
	t.Helper()
	if _, err := e.client.Claim(t.Context()); err != nil {
		t.Error(err)
	}
}

const (
	exchanged = "POST /api/oauth/token "
	polledBy  = "GET /api/deployments/poll token pool-"
)

func TestCredentials(t *testing.T) {
	t.Run("a changed OIDC token is exchanged at the next call", func(t *testing.T) {
		e := newExchanger(t)
		e.writeToken(t, "one")
		e.claim(t)
		e.claim(t)
		e.writeToken(t, "two")
		e.claim(t)
		e.writeToken(t, "two") // a reload that does not change the token
		e.claim(t)
		e.writeToken(t, "one")
		e.claim(t)
		e.wantCalls(t, exchanged, polledBy+"one", polledBy+"one", exchanged, polledBy+"two", polledBy+"two", exchanged,
			polledBy+"one")
	})

	t.Run("after the refusal of a new OIDC token, the old pool token stays in use", func(t *testing.T) {
		e := newExchanger(t)
		e.writeToken(t, "one")
		e.claim(t)
		e.refuses.Store("two")
		e.writeToken(t, "two")
		e.claim(t)
		e.claim(t) // does not try the exchange again
		if text := e.log.String(); strings.Count(text, "token renewal failed") != 1 || strings.Contains(text, "pool-") {
			t.Errorf("the log is\n%s", text)
		}
		e.writeToken(t, "three") // is exchanged without waiting for the retry delay
		e.claim(t)
		e.wantCalls(t, exchanged, polledBy+"one", exchanged, polledBy+"one", polledBy+"one", exchanged,
			polledBy+"three")
		if text := e.log.String(); !strings.Contains(text, "token renewal resumed") {
			t.Errorf("the log is\n%s", text)
		}
	})

	t.Run("an OIDC token that changes during an exchange is exchanged too", func(t *testing.T) {
		for name, refused := range map[string]string{"first token accepted": "", "first token refused": "old"} {
			t.Run(name, func(t *testing.T) {
				e := newExchanger(t)
				e.writeToken(t, "one")
				e.claim(t)
				e.writeToken(t, "old")
				e.refuses.Store(refused)
				e.within.Store(func() {
					e.within.Store(func() {})
					e.writeToken(t, "new")
				})
				e.claim(t)
				e.claim(t)
				first := map[string]string{"": "old", "old": "one"}[refused]
				e.wantCalls(t, exchanged, polledBy+"one", exchanged, polledBy+first, exchanged, polledBy+"new")
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

var someJob = &runtime.Job{ID: "j", Kind: runtime.Deployment, WorkflowID: "d/1"}

func TestStatusCalls(t *testing.T) {
	t.Run("each response of the status call means one status of the job", func(t *testing.T) {
		answer, code := "", http.StatusOK
		s := newScene(t, nil, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(code)
			fmt.Fprint(w,
				answer)
		})
		for text, want := range map[string]runtime.JobStatus{
			`"running"`: runtime.Continue, `"accepted"`: runtime.Continue, `"brand-new"`: runtime.Continue,
			`{}`: runtime.Continue, `[1]`: runtime.Continue, ``: runtime.Continue,
			`"failed"`: runtime.Cancelled, `"skipped"`: runtime.Cancelled, `"succeeded"`: runtime.Completing,
			`{"status":"failed","complete":true}`: runtime.Cancelled, `{"complete":true}`: runtime.Completing,
			`{"status":"running","complete":null}`: runtime.Continue,
		} {
			answer = text
			if jobStatus, err := s.client.JobStatus(t.Context(), someJob); err != nil || jobStatus != want {
				t.Errorf("%s means %q, %v; want %q", text, jobStatus, err, want)
			}
		}
		code = http.StatusNotFound
		if jobStatus, err := s.client.JobStatus(t.Context(), someJob); err == nil || jobStatus != runtime.Continue {
			t.Errorf("a single 404 after other statuses means %q, %v; want continue, with the error", jobStatus, err)
		}
		code = http.StatusInternalServerError
		if jobStatus, err := s.client.JobStatus(t.Context(), someJob); err == nil || jobStatus != runtime.Continue {
			t.Errorf("a 500 means %q, %v; want continue, with the error", jobStatus, err)
		}
	})

	t.Run("the check call replaces a missing status call", func(t *testing.T) {
		for _, missing := range []int{404, 405, 500, 501} {
			s := newScene(t, nil, func(w http.ResponseWriter, r *http.Request) {
				if strings.HasSuffix(r.URL.Path, "/check") {
					fmt.Fprint(w, `{"id":"d","status":"failed","complete":true}`)
					return
				}
				w.WriteHeader(missing)
			})
			for range 2 {
				if jobStatus, err := s.client.JobStatus(t.Context(), someJob); err != nil ||
					jobStatus != runtime.Cancelled {
					t.Errorf("%d: %q, %v; want cancelled", missing, jobStatus, err)
				}
			}
			s.wantCalls(t, "GET /api/deployments/d/1/status token pul-pool",
				"POST /api/agent-workflows/deployment:d/1/check token pul-pool",
				"POST /api/agent-workflows/deployment:d/1/check token pul-pool")
		}
	})

	t.Run("a status that may be temporary does not mean that the call is missing", func(t *testing.T) {
		for _, busy := range []int{403, 429, 502, 503} {
			s := newScene(t, nil, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(busy) })
			if jobStatus, err := s.client.JobStatus(t.Context(), someJob); err == nil || jobStatus != runtime.Continue {
				t.Errorf("%d: %q, %v; want continue, with the error", busy, jobStatus, err)
			}
			s.wantCalls(t, "GET /api/deployments/d/1/status token pul-pool")
		}
	})

	t.Run("if neither call exists, both are tried again an hour later", func(t *testing.T) {
		for _, missing := range []int{404, 405, 501} {
			synctest.Test(t, func(t *testing.T) {
				s := newInMemoryScene(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(missing) })
				wantUnanswered := func(job *runtime.Job) {
					t.Helper()
					if jobStatus, err := s.client.JobStatus(t.Context(), job); err != nil ||
						jobStatus != runtime.Unanswered {
						t.Errorf("%d: the job is %q, %v; want unanswered", missing, jobStatus, err)
					}
					time.Sleep(20 * time.Second)
				}
				for range 5 {
					wantUnanswered(someJob)
				}
				both := []string{
					"GET /api/deployments/d/1/status token pul-pool",
					"POST /api/agent-workflows/deployment:d/1/check token pul-pool",
				}
				s.wantCalls(t, slices.Repeat(both, 3)...) // then the refusal is accepted
				wantUnanswered(&runtime.Job{ID: "other", WorkflowID: "other", Kind: runtime.Deployment})
				if len(s.calls) != 8 {
					t.Errorf("%d: calls about another job are %q, want two", missing, s.calls[6:])
				}
				time.Sleep(suppressTime)
				wantUnanswered(someJob)
				if len(s.calls) != 10 {
					t.Errorf("%d: calls an hour later are %q, want two", missing, s.calls[8:])
				}
				if n := strings.Count(s.log.String(), "service reports no job status"); n != 2 {
					t.Errorf("%d: the missing calls are logged %d times, want once in each of two hours", missing, n)
				}
			})
		}
	})

	t.Run("a call that appears later is used", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			there := false
			s := newInMemoryScene(t, func(w http.ResponseWriter, r *http.Request) {
				if !there || !strings.HasSuffix(r.URL.Path, "/status") {
					w.WriteHeader(http.StatusNotFound)
					return
				}
				fmt.Fprint(w, `{"status":"failed"}`)
			})
			for range 3 { // then the refusal is accepted
				_, _ = s.client.JobStatus(t.Context(), someJob)
				time.Sleep(20 * time.Second)
			}
			there = true
			if jobStatus, _ := s.client.JobStatus(t.Context(), someJob); jobStatus != runtime.Unanswered {
				t.Errorf("within the hour the job is %q, want unanswered", jobStatus)
			}
			time.Sleep(suppressTime)
			for _, want := range []runtime.JobStatus{runtime.Cancelled, runtime.Continue} {
				if jobStatus, _ := s.client.JobStatus(t.Context(), someJob); jobStatus != want {
					t.Errorf("the job is %q, want %q", jobStatus, want)
				}
				there = false
			}
		})
	})
}

func TestClientReport(t *testing.T) {
	t.Run("a failure is reported although its lines are refused", func(t *testing.T) {
		reported := false
		s := newScene(t, nil, func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, "/logs") {
				w.WriteHeader(http.StatusBadRequest)
				return
			}
			reported = reported || strings.HasSuffix(r.URL.Path, "/status")
			fmt.Fprint(w, "{}")
		})
		lines := []runtime.Line{{Text: "a"}}
		err := s.client.Report(t.Context(), someJob, runtime.Report{Lines: lines, Status: runtime.Failed})
		if err != nil || !reported {
			t.Errorf("reported: %v, %v", reported, err)
		}
		err = s.client.Report(t.Context(), someJob, runtime.Report{Lines: lines, Status: runtime.Running})
		if !errors.Is(err, runtime.ErrLogsDropped) {
			t.Errorf("lines that did not arrive give %v, want ErrLogsDropped", err)
		}
	})

	t.Run("the last lines are sent again at the offset that the service has", func(t *testing.T) {
		var offsets []int
		s := newScene(t, nil, func(w http.ResponseWriter, r *http.Request) {
			if !strings.HasSuffix(r.URL.Path, "/logs") {
				fmt.Fprint(w, "{}")
				return
			}
			var batch LogBatch
			if err := json.NewDecoder(r.Body).Decode(&batch); err != nil {
				t.Error(err)
			}
			offsets = append(offsets, batch.Offset)
			if batch.Offset != 9 {
				w.WriteHeader(http.StatusBadRequest)
				fmt.Fprint(w, `{"code":400,"message":"Bad Request: continue at offset 9","cmwaNextOffset":9}`)
				return
			}
			fmt.Fprint(w, "{}")
		})
		lines := []runtime.Line{{Text: "Error: the reason\n"}}
		err := s.client.Report(t.Context(), someJob, runtime.Report{Offset: 4, Lines: lines, Status: runtime.Failed})
		if want := []int{4, 9}; err != nil || !slices.Equal(offsets, want) {
			t.Errorf("lines are sent at %v, want %v; %v", offsets, want, err)
		}

		// Lines that are not the last ones of the step are not sent again. The error has the offset.
		var offset *runtime.OffsetError
		err = s.client.Report(t.Context(), someJob, runtime.Report{Offset: 4, Lines: lines, Status: runtime.Running})
		if !errors.Is(err, runtime.ErrLogsDropped) || !errors.As(err, &offset) || offset.Next != 9 {
			t.Errorf("got %v, want ErrLogsDropped and the offset 9", err)
		}
	})

	t.Run("an empty report is a heartbeat", func(t *testing.T) {
		s := newScene(t, nil, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "{}") })
		if err := s.client.Report(t.Context(), someJob, runtime.Report{}); err != nil {
			t.Fatal(err)
		}
		s.wantCalls(t, "POST /api/workflow/jobs/j/heartbeat ")
	})

	t.Run("reports are sent in the order that a strict service requires", func(t *testing.T) {
		s := newScene(t, nil, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "{}") })
		job := &runtime.Job{ID: "j", Token: secret.New("job-token")}
		lines := []runtime.Line{{Time: time.Now(), Text: "a\n"}}
		for _, report := range []runtime.Report{
			{Step: 0, Lines: lines, Status: runtime.Running}, {Step: 0, Offset: 1, Lines: lines,
				Status: runtime.Failed},
			{Step: 2, Status: runtime.Failed},
		} {
			if err := s.client.Report(t.Context(), job, report); err != nil {
				t.Fatal(err)
			}
		}
		const by = " token job-token"
		s.wantCalls(t,
			"PATCH /api/workflow/jobs/j/0/status"+by, "POST /api/workflow/jobs/j/heartbeat"+by,
			"POST /api/workflow/jobs/j/0/logs"+by,
			"POST /api/workflow/jobs/j/0/logs"+by, "PATCH /api/workflow/jobs/j/0/status"+by,
			"PATCH /api/workflow/jobs/j/2/status"+by)
	})

	t.Run("the status of a job that the service no longer has is not reported", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var paths []string
			s := newInMemoryScene(t, func(w http.ResponseWriter, r *http.Request) {
				paths = append(paths, r.URL.Path)
				w.WriteHeader(http.StatusConflict)
				fmt.Fprint(w, `{"code":409,"message":"the job was cancelled"}`)
			})
			err := s.client.Report(t.Context(), someJob, runtime.Report{Lines: []runtime.Line{{Text: "a"}},
				Status: runtime.Failed})
			if !errors.Is(err, runtime.ErrGone) {
				t.Errorf("the error is %v, want ErrGone", err)
			}
			if len(paths) != 2 || !strings.HasSuffix(paths[0], "/logs") || !strings.HasSuffix(paths[1], "/heartbeat") {
				t.Errorf("the service received %v, want the lines and the heartbeat that confirms the refusal", paths)
			}
		})
	})
}

func TestClientDefinition(t *testing.T) {
	t.Run("a definition without steps is refused", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newInMemoryScene(t, func(w http.ResponseWriter, _ *http.Request) {
				fmt.Fprint(w,
					`{"image":{"reference":"r"}}`)
			})
			if _, err := s.client.Definition(t.Context(), someJob); err == nil ||
				!strings.Contains(err.Error(), "no steps") {
				t.Errorf("the error is %v", err)
			}
		})
	})

	t.Run("a definition is decoded, and its text kept unchanged", func(t *testing.T) {
		const text = `{"image":{"reference":"r","credentials":{"username":"u","password":{"secret":"p"}}},` +
			`"timeout":"1h",` +
			`"architecture":"arm64","steps":[{"name":"Setup"},{"name":"a","run":"x"}],"future":[1,2]}`
		s := newScene(t, nil, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, text) })
		d, err := s.client.Definition(t.Context(), someJob)
		if err != nil {
			t.Fatal(err)
		}
		if d.Image.Reference != "r" || d.Image.Username != "u" || d.Image.Password.Reveal() != "p" ||
			d.Timeout != time.Hour || d.Steps != 2 || d.Architecture != "arm64" || string(d.Raw) != text {
			t.Errorf("read %+v", d)
		}
	})
}

func TestPollTimeout(t *testing.T) {
	t.Run("a poll without a complete response ends at its time limit and is not retried", func(t *testing.T) {
		for _, c := range []struct {
			first, want string
		}{
			{"", "no response within 50ms (request_timeout)"},
			{`{"jobID":`, "the response was not complete within 70ms"},
		} {
			synctest.Test(t, func(t *testing.T) {
				release := make(chan struct{})
				defer close(release)
				s := newInMemoryScene(t, func(w http.ResponseWriter, r *http.Request) {
					if c.first != "" {
						fmt.Fprint(w, c.first)
						_ = http.NewResponseController(w).Flush()
					}
					select {
					case <-release:
					case <-r.Context().Done():
					}
				}, func(o *Options) { o.Tuning.RequestTimeout = 50 * time.Millisecond })
				s.client.minPollTimeout, s.client.bodyTimeout = time.Millisecond, 70*time.Millisecond
				claim, err := s.client.Claim(context.Background())
				if err == nil || !strings.Contains(err.Error(), c.want) ||
					!strings.Contains(err.Error(), "a response was lost") || claim.Next.Reason != "" {
					t.Errorf("the error is %v, want %q, and no retry", err, c.want)
				}
			})
		}
	})

	t.Run("a response that takes longer than request_timeout is not lost", func(t *testing.T) {
		s := newScene(t, func(o *Options) { o.Tuning.RequestTimeout = 50 * time.Millisecond },
			func(w http.ResponseWriter,
				_ *http.Request) {
				pause := func() { <-time.After(200 * time.Millisecond) } // longer than request_timeout
				pause()
				fmt.Fprint(w, `{"jobID":"j",`)
				_ = http.NewResponseController(w).Flush()
				pause()
				fmt.Fprint(w, `"deploymentID":"d","jobToken":"job-secret"}`)
			})
		claim, err := s.client.Claim(t.Context())
		if err != nil || claim.Job == nil {
			t.Errorf("claimed %v, %v: a job was lost", claim.Job, err)
		}
	})

	t.Run("the limit for the response is at least ten seconds", func(t *testing.T) {
		c := New(Options{Log: slog.New(slog.DiscardHandler)})
		if c.minPollTimeout != 10*time.Second || c.bodyTimeout < time.Minute {
			t.Errorf("the limits are %s for the response and %s for its body, want 10s and at least 1m",
				c.minPollTimeout, c.bodyTimeout)
		}
	})
}

func TestClientClose(t *testing.T) {
	var mu sync.Mutex
	open := map[net.Conn]bool{}
	changed := make(chan struct{}, 100)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	server.Config.ConnState = func(conn net.Conn, state http.ConnState) {
		mu.Lock()
		defer mu.Unlock()
		if state == http.StateClosed {
			delete(open, conn)
		} else {
			open[conn] = true
		}
		changed <- struct{}{}
	}
	server.Start()
	defer server.Close()
	c := New(Options{Identity: runtime.Identity{Service: server.URL},
		Tuning: runtime.Tuning{RequestTimeout: time.Minute}, Log: slog.New(slog.DiscardHandler)})
	if err := c.Report(t.Context(), someJob, runtime.Report{}); err != nil {
		t.Fatal(err)
	}
	c.Close()
	limit := time.After(10 * time.Second)
	for {
		mu.Lock()
		n := len(open)
		mu.Unlock()
		if n == 0 {
			break
		}
		select {
		case <-changed:
		case <-limit:
			t.Fatalf("%d connections are open after Close, want none", n)
		}
	}
	if err := c.Report(t.Context(), someJob, runtime.Report{}); err != nil {
		t.Errorf("a report after Close returns %v, want nil", err)
	}
	c.Close()
}

func TestNew(t *testing.T) {
	t.Run("all transports detect dead connections", func(t *testing.T) {
		w := New(Options{Log: slog.New(slog.DiscardHandler)}).current()
		for name, transport := range map[string]*http.Transport{
			"calls": w.transport, "polls": w.single,
		} {
			if transport.HTTP2 == nil || transport.HTTP2.SendPingTimeout != pingIdle {
				t.Errorf("%s: the transport sends no pings", name)
			}
		}
	})
}

// TestClaimTooEarly polls twice without the delay that the first poll returns. If the delay
// is that of a retry, the second poll makes a request. While the breaker is open, the second
// poll makes none.
func TestClaimTooEarly(t *testing.T) {
	for name, c := range map[string]struct {
		retries int
		breaker bool
	}{"makes no request while the breaker is open": {0, true}, "makes a request before a retry is due": {2, false}} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, func(o *Options) {
				o.Tuning.RetryCount, o.Tuning.RetryWait, o.Tuning.RetryMaxWait = c.retries, time.Minute, time.Minute
				o.Tuning.BreakerFailures = 1
			}, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Retry-After", "3600")
				w.WriteHeader(http.StatusTooManyRequests)
			})
			for range 2 {
				claim, err := s.client.Claim(t.Context())
				if err == nil || held(claim.Next) == 0 || (claim.Next.Reason == reasonBreaker) != c.breaker {
					t.Errorf("the claim returns %v, %v; want a delay, caused by the breaker: %v", err, claim.Next,
						c.breaker)
				}
			}
			if single := len(s.calls) == 1; single != c.breaker {
				t.Errorf("two claims made %d requests, want a single one: %v", len(s.calls), c.breaker)
			}
		})
	}
}
