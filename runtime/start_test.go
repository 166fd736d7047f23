package runtime_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
	"github.com/cmwa-project/cmwa/schema/secret"
)

func TestStart(t *testing.T) {
	rarely := func(t *runtime.Tuning) { t.StatusInterval = 24 * time.Hour }
	lost := errors.New("no route to host")

	t.Run("heartbeats are sent while the definition is fetched", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			release := st.cloud.Hang(runtimetest.Define)
			st.cloud.Queue("a")
			st.start()
			wait(20 * time.Minute)
			if beats := len(st.cloud.Reports("a")); beats < 39 {
				t.Errorf("%d heartbeats in 20 minutes, want one every 30 s", beats)
			}
			release()
			wait(time.Second)
			st.wantOperations("a", "start", "started", "remove", "removed")
		})
	})
	t.Run("a job without a definition after half an hour is reported as failed", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			st.cloud.Hang(runtimetest.Define)
			st.cloud.Queue("a")
			st.start()
			wait(29 * time.Minute)
			st.wantStep("a", 0, runtime.NotStarted, "")
			wait(2 * time.Minute)
			st.wantStep("a", 0, runtime.Failed,
				"Error: fetch the job's definition: the service has not answered with a definition for 30m0s")
		})
	})
	t.Run("a job whose definition the service does not have is reported as failed", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			st.cloud.Fail(runtimetest.Define, 1, runtime.ErrGone)
			st.cloud.Queue("a")
			st.start()
			st.wantStep("a", 0, runtime.Failed, "Error: fetch the job's definition: the service no longer has this job")
		})
	})
	t.Run("a cancellation is noticed while the definition is fetched", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			st.cloud.Hang(runtimetest.Define)
			st.cloud.Queue("a")
			st.start()
			st.cloud.SetJobStatus("a", runtime.Cancelled)
			wait(31 * time.Second)
			if jobs := st.pool.State().Jobs; len(jobs) > 0 {
				t.Errorf("the pool still holds %v", jobs)
			}
			st.wantStep("a", 0, runtime.NotStarted, "")
		})
	})
	t.Run("a start without heartbeats ends before the service declares the job failed", func(t *testing.T) {
		play(t, spec(rarely), func(t *testing.T, st *fixture) {
			st.engine.SetDefaultScript(runtimetest.Script{Starting: 20 * time.Minute})
			st.cloud.Fail(runtimetest.Report, 1000, lost)
			st.cloud.Queue("a")
			st.start()
			wait(9*time.Minute + time.Second)
			st.wantOperations("a", "start", "no start")
		})
	})
	t.Run("an accepted heartbeat gives a start nine more minutes", func(t *testing.T) {
		play(t, spec(rarely), func(t *testing.T, st *fixture) {
			st.engine.SetDefaultScript(runtimetest.Script{Starting: 15 * time.Minute, Running: time.Hour})
			st.cloud.Fail(runtimetest.Report, 15, lost)
			st.cloud.Queue("a")
			st.start()
			wait(16 * time.Minute)
			st.wantOperations("a", "start", "started")
		})
	})
	t.Run("a heartbeat that hangs does not delay the next one", func(t *testing.T) {
		play(t, spec(rarely), func(t *testing.T, st *fixture) {
			st.engine.SetDefaultScript(runtimetest.Script{Starting: 15 * time.Minute, Running: time.Hour})
			st.cloud.Hang(runtimetest.Report)
			st.cloud.Queue("a")
			st.start()
			wait(16 * time.Minute)
			st.wantOperations("a", "start", "started")
			if beats := len(st.cloud.Reports("a")); beats < 28 {
				t.Errorf("%d heartbeats in 15 minutes, want one every 30 s after the first", beats)
			}
		})
	})
	t.Run("a job that was cancelled during a long preparation is not started", func(t *testing.T) {
		for _, status := range []runtime.JobStatus{runtime.Cancelled, runtime.Gone, runtime.Completing} {
			play(t, spec(rarely), func(t *testing.T, st *fixture) {
				st.engine.SetDefaultScript(runtimetest.Script{Starting: 2 * time.Minute})
				st.cloud.Queue("a", "b")
				st.start()
				wait(time.Minute)
				st.cloud.SetJobStatus("a", status)
				wait(90 * time.Second)
				st.wantOperations("a", "start", "no start")
				if step, _ := st.cloud.Step("a", 0); step == runtime.Failed {
					t.Errorf("%s: the agent reported the job as failed", status)
				}
				wait(2 * time.Minute)
				st.wantOperations("b", "start", "started", "remove", "removed")
			})
		}
	})
	t.Run("a start that lost the connection to the engine is tried again", func(t *testing.T) {
		play(t, spec(rarely), func(t *testing.T, st *fixture) {
			reset := fmt.Errorf("%w: reset by peer", runtime.ErrConnectionLost)
			st.engine.SetDefaultScript(runtimetest.Script{
				Starting: time.Second, FailLate: []error{reset, reset}, Remains: true, Running: time.Minute,
			})
			st.cloud.Queue("a")
			st.start()
			wait(10 * time.Second)
			st.wantOperations("a", "start", "no start", "remove", "removed", "start", "no start", "remove", "removed",
				"start", "started")
			st.wantStep("a", 0, runtime.Running, "reset by peer. The agent tries again in 2s")
			st.wantRecord("a", "add", "handed_off", "claimed", "handed_off", "claimed", "handed_off")
			handoff := st.engine.Handoff("a")
			if _, log := st.cloud.Step("a", 0); handoff.SetupLines != strings.Count(log, "\n") {
				t.Errorf("the runner continues the log at line %d, the service has:\n%s", handoff.SetupLines, log)
			}
			wait(2 * time.Minute)
			st.wantRecord("a", "add", "handed_off", "claimed", "handed_off", "claimed", "handed_off", "reported",
				"remove")
		})
	})
	t.Run("a start is not tried again for longer than two minutes", func(t *testing.T) {
		play(t, spec(rarely), func(t *testing.T, st *fixture) {
			refused := fmt.Errorf("%w: connection refused", runtime.ErrConnectionLost)
			st.engine.SetDefaultScript(runtimetest.Script{Fail: refused})
			st.cloud.Queue("a")
			st.start()
			wait(time.Minute)
			st.wantStep("a", 0, runtime.NotStarted, "")
			wait(62 * time.Second)
			st.wantStep("a", 0, runtime.Failed, "Error: lost the connection to the engine: connection refused")
			if starts := len(st.engine.Operations("a")); starts != 2*8 {
				t.Errorf("%d operations, want 16: eight starts that failed", starts)
			}
		})
	})
	t.Run("the time before the connection is lost does not count towards the retry limit", func(t *testing.T) {
		play(t, spec(rarely), func(t *testing.T, st *fixture) {
			st.engine.SetDefaultScript(runtimetest.Script{
				Starting: 3 * time.Minute, FailLate: []error{runtime.ErrConnectionLost}, Running: time.Minute,
			})
			st.cloud.Queue("a")
			st.start()
			wait(7 * time.Minute)
			st.wantOperations("a", "start", "no start", "start", "started")
		})
	})
	t.Run("a job that is cancelled between two tries is not started", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			st.engine.SetDefaultScript(runtimetest.Script{
				FailLate: slices.Repeat([]error{runtime.ErrConnectionLost}, 6), Running: time.Minute,
			})
			st.cloud.Queue("a")
			st.start()
			wait(5 * time.Second)
			st.cloud.SetJobStatus("a", runtime.Cancelled)
			wait(2 * time.Minute)
			done := st.engine.Operations("a")
			if len(done) < 2*3 || slices.Contains(done, runtimetest.StartDone) {
				t.Errorf("got %v, want three or more starts, all of which fail", done)
			}
			if jobs := st.pool.State().Jobs; len(jobs) > 0 {
				t.Errorf("the pool still holds %v", jobs)
			}
		})
	})
	t.Run("a job is not started beside an instance that cannot be removed", func(t *testing.T) {
		play(t, spec(rarely), func(t *testing.T, st *fixture) {
			busy := make([]error, 100)
			for i := range busy {
				busy[i] = errors.New("device is busy")
			}
			st.engine.SetDefaultScript(runtimetest.Script{
				FailLate: []error{runtime.ErrConnectionLost}, Remains: true, RemoveErrors: busy,
			})
			st.cloud.Queue("a")
			st.start()
			wait(10 * time.Minute)
			if done := st.engine.Operations("a"); slices.Contains(done, runtimetest.StartDone) {
				t.Errorf("the job is started beside its instance: %v", done)
			}
			st.wantStep("a", 0, runtime.Failed, "Error: lost the connection to the engine")
		})
	})
	t.Run("a failed status call does not prevent a start", func(t *testing.T) {
		play(t, spec(rarely), func(t *testing.T, st *fixture) {
			st.engine.SetDefaultScript(runtimetest.Script{Starting: 2 * time.Minute})
			st.cloud.Fail(runtimetest.JobStatus, 10, errors.New("503"))
			st.cloud.Queue("a")
			st.start()
			wait(3 * time.Minute)
			st.wantOperations("a", "start", "started", "remove", "removed")
		})
	})
	t.Run("a time limit near the largest duration means no limit", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			definition := runtimetest.Definition("true")
			definition.Timeout = math.MaxInt64
			st.cloud.Add(job("a"), definition)
			st.engine.SetDefaultScript(runtimetest.Script{Running: time.Hour})
			st.start()
			wait(30 * time.Minute)
			st.wantOperations("a", "start", "started")
		})
	})
}

