package pool_test

import (
	"errors"
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

// playLeases does what play does, with a service that leases work.
func playLeases(t *testing.T, name string, s runtime.PoolSpec, story func(st *fixture)) {
	play(t, name, s, func(st *fixture) {
		st.leaseFrom(runtimetest.NewLeases())
		story(st)
	})
}

// leaseFrom replaces the service of the pool by one that leases work.
func (st *fixture) leaseFrom(leases *runtimetest.Leases) {
	st.leases, st.cloud = leases, leases.Cloud
	st.use(leases)
}

// leaveLeased adds the instance of leased work that an earlier run of the agent has started.
func (st *fixture) leaveLeased(kind runtime.Kind, script runtimetest.Script) {
	st.addInstance(runtime.Job{ID: "old", Pool: st.spec.Key(), Agent: "agent-1", Kind: kind}, script, 0)
}

// startLeased offers scans that follow a script, and starts the pool.
func (st *fixture) startLeased(script runtimetest.Script, scans ...string) {
	st.engine.SetDefaultScript(script)
	st.leases.QueueLeased(scans...)
	st.start()
}

// wantResult checks the result of leased work.
func (st *fixture) wantResult(job string, want runtime.LeaseResult) {
	st.Helper()
	if got := st.leases.Result(job); got != want {
		st.Errorf("the lease of %s was completed as %q, want %q:\n%s", job, got, want, st.log)
	}
}

// wantNoLease checks that the pool has requested no leased work.
func (st *fixture) wantNoLease() {
	st.Helper()
	if calls := st.leases.Acquires(); len(calls) != 0 {
		st.Errorf("calls of Acquire at %v, want none", calls)
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
	long := runtimetest.Script{Running: 10 * time.Minute}

	playLeases(t, "a scan runs at the same time as a deployment, and is completed", leasing(), func(st *fixture) {
		st.cloud.Queue("deployment")
		st.startLeased(long, "scan", "next")
		wait(time.Minute)
		if got := st.engine.Present(); !slices.Equal(got, []string{"deployment", "scan"}) {
			st.Errorf("the jobs %v run, want the scan and the deployment", got)
		}
		wait(25 * time.Minute)
		st.wantResult("scan", runtime.LeaseSucceeded)
		st.wantResult("next", runtime.LeaseSucceeded)
		st.wantOperations("scan", "start", "started", "remove", "removed")
		renewals := st.leases.Renewals("scan")
		for i := 1; i < len(renewals); i++ {
			if gap := renewals[i].Sub(renewals[i-1]); gap > 21*time.Second {
				st.Errorf("renewal after %s, want one every 20 seconds", gap)
			}
		}
		if asked := st.asked(runtimetest.JobStatus); len(renewals) < 29 || asked > 21 {
			st.Errorf("%d renewals and %d status polls, want at least 29 and at most 21", len(renewals), asked)
		}
	})

	playLeases(t, "the end of a job causes a poll", leasing(func(t *runtime.Tuning) { t.MaxLeased = 2 }),
		func(st *fixture) {
			st.startLeased(runtimetest.Script{Running: 20 * time.Second}, "scan")
			wait(10 * time.Second)
			st.leases.QueueLeased("next")
			wait(15 * time.Second)
			if got := st.engine.Present(); !slices.Equal(got, []string{"next"}) {
				st.Errorf("the jobs %v run, want the next one; polls at %v", got, st.leases.Acquires())
			}
		})

	playLeases(t, "limit applies to each kind", leasing(), func(st *fixture) {
		st.leases.QueueKind(runtime.PolicyEvaluation, "policy", "next policy")
		st.startLeased(long, "scan", "next scan")
		wait(5 * time.Minute)
		if got := st.engine.Present(); !slices.Equal(got, []string{"policy", "scan"}) {
			st.Errorf("the jobs %v run, want one job of each kind", got)
		}
		st.pool.Tune(leasing(func(t *runtime.Tuning) { t.MaxLeased = 2 }))
		wait(time.Minute)
		st.wantInstances(4)
		wait(30 * time.Minute)
		for _, job := range []string{"scan", "next scan", "policy", "next policy"} {
			st.wantResult(job, runtime.LeaseSucceeded)
		}
	})

	onlyDeployments := func(t *runtime.Tuning) { t.Kinds = []runtime.Kind{runtime.Deployment} }
	for name, edit := range map[string]func(*runtime.Tuning){
		"leased work is off":     func(t *runtime.Tuning) { t.LeasedWork = runtime.LeasedNever },
		"the kinds have no scan": onlyDeployments,
	} {
		playLeases(t, "nothing is leased while "+name, leasing(edit), func(st *fixture) {
			st.leases.QueueLeased("scan")
			st.start()
			wait(time.Hour)
			st.wantNoLease()
			st.pool.Tune(leasing())
			wait(time.Minute)
			st.wantResult("scan", runtime.LeaseSucceeded)
		})
	}

	onlyLeased := func(t *runtime.Tuning) { t.Kinds = []runtime.Kind{runtime.InsightsScan} }
	playLeases(t, "without deployments the polls for leased work are those of the pool", leasing(onlyLeased),
		func(st *fixture) {
			st.leases.SetUnhealthy(true)
			st.start()
			wait(time.Minute)
			if s := st.pool.State(); s.PollError == "" || s.FailingSince.IsZero() || !s.AnsweredAt.IsZero() {
				st.Errorf("while the service fails, the state is %+v", s)
			}
			st.leases.SetUnhealthy(false)
			st.leases.SetNone(true)
			wait(time.Minute)
			if s := st.pool.State(); s.PollError != "" || s.AnsweredAt.IsZero() ||
				!strings.Contains(s.Unserved, "the service leases no scans") {
				st.Errorf("when the service leases nothing, the state is %+v", s)
			}
			st.leases.SetNone(false)
			if s := st.pool.State(); s.Unserved != "" {
				st.Errorf("when the service leases work, the state is %+v", s)
			}
			st.pool.Tune(leasing(onlyLeased, func(t *runtime.Tuning) { t.LeasedWork = runtime.LeasedNever }))
			if s := st.pool.State(); !strings.Contains(s.Unserved, "leased_work is never") {
				st.Errorf("with leased_work never, the state is %+v", s)
			}
			st.leases.SetNone(true)
			st.pool.Tune(leasing())
			wait(time.Minute)
			st.wantClaimed(0, 0)
			if s := st.pool.State(); s.Unserved != "" {
				st.Errorf("with deployments, the state is %+v", s)
			}
		})

	playLeases(t, "a removed kind lets a running scan finish", leasing(), func(st *fixture) {
		st.startLeased(long, "scan", "next")
		wait(time.Minute)
		st.pool.Tune(leasing(onlyDeployments))
		wait(time.Hour)
		st.wantResult("scan", runtime.LeaseSucceeded)
		st.wantOperations("next")
	})

	playLeases(t, "an executor that cannot start jobs leases nothing", leasing(), func(st *fixture) {
		st.engine.FailWhen(failsWith(errors.New("engine down")))
		st.leases.QueueLeased("scan")
		st.start()
		wait(10 * time.Minute)
		st.wantNoLease()
		st.engine.FailWhen(nil)
		wait(time.Minute)
		st.wantResult("scan", runtime.LeaseSucceeded)
	})

	playLeases(t, "the limit of all pools counts scans", leasing(), func(st *fixture) {
		st.rebuild(func(p *pool.Parts) { p.Slots = pool.NewSlots(1) })
		st.cloud.Queue("deployment")
		st.startLeased(long, "scan")
		wait(30 * time.Minute)
		st.wantQueued()
		if peak, result := st.engine.Peak(), st.leases.Result("scan"); peak != 1 || result == "" {
			st.Errorf("got %d jobs at a time and result %q of the scan, want one at a time and a result", peak, result)
		}
	})

	once := func(t *runtime.Tuning) { t.SingleRun = true }
	playLeases(t, "a single run is a scan or a deployment", leasing(once), func(st *fixture) {
		st.cloud.Queue("c", "d")
		st.startLeased(runtimetest.Script{Running: time.Minute}, "a", "b")
		wait(time.Hour)
		run := runtimetest.Total(st.metrics.Claimed())
		if state := st.pool.State(); !state.Completed || st.engine.Peak() != 1 || run != 1 {
			st.Errorf("the pool has run %d jobs, %d at a time, and is %s, want one job and a completed pool",
				run, st.engine.Peak(), state.Phase)
		}
	})

	playLeases(t, "a drain lets a scan finish and leases nothing more", leasing(), func(st *fixture) {
		st.startLeased(long, "scan", "next")
		wait(time.Minute)
		st.pool.Drain()
		st.wantEnd()
		st.wantResult("scan", runtime.LeaseSucceeded)
		st.wantOperations("next")
	})

	playLeases(t, "a stopped pool renews the lease of a scan until its instance is gone", leasing(), func(st *fixture) {
		st.startLeased(runtimetest.Script{Running: runtimetest.Forever, Ending: time.Hour, Removal: 50 * time.Second},
			"scan")
		wait(time.Minute)
		st.shutdown()
		st.wantResult("scan", runtime.LeaseRetry)
		gone := st.endOf("scan")
		if last := st.leases.Renewals("scan"); last[len(last)-1].Before(gone.Add(20 * time.Second)) {
			st.Errorf("the last renewal was at %s, want renewals until 20 s after the KILL at %s",
				last[len(last)-1], gone)
		}
	})

	playLeases(t, "a lease that arrives while the pool stops is given back", leasing(), func(st *fixture) {
		release := st.cloud.Hang(runtimetest.Acquire)
		st.leases.QueueLeased("scan")
		st.start()
		st.stop(errors.New("shutdown"))
		wait(time.Second)
		release()
		st.wantEnd()
		st.wantResult("scan", runtime.LeaseRetry)
		st.wantOperations("scan")
	})
}

func TestLeaseResult(t *testing.T) {
	failed := runtime.Exit{Code: runtime.CodeFailed}
	noSpace := errors.New("no space")
	down := slices.Repeat([]error{errors.New("engine down")}, 20)
	for name, c := range map[string]struct {
		script runtimetest.Script
		want   runtime.LeaseResult
	}{
		"success":              {runtimetest.Script{}, runtime.LeaseSucceeded},
		"a failed step":        {runtimetest.Script{Exit: failed}, runtime.LeaseFailed},
		"a killed runner":      {runtimetest.Script{Exit: runtime.Exit{Code: 137}}, runtime.LeaseFailed},
		"a fault of the job":   {runtimetest.Script{Fail: runtime.ErrJobFault}, runtime.LeaseFailed},
		"a fault of the agent": {runtimetest.Script{Fail: noSpace}, runtime.LeaseRetry},
		"work that has ended":  {runtimetest.Script{Exit: runtime.Exit{Code: runtime.CodeGone}}, ""},

		"success in an instance that cannot be removed": {
			runtimetest.Script{RemoveErrors: down}, runtime.LeaseSucceeded},
		"a failed step in an instance that cannot be removed": {
			runtimetest.Script{Exit: failed, RemoveErrors: down}, runtime.LeaseFailed},
		"a failed start that left an instance which cannot be removed": {
			runtimetest.Script{Fail: noSpace, Remains: true, RemoveErrors: down}, ""},
	} {
		playLeases(t, name, leasing(), func(st *fixture) {
			st.startLeased(c.script, "scan")
			if c.script.RemoveErrors == nil {
				wait(30 * time.Second)
			} else {
				wait(3 * time.Minute)
			}
			st.wantResult("scan", c.want)
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
		playLeases(t, name+" ends with the lease", leasing(), func(st *fixture) {
			st.startLeased(c.script, "scan")
			wait(5 * time.Second)
			before := st.asked(runtimetest.Report)
			release := st.cloud.Hang(runtimetest.Report)
			defer release()
			if c.stop {
				st.stop(errors.New("shutdown"))
			}
			wait(10 * time.Second)
			st.wantJobs(1)
			st.wantAsked(runtimetest.Report, before+1)
			st.leases.Lose("scan")
			wait(30 * time.Second)
			st.wantJobs(0)
			st.wantResult("scan", "")
		})
	}
}

func TestLeaseLost(t *testing.T) {
	// wantStopped checks that the scan was stopped before its lease expired, and that the agent
	// reported no failure.
	wantStopped := func(st *fixture) {
		st.Helper()
		ended, expires := st.endOf("scan"), st.leases.Expires("scan")
		if ended.IsZero() || !ended.Before(expires) {
			st.Errorf("the scan ended at %s, want an end before its lease expires at %s:\n%s", ended, expires, st.log)
		}
		for _, report := range st.cloud.Reports("scan") {
			if report.Status == runtime.Failed {
				st.Errorf("the agent has reported %+v, want no report of a failure", report)
			}
		}
		st.wantResult("scan", "")
	}
	for name, c := range map[string]struct {
		change  func(leases *runtimetest.Leases)
		message string
	}{
		"a lost lease stops the work": {
			func(leases *runtimetest.Leases) { leases.Lose("scan") }, "the lease is lost"},
		"a service that cannot be reached stops the work": {
			func(leases *runtimetest.Leases) { leases.SetUnhealthy(true) }, "could not be renewed"},
		"answers that do not arrive in time stop the work": {
			func(leases *runtimetest.Leases) { leases.SetSlow(time.Hour) }, "could not be renewed"},
	} {
		for end, ending := range map[string]time.Duration{
			"that ends": time.Second, "that ignores SIGTERM": runtimetest.Forever,
		} {
			playLeases(t, name+" "+end, leasing(), func(st *fixture) {
				st.startLeased(runtimetest.Script{Running: runtimetest.Forever, Ending: ending}, "scan")
				wait(100 * time.Second)
				c.change(st.leases)
				wait(2 * time.Minute)
				wantStopped(st)
				st.wantInLog(c.message)
			})
		}
	}

	playLeases(t, "failed and slow renewals that succeed in time stop nothing", leasing(), func(st *fixture) {
		st.leases.SetSlow(5 * time.Second)
		st.startLeased(runtimetest.Script{Running: 5 * time.Minute}, "scan")
		for range 8 {
			wait(30 * time.Second)
			st.cloud.Fail(runtimetest.Renew, 2, errors.New("connection reset"))
		}
		wait(2 * time.Minute)
		st.wantResult("scan", runtime.LeaseSucceeded)
	})

	playLeases(t, "work whose begin is refused does not start", leasing(), func(st *fixture) {
		st.leases.QueueLeased("scan")
		st.cloud.Fail(runtimetest.Renew, 1, runtime.ErrLeaseLost)
		st.start()
		wait(time.Minute)
		st.wantOperations("scan")
		st.wantResult("scan", "")
	})

	playLeases(t, "a lease that is lost during the start stops the start", leasing(), func(st *fixture) {
		st.startLeased(runtimetest.Script{Starting: time.Hour}, "scan")
		wait(time.Minute)
		st.leases.Lose("scan")
		wait(time.Minute)
		st.wantOperations("scan", "start", "no start")
		st.wantResult("scan", "")
	})

	playLeases(t, "a runner that hangs after the last step is stopped", leasing(), func(st *fixture) {
		st.startLeased(runtimetest.Script{Running: runtimetest.Forever, Progress: []runtimetest.TimedProgress{
			{Progress: runtime.Progress{Step: 0, Status: runtime.Succeeded}},
			{Progress: runtime.Progress{Step: 1, Status: runtime.Succeeded}},
		}}, "scan")
		wait(5 * time.Minute)
		st.wantResult("scan", runtime.LeaseSucceeded)
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
			st := newFixture(t, leasing())
			st.leaseFrom(leases)
			st.startLeased(script, "scan")
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
	for name, running := range map[string]time.Duration{"ended": 0, "running": runtimetest.Forever} {
		playLeases(t, name+" leased work of an earlier run is removed before a lease", leasing(), func(st *fixture) {
			down := errors.New("engine down")
			st.leaveLeased(runtime.InsightsScan, runtimetest.Script{Running: running, Ending: runtimetest.Forever,
				RemoveErrors: []error{down, down}})
			st.leases.QueueLeased("scan")
			st.start()
			wait(2 * time.Second)
			st.wantNoLease()
			wait(time.Minute)
			st.wantOperations("scan", "start", "started", "remove", "removed")
			st.wantInstances(0)
			st.wantLogTimes(0, "resumed")
		})
	}

	leftover := leasing()
	leftover.Leftover = true
	playLeases(t, "a pool that is not configured removes leased work and ends", leftover, func(st *fixture) {
		st.leaveLeased(runtime.PolicyEvaluation, runtimetest.Script{Running: runtimetest.Forever})
		st.leases.QueueLeased("scan")
		st.pool.Drain()
		st.start()
		st.wantEnd()
		st.wantInstances(0)
		st.wantNoLease()
	})
}
