package pool_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/pool"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
)

// leasing returns the spec of a pool that leases one scan and one policy evaluation at a time,
// in addition to its deployments.
func leasing(edits ...func(*runtime.Tuning)) runtime.PoolSpec {
	return spec(append([]func(*runtime.Tuning){func(t *runtime.Tuning) {
		t.Kinds = []runtime.Kind{runtime.Deployment, runtime.InsightsScan, runtime.PolicyEvaluation}
		t.LeasedWork, t.MaxLeased = runtime.LeasedAuto, 1
	}}, edits...)...)
}

// playLeases runs story in a synctest bubble, with a service that leases work. Afterwards it
// stops the pool, and checks that all jobs have ended.
func playLeases(t *testing.T, s runtime.PoolSpec, story func(t *testing.T, st *fixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		st := newFixtureOf(t, s, nil, runtimetest.NewLeases())
		story(t, st)
		st.stop(errors.New("the test is over"))
		st.end()
		st.wantAllEnded()
	})
}

// wantResult checks the result of leased work.
func (st *fixture) wantResult(job string, want runtime.LeaseResult) {
	st.t.Helper()
	if got := st.leases.Result(job); got != want {
		st.t.Errorf("the lease of %s was completed as %q, want %q:\n%s", job, got, want, st.log)
	}
}

// endOf returns when the instance of a job was removed or killed; zero if it was not.
func (st *fixture) endOf(job string) time.Time {
	for _, event := range st.engine.Events() {
		if event.Job == job && (event.Operation == runtimetest.RemoveEnd || event.Operation == runtimetest.Kill) {
			return event.Time
		}
	}
	return time.Time{}
}

