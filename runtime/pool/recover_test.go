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
	"github.com/cmwa-project/cmwa/schema/secret"
)

// leave adds what an earlier run of the agent has left of a job: the claim at the service, and
// the record in the journal.
func (st *fixture) leave(id string, stage runtime.RecordStage, age time.Duration) *runtime.Job {
	st.t.Helper()
	left, s := job(id), spec()
	left.Pool, left.PoolName, left.Identity, left.Agent = s.Key(), s.Name, s.Identity, "agent-1"
	st.cloud.AddClaimed(left, runtimetest.Definition("echo 1", "echo 2", "echo 3"))
	st.addRecord(&left, stage, age)
	return &left
}

func (st *fixture) addRecord(left *runtime.Job, stage runtime.RecordStage, age time.Duration) {
	st.t.Helper()
	err := st.records.Add(st.t.Context(), runtime.Record{
		Job: left.ID, WorkflowID: left.WorkflowID, Kind: left.Kind, Token: left.Token, Pool: left.Pool,
		PoolName: left.PoolName, Identity: left.Identity, Generation: 3, Claimed: time.Now().Add(-age), Stage: stage,
	})
	if err != nil {
		st.t.Fatal(err)
	}
}

// removals returns how many instances of a job were removed.
func (st *fixture) removals(job string) (count int) {
	for _, operation := range st.engine.Operations(job) {
		if operation == runtimetest.RemoveEnd {
			count++
		}
	}
	return count
}

// wantReports checks the steps and statuses that the agent has reported of a job. It ignores
// heartbeats and reports of lines.
func (st *fixture) wantReports(job string, want ...runtime.Report) {
	st.t.Helper()
	var got []runtime.Report
	for _, report := range st.cloud.Reports(job) {
		if report.Status != "" {
			got = append(got, runtime.Report{Step: report.Step, Status: report.Status})
		}
	}
	same := func(a, b runtime.Report) bool { return a.Step == b.Step && a.Status == b.Status }
	if !slices.EqualFunc(got, want, same) {
		st.t.Errorf("reports of job %s: %v, want %v", job, got, want)
	}
}

// wantNothingLeft checks that the job has no record, that there are no instances, and that the
// log contains a text.
func (st *fixture) wantNothingLeft(job, log string) {
	st.t.Helper()
	if record, ok := st.records.Record(job); ok {
		st.t.Errorf("%s is left", record)
	}
	if left := st.engine.Present(); len(left) > 0 {
		st.t.Errorf("instances of %q are left", left)
	}
	if !strings.Contains(st.log.String(), log) {
		st.t.Errorf("the log does not contain %q:\n%s", log, st.log)
	}
}

