package cloud

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/cmwa-project/cmwa/runtime"
)

// refusalCodes are the statuses that one wrong response of a proxy may have.
var refusalCodes = []int{301, 302, 401, 403, 404, 405, 409, 410, 412, 501}

// jobCalls are the calls about a job, by name.
var jobCalls = map[string]func(ctx context.Context, j *Jobs) error{
	"status":    func(ctx context.Context, j *Jobs) error { return j.Status(ctx, 1, runtime.Running) },
	"logs":      func(ctx context.Context, j *Jobs) error { return j.Logs(ctx, 1, LogBatch{}) },
	"heartbeat": func(ctx context.Context, j *Jobs) error { return j.Heartbeat(ctx) },
	"definition": func(ctx context.Context, j *Jobs) error {
		_, err := j.Definition(ctx)
		return err
	},
}

// okAnswer is a response that every call accepts.
var okAnswer = answer{status: 200, text: `{"steps":[{"name":"Setup"}]}`}

// finalRefusal returns a refusal in the JSON error form of the service.
func finalRefusal(status int) answer {
	return answer{status: status, text: fmt.Sprintf(`{"code":%d,"message":"the job was cancelled"}`, status)}
}

// jobsThatKeepRetrying returns a client that retries until the context of the call ends.
func (s *script) jobsThatKeepRetrying() *Jobs {
	j := s.jobs(io.Discard)
	j.caller.retry.count = 1000
	return j
}

func TestJobs(t *testing.T) {
	page := answer{status: 200, text: "<!DOCTYPE html><title>Log in</title>"}
	invalid := x509.CertificateInvalidError{Reason: x509.Expired}
	expired := answer{err: &tls.CertificateVerificationError{Err: invalid}}
	retriedAfter := map[string][]answer{
		"a final refusal that the heartbeat does not confirm": {finalRefusal(409), okAnswer},
		"pages of a proxy":   slices.Repeat([]answer{page}, 20),
		"certificate errors": {expired, expired},
	}
	for _, status := range refusalCodes {
		retriedAfter[fmt.Sprintf("a stray %d", status)] = []answer{{status: status}}
	}
	for name, send := range jobCalls {
		for cause, answers := range retriedAfter {
			inBubble(t, name+"/is retried after "+cause, func(t *testing.T) {
				s := newScript(slices.Concat(answers, []answer{okAnswer})...)
				if err := send(t.Context(), s.jobsThatKeepRetrying()); err != nil || len(s.requests) != len(s.answers) {
					t.Errorf("%v after %d attempts, want success with attempt %d", err, len(s.requests), len(s.answers))
				}
			})
		}
		for _, status := range refusalCodes {
			inBubble(t, fmt.Sprintf("%s/a %d repeated for 30 s is accepted", name, status), func(t *testing.T) {
				s := newScript(answer{status: status})
				j := s.jobsThatKeepRetrying()
				begin := time.Now()
				err := send(t.Context(), j)
				var refusal *StatusError
				if !errors.As(err, &refusal) || refusal.Code != status {
					t.Errorf("the error is %v", err)
				}
				if took := time.Since(begin); took < refusalMinDuration || took > 2*refusalMinDuration ||
					len(s.requests) < refusalMinCount {
					t.Errorf("it was accepted after %s and %d answers", took, len(s.requests))
				}
				before := len(s.requests)
				if err := send(t.Context(), j); err == nil || len(s.requests) != before+1 {
					t.Errorf("the next call gives %v after %d attempts, want the refusal at once", err,
						len(s.requests)-before)
				}
			})
		}
		for _, status := range []int{409, 410} {
			inBubble(t, fmt.Sprintf("%s/a final %d is accepted once confirmed", name, status), func(t *testing.T) {
				s := newScript(finalRefusal(status))
				begin := time.Now()
				err := send(t.Context(), s.jobsThatKeepRetrying())
				if took := time.Since(begin); !errors.Is(err, runtime.ErrGone) || took != confirmWait ||
					len(s.requests) != 2 {
					t.Errorf("%v after %s and %d answers, want ErrGone after %s and 2", err, took, len(s.requests),
						confirmWait)
				}
				if last := s.requests[len(s.requests)-1]; !strings.HasSuffix(last.URL.Path, "/heartbeat") {
					t.Errorf("the refusal was confirmed by %s, want a heartbeat", last.URL.Path)
				}
			})
		}
		inBubble(t, name+"/the error names the page of a proxy", func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			wantError(t, send(ctx, newScript(page).jobsThatKeepRetrying()), "HTML page")
		})
	}
	inBubble(t, "the end of the time limit names the last failure", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		err := newScript(answer{status: 404, text: "404 page not found"}).jobsThatKeepRetrying().Heartbeat(ctx)
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "404 page not found") {
			t.Errorf("the error is %v", err)
		}
	})
	inBubble(t, "logs/a batch that is too large resets the count of refusals", func(t *testing.T) {
		s := newScript(answer{status: 404}, answer{status: 413}, answer{status: 404}, answer{status: 404}, okAnswer)
		j := s.jobsThatKeepRetrying()
		var tooLarge *StatusError
		if err := jobCalls["logs"](t.Context(), j); !errors.As(err, &tooLarge) || tooLarge.Code != 413 {
			t.Errorf("the first call gives %v, want 413 at once", err)
		}
		time.Sleep(refusalMinDuration)
		if err := jobCalls["logs"](t.Context(), j); err != nil {
			t.Errorf("the second call gives %v, want success: two refusals are not accepted", err)
		}
	})
	inBubble(t, "a truncated definition is fetched again", func(t *testing.T) {
		s := newScript(answer{status: 200, text: `{"steps":[{"name":"Se`}, answer{status: 200, text: `{}`},
			answer{status: 200}, okAnswer)
		if _, err := s.jobsThatKeepRetrying().Definition(t.Context()); err != nil || len(s.requests) != 4 {
			t.Errorf("%v after %d answers", err, len(s.requests))
		}
	})
}

