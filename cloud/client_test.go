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
	tuning := *documented()
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

// claim polls for a job, and returns the claim.
func (s *scene) claim(t *testing.T) runtime.Claim {
	t.Helper()
	claim, err := s.client.Claim(t.Context())
	noError(t, err)
	return claim
}

// wantStatus polls the status of someJob, and checks it and whether the poll has an error.
func (s *scene) wantStatus(t *testing.T, what any, want runtime.JobStatus, failed bool) {
	t.Helper()
	if got, err := s.client.JobStatus(t.Context(), someJob); got != want || (err != nil) != failed {
		t.Errorf("%v: the job is %q, %v; want %q, with an error: %t", what, got, err, want, failed)
	}
}

// respond returns a handler that gives the same response to every call.
func respond(code int, text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(code)
		fmt.Fprint(w, text)
	}
}

// inTurn returns a handler that calls one handler after the other, and repeats the last one.
func inTurn(handlers ...http.HandlerFunc) http.HandlerFunc {
	calls := 0
	return func(w http.ResponseWriter, r *http.Request) {
		calls++
		handlers[min(calls, len(handlers))-1](w, r)
	}
}

// disconnect closes the connection instead of sending a response.
func disconnect(w http.ResponseWriter, _ *http.Request) {
	if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
		_ = conn.Close()
	}
}

// noError ends the test if there is an error.
func noError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wantError checks that there is an error, and that it has all parts.
func wantError(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("got no error, want one with %q", parts)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the error is %q, want one with %q", err, part)
		}
	}
}