func TestLeaseLoop(t *testing.T) {
	t.Run("a scan runs at the same time as a deployment, and is completed", func(t *testing.T) {
		playLeases(t, leasing(), func(t *testing.T, st *fixture) {
			st.engine.SetDefaultScript(runtimetest.Script{Running: 10 * time.Minute})
			st.leases.QueueLeased("scan", "next")
			st.cloud.Queue("deployment")
			st.start()
			wait(time.Minute)
			if got := st.engine.Present(); len(got) != 2 || slices.Contains(got, "next") {
				t.Errorf("the jobs %v run, want the scan and the deployment", got)
			}
			wait(25 * time.Minute)
			st.wantResult("scan", runtime.LeaseSucceeded)
			st.wantResult("next", runtime.LeaseSucceeded)
			st.wantOperations("scan", "start", "started", "remove", "removed")
			renewals := st.leases.Renewals("scan")
			for i := 1; i < len(renewals); i++ {
				if gap := renewals[i].Sub(renewals[i-1]); gap > 21*time.Second {
					t.Errorf("renewal after %s, want one every 20 seconds", gap)
				}
			}
			if len(renewals) < 29 || len(st.cloud.Calls(runtimetest.JobStatus)) > 21 {
				t.Errorf("%d renewals and %d status polls, want at least 29 and at most 21", len(renewals),
					len(st.cloud.Calls(runtimetest.JobStatus)))
			}
		})
	})

	t.Run("limit applies to each kind", func(t *testing.T) {
		playLeases(t, leasing(), func(t *testing.T, st *fixture) {
			st.engine.SetDefaultScript(runtimetest.Script{Running: 10 * time.Minute})
			st.leases.QueueLeased("scan", "next scan")
			st.leases.QueueKind(runtime.PolicyEvaluation, "policy", "next policy")
			st.start()
			wait(5 * time.Minute)
			got := st.engine.Present()
			slices.Sort(got)
			if !slices.Equal(got, []string{"policy", "scan"}) {
				t.Errorf("the jobs %v run, want one job of each kind", got)
			}
			st.pool.Tune(leasing(func(t *runtime.Tuning) { t.MaxLeased = 2 }))
			wait(time.Minute)
			if got := st.engine.Present(); len(got) != 4 {
				t.Errorf("after the edit the jobs %v run, want all four", got)
			}
			wait(30 * time.Minute)
			for _, job := range []string{"scan", "next scan", "policy", "next policy"} {
				st.wantResult(job, runtime.LeaseSucceeded)
			}
		})
	})

	t.Run("nothing is leased if the settings do not allow leased work", func(t *testing.T) {
		for name, edit := range map[string]func(*runtime.Tuning){
			"off":        func(t *runtime.Tuning) { t.LeasedWork = runtime.LeasedNever },
			"other kind": func(t *runtime.Tuning) { t.Kinds = []runtime.Kind{runtime.Deployment} },
		} {
			t.Run(name, func(t *testing.T) {
				playLeases(t, leasing(edit), func(t *testing.T, st *fixture) {
					st.leases.QueueLeased("scan")
					st.start()
					wait(time.Hour)
					if got := st.leases.Acquires(); len(got) != 0 {
						t.Errorf("got %d calls of Acquire, want none", len(got))
					}
					st.pool.Tune(leasing())
					wait(time.Minute)
					st.wantResult("scan", runtime.LeaseSucceeded)
				})
			})
		}
	})

	t.Run("a removed kind lets a running scan finish", func(t *testing.T) {
		playLeases(t, leasing(), func(t *testing.T, st *fixture) {
			st.engine.SetDefaultScript(runtimetest.Script{Running: 10 * time.Minute})
			st.leases.QueueLeased("scan", "next")
			st.start()
			wait(time.Minute)
			st.pool.Tune(leasing(func(t *runtime.Tuning) { t.Kinds = []runtime.Kind{runtime.Deployment} }))
			wait(time.Hour)
			st.wantResult("scan", runtime.LeaseSucceeded)
			st.wantOperations("next")
		})
	})

	t.Run("an executor that cannot start jobs leases nothing", func(t *testing.T) {
		playLeases(t, leasing(), func(t *testing.T, st *fixture) {
			st.engine.FailWhen(func(context.Context, runtime.Tuning) error { return errors.New("engine down") })
			st.leases.QueueLeased("scan")
			st.start()
			wait(10 * time.Minute)
			if got := st.leases.Acquires(); len(got) != 0 {
				t.Errorf("got %d calls of Acquire, want none", len(got))
			}
			st.engine.FailWhen(nil)
			wait(time.Minute)
			st.wantResult("scan", runtime.LeaseSucceeded)
		})
	})

	t.Run("the limit of all pools counts scans", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			st := newFixtureOf(t, leasing(), pool.NewSlots(1), runtimetest.NewLeases())
			st.engine.SetDefaultScript(runtimetest.Script{Running: 10 * time.Minute})
			st.leases.QueueLeased("scan")
			st.cloud.Queue("deployment")
			st.start()
			wait(30 * time.Minute)
			if st.engine.Peak() != 1 || len(st.leases.Result("scan")) == 0 || len(st.cloud.Queued()) != 0 {
				t.Errorf("got %d jobs at a time, result %q of the scan and queued jobs %v, want one job at a time, "+
					"a result and no queued job", st.engine.Peak(), st.leases.Result("scan"), st.cloud.Queued())
			}
			st.stop(errors.New("the test is over"))
			st.end()
		})
	})

	t.Run("a single run is a scan or a deployment", func(t *testing.T) {
		playLeases(t, leasing(func(t *runtime.Tuning) { t.SingleRun = true }), func(t *testing.T, st *fixture) {
			st.engine.SetDefaultScript(runtimetest.Script{Running: time.Minute})
			st.leases.QueueLeased("a", "b")
			st.cloud.Queue("c", "d")
			st.start()
			wait(time.Hour)
			run := runtimetest.Total(st.metrics.Claimed())
			if state := st.pool.State(); !state.Completed || st.engine.Peak() != 1 || run != 1 {
				t.Errorf("the pool has run %d jobs, %d at a time, and is %s, want one job and a completed pool",
					run, st.engine.Peak(), state.Phase)
			}
		})
	})

	t.Run("a drain lets a scan finish and leases nothing more", func(t *testing.T) {
		playLeases(t, leasing(), func(t *testing.T, st *fixture) {
			st.engine.SetDefaultScript(runtimetest.Script{Running: 10 * time.Minute})
			st.leases.QueueLeased("scan", "next")
			st.start()
			wait(time.Minute)
			st.pool.Drain()
			if err := st.end(); err != nil {
				t.Error(err)
			}
			st.wantResult("scan", runtime.LeaseSucceeded)
			st.wantOperations("next")
		})
	})

	t.Run("a stopped pool gives a scan back, and renews its lease until its instance is gone", func(t *testing.T) {
		playLeases(t, leasing(), func(t *testing.T, st *fixture) {
			st.engine.SetDefaultScript(runtimetest.Script{Running: runtimetest.Forever, Ending: time.Hour,
				Removal: 50 * time.Second})
			st.leases.QueueLeased("scan")
			st.start()
			wait(time.Minute)
			st.stop(errors.New("shutdown"))
			st.end()
			st.wantResult("scan", runtime.LeaseRetry)
			gone := st.endOf("scan")
			if last := st.leases.Renewals("scan"); last[len(last)-1].Before(gone.Add(20 * time.Second)) {
				t.Errorf("the last renewal was at %s, want renewals until 20 s after the KILL at %s",
					last[len(last)-1], gone)
			}
		})
	})

	t.Run("a lease that arrives while the pool stops is given back", func(t *testing.T) {
		playLeases(t, leasing(), func(t *testing.T, st *fixture) {
			release := st.cloud.Hang(runtimetest.Acquire)
			st.leases.QueueLeased("scan")
			st.start()
			st.stop(errors.New("shutdown"))
			wait(time.Second)
			release()
			st.end()
			st.wantResult("scan", runtime.LeaseRetry)
			st.wantOperations("scan")
		})
	})
}

