package runner_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/runner"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// memory is a service without a network, for virtual time.
type memory struct {
	service http.Handler
	mood    func(r *http.Request) (status int, err error) // asked first; 0 lets the service answer
}

func (m *memory) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	recorder := httptest.NewRecorder()
	switch status, err := m.mood(r); {
	case err != nil:
		return nil, err
	case status != 0:
		recorder.WriteHeader(status)
	default:
		m.service.ServeHTTP(recorder, r)
	}
	return recorder.Result(), nil
}

// virtual runs a job of two steps without scripts against a service with moods,
// in virtual time.
func virtual(ctx context.Context, t *testing.T, mood func(r *http.Request) (int, error)) (code int, record runtimetest.Record, took time.Duration) {
	t.Helper()
	return virtualAfter(ctx, t, mood, runtime.Report{Status: runtime.Running}, func(*runtime.Handover) {})
}

// virtualAfter does so after a report of the agent's, and with an edited handover.
func virtualAfter(
	ctx context.Context, t *testing.T, mood func(r *http.Request) (int, error),
	report runtime.Report, edit func(*runtime.Handover),
) (code int, record runtimetest.Record, took time.Duration) {
	t.Helper()
	service := runtimetest.NewService()
	job := &runtime.Job{ID: "job", Service: "http://service.invalid", Token: secret.New("job-token"), Definition: runtimetest.DefinitionOf(steps("", ""))}
	service.Add(job)
	if err := service.Report(ctx, job, report); err != nil {
		t.Fatal(err)
	}
	h := runtimetest.Offer(job)
	h.Root = t.TempDir()
	edit(&h)
	begin := time.Now()
	code = runner.Run(ctx, &h, runner.Options{
		Environ: []string{"PATH=/bin:/usr/bin", "TMPDIR=" + h.Root}, Progress: &lockedBuffer{}, Transport: &memory{service, mood},
	})
	return code, service.Record("job"), time.Since(begin)
}

// isStatus reports whether a call is about the status of a step.
func isStatus(r *http.Request, step string) bool {
	return strings.HasSuffix(r.URL.Path, "/"+step+"/status")
}

func TestAStatusIsRepeatedForManyMinutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		back := time.Now().Add(14 * time.Minute)
		code, record, took := virtual(t.Context(), t, func(r *http.Request) (int, error) {
			if isStatus(r, "1") && time.Now().Before(back) {
				return 0, errors.New("no route to host")
			}
			return 0, nil
		})
		if code != runtime.CodeSucceeded || record.Steps[2].Status != runtime.Succeeded {
			t.Errorf("code %d, steps %v", code, record.Statuses())
		}
		if took < 14*time.Minute || took > 14*time.Minute+20*time.Second {
			t.Errorf("it took %s; the service was back after 14m", took)
		}
		if beats := record.Heartbeats; beats < 28 {
			t.Errorf("%d signs of life in 14 minutes", beats)
		}
	})
}

func TestAnEndThatCannotBeToldHasACodeOfItsOwn(t *testing.T) {
	for name, c := range map[string]struct {
		accepted int // reports of the last step before the service goes away
		code     int
		last     runtime.Status
	}{
		"before the last step":    {0, runtime.CodeFailedUnreported, runtime.NotStarted},
		"before the last success": {1, runtime.CodeSucceededUnreported, runtime.Running},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				reports := 0
				code, record, took := virtual(t.Context(), t, func(r *http.Request) (int, error) {
					if isStatus(r, "2") {
						if reports++; reports > c.accepted {
							return http.StatusBadGateway, nil
						}
					}
					return 0, nil
				})
				if code != c.code || record.Steps[2].Status != c.last {
					t.Errorf("code %d, steps %v", code, record.Statuses())
				}
				if took < 15*time.Minute || took > 16*time.Minute {
					t.Errorf("it took %s, want 15m", took)
				}
			})
		})
	}
}

func TestAJobWhoseStatusIsRefusedIsNotRunOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		code, record, took := virtual(t.Context(), t, func(r *http.Request) (int, error) {
			if isStatus(r, "1") {
				return http.StatusBadRequest, nil
			}
			return 0, nil
		})
		if code != runtime.CodeFailedUnreported || record.Steps[2].Status != runtime.NotStarted || took < 30*time.Second || took > time.Minute {
			t.Errorf("code %d, steps %v, after %s", code, record.Statuses(), took)
		}
	})
}

