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
		_, _, err := j.Definition(ctx)
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
	for name, send := range jobCalls {
		t.Run(name+"/a stray refusal is retried", func(t *testing.T) {
			for _, status := range refusalCodes {
				synctest.Test(t, func(t *testing.T) {
					s := newScript(answer{status: status}, okAnswer)
					if err := send(t.Context(), s.jobsThatKeepRetrying()); err != nil || len(s.requests) != 2 {
						t.Errorf("%d: %v after %d attempts, want success with the second", status, err, len(s.requests))
					}
				})
			}
		})
		t.Run(name+"/a refusal repeated for 30 s is accepted", func(t *testing.T) {
			for _, status := range refusalCodes {
				synctest.Test(t, func(t *testing.T) {
					s := newScript(answer{status: status})
					j := s.jobsThatKeepRetrying()
					begin := time.Now()
					err := send(t.Context(), j)
					var refusal *StatusError
					if !errors.As(err, &refusal) || refusal.Code != status {
						t.Errorf("%d: the error is %v", status, err)
					}
					if took := time.Since(begin); took < refusalMinDuration || took > 2*refusalMinDuration ||
						len(s.requests) < refusalMinCount {
						t.Errorf("%d was accepted after %s and %d answers", status, took, len(s.requests))
					}
					before := len(s.requests)
					if err := send(t.Context(), j); err == nil || len(s.requests) != before+1 {
						t.Errorf("%d: the next call gives %v after %d attempts, want the refusal at once", status, err,
							len(s.requests)-before)
					}
				})
			}
		})
		t.Run(name+"/a final refusal is accepted when a heartbeat confirms it", func(t *testing.T) {
			for _, status := range []int{409, 410} {
				synctest.Test(t, func(t *testing.T) {
					s := newScript(finalRefusal(status))
					begin := time.Now()
					err := send(t.Context(), s.jobsThatKeepRetrying())
					if took := time.Since(begin); !errors.Is(err, runtime.ErrGone) || took != confirmWait ||
						len(s.requests) != 2 {
						t.Errorf("%d: %v after %s and %d answers, want ErrGone after %s and 2", status, err, took,
							len(s.requests), confirmWait)
					}
					if last := s.requests[len(s.requests)-1]; !strings.HasSuffix(last.URL.Path, "/heartbeat") {
						t.Errorf("the refusal was confirmed by %s, want a heartbeat", last.URL.Path)
					}
				})
			}
		})
		t.Run(name+"/a final refusal that is not confirmed is retried", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newScript(finalRefusal(409), okAnswer, okAnswer)
				if err := send(t.Context(), s.jobsThatKeepRetrying()); err != nil || len(s.requests) != 3 {
					t.Errorf("%v after %d answers, want success after the refusal, the heartbeat and the retry", err,
						len(s.requests))
				}
			})
		})
		t.Run(name+"/a page of a proxy is no success", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				page := answer{status: 200, text: "<!DOCTYPE html><title>Log in</title>"}
				s := newScript(slices.Concat(slices.Repeat([]answer{page}, 20), []answer{okAnswer})...)
				if err := send(t.Context(), s.jobsThatKeepRetrying()); err != nil || len(s.requests) != 21 {
					t.Errorf("%v after %d answers, want success with the 21st", err, len(s.requests))
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				if err := send(ctx, newScript(page).jobsThatKeepRetrying()); err == nil ||
					!strings.Contains(err.Error(), "HTML page") {
					t.Errorf("the error after a minute is %v, want one that names the page", err)
				}
			})
		})
		t.Run(name+"/a certificate error is retried", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				invalid := x509.CertificateInvalidError{Reason: x509.Expired}
				expired := answer{err: &tls.CertificateVerificationError{Err: invalid}}
				s := newScript(expired, expired, okAnswer)
				if err := send(t.Context(), s.jobsThatKeepRetrying()); err != nil || len(s.requests) != 3 {
					t.Errorf("%v after %d attempts, want success with the third", err, len(s.requests))
				}
			})
		})
		t.Run(name+"/a Retry-After never shortens the wait", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				for _, value := range []string{"0", "Fri, 31 Dec 1999 00:00:00 GMT"} {
					s := newScript(answer{status: 503, header: http.Header{"Retry-After": {value}}})
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					if err := send(ctx, s.jobsThatKeepRetrying()); err == nil || len(s.requests) > 15 {
						t.Errorf("Retry-After %q: %v after %d attempts in a minute", value, err, len(s.requests))
					}
					cancel()
				}
			})
		})
	}
	t.Run("the end of the time limit names the last failure", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			err := newScript(answer{status: 404, text: "404 page not found"}).jobsThatKeepRetrying().Heartbeat(ctx)
			if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "404 page not found") {
				t.Errorf("the error is %v", err)
			}
		})
	})
	t.Run("logs/a batch that is too large resets the count of refusals", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
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
	})
	t.Run("a truncated definition is fetched again", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newScript(answer{status: 200, text: `{"steps":[{"name":"Se`}, answer{status: 200, text: `{}`},
				answer{status: 200}, okAnswer)
			if _, _, err := s.jobsThatKeepRetrying().Definition(t.Context()); err != nil || len(s.requests) != 4 {
				t.Errorf("%v after %d answers", err, len(s.requests))
			}
		})
	})
}