func TestLeaseResult(t *testing.T) {
	for name, c := range map[string]struct {
		script runtimetest.Script
		want   runtime.LeaseResult
	}{
		"success":              {runtimetest.Script{}, runtime.LeaseSucceeded},
		"a failed step":        {runtimetest.Script{Exit: runtime.Exit{Code: runtime.CodeFailed}}, runtime.LeaseFailed},
		"a killed runner":      {runtimetest.Script{Exit: runtime.Exit{Code: 137}}, runtime.LeaseFailed},
		"a fault of the job":   {runtimetest.Script{Fail: runtime.ErrJobFault}, runtime.LeaseFailed},
		"a fault of the agent": {runtimetest.Script{Fail: errors.New("no space")}, runtime.LeaseRetry},
		"work that has ended":  {runtimetest.Script{Exit: runtime.Exit{Code: runtime.CodeGone}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			playLeases(t, leasing(), func(t *testing.T, st *fixture) {
				st.engine.SetScript("scan", c.script)
				st.leases.QueueLeased("scan")
				st.start()
				wait(30 * time.Second)
				st.wantResult("scan", c.want)
			})
		})
	}
}

func TestLeaseLostDuringReport(t *testing.T) {
	unreported := runtime.Exit{Code: runtime.CodeFailedUnreported}
	for name, c := range map[string]struct {
		script runtimetest.Script
		stop   bool
	}{
		"report of work that has ended": {script: runtimetest.Script{Running: 10 * time.Second, Exit: unreported}},
		"report of work that was stopped with the pool": {stop: true,
			script: runtimetest.Script{Running: runtimetest.Forever, Ending: time.Second, OnTerm: unreported}},
		"report of a failed start": {
			script: runtimetest.Script{Starting: 10 * time.Second, Fail: errors.New("no space")}},
	} {
		t.Run(name+" ends with the lease", func(t *testing.T) {
			playLeases(t, leasing(), func(t *testing.T, st *fixture) {
				st.engine.SetScript("scan", c.script)
				st.leases.QueueLeased("scan")
				st.start()
				wait(5 * time.Second)
				before := st.asked(runtimetest.Report)
				release := st.cloud.Hang(runtimetest.Report)
				defer release()
				if c.stop {
					st.stop(errors.New("shutdown"))
				}
				wait(10 * time.Second)
				if jobs := st.pool.State().Jobs; len(jobs) != 1 || st.asked(runtimetest.Report) != before+1 {
					t.Fatalf("the pool has the jobs %+v, want the scan with a report under way", jobs)
				}
				st.leases.Lose("scan")
				wait(30 * time.Second)
				if jobs := st.pool.State().Jobs; len(jobs) != 0 {
					t.Errorf("30 s after the end of the lease the pool has the jobs %+v, want none:\n%s", jobs, st.log)
				}
				st.wantResult("scan", "")
			})
		})
	}
}

