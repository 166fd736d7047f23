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
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/cmwa-project/cmwa/runtime"
)

// refusing are the statuses that one wrong answer of a proxy may have.
var refusing = []int{301, 302, 401, 403, 404, 405, 409, 410, 412, 501}

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

// good is an answer that every call takes.
var good = answer{status: 200, text: `{"steps":[{"name":"Setup"}]}`}

// finally is a refusal in the service's own form.
func finally(status int) answer {
	return answer{status: status, text: fmt.Sprintf(`{"code":%d,"message":"the job was cancelled"}`, status)}
}

// patient is a client that retries for as long as its caller's context allows.
func (s *script) patient() *Jobs {
	j := s.jobs(io.Discard)
	j.caller.retry.count = 1000
	return j
}

func TestJobs(t *testing.T) {
	for name, send := range jobCalls {
		t.Run(name+"/a stray refusal is retried", func(t *testing.T) {
			for _, status := range refusing {
				synctest.Test(t, func(t *testing.T) {
					s := play(answer{status: status}, good)
					if err := send(t.Context(), s.patient()); err != nil || len(s.asked) != 2 {
						t.Errorf("%d: %v after %d attempts, want success with the second", status, err, len(s.asked))
					}
				})
			}
		})
		t.Run(name+"/a refusal is believed after thirty seconds of nothing else", func(t *testing.T) {
			for _, status := range refusing {
				synctest.Test(t, func(t *testing.T) {
					s := play(answer{status: status})
					j := s.patient()
					begin := time.Now()
					err := send(t.Context(), j)
					var refusal *StatusError
					if !errors.As(err, &refusal) || refusal.Code != status {
						t.Errorf("%d: the error is %v", status, err)
					}
					if took := time.Since(begin); took < believeTime || took > 2*believeTime || len(s.asked) < believeCount {
						t.Errorf("%d was believed after %s and %d answers", status, took, len(s.asked))
					}
					before := len(s.asked)
					if err := send(t.Context(), j); err == nil || len(s.asked) != before+1 {
						t.Errorf("%d: the next call gives %v after %d attempts, want the refusal at once", status, err, len(s.asked)-before)
					}
				})
			}
		})
		t.Run(name+"/a final refusal is believed when a heartbeat confirms it", func(t *testing.T) {
			for _, status := range []int{409, 410} {
				synctest.Test(t, func(t *testing.T) {
					s := play(finally(status))
					begin := time.Now()
					err := send(t.Context(), s.patient())
					if took := time.Since(begin); !errors.Is(err, runtime.ErrGone) || took != confirmWait || len(s.asked) != 2 {
						t.Errorf("%d: %v after %s and %d answers, want ErrGone after %s and 2", status, err, took, len(s.asked), confirmWait)
					}
					if last := s.asked[len(s.asked)-1]; !strings.HasSuffix(last.URL.Path, "/heartbeat") {
						t.Errorf("it was confirmed by %s", last.URL.Path)
					}
				})
			}
		})
		t.Run(name+"/a final refusal that is not confirmed is retried", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := play(finally(409), good, good)
				if err := send(t.Context(), s.patient()); err != nil || len(s.asked) != 3 {
					t.Errorf("%v after %d answers, want success after the refusal, the heartbeat and the retry", err, len(s.asked))
				}
			})
		})
		t.Run(name+"/a page of a proxy is no success", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				page := answer{status: 200, text: "<!DOCTYPE html><title>Log in</title>"}
				s := play(slices.Concat(slices.Repeat([]answer{page}, 20), []answer{good})...)
				if err := send(t.Context(), s.patient()); err != nil || len(s.asked) != 21 {
					t.Errorf("%v after %d answers, want success with the 21st", err, len(s.asked))
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				if err := send(ctx, play(page).patient()); err == nil || !strings.Contains(err.Error(), "HTML page") {
					t.Errorf("the error after a minute is %v, want one that names the page", err)
				}
			})
		})
		t.Run(name+"/a certificate error is retried", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				expired := answer{err: &tls.CertificateVerificationError{Err: x509.CertificateInvalidError{Reason: x509.Expired}}}
				s := play(expired, expired, good)
				if err := send(t.Context(), s.patient()); err != nil || len(s.asked) != 3 {
					t.Errorf("%v after %d attempts, want success with the third", err, len(s.asked))
				}
			})
		})
		t.Run(name+"/a Retry-After never shortens the wait", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				for _, value := range []string{"0", "Fri, 31 Dec 1999 00:00:00 GMT"} {
					s := play(answer{status: 503, header: http.Header{"Retry-After": {value}}})
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					if err := send(ctx, s.patient()); err == nil || len(s.asked) > 15 {
						t.Errorf("Retry-After %q: %v after %d attempts in a minute", value, err, len(s.asked))
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
			err := play(answer{status: 404, text: "404 page not found"}).patient().Heartbeat(ctx)
			if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "404 page not found") {
				t.Errorf("the error is %v", err)
			}
		})
	})
	t.Run("logs/a batch that is too large starts the count of refusals from the beginning", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := play(answer{status: 404}, answer{status: 413}, answer{status: 404}, answer{status: 404}, good)
			j := s.patient()
			var tooLarge *StatusError
			if err := jobCalls["logs"](t.Context(), j); !errors.As(err, &tooLarge) || tooLarge.Code != 413 {
				t.Errorf("the first call gives %v, want 413 at once", err)
			}
			time.Sleep(believeTime)
			if err := jobCalls["logs"](t.Context(), j); err != nil {
				t.Errorf("the second call gives %v, want success: two refusals are not believed", err)
			}
		})
	})
	t.Run("a truncated definition is fetched again", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := play(answer{status: 200, text: `{"steps":[{"name":"Se`}, answer{status: 200, text: `{}`}, answer{status: 200}, good)
			if _, _, err := s.patient().Definition(t.Context()); err != nil || len(s.asked) != 4 {
				t.Errorf("%v after %d answers", err, len(s.asked))
			}
		})
	})
}