// inBubble runs a subtest in a bubble of synctest, whose time is virtual.
func inBubble(t *testing.T, name string, test func(t *testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
}

// Calls of a scene.
const (
	pollCall   = "GET /api/deployments/poll token pul-pool"
	statusCall = "GET /api/deployments/d/1/status token pul-pool"
	checkCall  = "POST /api/agent-workflows/deployment:d/1/check token pul-pool"
)

var someJob = &runtime.Job{ID: "j", Kind: runtime.Deployment, WorkflowID: "d/1"}

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
		claim := s.claim(t)
		job := claim.Job
		if job.ID != "j" || job.WorkflowID != "d" || job.Token.Reveal() != "job-secret" || !job.OIDC.Empty() {
			t.Errorf("claimed %+v", job)
		}
		if wait := held(claim.Next); claim.Next.Reason != reasonRetryAfter || wait > 7*time.Second ||
			wait < 6*time.Second {
			t.Errorf("the next poll is delayed by %s (%s), want the 7 s of the Retry-After", wait, claim.Next.Reason)
		}
		s.wantCalls(t, pollCall)
	})

	t.Run("an empty queue is not an error", func(t *testing.T) {
		s := newScene(t, nil, respond(http.StatusNoContent, ""))
		if claim := s.claim(t); claim.Job != nil {
			t.Errorf("claimed %v", claim.Job)
		}
	})

	t.Run("no poll for a pool without deployments", func(t *testing.T) {
		scans := func(o *Options) { o.Tuning.Kinds = []runtime.Kind{runtime.InsightsScan} }
		s := newScene(t, scans, respond(http.StatusOK, ""))
		if claim := s.claim(t); claim.Job != nil {
			t.Errorf("claimed %v", claim.Job)
		}
		s.wantCalls(t)
	})

	t.Run("after an incomplete or invalid response the poll is not retried", func(t *testing.T) {
		for name, answer := range map[string]http.HandlerFunc{
			"connection closed before the response": disconnect,
			"connection closed within the response": func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Length", "1000")
				fmt.Fprint(w, `{"jobID":"j","jobToken":"job-secret"`)
			},
			"answer that is not JSON": respond(http.StatusOK, `<html>job-secret</html>`),
			"answer without a job":    respond(http.StatusOK, `{"runID":"job-secret"}`),
		} {
			t.Run(name, func(t *testing.T) {
				s := newScene(t, nil, answer)
				claim, err := s.client.Claim(t.Context())
				wantError(t, err, "a response was lost")
				if strings.Contains(err.Error(), "job-secret") || claim.Next.Reason != "" {
					t.Errorf("the error is %v and the next poll %v, want no token and no retry", err, claim.Next)
				}
				s.wantCalls(t, pollCall)
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
		s.wantCalls(t, pollCall)
	})
}

func TestClaimWithoutDeployments(t *testing.T) {
	fragile := func(o *Options) { o.Tuning.RetryCount, o.Tuning.BreakerFailures = 0, 1 }
	s := newScene(t, fragile, respond(http.StatusInternalServerError, ""))
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
	s.wantCalls(t, pollCall)
}

func TestClassify(t *testing.T) {
	t.Run("the error for a service that is down names service_url", func(t *testing.T) {
		down := func(o *Options) { o.Identity.Service = "http://127.0.0.1:1" }
		claim, err := newScene(t, down, respond(http.StatusOK, "")).client.Claim(t.Context())
		wantError(t, err, "cannot reach http://127.0.0.1:1: ", "service_url")
		if claim.Next.Reason == "" {
			t.Error("the poll is not retried")
		}
	})

	t.Run("a rejected token does not open the breaker", func(t *testing.T) {
		s := newScene(t, nil, respond(http.StatusUnauthorized, ""))
		for range 10 {
			claim, err := s.client.Claim(t.Context())
			wantError(t, err, "service rejected the token (401): check that it belongs to this service and pool: "+
				"token, token_file or PULUMI_AGENT_TOKEN")
			if !errors.Is(err, runtime.ErrUnauthorized) || claim.Next.Reason != "" ||
				strings.Contains(err.Error(), "pul-pool") {
				t.Fatalf("the error is %v, and the next poll %v", err, claim.Next)
			}
		}
	})
}

// issuer returns a service that exchanges OIDC tokens: the n-th exchange returns pool
// token n. It refuses the pool tokens in revoked.
func issuer(t *testing.T, revoked *sync.Map) http.HandlerFunc {
	count := 0
	return func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/api/oauth/token" {
			if r.Header.Get("Authorization") != "" || r.FormValue("audience") != "urn:pulumi:org:acme" ||
				r.FormValue("scope") != "runner:pool-1" || r.FormValue("subject_token") != "subject" ||
				r.FormValue("expiration") != "7200" {
				t.Errorf("the form of the exchange is %v", r.Form)
			}
			count++
			fmt.Fprintf(w, `{"access_token":"pool-%d","expires_in":3600}`, count)
			return
		}
		if _, gone := revoked.Load(strings.TrimPrefix(r.Header.Get("Authorization"), "token ")); gone {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	}
}

func withOIDC(t *testing.T) func(*Options) {
	file := filepath.Join(t.TempDir(), "token")
	noError(t, os.WriteFile(file, []byte(" subject\n"), 0o600))
	return func(o *Options) {
		o.Identity.Organization, o.Identity.PoolID = "acme", "pool-1"
		o.Tuning.OIDCTokenFile, o.Tuning.TokenExpiration, o.Tuning.Token = file, 2*time.Hour, secret.String{}
	}
}