// TestRefusals checks random sequences of answers. A refusal is accepted only if it is the only
// answer, repeated.
func TestRefusals(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		type event struct {
			code int // 0 is a success, -1 no response
			wait time.Duration
		}
		events := rapid.SliceOfN(rapid.Custom(func(r *rapid.T) event {
			return event{
				rapid.SampledFrom([]int{-1, 0, 404, 404, 404, 401, 503}).Draw(r, "code"),
				time.Duration(rapid.IntRange(0, 20).Draw(r, "wait")) * time.Second,
			}
		}), 1, 40).Draw(r, "events")
		synctest.Test(t, func(t *testing.T) {
			var state refusals
			var before []event
			for i, e := range events {
				time.Sleep(e.wait)
				var err error
				switch e.code {
				case -1:
					err = errors.New("connection reset")
				case 0:
				default:
					err = &StatusError{Code: e.code}
				}

				// Add the waits between consecutive responses that are equal to this one.
				count, duration, waits, silent := 1, time.Duration(0), e.wait, false
				for _, b := range slices.Backward(before) {
					if b.code == -1 {
						silent = true
					} else if b.code != e.code {
						break
					} else {
						count++
						if !silent {
							duration += min(waits, refusalMaxGap)
						}
						silent, waits = false, 0
					}
					waits += b.wait
				}
				before = append(before, e)
				want := (e.code == 404 || e.code == 401) && count >= refusalMinCount &&
					duration >= refusalMinDuration
				if got := state.accepted(err); got != want {
					r.Fatalf("event %d of %v: accepted is %t, want %t", i, events, got, want)
				}
			}
		})
	})
}

func TestClaim(t *testing.T) {
	t.Run("a redirect is not followed, and the error names the address to set", func(t *testing.T) {
		var elsewhere []string
		other := newScene(t, nil, func(w http.ResponseWriter, r *http.Request) {
			elsewhere = append(elsewhere, r.URL.Path)
			fmt.Fprint(w, `{"jobID":"j","jobToken":"t"}`)
		})
		for _, status := range []int{301, 302, 303, 307, 308} {
			s := newScene(t, nil, func(w http.ResponseWriter, r *http.Request) {
				http.Redirect(w, r, other.url+r.URL.Path+"?x=secret", status)
			})
			claim, err := s.client.Claim(t.Context())
			want := "service_url answers with a redirect to " + other.url + pollPath + ": set it to " + other.url
			if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") ||
				claim.Job != nil {
				t.Errorf("%d: claimed %v, %v; want an error with %q", status, claim.Job, err, want)
			}
		}
		if len(elsewhere) > 0 {
			t.Errorf("the client followed the redirect, to %q", elsewhere)
		}
	})
	t.Run("the error names the page of a proxy", func(t *testing.T) {
		_, err := newScene(t, nil, respond(http.StatusOK, "<html>log in</html>")).client.Claim(t.Context())
		wantError(t, err, "an HTML page and not JSON")
	})
}

