package pool_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/pool"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
)

func graceOf(period time.Duration) func(*runtime.Tuning) {
	return func(t *runtime.Tuning) { t.CancelGrace = period }
}

// timeOf returns the time from the first operation of the kind since to the first of the other
// kind, on the same job.
func (st *fixture) timeOf(job string, operation, since runtimetest.Operation) time.Duration {
	st.Helper()
	at := map[runtimetest.Operation]time.Time{}
	for _, event := range st.engine.Events() {
		if _, found := at[event.Operation]; !found && event.Job == job {
			at[event.Operation] = event.Time
		}
	}
	if at[operation].IsZero() || at[since].IsZero() {
		st.Errorf("job %s has the operations %v, want %s after %s", job, st.engine.Operations(job), operation, since)
	}
	return at[operation].Sub(at[since])
}

// wantTerm checks the time from the interrupt of job a to its TERM.
func (st *fixture) wantTerm(want time.Duration) {
	st.Helper()
	if after := st.timeOf("a", runtimetest.Term, runtimetest.Interrupt); after != want {
		st.Errorf("TERM came %s after the interrupt, want %s", after, want)
	}
}

var errTestStop = errors.New("the agent is stopping, and shutdown_timeout has passed")

func TestStopStages(t *testing.T) {
	failed := runtime.Exit{Code: runtime.CodeFailed}
	fiveMinutes := spec(graceOf(5 * time.Minute))
	// startEndless starts a job that does not end by itself.
	startEndless := func(st *fixture, script runtimetest.Script) {
		script.Running, script.OnTerm = runtimetest.Forever, failed
		st.startJobs(script, "a")
		wait(time.Minute)
	}
	stop := func(st *fixture) {
		st.stop(errTestStop)
		_ = st.end()
	}

	play(t, "job that ends after the interrupt gets no TERM", fiveMinutes, func(st *fixture) {
		startEndless(st, runtimetest.Script{Interrupting: 3 * time.Minute})
		stop(st)
		st.wantOperations("a", "start", "started", "interrupt", "remove", "removed")
		if h := st.engine.Handoff("a"); h.CancelGrace.Duration() != 5*time.Minute {
			st.Errorf("the runner has a cancel grace period of %s", h.CancelGrace.Duration())
		}
	})

	edit := func(period time.Duration) func(*pool.Pool) {
		return func(p *pool.Pool) { p.Tune(spec(graceOf(period))) }
	}
	force := func(p *pool.Pool) {
		p.ForceStop()
		p.ForceStop()
	}
	for name, c := range map[string]struct {
		after  time.Duration // from the stop to the change
		change func(*pool.Pool)
		want   time.Duration // from the interrupt to the TERM
	}{
		"the period":                           {0, func(*pool.Pool) {}, 5 * time.Minute},
		"a longer period, which applies":       {2 * time.Minute, edit(20 * time.Minute), 20 * time.Minute},
		"a shorter period, which applies":      {2 * time.Minute, edit(3 * time.Minute), 3 * time.Minute},
		"the edit to a period that has passed": {2 * time.Minute, edit(time.Minute), 2 * time.Minute},
		"the period of a forced stop":          {0, force, 30 * time.Second},
		"a later forced stop":                  {2 * time.Minute, force, 2 * time.Minute},
	} {
		play(t, "job that does not end gets a TERM after "+name, fiveMinutes, func(st *fixture) {
			startEndless(st, runtimetest.Script{Ending: 10 * time.Second})
			st.stop(errTestStop)
			wait(c.after)
			c.change(st.pool)
			_ = st.end()
			st.wantTerm(c.want)
		})
	}

	play(t, "cancelled job is interrupted", fiveMinutes, func(st *fixture) {
		startEndless(st, runtimetest.Script{Interrupting: time.Second})
		st.cloud.SetJobStatus("a", runtime.Cancelled)
		wait(time.Minute)
		st.wantOperations("a", "start", "started", "interrupt", "remove", "removed")
	})

	play(t, "stopped step gets the reason and then a TERM", fiveMinutes, func(st *fixture) {
		stopped := runtime.Progress{Step: 1, Lines: 4, Status: runtime.Running, Stopped: true,
			Pulumi: runtime.PulumiKilled, Stack: "acme/web/dev"}
		startEndless(st, runtimetest.Script{Ending: time.Second, Progress: []runtimetest.TimedProgress{
			{Progress: runtime.Progress{Step: 0, Status: runtime.Succeeded}},
			{Progress: runtime.Progress{Step: 1, Lines: 1, Status: runtime.Running}},
			{After: 90 * time.Second, Progress: stopped},
		}})
		stop(st)
		if after := st.timeOf("a", runtimetest.Term, runtimetest.Interrupt); after > time.Minute {
			st.Errorf("TERM came %s after the interrupt, want it when the step has ended", after)
		}
		if _, text := st.cloud.Step("a", 1); !strings.HasSuffix(text, "Reason: "+errTestStop.Error()+"\n") {
			st.Errorf("the log of the step is %q, want the reason in it", text)
		}
		st.wantInLog("pulumi=killed", "pulumi cancel --yes --stack acme/web/dev ",
			"pulumi stack export --stack acme/web/dev ")
	})

	play(t, "invalid name of a stack is not logged", spec(graceOf(time.Minute)), func(st *fixture) {
		startEndless(st, runtimetest.Script{Ending: time.Second, Progress: []runtimetest.TimedProgress{
			{Progress: runtime.Progress{Step: 0, Status: runtime.Succeeded}},
			{Progress: runtime.Progress{Step: 1, Pulumi: "well", Stack: "first"}},
			{Progress: runtime.Progress{Step: 1, Pulumi: runtime.PulumiKilled, Stack: "a/b/c; rm -r /"}},
		}})
		stop(st)
		st.wantLogTimes(0, "rm -r")
		st.wantInLog("ORGANIZATION/PROJECT/STACK")
	})

	play(t, "executor without signals gets the whole period", fiveMinutes, func(st *fixture) {
		engine := &plainExecutor{Executor: st.engine}
		st.rebuild(func(p *pool.Parts) { p.Executor = engine })
		startEndless(st, runtimetest.Script{Ending: runtimetest.Forever})
		st.stop(errTestStop)
		wait(time.Minute)
		st.pool.ForceStop()
		_ = st.end()
		want := []time.Duration{5*time.Minute + runtime.StopGrace, runtime.StopGrace, 0}
		if got := engine.graces; !slices.Equal(got, want) {
			st.Errorf("the grace periods of Remove are %v, want %v", got, want)
		}
		if after := st.timeOf("a", runtimetest.Kill, runtimetest.Term); after != time.Minute+runtime.StopGrace {
			st.Errorf("KILL came %s after TERM, want 1m30s", after)
		}
	})

	play(t, "after a failed interrupt, Remove gets the cancel grace period", fiveMinutes, func(st *fixture) {
		st.rebuild(func(p *pool.Parts) { p.Executor = brokenInterrupt{st.engine} })
		startEndless(st, runtimetest.Script{Ending: 4 * time.Minute})
		stop(st)
		if st.count("a", runtimetest.Kill) > 0 {
			st.Error("the job was killed before its cancel grace period was over")
		}
	})

	leftover := runtime.PoolSpec{Name: "old", Identity: spec().Identity, Leftover: true}
	play(t, "leftover pool has the default period", leftover, func(st *fixture) {
		st.leaveInstance("a", runtimetest.Script{Running: runtimetest.Forever, Ending: time.Second, OnTerm: failed}, 0)
		st.start()
		wait(time.Minute)
		stop(st)
		st.wantTerm(5 * time.Minute)
	})
}

// TestStopOfLostInstance stops a job while the engine does not answer. When the engine answers
// again, it no longer has the instance, so it is not known how pulumi ended.
func TestStopOfLostInstance(t *testing.T) {
	play(t, "log has the commands for the stack", spec(), func(st *fixture) {
		down := errors.New("the engine is down")
		st.startJobs(runtimetest.Script{
			Running: runtimetest.Forever, Ending: runtimetest.Forever,
			WaitErrors: []error{down, down, down, down, down, down, runtime.ErrNoInstance},
		}, "a")
		wait(time.Minute)
		st.shutdown()
		st.wantInLog("the runner was killed; if pulumi ran, its stack may be locked")
	})
}

// plainExecutor is an executor without optional interfaces. It records the grace periods.
type plainExecutor struct {
	runtime.Executor
	graces []time.Duration
}

func (e *plainExecutor) Remove(ctx context.Context, id string, grace time.Duration) error {
	e.graces = append(e.graces, grace)
	return e.Executor.Remove(ctx, id, grace)
}

// brokenInterrupt is an executor that cannot send an interrupt.
type brokenInterrupt struct{ *runtimetest.Executor }

func (brokenInterrupt) Interrupt(context.Context, string) error { return errors.New("no such signal") }
