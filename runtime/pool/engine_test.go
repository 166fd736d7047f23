package pool_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
)

func TestRetryEngine(t *testing.T) {
	away := errors.New("the engine is away")

	play(t, "Wait is retried until the job ends, if the engine does not answer", spec(), func(st *fixture) {
		st.startJobs(runtimetest.Script{Running: time.Hour, Exit: killed, WaitErrors: []error{away, away, away}}, "a")
		wait(time.Minute)
		st.wantOperations("a", "start", "started")
		if jobs := st.pool.State().Jobs; len(jobs) != 1 || jobs[0].Phase != runtime.Started {
			st.Fatalf("the pool has the jobs %+v, want the job that runs", jobs)
		}
		wait(time.Hour)
		st.wantStep("a", 1, runtime.Failed, "killed (exit code 137)")
		st.wantOperations("a", "start", "started", "remove", "removed")
		st.wantLogTimes(1, away.Error()) // a series of failures is logged once
	})

	play(t, "delays double to half a minute", spec(), func(st *fixture) {
		// The first eight calls of Wait fail. The delays before the second to the ninth call are 1, 2, 4, 8,
		// 16, 30, 30 and 30 s, which are 121 s in all. The job has ended before the ninth call.
		st.startJobs(runtimetest.Script{Running: time.Second, Exit: killed,
			WaitErrors: slices.Repeat([]error{away}, 8)}, "a")
		wait(121*time.Second - time.Millisecond)
		st.wantOperations("a", "start", "started")
		wait(time.Millisecond)
		st.wantOperations("a", "start", "started", "remove", "removed")
	})

	play(t, "a job can be stopped while calls of Wait fail", spec(), func(st *fixture) {
		st.startJobs(runtimetest.Script{Running: runtimetest.Forever,
			WaitErrors: slices.Repeat([]error{away}, 1000)}, "a")
		wait(time.Minute)
		st.cloud.SetJobStatus("a", runtime.Cancelled)
		wait(2 * time.Minute)
		st.wantInstances(0)
		st.wantJobs(0)
	})
}
