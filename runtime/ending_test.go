package runtime_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
)

// explainer is an executor whose instances are ended by a cluster.
type explainer struct {
	*runtimetest.Executor
	reason string // empty is never known
}

func (e *explainer) Ending(ctx context.Context, _ string) string {
	if e.reason == "" {
		<-ctx.Done()
	}
	return e.reason
}

func TestAddEnding(t *testing.T) {
	const evicted = "Evicted: the node was low on memory"
	// The runner is asked to end after a minute, and reports that three seconds later.
	asked := runtimetest.Script{
		Running: 63 * time.Second, Exit: runtime.Exit{Code: runtime.CodeFailed},
		Progress: []runtimetest.Beat{
			{After: time.Second, Progress: runtime.Progress{Step: 0, Status: runtime.Succeeded}},
			{After: 2 * time.Second, Progress: runtime.Progress{Step: 1, Status: runtime.Running}},
			{After: time.Minute, Progress: runtime.Progress{Step: 1, Status: runtime.Running, Stopped: true}},
			{After: time.Minute, Progress: runtime.Progress{Step: 1, Status: runtime.Running, Stopped: true}}, // repeated
		},
	}
	// story plays a job to its end.
	story := func(t *testing.T, reason string, prepare func(*stage)) *stage {
		t.Helper()
		var st *stage
		synctest.Test(t, func(t *testing.T) {
			st = newStage(t, spec())
			st.pool = runtime.NewPool(spec(), runtime.Parts{
				Cloud: st.cloud, Executor: &explainer{st.engine, reason}, Agent: "agent-1", Environ: unset,
				Log: slog.New(slog.NewTextHandler(st.log, nil)),
			})
			st.engine.Script("a", asked)
			st.cloud.Queue("a")
			prepare(st)
			st.start()
			wait(2 * time.Minute)
			st.stop(errors.New("the story is over"))
			if err := st.end(); err != nil {
				t.Error(err)
			}
		})
		st.t = t
		return st
	}
	// reports returns the lines that the agent has reported of step 1.
	reports := func(st *stage) (lines []string) {
		for _, report := range st.cloud.Reports("a") {
			for _, line := range report.Lines {
				if report.Step == 1 {
					lines = append(lines, line.Text)
				}
			}
		}
		return lines
	}

	t.Run("the agent adds the reason and the runner reports", func(t *testing.T) {
		st := story(t, evicted, func(*stage) {})
		if got := reports(st); len(got) != 1 || got[0] != "Reason: "+evicted+"\n" {
			t.Errorf("added %q", got)
		}
		for _, report := range st.cloud.Reports("a") {
			if report.Status == runtime.Failed {
				t.Errorf("the agent reports step %d as failed", report.Step)
			}
		}
		st.wantDeeds("a", "start", "started", "remove", "removed")
		if h := st.engine.Handover("a"); h.Yield.Duration() <= 2*time.Second {
			t.Errorf("the runner waits for %s, which is less than the agent may take", h.Yield.Duration())
		}
		if log := st.log.String(); !strings.Contains(log, "job failed") || !strings.Contains(log, evicted) {
			t.Errorf("the log is\n%s", log)
		}
	})
	t.Run("a runner that is killed before it reports", func(t *testing.T) {
		st := story(t, evicted, func(st *stage) {
			killed := asked
			killed.Running, killed.Exit = 61*time.Second, runtime.Exit{Code: 137, Reason: evicted}
			st.engine.Script("a", killed)
		})
		st.wantStep("a", 1, runtime.Failed, "Reason: "+evicted+"\nError: the environment of this job ended")
	})
	t.Run("a reason that is not known", func(t *testing.T) {
		st := story(t, "", func(*stage) {})
		if got := reports(st); len(got) != 0 {
			t.Errorf("added %q", got)
		}
	})
	t.Run("a report that fails", func(t *testing.T) {
		st := story(t, evicted, func(st *stage) {
			time.AfterFunc(50*time.Second, func() { st.cloud.Fail(runtimetest.Report, 1, errors.New("connection reset")) })
		})
		if log := st.log.String(); !strings.Contains(log, "cannot add to the job's log") || !strings.Contains(log, "job failed") {
			t.Errorf("the log is\n%s", log)
		}
	})
	t.Run("an executor that knows no reasons lets no runner wait", func(t *testing.T) {
		play(t, spec(), func(_ *testing.T, st *stage) {
			st.cloud.Queue("a")
			st.start()
			wait(time.Second)
			if h := st.engine.Handover("a"); h.Yield != 0 {
				t.Errorf("the runner waits for %s", h.Yield.Duration())
			}
		})
	})
}