func TestRecovery(t *testing.T) {
	succeeds := runtimetest.Script{Running: time.Second}
	ends := func(code int) runtimetest.Script { return runtimetest.Script{Exit: runtime.Exit{Code: code}} }
	one := func(step int, status runtime.Status) []runtime.Report {
		return []runtime.Report{{Step: step, Status: status}}
	}
	const again = "job started again: the agent ended before its first step"

	t.Run("job that has not run is started again", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			st.leave("a", runtime.RecordClaimed, time.Minute)
			st.records.SetProgress("a", runtime.Progress{Step: 0, Lines: 7, Status: runtime.Running})
			st.start()
			wait(time.Minute)
			st.wantOperations("a", "start", "started", "remove", "removed")
			st.wantNothingLeft("a", again)
			if recovered := st.metrics.Recovered(); recovered["default started"] != 1 || len(recovered) != 1 {
				t.Errorf("the recovered jobs are %v, want one started job", recovered)
			}
			for _, report := range st.cloud.Reports("a") {
				if len(report.Lines) > 0 && report.Offset < 7 {
					t.Errorf("lines were sent with offset %d, but the service has accepted 7 lines", report.Offset)
				}
			}
			if h := st.engine.Handoff("a"); h.Token != "token-of-a" || h.SetupLines < 9 {
				t.Errorf("the handoff has the token %q and %d lines, want token-of-a and at least 9 lines", h.Token,
					h.SetupLines)
			}
		})
	})

	t.Run("instance of the earlier start is removed first", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			st.engine.SetScript("a", runtimetest.Script{Running: runtimetest.Forever})
			st.engine.Adopt(st.leave("a", runtime.RecordClaimed, time.Minute), time.Now())
			st.engine.SetScript("a", succeeds)
			st.start()
			wait(time.Minute)
			st.wantOperations("a", "was adopted", "remove", "term", "removed", "start", "started", "remove", "removed")
			st.wantNothingLeft("a", again)
		})
	})

	t.Run("job that was claimed too long ago is reported failed", func(t *testing.T) {
		for name, age := range map[string]time.Duration{"old": 9*time.Minute + time.Second, "future": -time.Hour} {
			t.Run(name, func(t *testing.T) {
				play(t, spec(), func(t *testing.T, st *fixture) {
					st.leave("a", runtime.RecordClaimed, age)
					st.start()
					wait(time.Minute)
					st.wantOperations("a")
					st.wantStep("a", 0, runtime.Failed, "the agent ended before the first step of this job, "+
						"and could not start it again: the job was claimed at ")
					st.wantNothingLeft("a", "job reported failed")
				})
			})
		}
	})

	t.Run("job that the service no longer has is not reported", func(t *testing.T) {
		for _, stage := range []runtime.RecordStage{runtime.RecordClaimed, runtime.RecordHandedOff} {
			t.Run(string(stage), func(t *testing.T) {
				play(t, spec(), func(t *testing.T, st *fixture) {
					st.leave("a", stage, time.Minute)
					st.cloud.SetJobStatus("a", runtime.Gone)
					st.start()
					wait(time.Minute)
					st.wantOperations("a")
					st.wantReports("a")
					st.wantNothingLeft("a", "job has already ended at the service")
				})
			})
		}
	})

	t.Run("job waits for a service that does not answer", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
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
	})

	t.Run("running job is resumed with its token", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			st.engine.SetScript("a", runtimetest.Script{
				Running: time.Minute, Exit: runtime.Exit{Code: 137, Reason: "out of memory"},
				Progress: []runtimetest.TimedProgress{
					{Progress: runtime.Progress{Step: 0, Status: runtime.Succeeded}},
					{Progress: runtime.Progress{Step: 2, Lines: 5, Status: runtime.Running}},
				},
			})
			st.engine.Adopt(st.leave("a", runtime.RecordHandedOff, time.Hour), time.Now().Add(-time.Second))
			st.start()
			wait(2 * time.Minute)
			st.wantReports("a", runtime.Report{Step: 2, Status: runtime.Failed})
			st.wantStep("a", 2, runtime.Failed, "out of memory")
			st.wantNothingLeft("a", "job resumed: an earlier run of this agent started it")
		})
	})

	t.Run("job that ended while no agent ran has its true outcome", func(t *testing.T) {
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
			t.Run(name, func(t *testing.T) {
				play(t, spec(), func(t *testing.T, st *fixture) {
					st.engine.SetScript("a", c.script)
					st.engine.Adopt(st.leave("a", runtime.RecordHandedOff, time.Hour), time.Now().Add(-time.Hour))
					st.start()
					wait(time.Minute)
					st.wantOperations("a", "was adopted", "remove", "removed")
					st.wantReports("a", c.want...)
					st.wantNothingLeft("a", "job resumed: it ended while no agent ran")
				})
			})
		}
	})

	t.Run("runner without a handoff is replaced", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			st.engine.SetScript("a", ends(runtime.CodeUsage))
			st.engine.Adopt(st.leave("a", runtime.RecordHandedOff, time.Minute), time.Now())
			st.engine.SetScript("a", succeeds)
			st.start()
			wait(time.Minute)
			st.wantOperations("a", "was adopted", "remove", "removed", "start", "started", "remove", "removed")
			st.wantNothingLeft("a", again)
			st.wantRecord("a", "add", "claimed", "handed_off", "reported", "remove")
		})
	})

	t.Run("instance whose runner was never started is replaced without waiting for its end", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			st.engine.SetScript("a", runtimetest.Script{NeverStarted: true, Running: runtimetest.Forever})
			st.engine.Adopt(st.leave("a", runtime.RecordHandedOff, time.Minute), time.Now())
			st.engine.SetScript("a", succeeds)
			var removedAt []int // number of removals before each stage
			st.records.Before(func(call runtimetest.JournalCall, _ string) {
				if call == runtimetest.SetStage {
					removedAt = append(removedAt, st.removals("a"))
				}
			})
			st.start()
			wait(time.Minute)
			st.wantOperations("a", "was adopted", "remove", "term", "removed", "start", "started", "remove", "removed")
			st.wantNothingLeft("a", again)
			st.wantRecord("a", "add", "claimed", "handed_off", "reported", "remove")
			if want := []int{0, 1, 1}; !slices.Equal(removedAt, want) {
				t.Errorf("%v instances were removed before each stage, want %v: after a kill of the agent, a job "+
					"that may have run and has no instance is reported failed", removedAt, want)
			}
		})
	})

	t.Run("of two instances, the one that has run is adopted", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			job := st.leave("a", runtime.RecordHandedOff, time.Minute)
			st.engine.SetScript("a", runtimetest.Script{NeverStarted: true, Running: runtimetest.Forever})
			st.engine.Adopt(job, time.Now())
			st.engine.SetScript("a", ends(runtime.CodeFailed))
			st.engine.Adopt(job, time.Now().Add(-time.Minute))
			st.start()
			wait(time.Minute)
			if done := st.engine.Operations("a"); slices.Contains(done, runtimetest.Start) {
				t.Errorf("a job that has run is started again: %v", done)
			}
			if present := st.engine.Present(); len(present) != 0 {
				t.Errorf("got instances %v, want none", present)
			}
		})
	})

	t.Run("runner without a handoff is not replaced after the limit", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			st.engine.SetScript("a", ends(runtime.CodeUsage))
			st.engine.Adopt(st.leave("a", runtime.RecordHandedOff, time.Hour), time.Now())
			st.start()
			wait(time.Minute)
			st.wantOperations("a", "was adopted", "remove", "removed")
			st.wantStep("a", 0, runtime.Failed, "could not start it again")
			st.wantNothingLeft("a", "job reported failed")
		})
	})

	t.Run("job without an instance is reported failed at its recorded step", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			st.leave("a", runtime.RecordHandedOff, time.Minute)
			st.records.SetProgress("a", runtime.Progress{Step: 2, Lines: 4, Status: runtime.Running})
			st.start()
			wait(time.Minute)
			st.wantOperations("a")
			st.wantStep("a", 2, runtime.Failed, "the instance of this job was removed while no agent ran")
			st.wantNothingLeft("a", "job reported failed")
		})
	})

	t.Run("job without an instance is reported failed at the step that its runner had reached", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			st.leave("a", runtime.RecordHandedOff, time.Minute)
			st.records.SetProgress("a", runtime.Progress{Step: 1, Lines: 4, Status: runtime.Running})
			st.cloud.Fail(runtimetest.Report, 1, errors.New("step 1 has succeeded"))
			st.start()
			wait(time.Minute)
			st.wantReports("a", runtime.Report{Step: 2, Status: runtime.Running},
				runtime.Report{Step: 2, Status: runtime.Failed})
			st.wantNothingLeft("a", "job reported failed")
		})
	})

	t.Run("job without an instance that is over at the service is not reported", func(t *testing.T) {
		for _, status := range []runtime.JobStatus{runtime.Completing, runtime.Cancelled} {
			play(t, spec(), func(t *testing.T, st *fixture) {
				st.leave("a", runtime.RecordHandedOff, time.Minute)
				st.cloud.SetJobStatus("a", status)
				st.start()
				wait(time.Minute)
				st.wantReports("a")
				st.wantNothingLeft("a", "job has already ended at the service")
			})
		}
	})

	t.Run("status request that fails is repeated", func(t *testing.T) {
		for _, stage := range []runtime.RecordStage{runtime.RecordClaimed, runtime.RecordHandedOff} {
			t.Run(string(stage), func(t *testing.T) {
				play(t, spec(), func(t *testing.T, st *fixture) {
					st.leave("a", stage, time.Minute)
					st.cloud.SetJobStatus("a", runtime.Cancelled)
					st.cloud.Fail(runtimetest.JobStatus, 3, errors.New("502"))
					st.start()
					wait(time.Minute)
					st.wantOperations("a")
					st.wantReports("a")
					st.wantNothingLeft("a", "job has already ended at the service")
				})
			})
		}
	})

	t.Run("job is started again after a minute without a response about its status", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			st.leave("a", runtime.RecordClaimed, time.Minute)
			st.cloud.Fail(runtimetest.JobStatus, 1000, errors.New("502"))
			st.start()
			wait(55 * time.Second)
			st.wantOperations("a")
			wait(30 * time.Second)
			st.wantOperations("a", "start", "started", "remove", "removed")
			st.wantNothingLeft("a", again)
		})
	})

	t.Run("pool that stops without a response about the status leaves the job to the next agent", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			st.leave("a", runtime.RecordClaimed, time.Minute)
			st.cloud.Fail(runtimetest.JobStatus, 1000, errors.New("502"))
			st.start()
			wait(30 * time.Second)
			st.stop(errors.New("the agent is stopping"))
			_ = st.end()
			st.wantOperations("a")
			st.wantReports("a")
			if record, ok := st.records.Record("a"); !ok || record.Stage != runtime.RecordClaimed {
				t.Errorf("the record is %v, want one of a claimed job", record)
			}
		})
	})

	t.Run("reported job is removed without another report", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			st.engine.SetScript("a", ends(137))
			st.engine.Adopt(st.leave("a", runtime.RecordReported, time.Minute), time.Now())
			st.start()
			wait(time.Minute)
			st.wantOperations("a", "was adopted", "remove", "removed")
			st.wantReports("a")
			st.wantNothingLeft("a", "its leftovers are removed")
		})
	})

	t.Run("nothing starts while the instances or the records are unknown", func(t *testing.T) {
		for name, blind := range map[string]func(st *fixture, parts *pool.Parts){
			"instances": func(_ *fixture, parts *pool.Parts) { parts.Executor = blindExecutor{parts.Executor} },
			"records": func(st *fixture, _ *pool.Parts) {
				st.records.Fail(runtimetest.ListRecords, 1, errors.New("input/output error"))
			},
		} {
			t.Run(name, func(t *testing.T) {
				play(t, spec(), func(t *testing.T, st *fixture) {
					st.leave("a", runtime.RecordClaimed, time.Minute)
					blind(st, &st.parts)
					st.pool = pool.New(spec(), st.parts)
					st.start()
					if err := st.end(); err == nil {
						t.Error("the pool has ended without an error")
					}
					st.wantOperations("a")
					st.wantRecord("a", "add")
				})
			})
		}
	})

	t.Run("jobs of a pool that is not configured are finished", func(t *testing.T) {
		leftover := runtime.Record{PoolName: "default", Identity: spec().Identity}.Spec()
		play(t, leftover, func(t *testing.T, st *fixture) {
			st.leave("claimed", runtime.RecordClaimed, time.Minute)
			st.leave("lost", runtime.RecordHandedOff, time.Minute)
			st.engine.SetScript("running", runtimetest.Script{Running: time.Minute, Exit: runtime.Exit{Code: 137}})
			st.engine.Adopt(st.leave("running", runtime.RecordHandedOff, time.Minute), time.Now())
			st.start()
			st.pool.Drain()
			if err := st.end(); err != nil {
				t.Error(err)
			}
			st.wantStep("claimed", 0, runtime.Failed, "its pool is no longer configured")
			st.wantStep("lost", 0, runtime.Failed, "was removed while no agent ran")
			st.wantStep("running", 1, runtime.Failed, "exit code 137")
			for _, id := range []string{"claimed", "lost", "running"} {
				st.wantNothingLeft(id, "")
			}
		})
	})

	t.Run("record of another pool is not touched", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			other := job("a")
			other.Pool = "another-1234"
			st.addRecord(&other, runtime.RecordClaimed, time.Minute)
			st.start()
			wait(time.Minute)
			st.wantRecord("a", "add")
		})
	})

	t.Run("job that the service has queued again is started with the new claim", func(t *testing.T) {
		play(t, spec(most(2)), func(t *testing.T, st *fixture) {
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
				t.Errorf("the handoff is %v, want one with the new token", h)
			}
		})
	})

	t.Run("pool that stops leaves the job to the next agent", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			st.leave("a", runtime.RecordClaimed, time.Minute)
			st.cloud.Fail(runtimetest.Report, 1000, errors.New("the service is away"))
			st.start()
			wait(time.Minute)
			st.stop(errors.New("the agent is stopping"))
			_ = st.end()
			st.wantRecord("a", "add")
			st.wantOperations("a")
		})
	})
}

// blindExecutor cannot list instances.
type blindExecutor struct{ runtime.Executor }

func (blindExecutor) List(context.Context, string) ([]runtime.Instance, error) {
	return nil, errors.New("the engine is away")
}