func TestExchange(t *testing.T) {
	t.Run("the exchange is made once, and again when the service refuses the token", func(t *testing.T) {
		const exchanged, polledBy = "POST /api/oauth/token ", "GET /api/deployments/poll token pool-"
		var revoked sync.Map
		s := newScene(t, withOIDC(t), issuer(t, &revoked))
		for range 3 {
			s.claim(t)
		}
		revoked.Store("pool-1", true)
		s.claim(t)
		s.wantCalls(t, exchanged, polledBy+"1", polledBy+"1", polledBy+"1", polledBy+"1", exchanged, polledBy+"2")
	})

	t.Run("an unreadable file is reported by its key and not by its path", func(t *testing.T) {
		const canary = "pul-c4n4ry"
		directory := t.TempDir()
		file := func(name, text string) string {
			name = filepath.Join(directory, canary+name)
			noError(t, os.WriteFile(name, []byte(text), 0o600))
			return name
		}
		pipe := filepath.Join(directory, canary+"pipe")
		noError(t, syscall.Mkfifo(pipe, 0o600))
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
				s := newScene(t, func(o *Options) {
					withOIDC(t)(o)
					o.Tuning.OIDCTokenFile = c.path
				}, respond(http.StatusOK, ""))
				_, err := s.client.Claim(t.Context())
				wantError(t, err, "read oidc_token_file: "+c.want, "not the token itself")
				var path *fs.PathError
				if text := fmt.Sprintf("%v %+v %#v", err, err, err); strings.Contains(text, canary) ||
					strings.Contains(text, directory) || errors.As(err, &path) {
					t.Errorf("the path shows in %s", text)
				}
				s.wantCalls(t)
			})
		}
		err := tokenFileError(&fs.PathError{Op: "open", Path: canary, Err: syscall.EACCES})
		if err.Error() != "this user is not allowed to read the file" {
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
			"refused": {respond(http.StatusForbidden, `{"message":"no policy for this issuer"}`),
				[]string{"no policy for this issuer", "runner_pool_id", "organization_name"}, false, true},
			"unauthorized": {respond(http.StatusUnauthorized, ""), []string{"401", "oidc_token_file"}, false, true},
			"no such call": {respond(http.StatusNotFound, ""), []string{"404", "service_url"}, false, true},
			"busy":         {respond(http.StatusBadGateway, ""), []string{"502", "health"}, true, false},
			"redirected": {func(w http.ResponseWriter, r *http.Request) {
				http.Redirect(w, r, "https://other.example"+r.URL.Path, http.StatusMovedPermanently)
			}, []string{"service_url answers with a redirect to https://other.example/api/oauth/token: set it to " +
				"https://other.example (status 301)"}, false, false},
			"nonsense": {respond(http.StatusOK, `<html>`),
				[]string{"no access_token", "service_url"}, true, false},
			"connection closed": {disconnect, []string{"network"}, true, false},
		} {
			t.Run(name, func(t *testing.T) {
				s := newScene(t, withOIDC(t), c.answer)
				claim, err := s.client.Claim(t.Context())
				wantError(t, err, append(c.want, "exchange the OIDC token")...)
				again, refused := claim.Next.Reason != "", errors.Is(err, runtime.ErrUnauthorized)
				if again != c.again || refused != c.refused {
					t.Errorf("retried: %v, refused: %v; want %v, %v", again, refused, c.again, c.refused)
				}
				for _, wrong := range []string{"PULUMI_AGENT_TOKEN", "a response was lost", "subject"} {
					if strings.Contains(err.Error(), wrong) {
						t.Errorf("%q has %q", err, wrong)
					}
				}
			})
		}
	})
}

