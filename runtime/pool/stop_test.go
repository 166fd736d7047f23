package pool_test

import (
	"context"
	"errors"
	"log/slog"
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
	st.t.Helper()
	at := map[runtimetest.Operation]time.Time{}
	for _, event := range st.engine.Events() {
		if _, found := at[event.Operation]; !found && event.Job == job {
			at[event.Operation] = event.Time
		}
	}
	if at[operation].IsZero() || at[since].IsZero() {
		st.t.Errorf("job %s has the operations %v, want %s after %s", job, st.engine.Operations(job), operation, since)
	}
	return at[operation].Sub(at[since])
}

// replace replaces the pool by one with the cancel grace period and another executor.
func (st *fixture) replace(executor runtime.Executor, period time.Duration) {
	st.pool = pool.New(spec(graceOf(period)), pool.Parts{
		Cloud: st.cloud, Executor: executor, Agent: "agent-1", Metrics: st.metrics,
		Environ: func(string) (string, bool) { return "", false }, Log: slog.New(slog.NewTextHandler(st.log, nil)),
	})
}

var errTestStop = errors.New("the agent is stopping, and shutdown_timeout has passed")

func TestStopStages(t *testing.T) {
	failed := runtime.Exit{Code: runtime.CodeFailed}
	// begin starts a job that does not end by itself.
	begin := func(st *fixture, script runtimetest.Script) {
		script.Running, script.OnTerm = runtimetest.Forever, failed
		st.engine.SetDefaultScript(script)
		st.cloud.Queue("a")
		st.start()
		wait(time.Minute)
	}

	t.Run("job that ends after the interrupt gets no TERM", func(t *testing.T) {
		play(t, spec(graceOf(5*time.Minute)), func(t *testing.T, st *fixture) {
			begin(st, runtimetest.Script{Interrupting: 3 * time.Minute})
			st.stop(errTestStop)
			_ = st.end()
			st.wantOperations("a", "start", "started", "interrupt", "remove", "removed")
			if h := st.engine.Handoff("a"); h.CancelGrace.Duration() != 5*time.Minute {
				t.Errorf("the runner has a cancel grace period of %s", h.CancelGrace.Duration())
			}
		})
	})

	t.Run("job that does not end gets a TERM after the period", func(t *testing.T) {
		play(t, spec(graceOf(5*time.Minute)), func(t *testing.T, st *fixture) {
			begin(st, runtimetest.Script{Ending: 10 * time.Second})
			st.stop(errTestStop)
			_ = st.end()
			if after := st.timeOf("a", runtimetest.Term, runtimetest.Interrupt); after != 5*time.Minute {
				t.Errorf("TERM came %s after the interrupt, want 5m", after)
			}
		})
	})

	t.Run("new period is used at once", func(t *testing.T) {
		for name, c := range map[string]struct{ edit, want time.Duration }{
			"longer":  {20 * time.Minute, 20 * time.Minute},
			"shorter": {3 * time.Minute, 3 * time.Minute},
			"passed":  {time.Minute, 2 * time.Minute},
		} {
			t.Run(name, func(t *testing.T) {
				play(t, spec(graceOf(5*time.Minute)), func(t *testing.T, st *fixture) {
					begin(st, runtimetest.Script{Ending: 10 * time.Second})
					st.stop(errTestStop)
					wait(2 * time.Minute)
					st.pool.Tune(spec(graceOf(c.edit)))
					_ = st.end()
					if after := st.timeOf("a", runtimetest.Term, runtimetest.Interrupt); after != c.want {
						t.Errorf("TERM came %s after the interrupt, want %s", after, c.want)
					}
				})
			})
		}
	})

	t.Run("forced stop shortens the period", func(t *testing.T) {
		for name, c := range map[string]struct{ after, want time.Duration }{
			"from the beginning": {0, 30 * time.Second},
			"later":              {2 * time.Minute, 2 * time.Minute},
		} {
			t.Run(name, func(t *testing.T) {
				play(t, spec(graceOf(5*time.Minute)), func(t *testing.T, st *fixture) {
					begin(st, runtimetest.Script{Ending: 10 * time.Second})
					st.stop(errTestStop)
					wait(c.after)
					st.pool.ForceStop()
					st.pool.ForceStop()
					_ = st.end()
					if after := st.timeOf("a", runtimetest.Term, runtimetest.Interrupt); after != c.want {
						t.Errorf("TERM came %s after the interrupt, want %s", after, c.want)
					}
				})
			})
		}
	})

	t.Run("cancelled job is interrupted", func(t *testing.T) {
		play(t, spec(graceOf(5*time.Minute)), func(t *testing.T, st *fixture) {
			begin(st, runtimetest.Script{Interrupting: time.Second})
			st.cloud.SetJobStatus("a", runtime.Cancelled)
			wait(time.Minute)
			st.wantOperations("a", "start", "started", "interrupt", "remove", "removed")
		})
	})

	t.Run("stopped step gets the reason and then a TERM", func(t *testing.T) {
		play(t, spec(graceOf(5*time.Minute)), func(t *testing.T, st *fixture) {
			stopped := runtime.Progress{Step: 1, Lines: 4, Status: runtime.Running, Stopped: true,
				Pulumi: runtime.PulumiKilled, Stack: "acme/web/dev"}
			begin(st, runtimetest.Script{Ending: time.Second, Progress: []runtimetest.TimedProgress{
				{Progress: runtime.Progress{Step: 0, Status: runtime.Succeeded}},
				{Progress: runtime.Progress{Step: 1, Lines: 1, Status: runtime.Running}},
				{After: 90 * time.Second, Progress: stopped},
			}})
			st.stop(errTestStop)
			_ = st.end()
			if after := st.timeOf("a", runtimetest.Term, runtimetest.Interrupt); after > time.Minute {
				t.Errorf("TERM came %s after the interrupt, want it when the step has ended", after)
			}
			if _, text := st.cloud.Step("a", 1); !strings.HasSuffix(text, "Reason: "+errTestStop.Error()+"\n") {
				t.Errorf("the log of the step is %q, want the reason in it", text)
			}
			for _, want := range []string{"pulumi=killed", "pulumi cancel --yes --stack acme/web/dev ",
				"pulumi stack export --stack acme/web/dev "} {
				if !strings.Contains(st.log.String(), want) {
					t.Errorf("the agent's log lacks %q:\n%s", want, st.log.String())
				}
			}
		})
	})

	t.Run("invalid name of a stack is not logged", func(t *testing.T) {
		play(t, spec(graceOf(time.Minute)), func(t *testing.T, st *fixture) {
			begin(st, runtimetest.Script{Ending: time.Second, Progress: []runtimetest.TimedProgress{
				{Progress: runtime.Progress{Step: 0, Status: runtime.Succeeded}},
				{Progress: runtime.Progress{Step: 1, Pulumi: "well", Stack: "first"}},
				{Progress: runtime.Progress{Step: 1, Pulumi: runtime.PulumiKilled, Stack: "a/b/c; rm -r /"}},
			}})
			st.stop(errTestStop)
			_ = st.end()
			log := st.log.String()
			if strings.Contains(log, "rm -r") || !strings.Contains(log, "ORGANIZATION/PROJECT/STACK") {
				t.Errorf("the agent's log is\n%s", log)
			}
		})
	})

	t.Run("executor without signals gets the whole period", func(t *testing.T) {
		play(t, spec(graceOf(5*time.Minute)), func(t *testing.T, st *fixture) {
			engine := &plainExecutor{Executor: st.engine}
			st.replace(engine, 5*time.Minute)
			begin(st, runtimetest.Script{Ending: runtimetest.Forever})
			st.stop(errTestStop)
			wait(time.Minute)
			st.pool.ForceStop()
			_ = st.end()
			want := []time.Duration{5*time.Minute + runtime.StopGrace, runtime.StopGrace, 0}
			if got := engine.graces; !slices.Equal(got, want) {
				t.Errorf("the grace periods of Remove are %v, want %v", got, want)
			}
			if after := st.timeOf("a", runtimetest.Kill, runtimetest.Term); after != time.Minute+runtime.StopGrace {
				t.Errorf("KILL came %s after TERM, want 1m30s", after)
			}
		})
	})

	t.Run("after a failed interrupt, Remove gets the cancel grace period", func(t *testing.T) {
		play(t, spec(graceOf(5*time.Minute)), func(t *testing.T, st *fixture) {
			st.replace(brokenInterrupt{st.engine}, 5*time.Minute)
			begin(st, runtimetest.Script{Ending: 4 * time.Minute})
			st.stop(errTestStop)
			_ = st.end()
			if slices.Contains(st.engine.Operations("a"), runtimetest.Kill) {
				t.Error("the job was killed before its cancel grace period was over")
			}
		})
	})

	t.Run("leftover pool has the default period", func(t *testing.T) {
		leftover := runtime.PoolSpec{Name: "old", Identity: spec().Identity, Leftover: true}
		play(t, leftover, func(t *testing.T, st *fixture) {
			old := job("a")
			old.Agent, old.Pool, old.PoolName, old.Identity = "agent-1", leftover.Key(), "old", leftover.Identity
			st.engine.SetDefaultScript(runtimetest.Script{
				Running: runtimetest.Forever, OnTerm: failed, Ending: time.Second,
			})
			st.engine.Adopt(&old, time.Now())
			st.start()
			wait(time.Minute)
			st.stop(errTestStop)
			_ = st.end()
			if after := st.timeOf("a", runtimetest.Term, runtimetest.Interrupt); after != 5*time.Minute {
				t.Errorf("TERM came %s after the interrupt, want 5m", after)
			}
		})
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
