package pool_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
)

func TestRetryEngine(t *testing.T) {
	away := errors.New("the engine is away")
	killed := runtime.Exit{Code: 137, Reason: "out of memory"}

	t.Run("if the engine does not answer while a job runs, Wait is retried until the job ends", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			st.engine.SetDefaultScript(runtimetest.Script{Running: time.Hour, Exit: killed,
				WaitErrors: []error{away, away, away}})
			st.cloud.Queue("a")
			st.start()
			wait(time.Minute)
			st.wantOperations("a", "start", "started")
			if jobs := st.pool.State().Jobs; len(jobs) != 1 || jobs[0].Phase != runtime.Started {
				t.Fatalf("the pool has the jobs %+v, want the job that runs", jobs)
			}
			wait(time.Hour)
			st.wantStep("a", 1, runtime.Failed, "out of memory (exit code 137)")
			st.wantOperations("a", "start", "started", "remove", "removed")
			if times := strings.Count(st.log.String(), away.Error()); times != 1 {
				t.Errorf("a series of failures is logged %d times, want once:\n%s", times, st.log)
			}
		})
	})

	t.Run("delays double to half a minute", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			// The first eight calls of Wait fail. The delays before the second to the ninth call are 1, 2, 4, 8,
			// 16, 30, 30 and 30 s, which are 121 s in all. The job has ended before the ninth call.
			var errs []error
			for range 8 {
				errs = append(errs, away)
			}
			st.engine.SetDefaultScript(runtimetest.Script{Running: time.Second, Exit: killed, WaitErrors: errs})
			st.cloud.Queue("a")
			st.start()
			wait(121*time.Second - time.Millisecond)
			st.wantOperations("a", "start", "started")
			wait(time.Millisecond)
			st.wantOperations("a", "start", "started", "remove", "removed")
		})
	})

	t.Run("a job can be stopped while calls of Wait fail", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			errs := make([]error, 1000)
			for i := range errs {
				errs[i] = away
			}
			st.engine.SetDefaultScript(runtimetest.Script{Running: runtimetest.Forever, WaitErrors: errs})
			st.cloud.Queue("a")
			st.start()
			wait(time.Minute)
			st.cloud.SetJobStatus("a", runtime.Cancelled)
			wait(2 * time.Minute)
			if present, jobs := st.engine.Present(), st.pool.State().Jobs; len(present) > 0 || len(jobs) > 0 {
				t.Errorf("got instances %v and jobs %+v of the pool, want none", present, jobs)
			}
		})
	})
}
