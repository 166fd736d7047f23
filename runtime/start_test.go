package runtime_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
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
		play(t, spec(), func(t *testing.T, st *stage) {
			release := st.cloud.Hang(runtimetest.Define)
			st.cloud.Queue("a")
			st.start()
			wait(20 * time.Minute)
			if beats := len(st.cloud.Reports("a")); beats < 39 {
				t.Errorf("%d heartbeats in 20 minutes, want one every 30 s", beats)
			}
			release()
			wait(time.Second)
			st.wantDeeds("a", "start", "started", "remove", "removed")
		})
	})
	t.Run("a definition that never comes is reported after half an hour", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *stage) {
			st.cloud.Hang(runtimetest.Define)
			st.cloud.Queue("a")
			st.start()
			wait(29 * time.Minute)
			st.wantStep("a", 0, runtime.NotStarted, "")
			wait(2 * time.Minute)
			st.wantStep("a", 0, runtime.Failed, "Error: fetch the job's definition: the service has not answered with a definition for 30m0s")
		})
	})
	t.Run("a definition that the service does not have is reported", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *stage) {
			st.cloud.Fail(runtimetest.Define, 1, runtime.ErrGone)
			st.cloud.Queue("a")
			st.start()
			st.wantStep("a", 0, runtime.Failed, "Error: fetch the job's definition: the service no longer has this job")
		})
	})
	t.Run("a cancellation is noticed while the definition is fetched", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *stage) {
			st.cloud.Hang(runtimetest.Define)
			st.cloud.Queue("a")
			st.start()
			st.cloud.Answer("a", runtime.Ended)
			wait(31 * time.Second)
			if jobs := st.pool.State().Jobs; len(jobs) > 0 {
				t.Errorf("the pool still holds %v", jobs)
			}
			st.wantStep("a", 0, runtime.NotStarted, "")
		})
	})
	t.Run("a start without heartbeats ends before the service gives the job up", func(t *testing.T) {
		play(t, spec(rarely), func(t *testing.T, st *stage) {
			st.engine.Otherwise(runtimetest.Script{Starting: 20 * time.Minute})
			st.cloud.Fail(runtimetest.Report, 1000, lost)
			st.cloud.Queue("a")
			st.start()
			wait(9*time.Minute + time.Second)
			st.wantDeeds("a", "start", "no start")
		})
	})
	t.Run("an accepted heartbeat gives a start nine more minutes", func(t *testing.T) {
		play(t, spec(rarely), func(t *testing.T, st *stage) {
			st.engine.Otherwise(runtimetest.Script{Starting: 15 * time.Minute, Running: time.Hour})
			st.cloud.Fail(runtimetest.Report, 15, lost)
			st.cloud.Queue("a")
			st.start()
			wait(16 * time.Minute)
			st.wantDeeds("a", "start", "started")
		})
	})
	t.Run("a heartbeat that hangs does not keep back the next one", func(t *testing.T) {
		play(t, spec(rarely), func(t *testing.T, st *stage) {
			st.engine.Otherwise(runtimetest.Script{Starting: 15 * time.Minute, Running: time.Hour})
			st.cloud.Hang(runtimetest.Report)
			st.cloud.Queue("a")
			st.start()
			wait(16 * time.Minute)
			st.wantDeeds("a", "start", "started")
			if beats := len(st.cloud.Reports("a")); beats < 28 {
				t.Errorf("%d heartbeats in 15 minutes, want one every 30 s after the first", beats)
			}
		})
	})
	t.Run("a job that was cancelled during a long preparation is not started", func(t *testing.T) {
		for _, verdict := range []runtime.Verdict{runtime.Ended, runtime.Gone, runtime.Finishing} {
			play(t, spec(rarely), func(t *testing.T, st *stage) {
				st.engine.Otherwise(runtimetest.Script{Starting: 2 * time.Minute})
				st.cloud.Queue("a", "b")
				st.start()
				wait(time.Minute)
				st.cloud.Answer("a", verdict)
				wait(90 * time.Second)
				st.wantDeeds("a", "start", "no start")
				if status, _ := st.cloud.Step("a", 0); status == runtime.Failed {
					t.Errorf("%s: the agent reported the job as failed", verdict)
				}
				wait(2 * time.Minute)
				st.wantDeeds("b", "start", "started", "remove", "removed")
			})
		}
	})
	t.Run("doubt does not keep a job from its start", func(t *testing.T) {
		play(t, spec(rarely), func(t *testing.T, st *stage) {
			st.engine.Otherwise(runtimetest.Script{Starting: 2 * time.Minute})
			st.cloud.Fail(runtimetest.Wanted, 10, errors.New("503"))
			st.cloud.Queue("a")
			st.start()
			wait(3 * time.Minute)
			st.wantDeeds("a", "start", "started", "remove", "removed")
		})
	})
	t.Run("a time limit near the largest duration is none", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *stage) {
			definition := runtimetest.Definition("true")
			definition.Timeout = math.MaxInt64
			st.cloud.Add(job("a"), definition)
			st.engine.Otherwise(runtimetest.Script{Running: time.Hour})
			st.start()
			wait(30 * time.Minute)
			st.wantDeeds("a", "start", "started")
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
			play(t, spec(), func(t *testing.T, st *stage) {
				st.engine.Otherwise(runtimetest.Script{Running: time.Second, Exit: runtime.Exit{Code: c.code}, Progress: []runtimetest.Beat{
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

// lossy is a service that takes every report, answers only those that lossy lets
// through, and refuses lines that differ from those that it has.
type lossy struct {
	runtime.Cloud
	answers []bool // of the reports, in order; true for all others
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
	t.Run("lines that were not accepted are handed over, those first that the service may have", func(t *testing.T) {
		setup, cloud := newSetup(t)
		untold := fmt.Errorf("%w: connection reset", runtime.ErrUntold)
		setup.Say("one")
		if err := setup.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		cloud.Fail(runtimetest.Report, 2, untold)
		setup.Say("two")
		_ = setup.Flush(t.Context()) // the answer is lost
		setup.Say("three")
		text, err := setup.Handover(t.Context(), "/")
		if err != nil {
			t.Fatal(err)
		}
		h, err := runtime.ReadHandover(bytes.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		if len(h.Pending) != 2 || h.Pending[0].Text != "two\n" || h.Pending[1].Text != "three\n" || h.SetupLines != 1 || h.Resend != 1 {
			t.Errorf("handed over at line %d with %+v pending, of which %d may be stored", h.SetupLines, h.Pending, h.Resend)
		}
	})
	t.Run("lines whose answer was lost are sent again as they were", func(t *testing.T) {
		for i, end := range []string{"handover", "failure", "handover", "failure"} {
			service := &lossy{answers: []bool{i < 2, false, false}}
			setup := runtime.NewSetup(&runtime.Job{ID: "a", Token: secret.New("t")}, service, runtime.Handover{Version: runtime.HandoverVersion})
			setup.Say("one")
			for _, line := range []string{"two", "three", "four"} {
				_ = setup.Flush(t.Context()) // its errors are those that the service is told to make
				setup.Say("%s", line)
			}
			want := "one\ntwo\nthree\nfour\n"
			if end == "handover" {
				if _, err := setup.Handover(t.Context(), "/"); err != nil {
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