// TestRefusals checks random sequences of answers against the rules of refusals.
func TestRefusals(t *testing.T) {
	t.Run("a refusal is accepted only if it is the only answer, repeated", func(t *testing.T) {
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
		s := newScene(t, nil, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>log in</html>") })
		if _, err := s.client.Claim(t.Context()); err == nil ||
			!strings.Contains(err.Error(), "an HTML page and not JSON") {
			t.Errorf("the error is %v", err)
		}
	})
}

func TestJobStatus(t *testing.T) {
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
	t.Run("a job is gone after three consecutive refusals over at least 30 s", func(t *testing.T) {
		for _, status := range []int{404, 409, 410, 412} {
			synctest.Test(t, func(t *testing.T) {
				asked := 0
				s := newInMemoryScene(t, func(w http.ResponseWriter, _ *http.Request) {
					if asked++; asked == 1 || asked == 3 {
						fmt.Fprint(w, `"running"`)
						return
					}
					w.WriteHeader(status)
				})
				if jobStatus, asked := pollStatusUntilEnd(t, s, 20); jobStatus != runtime.Gone || asked != 6 {
					t.Errorf("%d: %q after %d calls, want gone after the third refusal in a row", status, jobStatus,
						asked)
				}
			})
		}
	})
	t.Run("a refusal is accepted also with the longest interval", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			asked := 0
			s := newInMemoryScene(t, func(w http.ResponseWriter, _ *http.Request) {
				if asked++; asked == 1 {
					fmt.Fprint(w, `"running"`)
					return
				}
				w.WriteHeader(http.StatusNotFound)
			})
			var jobStatus runtime.JobStatus
			for range 4 {
				jobStatus, _ = s.client.JobStatus(t.Context(), someJob)
				time.Sleep(24 * time.Hour) // the longest job_status_loop_interval
			}
			if jobStatus != runtime.Gone {
				t.Errorf("%q after three refusals, want gone", jobStatus)
			}
		})
	})
	t.Run("refusals are stored for two days, and only for jobs whose last response was one", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			known := false
			s := newInMemoryScene(t, func(w http.ResponseWriter, _ *http.Request) {
				if known = !known; known {
					fmt.Fprint(w, `"running"`)
					return
				}
				w.WriteHeader(http.StatusNotFound)
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
	})
	t.Run("only the call that returned a documented status is used from then on", func(t *testing.T) {
		for _, unclear := range []string{"<html>start page</html>", `"ok"`, `{"id":"d"}`, ""} {
			page := true
			s := newScene(t, nil, func(w http.ResponseWriter, r *http.Request) {
				switch {
				case strings.HasSuffix(r.URL.Path, "/check"):
					fmt.Fprint(w, `{"status":"failed"}`)
				case page:
					fmt.Fprint(w, unclear)
				}
			})
			for range 2 {
				if jobStatus, err := s.client.JobStatus(t.Context(), someJob); jobStatus != runtime.Cancelled ||
					err != nil {
					t.Errorf("%q: %q, %v; want the check call to answer", unclear, jobStatus, err)
				}
			}
		}
	})
	t.Run("one 404 from both calls does not suspend status polls for an hour", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			calls := 0
			s := newInMemoryScene(t, func(w http.ResponseWriter, _ *http.Request) {
				if calls++; calls <= 4 {
					w.WriteHeader(http.StatusNotFound)
					return
				}
				fmt.Fprint(w, `"failed"`)
			})
			if jobStatus, asked := pollStatusUntilEnd(t, s, 20); jobStatus != runtime.Cancelled || asked != 3 {
				t.Errorf("%q after %d checks, want cancelled after the third", jobStatus, asked)
			}
		})
	})
	t.Run("404s of both calls before the first success do not count", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			calls := 0
			s := newInMemoryScene(t, func(w http.ResponseWriter, _ *http.Request) {
				if calls++; calls == 5 {
					fmt.Fprint(w, `"running"`)
					return
				}
				w.WriteHeader(http.StatusNotFound)
			})
			if jobStatus, asked := pollStatusUntilEnd(t, s, 20); jobStatus != runtime.Gone || asked != 6 {
				t.Errorf("%q after %d checks, want gone after the success and three more refusals", jobStatus, asked)
			}
		})
	})
	t.Run("a page of a proxy in place of the status changes nothing", func(t *testing.T) {
		text := `"running"`
		s := newScene(t, nil, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, text) })
		for _, text = range []string{`"running"`, "<html>log in</html>", `"failed"`} {
			jobStatus, err := s.client.JobStatus(t.Context(), someJob)
			if want := map[string]runtime.JobStatus{`"failed"`: runtime.Cancelled}[text]; want != "" &&
				jobStatus != want || want == "" && jobStatus != runtime.Continue {
				t.Errorf("%s means %q, %v", text, jobStatus, err)
			}
		}
	})
}

func TestReport(t *testing.T) {
	t.Run("heartbeats that fail do not delay the report of a status", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
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
		o.Transport = &http.Transport{DialContext: listener.dial}
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