func TestStatusCalls(t *testing.T) {
	t.Run("each response of the status call means one status of the job", func(t *testing.T) {
		answer, code := "", http.StatusOK
		s := newScene(t, nil, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(code)
			fmt.Fprint(w, answer)
		})
		for text, want := range map[string]runtime.JobStatus{
			`"running"`: runtime.Continue, `"accepted"`: runtime.Continue, `"brand-new"`: runtime.Continue,
			`{}`: runtime.Continue, `[1]`: runtime.Continue, ``: runtime.Continue,
			`"failed"`: runtime.Cancelled, `"skipped"`: runtime.Cancelled, `"succeeded"`: runtime.Completing,
			`{"status":"failed","complete":true}`: runtime.Cancelled, `{"complete":true}`: runtime.Completing,
			`{"status":"running","complete":null}`: runtime.Continue,
		} {
			answer = text
			s.wantStatus(t, text, want, false)
		}
		for _, code = range []int{http.StatusNotFound, http.StatusInternalServerError} { // a single 404 is no refusal
			s.wantStatus(t, code, runtime.Continue, true)
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
				s.wantStatus(t, missing, runtime.Cancelled, false)
			}
			s.wantCalls(t, statusCall, checkCall, checkCall)
		}
	})

	t.Run("a status that may be temporary does not mean that the call is missing", func(t *testing.T) {
		for _, busy := range []int{403, 429, 502, 503} {
			s := newScene(t, nil, respond(busy, ""))
			s.wantStatus(t, busy, runtime.Continue, true)
			s.wantCalls(t, statusCall)
		}
	})

	for _, missing := range []int{404, 405, 501} {
		inBubble(t, fmt.Sprintf("calls that answer %d are tried again an hour later", missing), func(t *testing.T) {
			s := newInMemoryScene(t, respond(missing, ""))
			wantUnanswered := func(job *runtime.Job) {
				t.Helper()
				if got, err := s.client.JobStatus(t.Context(), job); err != nil || got != runtime.Unanswered {
					t.Errorf("the job is %q, %v; want unanswered", got, err)
				}
				time.Sleep(20 * time.Second)
			}
			for range 5 {
				wantUnanswered(someJob)
			}
			s.wantCalls(t, slices.Repeat([]string{statusCall, checkCall}, 3)...) // then the refusal is accepted
			wantUnanswered(&runtime.Job{ID: "other", WorkflowID: "other", Kind: runtime.Deployment})
			if len(s.calls) != 8 {
				t.Errorf("calls about another job are %q, want two", s.calls[6:])
			}
			time.Sleep(suppressTime)
			wantUnanswered(someJob)
			if len(s.calls) != 10 {
				t.Errorf("calls an hour later are %q, want two", s.calls[8:])
			}
			if n := strings.Count(s.log.String(), "service reports no job status"); n != 2 {
				t.Errorf("the missing calls are logged %d times, want once in each of two hours", n)
			}
		})
	}

	inBubble(t, "a call that appears later is used", func(t *testing.T) {
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
		s := newScene(t, nil, respond(http.StatusOK, "{}"))
		if err := s.client.Report(t.Context(), someJob, runtime.Report{}); err != nil {
			t.Fatal(err)
		}
		s.wantCalls(t, "POST /api/workflow/jobs/j/heartbeat ")
	})

	t.Run("reports are sent in the order that a strict service requires", func(t *testing.T) {
		s := newScene(t, nil, respond(http.StatusOK, "{}"))
		job := &runtime.Job{ID: "j", Token: secret.New("job-token")}
		lines := []runtime.Line{{Time: time.Now(), Text: "a\n"}}
		for _, report := range []runtime.Report{
			{Step: 0, Lines: lines, Status: runtime.Running},
			{Step: 0, Offset: 1, Lines: lines, Status: runtime.Failed},
			{Step: 2, Status: runtime.Failed},
		} {
			noError(t, s.client.Report(t.Context(), job, report))
		}
		const by = " token job-token"
		s.wantCalls(t, "PATCH /api/workflow/jobs/j/0/status"+by, "POST /api/workflow/jobs/j/heartbeat"+by,
			"POST /api/workflow/jobs/j/0/logs"+by, "POST /api/workflow/jobs/j/0/logs"+by,
			"PATCH /api/workflow/jobs/j/0/status"+by, "PATCH /api/workflow/jobs/j/2/status"+by)
	})

	inBubble(t, "heartbeats that fail do not delay the report of a status", func(t *testing.T) {
		var statuses []string
		s := newInMemoryScene(t, func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, "/heartbeat") {
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			statuses = append(statuses, r.URL.Path)
		})
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		begin := time.Now()
		err := s.client.Report(ctx, someJob, runtime.Report{Status: runtime.Running})
		if took := time.Since(begin); err != nil || len(statuses) != 1 || took > 15*time.Second {
			t.Errorf("%v after %s, with reports to %q", err, took, statuses)
		}
	})

	inBubble(t, "the status of a job that the service no longer has is not reported", func(t *testing.T) {
		s := newInMemoryScene(t, respond(http.StatusConflict, `{"code":409,"message":"the job was cancelled"}`))
		report := runtime.Report{Lines: []runtime.Line{{Text: "a"}}, Status: runtime.Failed}
		if err := s.client.Report(t.Context(), someJob, report); !errors.Is(err, runtime.ErrGone) {
			t.Errorf("the error is %v, want ErrGone", err)
		}
		// The heartbeat confirms the refusal of the lines.
		s.wantCalls(t, "POST /api/workflow/jobs/j/0/logs ", "POST /api/workflow/jobs/j/heartbeat ")
	})
}