func TestOutcome(t *testing.T) {
	for name, c := range map[string]struct {
		code int
		want runtime.Status
	}{
		"an unreported success is reported as success": {runtime.CodeSucceededUnreported, runtime.Succeeded},
		"an unreported failure is reported as failure": {runtime.CodeFailedUnreported, runtime.Failed},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, spec(), func(t *testing.T, st *fixture) {
				st.engine.SetDefaultScript(runtimetest.Script{Running: time.Second, Exit: runtime.Exit{Code: c.code},
					Progress: []runtimetest.TimedProgress{
						{Progress: runtime.Progress{Step: 0, Status: runtime.Succeeded}},
						{Progress: runtime.Progress{Step: 1, Status: runtime.Running}},
					}})
				st.cloud.Queue("a")
				st.start()
				wait(2 * time.Second)
				st.wantStep("a", 1, c.want, "")
			})
		})
	}
}

// lossy is a service that loses the answers to some reports. It refuses a report whose lines
// leave a gap after the stored lines, or that repeats stored lines and does not end with the
// last of them.
type lossy struct {
	runtime.Cloud
	answers []bool // whether each of the next reports is answered, in order; all later ones are
	lines   []string
	status  []runtime.Status
	refused []string
}

func (l *lossy) Report(_ context.Context, _ *runtime.Job, report runtime.Report) error {
	answer := true
	if len(l.answers) > 0 {
		answer, l.answers = l.answers[0], l.answers[1:]
	}
	var texts []string
	for _, line := range report.Lines {
		texts = append(texts, line.Text)
	}
	known := len(l.lines) - report.Offset
	switch {
	case report.Offset > len(l.lines), known > 0 && known != len(texts):
		l.refused = append(l.refused, strings.Join(texts, ""))
		return errors.New("400 bad request")
	case known == 0:
		l.lines = append(l.lines, texts...)
	}
	if report.Status != "" {
		l.status = append(l.status, report.Status)
	}
	if !answer {
		return errors.New("connection reset")
	}
	return nil
}

