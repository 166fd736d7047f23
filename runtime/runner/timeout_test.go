package runner_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/runner"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// memoryTransport is a service without a network, for virtual time.
type memoryTransport struct {
	service http.Handler
	respond func(r *http.Request) (status int, err error) // called first; status 0 passes the request on
}

func (m *memoryTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	recorder := httptest.NewRecorder()
	switch status, err := m.respond(r); {
	case err != nil:
		return nil, err
	case status != 0:
		recorder.WriteHeader(status)
	default:
		m.service.ServeHTTP(recorder, r)
	}
	return recorder.Result(), nil
}

// virtualJob is a job in virtual time. The time does not pass while a script runs.
type virtualJob struct {
	respond func(r *http.Request) (int, error) // may respond instead of the service; nil never does
	scripts []string                           // of the two steps; nil runs no script
	report  runtime.Report                     // of the agent, before the job starts
	edit    func(*runtime.Handoff, *runner.Options)
}

// run runs the job.
func (v virtualJob) run(ctx context.Context, t *testing.T) (
	code int, record runtimetest.Record, took time.Duration,
) {
	t.Helper()
	if v.respond == nil {
		v.respond = func(*http.Request) (int, error) { return 0, nil }
	}
	if v.scripts == nil {
		v.scripts = []string{"", ""}
	}
	v.report.Status = runtime.Running
	service := runtimetest.NewService()
	job := &runtime.Job{
		ID: "job", Service: "http://service.invalid", Token: secret.New("job-token"),
		Definition: runtimetest.DefinitionOf(steps(v.scripts...)),
	}
	service.Add(job)
	noError(t, service.Report(ctx, job, v.report))
	h := runtimetest.BaseHandoff(job)
	h.Root = t.TempDir()
	options := runner.Options{
		Environ:  []string{"PATH=/bin:/usr/bin", "TMPDIR=" + h.Root},
		Progress: &lockedBuffer{}, Transport: &memoryTransport{service, v.respond},
	}
	if v.edit != nil {
		v.edit(&h, &options)
	}
	begin := time.Now()
	code = runner.Run(ctx, &h, options)
	return code, service.Record("job"), time.Since(begin)
}

// isStatus reports whether a call is about the status of a step.
func isStatus(r *http.Request, step string) bool {
	return strings.HasSuffix(r.URL.Path, "/"+step+"/status")
}