func TestClientDefinition(t *testing.T) {
	inBubble(t, "a definition without steps is refused", func(t *testing.T) {
		s := newInMemoryScene(t, respond(http.StatusOK, `{"image":{"reference":"r"}}`))
		_, err := s.client.Definition(t.Context(), someJob)
		wantError(t, err, "no steps")
	})

	t.Run("a definition is decoded, and its text kept unchanged", func(t *testing.T) {
		const text = `{"image":{"reference":"r","credentials":{"username":"u","password":{"secret":"p"}}},` +
			`"timeout":"1h","architecture":"arm64","steps":[{"name":"Setup"},{"name":"a","run":"x"}],"future":[1,2]}`
		s := newScene(t, nil, respond(http.StatusOK, text))
		d, err := s.client.Definition(t.Context(), someJob)
		noError(t, err)
		if d.Image.Reference != "r" || d.Image.Username != "u" || d.Image.Password.Reveal() != "p" ||
			d.Timeout != time.Hour || d.Steps != 2 || d.Architecture != "arm64" || string(d.Raw) != text {
			t.Errorf("read %+v", d)
		}
	})
}

func TestPollTimeout(t *testing.T) {
	for _, c := range []struct{ first, want string }{
		{"", "no response within 50ms (request_timeout)"},
		{`{"jobID":`, "the response was not complete within 70ms"},
	} {
		inBubble(t, "a poll ends at its time limit and is not retried: "+c.want, func(t *testing.T) {
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
			wantError(t, err, c.want, "a response was lost")
			if claim.Next.Reason != "" {
				t.Errorf("the next poll is %v, want no retry", claim.Next)
			}
		})
	}

	t.Run("a response that takes longer than request_timeout is not lost", func(t *testing.T) {
		s := newScene(t, func(o *Options) { o.Tuning.RequestTimeout = 50 * time.Millisecond },
			func(w http.ResponseWriter, _ *http.Request) {
				pause := func() { <-time.After(200 * time.Millisecond) } // longer than request_timeout
				pause()
				fmt.Fprint(w, `{"jobID":"j",`)
				_ = http.NewResponseController(w).Flush()
				pause()
				fmt.Fprint(w, `"deploymentID":"d","jobToken":"job-secret"}`)
			})
		if claim := s.claim(t); claim.Job == nil {
			t.Error("the job was lost")
		}
	})
}

func TestClientClose(t *testing.T) {
	var open atomic.Int64
	changed := make(chan struct{}, 100)
	server := httptest.NewUnstartedServer(respond(http.StatusOK, ""))
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			open.Add(1)
		case http.StateClosed:
			open.Add(-1)
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
	for limit := time.After(10 * time.Second); open.Load() > 0; {
		select {
		case <-changed:
		case <-limit:
			t.Fatalf("%d connections are open after Close, want none", open.Load())
		}
	}
	if err := c.Report(t.Context(), someJob, runtime.Report{}); err != nil {
		t.Errorf("a report after Close returns %v, want nil", err)
	}
	c.Close()
}

func TestNew(t *testing.T) {
	c := New(Options{Log: slog.New(slog.DiscardHandler)})
	t.Run("the limit for the response to a poll is at least ten seconds", func(t *testing.T) {
		if c.minPollTimeout != 10*time.Second || c.bodyTimeout < time.Minute {
			t.Errorf("the limits are %s for the response and %s for its body, want 10s and at least 1m",
				c.minPollTimeout, c.bodyTimeout)
		}
	})
	t.Run("all transports detect dead connections", func(t *testing.T) {
		w := c.current()
		for name, transport := range map[string]*http.Transport{"calls": w.reusing, "polls": w.single} {
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