func TestLeaseOfInstanceThatCannotBeRemoved(t *testing.T) {
	down := slices.Repeat([]error{errors.New("engine down")}, 20)
	for name, c := range map[string]struct {
		script runtimetest.Script
		want   runtime.LeaseResult
	}{
		"work that has succeeded is completed": {runtimetest.Script{}, runtime.LeaseSucceeded},
		"work that has failed is completed": {
			runtimetest.Script{Exit: runtime.Exit{Code: runtime.CodeFailed}}, runtime.LeaseFailed},
		"work that could not be started is not given back": {
			runtimetest.Script{Fail: errors.New("no space"), Remains: true}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			playLeases(t, leasing(), func(t *testing.T, st *fixture) {
				c.script.RemoveErrors = down
				st.engine.SetScript("scan", c.script)
				st.leases.QueueLeased("scan")
				st.start()
				wait(3 * time.Minute)
				st.wantResult("scan", c.want)
			})
		})
	}
}

func TestLeaseLost(t *testing.T) {
	// wantStopped checks that the scan was stopped before its lease expired, and that the agent
	// reported no failure.
	wantStopped := func(t *testing.T, st *fixture, message string) {
		t.Helper()
		ended, expires := st.endOf("scan"), st.leases.Expires("scan")
		if ended.IsZero() || !ended.Before(expires) {
			t.Errorf("the scan ended at %s, want an end before its lease expires at %s:\n%s", ended, expires, st.log)
		}
		for _, report := range st.cloud.Reports("scan") {
			if report.Status == runtime.Failed {
				t.Errorf("the agent has reported %+v, want no report of a failure", report)
			}
		}
		if !strings.Contains(st.log.String(), message) {
			t.Errorf("the log does not contain %q:\n%s", message, st.log)
		}
		st.wantResult("scan", "")
	}
	for name, c := range map[string]struct {
		change  func(st *fixture)
		message string
	}{
		"a lost lease stops the work": {func(st *fixture) { st.leases.Lose("scan") }, "the lease is lost"},
		"a service that cannot be reached stops the work": {func(st *fixture) { st.leases.SetUnhealthy(true) },
			"could not be renewed"},
		"answers that do not arrive in time stop the work": {
			func(st *fixture) { st.leases.SetSlow(time.Hour) }, "could not be renewed"},
	} {
		for end, script := range map[string]runtimetest.Script{
			"that ends":            {Running: runtimetest.Forever, Ending: time.Second},
			"that ignores SIGTERM": {Running: runtimetest.Forever, Ending: runtimetest.Forever},
		} {
			t.Run(name+" "+end, func(t *testing.T) {
				playLeases(t, leasing(), func(t *testing.T, st *fixture) {
					st.engine.SetScript("scan", script)
					st.leases.QueueLeased("scan")
					st.start()
					wait(100 * time.Second)
					c.change(st)
					wait(2 * time.Minute)
					wantStopped(t, st, c.message)
				})
			})
		}
	}

	t.Run("failed and slow renewals that succeed in time stop nothing", func(t *testing.T) {
		playLeases(t, leasing(), func(t *testing.T, st *fixture) {
			st.engine.SetScript("scan", runtimetest.Script{Running: 5 * time.Minute})
			st.leases.QueueLeased("scan")
			st.leases.SetSlow(5 * time.Second)
			st.start()
			for range 8 {
				wait(30 * time.Second)
				st.cloud.Fail(runtimetest.Renew, 2, errors.New("connection reset"))
			}
			wait(2 * time.Minute)
			st.wantResult("scan", runtime.LeaseSucceeded)
		})
	})

	t.Run("work whose begin is refused does not start", func(t *testing.T) {
		playLeases(t, leasing(), func(t *testing.T, st *fixture) {
			st.leases.QueueLeased("scan")
			st.cloud.Fail(runtimetest.Renew, 1, runtime.ErrLeaseLost)
			st.start()
			wait(time.Minute)
			st.wantOperations("scan")
			st.wantResult("scan", "")
		})
	})

	t.Run("a lease that is lost during the start stops the start", func(t *testing.T) {
		playLeases(t, leasing(), func(t *testing.T, st *fixture) {
			st.engine.SetScript("scan", runtimetest.Script{Starting: time.Hour})
			st.leases.QueueLeased("scan")
			st.start()
			wait(time.Minute)
			st.leases.Lose("scan")
			wait(time.Minute)
			st.wantOperations("scan", "start", "no start")
			st.wantResult("scan", "")
		})
	})

	t.Run("a runner that hangs after the last step is stopped", func(t *testing.T) {
		playLeases(t, leasing(), func(t *testing.T, st *fixture) {
			progress := []runtimetest.TimedProgress{
				{Progress: runtime.Progress{Step: 0, Status: runtime.Succeeded}},
				{Progress: runtime.Progress{Step: 1, Status: runtime.Succeeded}},
			}
			st.engine.SetScript("scan", runtimetest.Script{Running: runtimetest.Forever, Progress: progress})
			st.leases.QueueLeased("scan")
			st.start()
			wait(5 * time.Minute)
			st.wantResult("scan", runtime.LeaseSucceeded)
		})
	})
}

