package pool_test

import (
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
)

func TestStopJob(t *testing.T) {
	failing := runtimetest.Script{
		Running: runtimetest.Forever, Ending: 5 * time.Second, OnTerm: runtime.Exit{Code: runtime.CodeFailed},
	}
	// stopped stops a job, and checks that the pool goes on.
	stopped := func(st *fixture) {
		st.Helper()
		st.engine.SetScript("b", runtimetest.Script{Running: time.Second})
		st.startJobs(failing, "a")
		if !st.pool.StopJob("a") || st.pool.StopJob("another") {
			st.Error("StopJob does not know the job, or another one")
		}
		st.cloud.Queue("b")
		wait(5 * time.Minute)
		st.wantRecorded(2, map[string]int{"default deployment cancelled": 1, "default deployment succeeded": 1})
		st.wantInstances(0)
	}
	play(t, "the runner is interrupted and reports the failure", spec(), func(st *fixture) {
		stopped(st)
		if st.count("a", runtimetest.Term) == 0 || st.count("a", runtimetest.Kill) > 0 {
			st.Errorf("operations on the job: %v, want a TERM and no KILL", st.engine.Operations("a"))
		}
		st.wantInLog("cmwa jobs stop has stopped the job")
	})
	playAdopter(t, "a job that another agent could adopt is stopped too", spec(), func(st *fixture, _ *adopter) {
		stopped(st)
	})
	play(t, "a job that is started is reported as failed", spec(), func(st *fixture) {
		release := st.cloud.Hang(runtimetest.Define)
		st.cloud.Queue("a")
		st.start()
		wait(time.Second)
		st.pool.StopJob("a")
		wait(time.Second)
		release()
		wait(time.Minute)
		st.wantStep("a", 0, runtime.Failed, "Error: cmwa jobs stop has stopped the job")
	})
	play(t, "a job that is about to be started again is reported as failed", spec(), func(st *fixture) {
		st.leaveStarted("a", runtimetest.Script{Exit: runtime.Exit{Code: runtime.CodeUsage}}, runtime.RecordHandedOff,
			time.Minute)
		release := st.cloud.Hang(runtimetest.Report) // asked whether the job may be started again
		st.start()
		wait(10 * time.Second)
		if !st.pool.StopJob("a") {
			st.Error("the pool does not have the job")
		}
		wait(time.Second)
		release()
		wait(time.Minute)
		st.wantStep("a", 0, runtime.Failed, "Error: cmwa jobs stop has stopped the job")
		st.wantNothingLeft("a", "job reported failed")
		if st.count("a", runtimetest.Start) > 0 {
			st.Error("the job is started again")
		}
	})
	play(t, "a job that has ended is not stopped", spec(), func(st *fixture) {
		st.startJobs(runtimetest.Script{Running: time.Second, Removal: time.Minute}, "a")
		wait(10 * time.Second)
		if st.pool.StopJob("a") {
			st.Error("a job whose instance is being removed is stopped")
		}
	})
	playLeases(t, "leased work is not leased again", leasing(), func(st *fixture) {
		st.startLeased(failing, "scan")
		wait(time.Minute)
		st.pool.StopJob("scan")
		wait(5 * time.Minute)
		st.wantResult("scan", runtime.LeaseFailed)
		st.wantInstances(0)
	})
}
