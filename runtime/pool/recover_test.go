package pool_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/pool"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// leave adds what an earlier run of the agent has left of a job: the claim at the service, and
// the record in the journal.
func (st *fixture) leave(id string, stage runtime.RecordStage, age time.Duration) *runtime.Job {
	st.Helper()
	left, s := job(id), spec()
	left.Pool, left.PoolName, left.Identity, left.Agent = s.Key(), s.Name, s.Identity, "agent-1"
	st.cloud.AddClaimed(left, runtimetest.Definition("echo 1", "echo 2", "echo 3"))
	st.addRecord(&left, stage, age)
	return &left
}

// leaveStarted does what leave does, and adds an instance of the job, which started age ago. An instance that is
// started later succeeds.
func (st *fixture) leaveStarted(id string, script runtimetest.Script, stage runtime.RecordStage, age time.Duration) {
	st.Helper()
	st.engine.SetScript(id, script)
	st.engine.Adopt(st.leave(id, stage, age), time.Now().Add(-age))
	st.engine.SetScript(id, runtimetest.Script{Running: time.Second})
}

func (st *fixture) addRecord(left *runtime.Job, stage runtime.RecordStage, age time.Duration) {
	st.Helper()
	err := st.records.Add(st.Context(), runtime.Record{
		Job: left.ID, WorkflowID: left.WorkflowID, Kind: left.Kind, Token: left.Token, Pool: left.Pool,
		PoolName: left.PoolName, Identity: left.Identity, Generation: 3, Claimed: time.Now().Add(-age), Stage: stage,
	})
	if err != nil {
		st.Fatal(err)
	}
}

// wantReports checks the steps and statuses that the agent has reported of a job. It ignores
// heartbeats and reports of lines.
func (st *fixture) wantReports(job string, want ...runtime.Report) {
	st.Helper()
	var got []runtime.Report
	for _, report := range st.cloud.Reports(job) {
		if report.Status != "" {
			got = append(got, runtime.Report{Step: report.Step, Status: report.Status})
		}
	}
	same := func(a, b runtime.Report) bool { return a.Step == b.Step && a.Status == b.Status }
	if !slices.EqualFunc(got, want, same) {
		st.Errorf("reports of job %s: %v, want %v", job, got, want)
	}
}

// wantNothingLeft checks that the job has no record, that there are no instances, and that the
// log contains a text.
func (st *fixture) wantNothingLeft(job, log string) {
	st.Helper()
	if record, ok := st.records.Record(job); ok {
		st.Errorf("%s is left", record)
	}
	st.wantInstances(0)
	st.wantInLog(log)
}

