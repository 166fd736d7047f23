package pool_test

import (
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/pool"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
)

// wantRecorded checks the counters of claims and ends.
func (st *fixture) wantRecorded(claims int, ended map[string]int) {
	st.Helper()
	if got := st.metrics.Claimed(); runtimetest.Total(got) != claims {
		st.Errorf("recorded claims %v, want %d", got, claims)
	}
	if got := st.metrics.Ended(); !maps.Equal(got, ended) {
		st.Errorf("recorded ends %v, want %v", got, ended)
	}
}

// wantStages checks the measured durations of all stages.
func (st *fixture) wantStages(want map[runtime.Stage][]time.Duration) {
	st.Helper()
	for _, stage := range []runtime.Stage{
		runtime.StageClaim, runtime.StageDefinition, runtime.StagePull, runtime.StageCreate, runtime.StageStart,
		runtime.StageFirstLine, runtime.StageRun, runtime.StageReport, runtime.StageRemove,
	} {
		if got := st.metrics.Stages(stage); !slices.Equal(got, want[stage]) {
			st.Errorf("stage %s took %v, want %v", stage, got, want[stage])
		}
	}
}

// wantStartFailures checks the counters of failed starts.
func (st *fixture) wantStartFailures(want map[string]int) {
	st.Helper()
	if got := st.metrics.StartFailures(); !maps.Equal(got, want) {
		st.Errorf("recorded failed starts %v, want %v", got, want)
	}
}