func TestSetup(t *testing.T) {
	t.Run("pending lines begin with those that the service may have", func(t *testing.T) {
		setup, cloud := newSetup(t)
		dropped := fmt.Errorf("%w: connection reset", runtime.ErrLogsDropped)
		setup.Log("one")
		if err := setup.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		cloud.Fail(runtimetest.Report, 2, dropped)
		setup.Log("two")
		_ = setup.Flush(t.Context()) // the answer is lost
		setup.Log("three")
		text, err := setup.Handoff(t.Context(), "/")
		if err != nil {
			t.Fatal(err)
		}
		h, err := runtime.ReadHandoff(bytes.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		if len(h.Pending) != 2 || h.Pending[0].Text != "two\n" || h.Pending[1].Text != "three\n" ||
			h.SetupLines != 1 || h.Resend != 1 {
			t.Errorf("got line %d with %+v pending, of which %d may be stored", h.SetupLines, h.Pending,
				h.Resend)
		}
	})
	t.Run("lines of a report whose answer was lost are sent again unchanged", func(t *testing.T) {
		for i, end := range []string{"handoff", "failure", "handoff", "failure"} {
			service := &lossy{answers: []bool{i < 2, false, false}}
			setup := runtime.NewSetup(&runtime.Job{ID: "a", Token: secret.New("t")}, service,
				runtime.Handoff{Version: runtime.HandoffVersion})
			setup.Log("one")
			for _, line := range []string{"two", "three", "four"} {
				_ = setup.Flush(t.Context()) // fails if the answer is lost
				setup.Log("%s", line)
			}
			want := "one\ntwo\nthree\nfour\n"
			if end == "handoff" {
				if _, err := setup.Handoff(t.Context(), "/"); err != nil {
					t.Errorf("%s: %v", end, err)
				}
			} else {
				want += "Error: no such image\n"
				if err := setup.Fail(t.Context(), errors.New("no such image")); err != nil {
					t.Errorf("%s: %v", end, err)
				}
			}
			if got := strings.Join(service.lines, ""); got != want || len(service.refused) > 0 {
				t.Errorf("%s: the service has %q and refused %q", end, got, service.refused)
			}
		}
	})
}