func TestRecovery(t *testing.T) {
	ends := func(code int) runtimetest.Script { return runtimetest.Script{Exit: runtime.Exit{Code: code}} }
	one := func(step int, status runtime.Status) []runtime.Report {
		return []runtime.Report{{Step: step, Status: status}}
	}
	const again = "job started again: the agent ended before its first step"

	play(t, "job that has not run is started again", spec(), func(st *fixture) {
		st.leave("a", runtime.RecordClaimed, time.Minute)
		st.records.SetProgress("a", runtime.Progress{Step: 0, Lines: 7, Status: runtime.Running})
		st.start()
		wait(time.Minute)
		st.wantOperations("a", "start", "started", "remove", "removed")
		st.wantNothingLeft("a", again)
		if recovered := st.metrics.Recovered(); recovered["default started"] != 1 || len(recovered) != 1 {
			st.Errorf("the recovered jobs are %v, want one started job", recovered)
		}
		for _, report := range st.cloud.Reports("a") {
			if len(report.Lines) > 0 && report.Offset < 7 {
				st.Errorf("lines were sent with offset %d, but the service has accepted 7 lines", report.Offset)
			}
		}
		if h := st.engine.Handoff("a"); h.Token != "token-of-a" || h.SetupLines < 9 {
			st.Errorf("the handoff has the token %q and %d lines, want token-of-a and at least 9 lines", h.Token,
				h.SetupLines)
		}
	})

	play(t, "job is not started if its start cannot be counted", spec(), func(st *fixture) {
		st.leave("a", runtime.RecordClaimed, time.Minute)
		st.records.Fail(runtimetest.AddRecord, 1, errors.New("no space left on device"))
		st.start()
		wait(time.Minute)
		st.wantOperations("a")
		st.wantStep("a", 0, runtime.Failed, "record its next start: no space left on device")
		st.wantNothingLeft("a", "job reported failed")
	})

	play(t, "instance of the earlier start is removed first", spec(), func(st *fixture) {
		st.leaveStarted("a", runtimetest.Script{Running: runtimetest.Forever}, runtime.RecordClaimed, time.Minute)
		st.start()
		wait(time.Minute)
		st.wantOperations("a", "was adopted", "remove", "term", "removed", "start", "started", "remove", "removed")
		st.wantNothingLeft("a", again)
	})

	play(t, "start that created an instance ends the count of starts", spec(), func(st *fixture) {
		st.leaveStarted("a", runtimetest.Script{Running: runtimetest.Forever}, runtime.RecordClaimed, time.Minute)
		record, _ := st.records.Record("a")
		record.Restarts = 10
		if err := st.records.Add(t.Context(), record); err != nil {
			t.Fatal(err)
		}
		st.start()
		wait(time.Minute)
		st.wantNothingLeft("a", again)
	})

	for name, age := range map[string]time.Duration{"too long ago": 9*time.Minute + time.Second, "ahead": -time.Hour} {
		play(t, "job that was claimed "+name+" is reported failed", spec(), func(st *fixture) {
			st.leave("a", runtime.RecordClaimed, age)
			st.start()
			wait(time.Minute)
			st.wantOperations("a")
			st.wantStep("a", 0, runtime.Failed, "the agent ended before the first step of this job, "+
				"and could not start it again: the job was claimed at ")
			st.wantNothingLeft("a", "job reported failed")
		})
	}

	// A status request that fails is repeated.
	for name, c := range map[string]struct {
		stage    runtime.RecordStage
		status   runtime.JobStatus
		failures int // of the status request
	}{
		"claimed job that the service no longer has":    {runtime.RecordClaimed, runtime.Gone, 0},
		"handed-off job that the service no longer has": {runtime.RecordHandedOff, runtime.Gone, 0},
		"handed-off job that is completing":             {runtime.RecordHandedOff, runtime.Completing, 0},
		"handed-off job that is cancelled":              {runtime.RecordHandedOff, runtime.Cancelled, 0},
		"claimed job, after failed requests,":           {runtime.RecordClaimed, runtime.Cancelled, 3},
		"handed-off job, after failed requests,":        {runtime.RecordHandedOff, runtime.Cancelled, 3},
	} {
		play(t, name+" is not reported", spec(), func(st *fixture) {
			st.leave("a", c.stage, time.Minute)
			st.cloud.SetJobStatus("a", c.status)
			st.cloud.Fail(runtimetest.JobStatus, c.failures, errors.New("502"))
			st.start()
			wait(time.Minute)
			st.wantOperations("a")
			st.wantReports("a")
			st.wantNothingLeft("a", "job has already ended at the service")
		})
	}

	play(t, "job waits for a service that does not answer", spec(), func(st *fixture) {
		st.leave("a", runtime.RecordClaimed, time.Minute)
		release := st.cloud.Hang(runtimetest.Report)
		st.start()
		wait(2 * time.Minute)
		st.wantOperations("a")
		release()
		wait(2 * time.Minute)
		st.wantOperations("a", "start", "started", "remove", "removed")
		st.wantNothingLeft("a", again)
	})

	play(t, "running job is resumed with its token", spec(), func(st *fixture) {
		st.leaveStarted("a", runtimetest.Script{
			Running: time.Hour + time.Minute, Exit: killed,
			Progress: []runtimetest.TimedProgress{
				{Progress: runtime.Progress{Step: 0, Status: runtime.Succeeded}},
				{Progress: runtime.Progress{Step: 2, Lines: 5, Status: runtime.Running}},
			},
		}, runtime.RecordHandedOff, time.Hour)
		st.start()
		wait(2 * time.Minute)
		st.wantReports("a", runtime.Report{Step: 2, Status: runtime.Failed})
		st.wantStep("a", 2, runtime.Failed, "killed")
		st.wantNothingLeft("a", "job resumed: an earlier run of this agent started it")
	})

	for name, c := range map[string]struct {
		script runtimetest.Script
		want   []runtime.Report
	}{
		"succeeded":             {ends(runtime.CodeSucceeded), nil},
		"failed":                {ends(runtime.CodeFailed), nil},
		"over at the service":   {ends(runtime.CodeGone), nil},
		"succeeded, unreported": {ends(runtime.CodeSucceededUnreported), one(3, runtime.Succeeded)},
		"failed, unreported":    {ends(runtime.CodeFailedUnreported), one(1, runtime.Failed)},
		"killed":                {ends(137), one(1, runtime.Failed)},
	} {
		play(t, "job that ended while no agent ran has its true outcome: "+name, spec(), func(st *fixture) {
			st.leaveStarted("a", c.script, runtime.RecordHandedOff, time.Hour)
			st.start()
			wait(time.Minute)
			st.wantOperations("a", "was adopted", "remove", "removed")
			st.wantReports("a", c.want...)
			st.wantNothingLeft("a", "job resumed: it ended while no agent ran")
		})
	}

	play(t, "runner without a handoff is replaced", spec(), func(st *fixture) {
		st.leaveStarted("a", ends(runtime.CodeUsage), runtime.RecordHandedOff, time.Minute)
		st.start()
		wait(time.Minute)
		st.wantOperations("a", "was adopted", "remove", "removed", "start", "started", "remove", "removed")
		st.wantNothingLeft("a", again)
		st.wantRecord("a", "add", "claimed", "add", "handed_off", "reported", "remove")
	})

	play(t, "starts that came as far as an instance do not count, even if the agent ends again", spec(), func(st *fixture) {
		st.leaveStarted("a", ends(runtime.CodeUsage), runtime.RecordHandedOff, time.Minute)
		record, _ := st.records.Record("a")
		record.Restarts = 10
		if err := st.records.Add(st.Context(), record); err != nil {
			st.Fatal(err)
		}
		var left []int // the count when the instance is gone, and the next start is about to be recorded
		st.records.Before(func(call runtimetest.JournalCall, _ string) {
			if record, ok := st.records.Record("a"); ok && call == runtimetest.AddRecord &&
				st.count("a", runtimetest.RemoveEnd) == 1 {
				left = append(left, record.Restarts)
			}
		})
		st.start()
		wait(time.Minute)
		if want := []int{0}; !slices.Equal(left, want) {
			st.Errorf("an agent that ends after the removal leaves the counts %v, want %v", left, want)
		}
		st.wantNothingLeft("a", again)
	})

	neverStarted := runtimetest.Script{NeverStarted: true, Running: runtimetest.Forever}
	play(t, "instance whose runner was never started is replaced before its end", spec(), func(st *fixture) {
		st.leaveStarted("a", neverStarted, runtime.RecordHandedOff, time.Minute)
		var removedAt []int // number of removals before each stage
		st.records.Before(func(call runtimetest.JournalCall, _ string) {
			if call == runtimetest.SetStage {
				removedAt = append(removedAt, st.count("a", runtimetest.RemoveEnd))
			}
		})
		st.start()
		wait(time.Minute)
		st.wantOperations("a", "was adopted", "remove", "term", "removed", "start", "started", "remove", "removed")
		st.wantNothingLeft("a", again)
		st.wantRecord("a", "add", "claimed", "add", "handed_off", "reported", "remove")
		if want := []int{0, 1, 1}; !slices.Equal(removedAt, want) {
			st.Errorf("%v instances were removed before each stage, want %v: after a kill of the agent, a job "+
				"that may have run and has no instance is reported failed", removedAt, want)
		}
	})

	play(t, "of two instances, the one that has run is adopted", spec(), func(st *fixture) {
		job := st.leave("a", runtime.RecordHandedOff, time.Minute)
		st.engine.SetScript("a", neverStarted)
		st.engine.Adopt(job, time.Now())
		st.engine.SetScript("a", ends(runtime.CodeFailed))
		st.engine.Adopt(job, time.Now().Add(-time.Minute))
		st.start()
		wait(time.Minute)
		if st.count("a", runtimetest.Start) > 0 {
			st.Error("a job that has run is started again")
		}
		st.wantInstances(0)
	})

	play(t, "runner without a handoff is not replaced after the limit", spec(), func(st *fixture) {
		st.leaveStarted("a", ends(runtime.CodeUsage), runtime.RecordHandedOff, time.Hour)
		st.start()
		wait(time.Minute)
		st.wantOperations("a", "was adopted", "remove", "removed")
		st.wantStep("a", 0, runtime.Failed, "could not start it again")
		st.wantNothingLeft("a", "job reported failed")
	})

	play(t, "job without an instance is reported failed at its recorded step", spec(), func(st *fixture) {
		st.leave("a", runtime.RecordHandedOff, time.Minute)
		st.records.SetProgress("a", runtime.Progress{Step: 2, Lines: 4, Status: runtime.Running})
		st.start()
		wait(time.Minute)
		st.wantOperations("a")
		st.wantStep("a", 2, runtime.Failed, "the instance of this job was removed while no agent ran")
		st.wantNothingLeft("a", "job reported failed")
	})

	play(t, "job without an instance is reported failed at a later step of its runner", spec(), func(st *fixture) {
		st.leave("a", runtime.RecordHandedOff, time.Minute)
		st.records.SetProgress("a", runtime.Progress{Step: 1, Lines: 4, Status: runtime.Running})
		st.cloud.Fail(runtimetest.Report, 1, errors.New("step 1 has succeeded"))
		st.start()
		wait(time.Minute)
		st.wantReports("a", runtime.Report{Step: 2, Status: runtime.Running},
			runtime.Report{Step: 2, Status: runtime.Failed})
		st.wantNothingLeft("a", "job reported failed")
	})

	play(t, "job is started again after a minute without a response about its status", spec(), func(st *fixture) {
		st.leave("a", runtime.RecordClaimed, time.Minute)
		st.cloud.Fail(runtimetest.JobStatus, 1000, errors.New("502"))
		st.start()
		wait(55 * time.Second)
		st.wantOperations("a")
		wait(30 * time.Second)
		st.wantOperations("a", "start", "started", "remove", "removed")
		st.wantNothingLeft("a", again)
	})

	for call, stopAfter := range map[runtimetest.Call]time.Duration{
		runtimetest.JobStatus: 30 * time.Second, runtimetest.Report: time.Minute,
	} {
		play(t, "pool that stops while calls of "+string(call)+" fail leaves the job", spec(), func(st *fixture) {
			st.leave("a", runtime.RecordClaimed, time.Minute)
			st.cloud.Fail(call, 1000, errors.New("502"))
			st.start()
			wait(stopAfter)
			st.shutdown()
			st.wantOperations("a")
			st.wantReports("a")
			st.wantRecord("a", "add") // still one of a claimed job
		})
	}

	play(t, "reported job is removed without another report", spec(), func(st *fixture) {
		st.leaveStarted("a", ends(137), runtime.RecordReported, time.Minute)
		st.start()
		wait(time.Minute)
		st.wantOperations("a", "was adopted", "remove", "removed")
		st.wantReports("a")
		st.wantNothingLeft("a", "its leftovers are removed")
	})

	for name, blind := range map[string]func(st *fixture){
		"instances": func(st *fixture) {
			st.rebuild(func(p *pool.Parts) { p.Executor = blindExecutor{st.engine} })
		},
		"records": func(st *fixture) {
			st.records.Fail(runtimetest.ListRecords, 1, errors.New("input/output error"))
		},
	} {
		play(t, "nothing starts while the "+name+" are unknown", spec(), func(st *fixture) {
			st.leave("a", runtime.RecordClaimed, time.Minute)
			blind(st)
			st.start()
			if st.end() == nil {
				st.Error("the pool has ended without an error")
			}
			<-st.ended
			st.ended <- nil // play wants no error
			st.wantOperations("a")
			st.wantRecord("a", "add")
		})
	}

	leftover := runtime.Record{PoolName: "default", Identity: spec().Identity}.Spec()
	play(t, "jobs of a pool that is not configured are finished", leftover, func(st *fixture) {
		st.leave("claimed", runtime.RecordClaimed, time.Minute)
		st.leave("lost", runtime.RecordHandedOff, time.Minute)
		st.leaveStarted("running", runtimetest.Script{Running: 2 * time.Minute, Exit: killed},
			runtime.RecordHandedOff, time.Minute)
		st.start()
		st.pool.Drain()
		st.wantEnd()
		st.wantStep("claimed", 0, runtime.Failed, "its pool is no longer configured")
		st.wantStep("lost", 0, runtime.Failed, "was removed while no agent ran")
		st.wantStep("running", 1, runtime.Failed, "exit code 137")
		for _, id := range []string{"claimed", "lost", "running"} {
			st.wantNothingLeft(id, "")
		}
	})

	play(t, "record of another pool is not touched", spec(), func(st *fixture) {
		other := job("a")
		other.Pool = "another-1234"
		st.addRecord(&other, runtime.RecordClaimed, time.Minute)
		st.start()
		wait(time.Minute)
		st.wantRecord("a", "add")
	})

	play(t, "job that the service has queued again is started with the new claim", spec(most(2)), func(st *fixture) {
		left := st.leave("a", runtime.RecordClaimed, time.Minute)
		requeued := *left
		requeued.Token = secret.New("another token")
		st.cloud.Add(requeued, runtimetest.Definition("echo 1"))
		release := st.cloud.Hang(runtimetest.Report) // the heartbeat of the old claim
		st.start()
		release()
		wait(time.Minute)
		st.wantOperations("a", "start", "started", "remove", "removed")
		st.wantNothingLeft("a", again)
		if h := st.engine.Handoff("a"); h == nil || h.Token != "another token" {
			st.Errorf("the handoff is %v, want one with the new token", h)
		}
	})
}