func TestMetrics(t *testing.T) {
	type durations = map[runtime.Stage][]time.Duration
	const ended = "default deployment "
	failed := runtime.Exit{Code: runtime.CodeFailed}
	endless := runtimetest.Script{Running: runtimetest.Forever, OnTerm: failed}

	play(t, "each stage of a job is measured", spec(), func(st *fixture) {
		time.AfterFunc(time.Second, st.cloud.Hang(runtimetest.Define)) // until half a second after the claim
		time.AfterFunc(500*time.Millisecond, st.cloud.Hang(runtimetest.Claim))
		st.startJobs(runtimetest.Script{
			Starting: 3 * time.Second, Running: 10 * time.Second, Removal: 2 * time.Second,
			Progress: []runtimetest.TimedProgress{
				{After: 4 * time.Second, Progress: runtime.Progress{Status: runtime.Succeeded}},
				{After: 9 * time.Second, Progress: runtime.Progress{Step: 1, Status: runtime.Running}},
			},
		}, "a")
		wait(20 * time.Second)
		st.wantRecorded(1, map[string]int{ended + "succeeded": 1})
		st.wantStages(durations{
			runtime.StageClaim: {500 * time.Millisecond}, runtime.StageDefinition: {500 * time.Millisecond},
			runtime.StageCreate: {3 * time.Second}, runtime.StageFirstLine: {4 * time.Second},
			runtime.StageRun: {10 * time.Second}, runtime.StageRemove: {2 * time.Second},
		})
		st.wantStartFailures(nil)
	})
	play(t, "polls are counted by result", spec(), func(st *fixture) {
		st.cloud.Fail(runtimetest.Claim, 2, errors.New("connection refused"))
		st.cloud.Queue("a")
		st.start()
		wait(150 * time.Second)
		want := map[string]int{"default failed": 2, "default job": 1, "default empty": 1}
		if got := st.metrics.Polls(); !maps.Equal(got, want) {
			st.Errorf("recorded polls %v, want %v", got, want)
		}
	})
	play(t, "job that cannot start counts as failed", spec(), func(st *fixture) {
		time.AfterFunc(5*time.Second, st.cloud.Hang(runtimetest.Report))
		st.startJobs(runtimetest.Script{Starting: time.Second, Fail: runtime.ErrJobFault}, "a")
		wait(time.Minute)
		st.wantRecorded(1, map[string]int{ended + "failed": 1})
		st.wantStages(durations{
			runtime.StageClaim: {0}, runtime.StageDefinition: {0}, runtime.StageCreate: {time.Second},
			runtime.StageReport: {4 * time.Second},
		})
		st.wantStartFailures(map[string]int{"pretended image": 1})
	})
	play(t, "failed starts are counted by reason", spec(), func(st *fixture) {
		st.engine.SetScript("a", runtimetest.Script{Fail: errors.New("the engine is gone")})
		st.engine.SetScript("b", runtimetest.Script{
			Fail: runtime.FailureUnschedulable.Wrap(errors.New("no node")),
		})
		st.engine.SetScript("c", runtimetest.Script{Silent: true, Exit: killed})
		st.engine.SetScript("d", runtimetest.Script{Running: time.Second})
		st.cloud.Queue("a", "b", "c", "d")
		st.start()
		wait(30 * time.Minute)
		st.wantStartFailures(map[string]int{
			"pretended instance": 1, "pretended unschedulable": 1, "pretended runner": 1,
		})
	})
	play(t, "job is lost if the service no longer has its definition", spec(), func(st *fixture) {
		st.cloud.Fail(runtimetest.Define, 1, runtime.ErrGone)
		st.cloud.Queue("a")
		st.start()
		wait(time.Minute)
		st.wantRecorded(1, map[string]int{ended + "lost": 1})
		st.wantStartFailures(map[string]int{"pretended service": 1})
	})
	for name, c := range map[string]struct {
		script  runtimetest.Script
		status  runtime.JobStatus // set after a minute
		timeout time.Duration
		want    runtime.Outcome
	}{
		"failed step": {script: runtimetest.Script{Running: time.Minute, Exit: failed}, want: runtime.OutcomeFailed},
		"success that the runner cannot report": {
			script: runtimetest.Script{Running: time.Minute,
				Exit: runtime.Exit{Code: runtime.CodeSucceededUnreported}}, want: runtime.OutcomeSucceeded,
		},
		"runner that is killed": {
			script: runtimetest.Script{Running: time.Minute, Exit: killed}, want: runtime.OutcomeFailed,
		},
		"cancelled job": {
			script: runtimetest.Script{Running: time.Hour, Ending: time.Second, OnTerm: failed},
			status: runtime.Cancelled, want: runtime.OutcomeCancelled,
		},
		"job that the service no longer has": {
			script: runtimetest.Script{Running: time.Hour, OnTerm: runtime.Exit{Code: runtime.CodeGone}},
			status: runtime.Gone, want: runtime.OutcomeLost,
		},
		"job beyond its time limit": {
			script:  runtimetest.Script{Running: time.Hour, OnTerm: failed},
			timeout: time.Minute, want: runtime.OutcomeFailed,
		},
		"instance that was removed from outside": {
			script: runtimetest.Script{Running: time.Hour, WaitErrors: []error{runtime.ErrNoInstance}},
			want:   runtime.OutcomeLost,
		},
	} {
		play(t, name, spec(), func(st *fixture) {
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
	}
	play(t, "job that the pool stops at its own end counts as cancelled", spec(), func(st *fixture) {
		st.startJobs(endless, "a")
		wait(time.Minute)
		st.shutdown()
		st.wantRecorded(1, map[string]int{ended + "cancelled": 1})
	})
	playAdopter(t, "adopted job ends without a claim", spec(), func(st *fixture, _ *adopter) {
		st.orphan("running", runtimetest.Script{Running: 5 * time.Minute}, 2*time.Minute)
		st.start()
		wait(4 * time.Minute)
		st.wantRecorded(0, map[string]int{ended + "succeeded": 1})
		st.wantStages(durations{runtime.StageRun: {5 * time.Minute}, runtime.StageRemove: {0}}) // from its start
	})
	playAdopter(t, "job that is left to the next agent does not count as ended", spec(), func(st *fixture, _ *adopter) {
		st.startJobs(endless, "a")
		wait(time.Minute)
		st.shutdown()
		st.wantRecorded(1, nil)
	})
	play(t, "replaced pool loses no count", spec(), func(old *fixture) {
		old.startJobs(runtimetest.Script{Running: time.Minute}, "a", "b")
		wait(30 * time.Second)
		next := newFixture(old.TB, spec())
		next.spec.Identity.Organization = "another"
		next.rebuild(func(p *pool.Parts) { *p = old.parts })
		next.start()
		old.pool.Drain()
		wait(30 * time.Minute)
		next.pool.Drain()
		old.wantEnd()
		next.wantEnd()
		next.stop(nil)
		old.wantRecorded(2, map[string]int{ended + "succeeded": 2})
	})
}
