package pool_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/pool"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
)

// explainer is an executor that knows why its instances ended.
type explainer struct {
	*runtimetest.Executor
	reason string // empty if the reason is never known
}

func (e *explainer) EndReason(ctx context.Context, _ string) string {
	if e.reason == "" {
		<-ctx.Done()
	}
	return e.reason
}

func TestReportEnd(t *testing.T) {
	failed := func(p runtime.Progress) runtimetest.Script {
		p.Step, p.Status = 3, runtime.Failed
		return runtimetest.Script{
			Running: 62 * time.Second, Exit: runtime.Exit{Code: runtime.CodeFailed},
			Progress: []runtimetest.TimedProgress{{After: time.Minute, Progress: p}},
		}
	}
	play(t, "runner that refuses its handoff", spec(), func(st *fixture) {
		refuses := runtime.Exit{Code: runtime.CodeUsage, Reason: "the handoff is not signed by the agent"}
		st.engine.SetScript("a", runtimetest.Script{Silent: true, Exit: refuses})
		st.cloud.Queue("a")
		st.start()
		wait(2 * time.Minute)
		if status, log := st.cloud.Step("a", 0); status != runtime.Failed || !strings.Contains(log, refuses.Reason) {
			st.Errorf("step 0 is %s, and its log %q lacks the reason", status, log)
		}
	})
	for name, c := range map[string]struct {
		script runtimetest.Script
		want   string
	}{
		"runner reports step name and reason": {
			failed(runtime.Progress{StepName: "pulumi update", Reason: "exit code 127"}),
			`level=WARN msg="job failed" component=pool pool=default job=a generation=7 ` +
				`deployment=deployment-of-a step=3 step_name="pulumi update" reason="exit code 127" duration=1m2s`,
		},
		"runner reports neither": {
			failed(runtime.Progress{}),
			`level=WARN msg="job failed" component=pool pool=default job=a generation=7 ` +
				`deployment=deployment-of-a step=3 duration=1m2s`,
		},
		"step name has a line break": {
			failed(runtime.Progress{StepName: "a\nlevel=ERROR"}), `step=3 step_name="a\nlevel=ERROR" duration=1m2s`,
		},
	} {
		play(t, name, spec(), func(st *fixture) {
			st.engine.SetScript("a", c.script)
			st.cloud.Add(job("a"), runtimetest.Definition("one", "two", "three"))
			st.start()
			wait(2 * time.Minute)
			st.wantInLog(c.want)
		})
	}
}

func TestAddEndReason(t *testing.T) {
	const evicted = "Evicted: the node was low on memory"
	// The runner gets a TERM after a minute, reports that the step was stopped, and ends
	// three seconds later.
	terminated := runtimetest.Script{
		Running: 63 * time.Second, Exit: runtime.Exit{Code: runtime.CodeFailed},
		Progress: []runtimetest.TimedProgress{
			{After: time.Second, Progress: runtime.Progress{Step: 0, Status: runtime.Succeeded}},
			{After: 2 * time.Second, Progress: runtime.Progress{Step: 1, Status: runtime.Running}},
			{After: time.Minute, Progress: runtime.Progress{Step: 1, Status: runtime.Running, Stopped: true}},
			{After: time.Minute, Progress: runtime.Progress{Step: 1, Status: runtime.Running, Stopped: true}}, // twice
		},
	}
	// run runs job a to its end with an executor that knows this reason.
	run := func(st *fixture, reason string, script runtimetest.Script) {
		st.rebuild(func(p *pool.Parts) { p.Executor = &explainer{st.engine, reason} })
		st.startJobs(script, "a")
		wait(2 * time.Minute)
	}
	// reports returns the lines that the agent has sent to the log of step 1.
	reports := func(st *fixture) (lines []string) {
		for _, report := range st.cloud.Reports("a") {
			for _, line := range report.Lines {
				if report.Step == 1 {
					lines = append(lines, line.Text)
				}
			}
		}
		return lines
	}

	play(t, "agent adds the reason and the runner reports the failure", spec(), func(st *fixture) {
		run(st, evicted, terminated)
		if got := reports(st); len(got) != 1 || got[0] != "Reason: "+evicted+"\n" {
			st.Errorf("the agent added %q to the log, want the reason", got)
		}
		for _, report := range st.cloud.Reports("a") {
			if report.Status == runtime.Failed {
				st.Errorf("the agent reports step %d as failed, want the runner to report it", report.Step)
			}
		}
		st.wantOperations("a", "start", "started", "remove", "removed")
		if h := st.engine.Handoff("a"); h.Yield.Duration() <= 2*time.Second {
			st.Errorf("the runner waits for %s, want more than the 2s that the agent may take", h.Yield.Duration())
		}
		st.wantInLog("job failed", evicted)
	})
	play(t, "a runner that is killed before it reports", spec(), func(st *fixture) {
		killed := terminated
		killed.Running, killed.Exit = 61*time.Second, runtime.Exit{Code: 137, Reason: evicted}
		run(st, evicted, killed)
		st.wantStep("a", 1, runtime.Failed, "Reason: "+evicted+"\nError: the instance of this job ended")
	})
	play(t, "a reason that is not known", spec(), func(st *fixture) {
		run(st, "", terminated)
		if got := reports(st); len(got) != 0 {
			st.Errorf("the agent added %q to the log, want nothing", got)
		}
	})
	play(t, "a report that fails", spec(), func(st *fixture) {
		time.AfterFunc(50*time.Second, func() { st.cloud.Fail(runtimetest.Report, 1, errors.New("connection reset")) })
		run(st, evicted, terminated)
		st.wantInLog("cannot add the end reason to the job's log", "job failed")
	})
	play(t, "the runner does not wait if the executor is no Explainer", spec(), func(st *fixture) {
		st.cloud.Queue("a")
		st.start()
		wait(time.Second)
		if h := st.engine.Handoff("a"); h.Yield != 0 {
			st.Errorf("the runner waits for %s, want 0s", h.Yield.Duration())
		}
	})
}
