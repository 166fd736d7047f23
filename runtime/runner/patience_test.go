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
	"github.com/cmwa-project/cmwa/secret"
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
	service := runtimetest.NewService()
	job := &runtime.Job{ID: "job", Service: "http://service.invalid", Token: secret.New("job-token"), Definition: runtimetest.DefinitionOf(steps("", ""))}
	service.Add(job)
	if err := service.Report(ctx, job, runtime.Report{Status: runtime.Running}); err != nil {
		t.Fatal(err)
	}
	h := runtimetest.Offer(job)
	h.Root = t.TempDir()
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
	synctest.Test(t, func(t *testing.T) {
		code, record, took := virtual(t.Context(), t, func(r *http.Request) (int, error) {
			if isStatus(r, "2") {
				return http.StatusBadGateway, nil
			}
			return 0, nil
		})
		if code != runtime.CodeUntold || record.Steps[2].Status == runtime.Succeeded {
			t.Errorf("code %d, steps %v", code, record.Statuses())
		}
		if took < 15*time.Minute || took > 16*time.Minute {
			t.Errorf("it took %s, want 15m", took)
		}
	})
}

func TestAJobWhoseStatusIsRefusedIsNotRunOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		code, record, took := virtual(t.Context(), t, func(r *http.Request) (int, error) {
			if isStatus(r, "1") {
				return http.StatusBadRequest, nil
			}
			return 0, nil
		})
		if code != runtime.CodeUntold || record.Steps[2].Status != runtime.NotStarted || took > time.Second {
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
		if code != runtime.CodeUntold {
			t.Errorf("code %d", code)
		}
		if most := 2 * time.Minute; took > most {
			t.Errorf("it took %s, want at most %s", took, most)
		}
	})
}

func TestAHeartbeatThatSaysGoneEndsTheJob(t *testing.T) {
	for _, status := range []int{401, 404, 409, 410} {
		synctest.Test(t, func(t *testing.T) {
			beats := 0
			begin := time.Now()
			code, record, took := virtual(t.Context(), t, func(r *http.Request) (int, error) {
				switch {
				case strings.HasSuffix(r.URL.Path, "/heartbeat"):
					if beats++; beats == 3 {
						return status, nil
					}
				case isStatus(r, "1") && time.Since(begin) < 10*time.Minute:
					return 503, nil
				}
				return 0, nil
			})
			if code != runtime.CodeGone || record.Steps[1].Status != runtime.NotStarted {
				t.Errorf("%d: code %d, steps %v", status, code, record.Statuses())
			}
			if took != time.Minute || beats != 3 {
				t.Errorf("%d: after %s and %d beats, want 1m and 3", status, took, beats)
			}
		})
	}
}

func TestTheFirstAnswerToAHeartbeatMayBeThatThereIsNoSuchCall(t *testing.T) {
	for _, status := range []int{404, 405, 501} {
		synctest.Test(t, func(t *testing.T) {
			beats := 0
			begin := time.Now()
			code, record, _ := virtual(t.Context(), t, func(r *http.Request) (int, error) {
				switch {
				case strings.HasSuffix(r.URL.Path, "/heartbeat"):
					if beats++; beats == 1 {
						return 0, errors.New("connection reset")
					}
					return status, nil
				case isStatus(r, "1") && time.Since(begin) < 5*time.Minute:
					return 503, nil
				}
				return 0, nil
			})
			if code != runtime.CodeSucceeded || beats != 2 {
				t.Errorf("%d: code %d after %d beats, steps %v", status, code, beats, record.Statuses())
			}
		})
	}
}