func TestJobStatus(t *testing.T) {
	running, missing := respond(http.StatusOK, `"running"`), respond(http.StatusNotFound, "")
	// pollStatusUntilEnd polls every 20 seconds, until the status is neither Continue nor
	// Unanswered, and at most maxCalls times.
	pollStatusUntilEnd := func(t *testing.T, s *scene, maxCalls int) (jobStatus runtime.JobStatus, asked int) {
		t.Helper()
		for asked < maxCalls && (jobStatus == "" || jobStatus == runtime.Continue || jobStatus == runtime.Unanswered) {
			jobStatus, _ = s.client.JobStatus(t.Context(), someJob)
			asked++
			time.Sleep(20 * time.Second)
		}
		return jobStatus, asked
	}
	for _, status := range []int{404, 409, 410, 412} {
		inBubble(t, fmt.Sprintf("a job is gone after three %d in a row in at least 30 s", status), func(t *testing.T) {
			refuse := respond(status, "")
			s := newInMemoryScene(t, inTurn(running, refuse, running, refuse))
			if jobStatus, asked := pollStatusUntilEnd(t, s, 20); jobStatus != runtime.Gone || asked != 6 {
				t.Errorf("%q after %d calls, want gone after the third refusal in a row", jobStatus, asked)
			}
		})
	}
	inBubble(t, "a refusal is accepted also with the longest interval", func(t *testing.T) {
		s := newInMemoryScene(t, inTurn(running, missing))
		var jobStatus runtime.JobStatus
		for range 4 {
			jobStatus, _ = s.client.JobStatus(t.Context(), someJob)
			time.Sleep(24 * time.Hour) // the longest job_status_loop_interval
		}
		if jobStatus != runtime.Gone {
			t.Errorf("%q after three refusals, want gone", jobStatus)
		}
	})
	inBubble(t, "refusals are stored for two days, and only for jobs whose last response was one", func(t *testing.T) {
		known := false
		s := newInMemoryScene(t, func(w http.ResponseWriter, r *http.Request) {
			if known = !known; known {
				running(w, r)
			} else {
				missing(w, r)
			}
		})
		for i := range 100 { // every second call is refused
			job := &runtime.Job{ID: "j", Kind: runtime.Deployment, WorkflowID: fmt.Sprint("d/", i)}
			_, _ = s.client.JobStatus(t.Context(), job)
		}
		if n := len(s.client.refusals); n != 50 {
			t.Errorf("refusals of %d jobs are stored, want one for each job that was refused", n)
		}
		time.Sleep(3 * 24 * time.Hour)
		_, _ = s.client.JobStatus(t.Context(), someJob)
		if n := len(s.client.refusals); n != 0 {
			t.Errorf("refusals of %d jobs are stored after three days, want none", n)
		}
	})
	t.Run("only the call that returned a documented status is used from then on", func(t *testing.T) {
		for _, unclear := range []string{"<html>start page</html>", `"ok"`, `{"id":"d"}`, ""} {
			s := newScene(t, nil, func(w http.ResponseWriter, r *http.Request) {
				text := unclear
				if strings.HasSuffix(r.URL.Path, "/check") {
					text = `{"status":"failed"}`
				}
				fmt.Fprint(w, text)
			})
			for range 2 {
				s.wantStatus(t, unclear, runtime.Cancelled, false)
			}
		}
	})
	inBubble(t, "one 404 from both calls does not suspend status polls for an hour", func(t *testing.T) {
		failed := respond(http.StatusOK, `"failed"`)
		s := newInMemoryScene(t, inTurn(missing, missing, missing, missing, failed))
		if jobStatus, asked := pollStatusUntilEnd(t, s, 20); jobStatus != runtime.Cancelled || asked != 3 {
			t.Errorf("%q after %d checks, want cancelled after the third", jobStatus, asked)
		}
	})
	inBubble(t, "404s of both calls before the first success do not count", func(t *testing.T) {
		s := newInMemoryScene(t, inTurn(missing, missing, missing, missing, running, missing))
		if jobStatus, asked := pollStatusUntilEnd(t, s, 20); jobStatus != runtime.Gone || asked != 6 {
			t.Errorf("%q after %d checks, want gone after the success and three more refusals", jobStatus, asked)
		}
	})
	t.Run("a page of a proxy in place of the status changes nothing", func(t *testing.T) {
		page, failed := respond(http.StatusOK, "<html>log in</html>"), respond(http.StatusOK, `"failed"`)
		s := newScene(t, nil, inTurn(running, page, failed))
		for i, want := range []runtime.JobStatus{runtime.Continue, runtime.Continue, runtime.Cancelled} {
			if jobStatus, err := s.client.JobStatus(t.Context(), someJob); jobStatus != want {
				t.Errorf("response %d means %q, %v; want %q", i, jobStatus, err, want)
			}
		}
	})
}

// newInMemoryScene is newScene without a network, for tests with synctest.
func newInMemoryScene(t *testing.T, handler http.HandlerFunc, edits ...func(*Options)) *scene {
	t.Helper()
	listener := &pipeListener{accepted: make(chan net.Conn), closed: make(chan struct{})}
	s := &scene{log: &strings.Builder{}}
	server := &http.Server{Handler: s.record(handler)}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(listener)
	}()
	s.at("http://service.invalid", func(o *Options) {
		o.Transports = NewTransports(&http.Transport{DialContext: listener.dial})
		for _, edit := range edits {
			edit(o)
		}
	})
	t.Cleanup(func() {
		s.client.Close()
		_ = server.Close()
		<-served
	})
	return s
}

// pipeListener is a listener whose connections are pipes in memory.
type pipeListener struct {
	accepted chan net.Conn
	closed   chan struct{}
	close    sync.Once
}

func (p *pipeListener) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case p.accepted <- far:
		return near, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

// Accept implements [net.Listener].
func (p *pipeListener) Accept() (net.Conn, error) {
	select {
	case conn := <-p.accepted:
		return conn, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

// Close implements [net.Listener].
func (p *pipeListener) Close() error {
	p.close.Do(func() { close(p.closed) })
	return nil
}

// Addr implements [net.Listener].
func (p *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "memory", Net: "pipe"} }