// TestRefusals checks the rule against its own words, for any sequence of answers.
func TestRefusals(t *testing.T) {
	t.Run("only a repeated and only answer is believed", func(t *testing.T) {
		rapid.Check(t, func(r *rapid.T) {
			type event struct {
				code int // 0 is a success, -1 no answer
				wait time.Duration
			}
			events := rapid.SliceOfN(rapid.Custom(func(r *rapid.T) event {
				return event{
					rapid.SampledFrom([]int{-1, 0, 404, 404, 404, 401, 503}).Draw(r, "code"),
					time.Duration(rapid.IntRange(0, 20).Draw(r, "wait")) * time.Second,
				}
			}), 1, 40).Draw(r, "events")
			synctest.Test(t, func(t *testing.T) {
				var doubts refusals
				var answers []event // with the time of each in wait
				begin := time.Now()
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
					if e.code >= 0 {
						answers = append(answers, event{e.code, time.Since(begin)})
					}
					first := len(answers) // of the run of the same answer at the end
					for first > 0 && answers[first-1].code == e.code {
						first--
					}
					want := (e.code == 404 || e.code == 401) && len(answers)-first >= believeCount && time.Since(begin)-answers[first].wait >= believeTime
					if got := doubts.believed(err); got != want {
						r.Fatalf("event %d of %v: believed is %t, want %t", i, events, got, want)
					}
				}
			})
		})
	})
}

func TestClaim(t *testing.T) {
	t.Run("a redirect is not followed and names the address to set", func(t *testing.T) {
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
			if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") || claim.Job != nil {
				t.Errorf("%d: claimed %v, %v; want an error with %q", status, claim.Job, err, want)
			}
		}
		if len(elsewhere) > 0 {
			t.Errorf("the token was taken to another address, for %q", elsewhere)
		}
	})
	t.Run("the page of a proxy is named", func(t *testing.T) {
		s := newScene(t, nil, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>log in</html>") })
		if _, err := s.client.Claim(t.Context()); err == nil || !strings.Contains(err.Error(), "an HTML page and not JSON") {
			t.Errorf("the error is %v", err)
		}
	})
}