func TestReportStatus(t *testing.T) {
	runner.InBubble(t, "status is retried for many minutes", func(t *testing.T) {
		back := time.Now().Add(14 * time.Minute)
		code, record, took := virtualJob{respond: func(r *http.Request) (int, error) {
			if isStatus(r, "1") && time.Now().Before(back) {
				return 0, errors.New("no route to host")
			}
			return 0, nil
		}}.run(t.Context(), t)
		if code != runtime.CodeSucceeded || record.Steps[2].Status != runtime.Succeeded {
			t.Errorf("code %d, steps %v, want success", code, record.Statuses())
		}
		if took < 14*time.Minute || took > 14*time.Minute+20*time.Second {
			t.Errorf("it took %s, want 14m to 14m20s: the service responds again after 14m", took)
		}
		if heartbeats := record.Heartbeats; heartbeats < 28 {
			t.Errorf("%d heartbeats in 14 minutes, want at least 28", heartbeats)
		}
	})

	t.Run("outcome that cannot be reported has its own exit code", func(t *testing.T) {
		for name, c := range map[string]struct {
			accepted int // accepted statuses of the last step; the service fails at the next one
			code     int
			last     runtime.Status
		}{
			"before the last step":    {0, runtime.CodeFailedUnreported, runtime.NotStarted},
			"before the last success": {1, runtime.CodeSucceededUnreported, runtime.Running},
		} {
			runner.InBubble(t, name, func(t *testing.T) {
				reports := 0
				code, record, took := virtualJob{respond: func(r *http.Request) (int, error) {
					if isStatus(r, "2") {
						if reports++; reports > c.accepted {
							return http.StatusBadGateway, nil
						}
					}
					return 0, nil
				}}.run(t.Context(), t)
				if code != c.code || record.Steps[2].Status != c.last {
					t.Errorf("code %d, steps %v, want code %d and %s as the last status", code, record.Statuses(),
						c.code, c.last)
				}
				if took < 15*time.Minute || took > 16*time.Minute {
					t.Errorf("it took %s, want 15m", took)
				}
			})
		}
	})

	runner.InBubble(t, "job whose status is rejected does not continue", func(t *testing.T) {
		code, record, took := virtualJob{respond: func(r *http.Request) (int, error) {
			if isStatus(r, "1") {
				return http.StatusBadRequest, nil
			}
			return 0, nil
		}}.run(t.Context(), t)
		if code != runtime.CodeFailedUnreported || record.Steps[2].Status != runtime.NotStarted ||
			took < 30*time.Second || took > time.Minute {
			t.Errorf("code %d, steps %v, after %s, want code %d and no step 2 after 30s to 1m", code,
				record.Statuses(), took, runtime.CodeFailedUnreported)
		}
	})

	runner.InBubble(t, "stopped job has a limited time for its last reports", func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		code, _, took := virtualJob{respond: func(r *http.Request) (int, error) {
			if isStatus(r, "1") {
				stop()
				return 0, errors.New("no route to host")
			}
			return 0, nil
		}}.run(ctx, t)
		if code != runtime.CodeFailedUnreported {
			t.Errorf("code %d, want %d", code, runtime.CodeFailedUnreported)
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
		"lines that the service may have are sent unchanged": 2,
		"lines that the service has not received are sent":   0,
	} {
		runner.InBubble(t, name, func(t *testing.T) {
			code, record, _ := virtualJob{
				report: runtime.Report{Lines: lines[:stored]},
				edit:   func(h *runtime.Handoff, _ *runner.Options) { h.Pending, h.Resend = lines, 2 },
			}.run(t.Context(), t)
			const want = "one\ntwo\nthree\nWorkflow runner "
			if got := record.Text(0); code != runtime.CodeSucceeded || !strings.HasPrefix(got, want) {
				t.Errorf("code %d, and the log of step 0 is %q, want one that begins with %q", code, got, want)
			}
		})
	}
}

func TestHeartbeat(t *testing.T) {
	// job runs a job. For ten minutes, the service does not accept the status of its first
	// step. Beat returns the status of the response to the n-th heartbeat, from 1; 0 is a
	// success.
	job := func(t *testing.T, beat func(n int) int) (
		code, heartbeats int, record runtimetest.Record, took time.Duration,
	) {
		t.Helper()
		end := time.Now().Add(10 * time.Minute)
		code, record, took = virtualJob{respond: func(r *http.Request) (int, error) {
			switch {
			case strings.HasSuffix(r.URL.Path, "/heartbeat"):
				heartbeats++
				return beat(heartbeats), nil
			case isStatus(r, "1") && time.Now().Before(end):
				return 503, nil
			}
			return 0, nil
		}}.run(t.Context(), t)
		return code, heartbeats, record, took
	}
	for _, status := range []int{401, 404, 409, 410} {
		runner.InBubble(t, fmt.Sprintf("a repeated %d ends the job", status), func(t *testing.T) {
			code, _, record, took := job(t, func(n int) int {
				if n >= 3 {
					return status
				}
				return 0
			})
			if code != runtime.CodeGone || record.Steps[1].Status != runtime.NotStarted {
				t.Errorf("code %d, steps %v, want code %d and no step 1", code, record.Statuses(), runtime.CodeGone)
			}
			if took < 90*time.Second || took > 2*time.Minute {
				t.Errorf("after %s, want 30s to 60s of refusals after the first minute", took)
			}
		})
	}
	for _, status := range []int{401, 403, 404, 405, 409, 410, 412, 501} {
		for _, stray := range []int{1, 2, 5} {
			name := fmt.Sprintf("a single %d, as response %d, does not end the job", status, stray)
			runner.InBubble(t, name, func(t *testing.T) {
				code, heartbeats, record, _ := job(t, func(n int) int {
					if n == stray {
						return status
					}
					return 0
				})
				if code != runtime.CodeSucceeded || heartbeats < 20 {
					t.Errorf("code %d after %d heartbeats, steps %v, want success and at least 20 heartbeats", code,
						heartbeats, record.Statuses())
				}
			})
		}
	}
	for _, status := range []int{404, 405, 501} {
		runner.InBubble(t, fmt.Sprintf("a service that answers %d gets all heartbeats", status), func(t *testing.T) {
			code, heartbeats, record, _ := job(t, func(int) int { return status })
			if code != runtime.CodeSucceeded || heartbeats < 20 || heartbeats > 40 {
				t.Errorf("code %d after %d heartbeats in ten minutes, steps %v, want success and 20 to 40 heartbeats",
					code, heartbeats, record.Statuses())
			}
		})
	}
}