// TestLeaseProperty checks for random faults of the service that no work runs after its
// lease has expired.
func TestLeaseProperty(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		span := time.Duration(rapid.IntRange(1, 300).Draw(rt, "seconds")) * time.Second
		ending := time.Duration(rapid.IntRange(0, 40).Draw(rt, "ending")) * time.Second
		script := runtimetest.Script{Running: 10 * span, Ending: ending}
		faults := rapid.SliceOfN(rapid.IntRange(0, 3), 1, 8).Draw(rt, "faults")
		gaps := rapid.SliceOfN(rapid.IntRange(1, 100), len(faults), len(faults)).Draw(rt, "gaps")
		synctest.Test(t, func(t *testing.T) {
			leases := runtimetest.NewLeases()
			leases.Span = span
			st := newFixtureOf(t, leasing(), nil, leases)
			st.engine.SetDefaultScript(script)
			leases.QueueLeased("scan")
			st.start()
			for i, fault := range faults {
				wait(span * time.Duration(gaps[i]) / 50)
				switch fault {
				case 0:
					leases.SetUnhealthy(true)
				case 1:
					leases.SetUnhealthy(false)
				case 2:
					leases.SetSlow(span / 4)
				case 3:
					leases.SetSlow(0)
				}
			}
			wait(20 * span)
			ended, expires := st.endOf("scan"), leases.Expires("scan")
			if !ended.IsZero() && ended.After(expires) {
				rt.Errorf("the work ended at %s, after the end of its lease at %s", ended, expires)
			}
			if state := st.pool.State(); len(state.Jobs) > 0 {
				rt.Errorf("the pool has the jobs %v, want none", state.Jobs)
			}
			st.stop(errors.New("the test is over"))
			st.end()
		})
	})
}

func TestLeaseLeftovers(t *testing.T) {
	for _, running := range []time.Duration{0, runtimetest.Forever} {
		t.Run(fmt.Sprintf("leased work of an earlier run is removed before anything is leased (running %s)", running),
			func(t *testing.T) {
				playLeases(t, leasing(), func(t *testing.T, st *fixture) {
					script := runtimetest.Script{Running: running, Ending: runtimetest.Forever,
						RemoveErrors: []error{errors.New("engine down"), errors.New("engine down")}}
					st.engine.SetScript("old", script)
					old := runtime.Job{ID: "old", Pool: leasing().Key(), Agent: "agent-1", Kind: runtime.InsightsScan}
					st.engine.Adopt(&old, time.Now())
					st.leases.QueueLeased("scan")
					st.start()
					wait(2 * time.Second)
					if got := st.leases.Acquires(); len(got) != 0 {
						t.Errorf("got %d calls of Acquire while leased work is left, want none", len(got))
					}
					wait(time.Minute)
					st.wantOperations("scan", "start", "started", "remove", "removed")
					if present := st.engine.Present(); len(present) != 0 {
						t.Errorf("got instances %v, want none", present)
					}
					if strings.Contains(st.log.String(), "resumed") {
						t.Errorf("leased work was adopted:\n%s", st.log)
					}
				})
			})
	}
	t.Run("a pool that is not configured removes leased work and ends", func(t *testing.T) {
		leftover := leasing()
		leftover.Leftover = true
		playLeases(t, leftover, func(t *testing.T, st *fixture) {
			old := runtime.Job{ID: "old", Pool: leasing().Key(), Agent: "agent-1", Kind: runtime.PolicyEvaluation}
			st.engine.SetScript("old", runtimetest.Script{Running: runtimetest.Forever})
			st.engine.Adopt(&old, time.Now())
			st.leases.QueueLeased("scan")
			st.pool.Drain()
			st.start()
			if err := st.end(); err != nil || len(st.engine.Present()) != 0 || len(st.leases.Acquires()) != 0 {
				t.Errorf("the pool ended with %v, instances %v and %d calls of Acquire, want none of these", err,
					st.engine.Present(), len(st.leases.Acquires()))
			}
		})
	})
}