func TestWanted(t *testing.T) {
	// ask asks every 20 seconds, until the verdict is not to carry on.
	ask := func(t *testing.T, s *scene, most int) (verdict runtime.Verdict, asked int) {
		t.Helper()
		for asked < most && (verdict == "" || verdict == runtime.CarryOn || verdict == runtime.Unanswered) {
			verdict, _ = s.client.Wanted(t.Context(), someJob)
			asked++
			time.Sleep(20 * time.Second)
		}
		return verdict, asked
	}
	t.Run("a job is gone after three refusals in thirty seconds and not before", func(t *testing.T) {
		for _, status := range []int{404, 409, 410, 412} {
			synctest.Test(t, func(t *testing.T) {
				asked := 0
				s := bubbleScene(t, func(w http.ResponseWriter, _ *http.Request) {
					if asked++; asked == 1 || asked == 3 {
						fmt.Fprint(w, `"running"`)
						return
					}
					w.WriteHeader(status)
				})
				if verdict, asked := ask(t, s, 20); verdict != runtime.Gone || asked != 6 {
					t.Errorf("%d: %q after %d calls, want gone after the third refusal in a row", status, verdict, asked)
				}
			})
		}
	})
	t.Run("a refusal is believed however long the interval is", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			asked := 0
			s := bubbleScene(t, func(w http.ResponseWriter, _ *http.Request) {
				if asked++; asked == 1 {
					fmt.Fprint(w, `"running"`)
					return
				}
				w.WriteHeader(http.StatusNotFound)
			})
			var verdict runtime.Verdict
			for range 4 {
				verdict, _ = s.client.Wanted(t.Context(), someJob)
				time.Sleep(24 * time.Hour) // the longest job_status_loop_interval
			}
			if verdict != runtime.Gone {
				t.Errorf("%q after three refusals, want gone", verdict)
			}
		})
	})
	t.Run("only open doubts are kept", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			known := false
			s := bubbleScene(t, func(w http.ResponseWriter, _ *http.Request) {
				if known = !known; known {
					fmt.Fprint(w, `"running"`)
					return
				}
				w.WriteHeader(http.StatusNotFound)
			})
			for i := range 100 { // every other one is refused
				job := &runtime.Job{ID: "j", Kind: runtime.Deployment, Subject: fmt.Sprint("d/", i)}
				_, _ = s.client.Wanted(t.Context(), job)
			}
			if n := len(s.client.doubts); n != 50 {
				t.Errorf("%d doubts are kept, want one for each job that was refused", n)
			}
			time.Sleep(3 * 24 * time.Hour)
			_, _ = s.client.Wanted(t.Context(), someJob)
			if n := len(s.client.doubts); n != 0 {
				t.Errorf("%d doubts are kept after three days, want none", n)
			}
		})
	})
	t.Run("only a known word settles which call is used", func(t *testing.T) {
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
				if verdict, err := s.client.Wanted(t.Context(), someJob); verdict != runtime.Ended || err != nil {
					t.Errorf("%q: %q, %v; want the check call to answer", unclear, verdict, err)
				}
			}
		}
	})
	t.Run("a stray 404 of both calls does not end the checks for an hour", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			calls := 0
			s := bubbleScene(t, func(w http.ResponseWriter, _ *http.Request) {
				if calls++; calls <= 4 {
					w.WriteHeader(http.StatusNotFound)
					return
				}
				fmt.Fprint(w, `"failed"`)
			})
			if verdict, asked := ask(t, s, 20); verdict != runtime.Ended || asked != 3 {
				t.Errorf("%q after %d checks, want ended with the third", verdict, asked)
			}
		})
	})
	t.Run("a 404 of both calls from before the first answer is forgotten", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			calls := 0
			s := bubbleScene(t, func(w http.ResponseWriter, _ *http.Request) {
				if calls++; calls == 5 {
					fmt.Fprint(w, `"running"`)
					return
				}
				w.WriteHeader(http.StatusNotFound)
			})
			if verdict, asked := ask(t, s, 20); verdict != runtime.Gone || asked != 6 {
				t.Errorf("%q after %d checks, want gone after three refusals behind the answer", verdict, asked)
			}
		})
	})
	t.Run("a page of a proxy in place of the status changes nothing", func(t *testing.T) {
		text := `"running"`
		s := newScene(t, nil, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, text) })
		for _, text = range []string{`"running"`, "<html>log in</html>", `"failed"`} {
			verdict, err := s.client.Wanted(t.Context(), someJob)
			if want := map[string]runtime.Verdict{`"failed"`: runtime.Ended}[text]; want != "" && verdict != want || want == "" && verdict != runtime.CarryOn {
				t.Errorf("%s means %q, %v", text, verdict, err)
			}
		}
	})
}

func TestReport(t *testing.T) {
	t.Run("heartbeats that fail do not delay the report of a status", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var statuses []string
			s := bubbleScene(t, func(w http.ResponseWriter, r *http.Request) {
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

// bubbleScene is newScene without a network, for virtual time.
func bubbleScene(t *testing.T, handler http.HandlerFunc) *scene {
	t.Helper()
	listener := &pipes{accepted: make(chan net.Conn), closed: make(chan struct{})}
	s := &scene{log: &strings.Builder{}}
	server := &http.Server{Handler: s.record(handler)}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(listener)
	}()
	s.at("http://service.invalid", func(o *Options) { o.Transport = &http.Transport{DialContext: listener.dial} })
	t.Cleanup(func() {
		s.client.Close()
		_ = server.Close()
		<-served
	})
	return s
}

// pipes is a listener whose connections are pipes in memory.
type pipes struct {
	accepted chan net.Conn
	closed   chan struct{}
}

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
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
func (p *pipes) Accept() (net.Conn, error) {
	select {
	case conn := <-p.accepted:
		return conn, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

// Close implements [net.Listener].
func (p *pipes) Close() error {
	close(p.closed)
	return nil
}

// Addr implements [net.Listener].
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "memory", Net: "pipe"} }
