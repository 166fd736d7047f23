package runtime_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
)

func TestReconnect(t *testing.T) {
	away := errors.New("the engine is away")
	killed := runtime.Exit{Code: 137, Reason: "out of memory"}

	t.Run("an engine that goes away while a job runs is asked again for its end", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *stage) {
			st.engine.Otherwise(runtimetest.Script{Running: time.Hour, Exit: killed, WaitErrors: []error{away, away, away}})
			st.cloud.Queue("a")
			st.start()
			wait(time.Minute)
			st.wantDeeds("a", "start", "started")
			if jobs := st.pool.State().Jobs; len(jobs) != 1 || jobs[0].Phase != runtime.Started {
				t.Fatalf("the pool holds %+v, want the job that runs", jobs)
			}
			wait(time.Hour)
			st.wantStep("a", 1, runtime.Failed, "out of memory (exit code 137)")
			st.wantDeeds("a", "start", "started", "remove", "removed")
			if times := strings.Count(st.log.String(), away.Error()); times != 1 {
				t.Errorf("a series of failures is logged %d times, want once:\n%s", times, st.log)
			}
		})
	})

	t.Run("the waits double to half a minute", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *stage) {
			var errs []error
			for range 8 { // after 1, 2, 4, 8, 16, 30 and 30 s the eighth call fails, and 30 s later the ninth waits
				errs = append(errs, away)
			}
			st.engine.Otherwise(runtimetest.Script{Running: time.Second, Exit: killed, WaitErrors: errs})
			st.cloud.Queue("a")
			st.start()
			wait(121*time.Second - time.Millisecond)
			st.wantDeeds("a", "start", "started")
			wait(time.Millisecond)
			st.wantDeeds("a", "start", "started", "remove", "removed")
		})
	})

	t.Run("an engine that stays away does not keep a job from being stopped", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *stage) {
			errs := make([]error, 1000)
			for i := range errs {
				errs[i] = away
			}
			st.engine.Otherwise(runtimetest.Script{Running: runtimetest.Forever, WaitErrors: errs})
			st.cloud.Queue("a")
			st.start()
			wait(time.Minute)
			st.cloud.Answer("a", runtime.Ended)
			wait(2 * time.Minute)
			if present, jobs := st.engine.Present(), st.pool.State().Jobs; len(present) > 0 || len(jobs) > 0 {
				t.Errorf("left: %v, held: %+v", present, jobs)
			}
		})
	})
}