func TestAStoppedJobHasABoundedTimeForItsLastWords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		code, _, took := virtual(ctx, t, func(r *http.Request) (int, error) {
			if isStatus(r, "1") {
				stop()
				return 0, errors.New("no route to host")
			}
			return 0, nil
		})
		if code != runtime.CodeFailedUnreported {
			t.Errorf("code %d", code)
		}
		if most := 2 * time.Minute; took > most {
			t.Errorf("it took %s, want at most %s", took, most)
		}
	})
}

func TestSetUp(t *testing.T) {
	now := time.Now().UTC()
	lines := []runtime.Line{{Time: now, Text: "one\n"}, {Time: now, Text: "two\n"}, {Time: now, Text: "three\n"}}
	for name, stored := range map[string]int{
		"lines whose answer the agent lost are sent as they were": 2,
		"lines that the service never had are sent":               0,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				code, record, _ := virtualAfter(t.Context(), t, func(*http.Request) (int, error) { return 0, nil },
					runtime.Report{Status: runtime.Running, Lines: lines[:stored]},
					func(h *runtime.Handover) { h.Pending, h.Resend = lines, 2 })
				if want := "one\ntwo\nthree\nWorkflow runner "; code != runtime.CodeSucceeded || !strings.HasPrefix(record.Text(0), want) {
					t.Errorf("code %d, and the log of step 0 is %q, want one that begins with %q", code, record.Text(0), want)
				}
			})
		})
	}
}

func TestHeartbeat(t *testing.T) {
	// job runs a job whose first step waits for the service for some minutes, and
	// whose n-th heartbeat, from 1, is answered by beat; 0 is a success.
	job := func(t *testing.T, minutes int, beat func(n int) int) (code, beats int, record runtimetest.Record, took time.Duration) {
		t.Helper()
		end := time.Now().Add(time.Duration(minutes) * time.Minute)
		code, record, took = virtual(t.Context(), t, func(r *http.Request) (int, error) {
			switch {
			case strings.HasSuffix(r.URL.Path, "/heartbeat"):
				beats++
				return beat(beats), nil
			case isStatus(r, "1") && time.Now().Before(end):
				return 503, nil
			}
			return 0, nil
		})
		return code, beats, record, took
	}
	t.Run("a refusal that goes on ends the job", func(t *testing.T) {
		for _, status := range []int{401, 404, 409, 410} {
			synctest.Test(t, func(t *testing.T) {
				code, _, record, took := job(t, 10, func(n int) int {
					if n >= 3 {
						return status
					}
					return 0
				})
				if code != runtime.CodeGone || record.Steps[1].Status != runtime.NotStarted {
					t.Errorf("%d: code %d, steps %v", status, code, record.Statuses())
				}
				if took < 90*time.Second || took > 2*time.Minute {
					t.Errorf("%d: after %s, want 30s to 60s of refusals after the first minute", status, took)
				}
			})
		}
	})
	t.Run("a stray refusal changes nothing", func(t *testing.T) {
		for _, status := range []int{401, 403, 404, 405, 409, 410, 412, 501} {
			for _, stray := range []int{1, 2, 5} {
				synctest.Test(t, func(t *testing.T) {
					code, beats, record, _ := job(t, 10, func(n int) int {
						if n == stray {
							return status
						}
						return 0
					})
					if code != runtime.CodeSucceeded || beats < 20 {
						t.Errorf("%d as answer %d: code %d after %d heartbeats, steps %v", status, stray, code, beats, record.Statuses())
					}
				})
			}
		}
	})
	t.Run("a service without the call gets heartbeats until the end", func(t *testing.T) {
		for _, status := range []int{404, 405, 501} {
			synctest.Test(t, func(t *testing.T) {
				code, beats, record, _ := job(t, 10, func(int) int { return status })
				if code != runtime.CodeSucceeded || beats < 20 || beats > 40 {
					t.Errorf("%d: code %d after %d heartbeats in ten minutes, steps %v", status, code, beats, record.Statuses())
				}
			})
		}
	})
}
