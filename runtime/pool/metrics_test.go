package pool_test

import (
	"errors"
	"log/slog"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/pool"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
)

// wantRecorded checks the counters of claims and ends.
func (st *fixture) wantRecorded(claims int, ended map[string]int) {
	st.t.Helper()
	if got := st.metrics.Claimed(); runtimetest.Total(got) != claims {
		st.t.Errorf("recorded claims %v, want %d", got, claims)
	}
	if got := st.metrics.Ended(); !maps.Equal(got, ended) {
		st.t.Errorf("recorded ends %v, want %v", got, ended)
	}
}

// wantStages checks the measured durations of all stages.
func (st *fixture) wantStages(want map[runtime.Stage][]time.Duration) {
	st.t.Helper()
	for _, stage := range []runtime.Stage{
		runtime.StageDefinition, runtime.StagePull, runtime.StageCreate, runtime.StageStart,
		runtime.StageRun, runtime.StageReport, runtime.StageRemove,
	} {
		if got := st.metrics.Stages(stage); !slices.Equal(got, want[stage]) {
			st.t.Errorf("stage %s took %v, want %v", stage, got, want[stage])
		}
	}
}

func TestMetrics(t *testing.T) {
	type durations = map[runtime.Stage][]time.Duration
	const ended = "default deployment "
	endless := runtimetest.Script{Running: runtimetest.Forever, OnTerm: runtime.Exit{Code: runtime.CodeFailed}}

	t.Run("each stage of a job is measured", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			st.engine.SetDefaultScript(runtimetest.Script{
				Starting: 3 * time.Second, Running: 10 * time.Second, Removal: 2 * time.Second,
			})
			answer := st.cloud.Hang(runtimetest.Define)
			time.AfterFunc(time.Second, answer)
			st.cloud.Queue("a")
			st.start()
			wait(20 * time.Second)
			st.wantRecorded(1, map[string]int{ended + "succeeded": 1})
			st.wantStages(durations{
				runtime.StageDefinition: {time.Second}, runtime.StageCreate: {3 * time.Second},
				runtime.StageRun: {10 * time.Second}, runtime.StageRemove: {2 * time.Second},
			})
		})
	})
	t.Run("polls are counted by result", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			st.cloud.Fail(runtimetest.Claim, 2, errors.New("connection refused"))
			st.cloud.Queue("a")
			st.start()
			wait(150 * time.Second)
			want := map[string]int{"default failed": 2, "default job": 1, "default empty": 1}
			if got := st.metrics.Polls(); !maps.Equal(got, want) {
				t.Errorf("recorded polls %v, want %v", got, want)
			}
		})
	})
	t.Run("job that cannot start counts as failed", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			st.engine.SetDefaultScript(runtimetest.Script{Starting: time.Second, Fail: runtime.ErrJobFault})
			answer := st.cloud.Hang(runtimetest.Report)
			time.AfterFunc(5*time.Second, answer)
			st.cloud.Queue("a")
			st.start()
			wait(time.Minute)
			st.wantRecorded(1, map[string]int{ended + "failed": 1})
			st.wantStages(durations{
				runtime.StageDefinition: {0}, runtime.StageCreate: {time.Second},
				runtime.StageReport: {4 * time.Second},
			})
		})
	})
	t.Run("job is lost if the service no longer has its definition", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			st.cloud.Fail(runtimetest.Define, 1, runtime.ErrGone)
			st.cloud.Queue("a")
			st.start()
			wait(time.Minute)
			st.wantRecorded(1, map[string]int{ended + "lost": 1})
		})
	})
	for name, c := range map[string]struct {
		script  runtimetest.Script
		status  runtime.JobStatus // set after a minute
		timeout time.Duration
		want    runtime.Outcome
	}{
		"failed step": {script: runtimetest.Script{Running: time.Minute,
			Exit: runtime.Exit{Code: runtime.CodeFailed}}, want: runtime.OutcomeFailed},
		"success that the runner cannot report": {
			script: runtimetest.Script{Running: time.Minute,
				Exit: runtime.Exit{Code: runtime.CodeSucceededUnreported}}, want: runtime.OutcomeSucceeded,
		},
		"runner that runs out of memory": {
			script: runtimetest.Script{Running: time.Minute,
				Exit: runtime.Exit{Code: 137, Reason: "out of memory"}}, want: runtime.OutcomeFailed,
		},
		"cancelled job": {
			script: runtimetest.Script{Running: time.Hour, Ending: time.Second,
				OnTerm: runtime.Exit{Code: runtime.CodeFailed}},
			status: runtime.Cancelled, want: runtime.OutcomeCancelled,
		},
		"job that the service no longer has": {
			script: runtimetest.Script{Running: time.Hour, OnTerm: runtime.Exit{Code: runtime.CodeGone}},
			status: runtime.Gone, want: runtime.OutcomeLost,
		},
		"job beyond its time limit": {
			script:  runtimetest.Script{Running: time.Hour, OnTerm: runtime.Exit{Code: runtime.CodeFailed}},
			timeout: time.Minute, want: runtime.OutcomeFailed,
		},
		"instance that was removed from outside": {
			script: runtimetest.Script{Running: time.Hour,
				WaitErrors: []error{runtime.ErrNoInstance}}, want: runtime.OutcomeLost,
		},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, spec(), func(t *testing.T, st *fixture) {
				st.engine.SetDefaultScript(c.script)
				definition := runtimetest.Definition("work")
				definition.Timeout = c.timeout
				st.cloud.Add(job("a"), definition)
				st.start()
				wait(time.Minute)
				if c.status != "" {
					st.cloud.SetJobStatus("a", c.status)
				}
				wait(20 * time.Minute)
				st.wantRecorded(1, map[string]int{ended + string(c.want): 1})
			})
		})
	}
	t.Run("job that the pool stops at its own end counts as cancelled", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			st.engine.SetDefaultScript(endless)
			st.cloud.Queue("a")
			st.start()
			wait(time.Minute)
			st.stop(errors.New("the agent is stopping"))
			_ = st.end()
			st.wantRecorded(1, map[string]int{ended + "cancelled": 1})
		})
	})
	t.Run("job that is handed out twice counts as one claim", func(t *testing.T) {
		play(t, spec(most(2)), func(t *testing.T, st *fixture) {
			st.engine.SetDefaultScript(runtimetest.Script{Running: time.Hour})
			st.cloud.Queue("a")
			st.start()
			wait(time.Second)
			st.cloud.Queue("a")
			wait(2 * time.Hour)
			st.wantRecorded(1, map[string]int{ended + "succeeded": 1})
			if polls := st.metrics.Polls(); polls["default job"] != 2 {
				t.Errorf("recorded polls %v, want 2 with a job", polls)
			}
		})
	})
	t.Run("adopted job ends without a claim and is measured from its start", func(t *testing.T) {
		playAdopter(t, spec(), func(st *fixture, _ *adopter) {
			orphan(st, "running", spec().Key(), runtimetest.Script{Running: 5 * time.Minute}, 2*time.Minute)
			st.start()
			wait(4 * time.Minute)
			st.wantRecorded(0, map[string]int{ended + "succeeded": 1})
			st.wantStages(durations{runtime.StageRun: {5 * time.Minute}, runtime.StageRemove: {0}})
		})
	})
	t.Run("job that is left to the next agent does not count as ended", func(t *testing.T) {
		playAdopter(t, spec(), func(st *fixture, _ *adopter) {
			st.engine.SetDefaultScript(endless)
			st.cloud.Queue("a")
			st.start()
			wait(time.Minute)
			st.stop(errors.New("the agent is stopping"))
			_ = st.end()
			st.wantRecorded(1, nil)
		})
	})
	t.Run("replaced pool loses no count", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			old := newFixture(t, spec())
			old.engine.SetDefaultScript(runtimetest.Script{Running: time.Minute})
			old.cloud.Queue("a", "b")
			old.start()
			wait(30 * time.Second)
			replacement := spec()
			replacement.Identity.Organization = "another"
			next := newFixture(t, replacement)
			next.metrics = old.metrics
			next.pool = pool.New(replacement, pool.Parts{
				Cloud: old.cloud, Executor: old.engine, Agent: "agent-1", Environ: unset,
				Log: slog.New(slog.DiscardHandler), Metrics: old.metrics,
			})
			next.start()
			old.pool.Drain()
			wait(30 * time.Minute)
			next.pool.Drain()
			if err := errors.Join(old.end(), next.end()); err != nil {
				t.Error(err)
			}
			old.stop(nil)
			next.stop(nil)
			old.wantRecorded(2, map[string]int{ended + "succeeded": 2})
		})
	})
}