// blindExecutor cannot list instances.
type blindExecutor struct{ runtime.Executor }

func (blindExecutor) List(context.Context, string) ([]runtime.Instance, error) {
	return nil, errors.New("the engine is away")
}

// TestRecoveryNamedInstance recovers a job. Another user has created an instance with the same
// labels. The runner in it exits without a handoff, as if nothing of the job had run.
func TestRecoveryNamedInstance(t *testing.T) {
	play(t, "only the instance in the record counts", spec(), func(st *fixture) {
		left := st.leave("a", runtime.RecordHandedOff, time.Minute)
		records, _ := st.records.List(st.Context())
		st.engine.SetScript("a", runtimetest.Script{Running: 5 * time.Minute})
		records[0].Instance = st.engine.Adopt(left, time.Now().Add(-time.Minute))
		st.engine.SetScript("a", runtimetest.Script{Running: 2 * time.Minute, Exit: runtime.Exit{Code: runtime.CodeUsage}})
		st.engine.Adopt(left, time.Now().Add(-time.Minute))
		if err := st.records.Add(st.Context(), records[0]); err != nil {
			st.Fatal(err)
		}
		st.start()
		wait(10 * time.Minute)
		st.wantOperations("a", "was adopted", "was adopted", "remove", "removed", "remove", "removed")
	})
	play(t, "job whose instance in the record is gone is not resumed in another one", spec(), func(st *fixture) {
		left := st.leave("a", runtime.RecordHandedOff, time.Minute)
		records, _ := st.records.List(st.Context())
		records[0].Instance = "removed"
		st.engine.SetScript("a", runtimetest.Script{Running: time.Minute, Exit: runtime.Exit{Code: runtime.CodeUsage}})
		st.engine.Adopt(left, time.Now().Add(-time.Minute))
		if err := st.records.Add(st.Context(), records[0]); err != nil {
			st.Fatal(err)
		}
		st.start()
		wait(10 * time.Minute)
		if slices.Contains(st.engine.Operations("a"), "start") {
			st.Error("the job was started again")
		}
		st.wantInLog("job reported failed")
	})
}
