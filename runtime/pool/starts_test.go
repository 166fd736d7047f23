package pool_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
)

func TestStartBackoff(t *testing.T) {
	gone := errors.New("the engine is gone")
	cannotStart := runtimetest.Script{Fail: gone}
	t.Run("after two failures one job is claimed at a time, after delays from 5 s to 5 min", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			st.engine.SetDefaultScript(cannotStart)
			st.queue(30)
			st.start()
			st.wantClaimed(30, 2)
			st.wantPaused(5 * time.Second)
			claimed := 2
			for _, pause := range []time.Duration{5, 10, 20, 40, 80, 160, 300, 300, 300} {
				wait(pause*time.Second - time.Millisecond)
				st.wantClaimed(30, claimed)
				wait(time.Millisecond)
				claimed++
				st.wantClaimed(30, claimed)
			}
			if why := st.pool.State().Reason; !strings.Contains(why, "11 jobs in a row") ||
				!strings.Contains(why, gone.Error()) {
				t.Errorf("the reason is %q", why)
			}
			st.engine.SetDefaultScript(runtimetest.Script{Running: time.Second})
			wait(6 * time.Minute)
			st.wantClaimed(30, 30)
			if state := st.pool.State(); state.Phase != runtime.PoolPolling {
				t.Errorf("the pool is %s after a job has started", state.Phase)
			}
		})
	})
	t.Run("pool of eight tries one job at a time", func(t *testing.T) {
		play(t, spec(most(8)), func(t *testing.T, st *fixture) {
			st.engine.SetDefaultScript(runtimetest.Script{Starting: time.Minute, Fail: gone})
			st.queue(30)
			st.start()
			wait(time.Minute) // eight jobs were being started
			st.wantClaimed(30, 8)
			st.wantPaused(5 * time.Second) // the eight failures cause one backoff
			wait(5*time.Second + 30*time.Second)
			st.wantClaimed(30, 9) // one job is being started
			wait(30 * time.Second)
			st.wantPaused(10 * time.Second)
			st.engine.SetDefaultScript(runtimetest.Script{Running: time.Hour})
			wait(10 * time.Second)
			st.wantClaimed(30, 9+8)
		})
	})
	t.Run("single failure delays nothing", func(t *testing.T) {
		play(t, spec(most(4)), func(t *testing.T, st *fixture) {
			st.engine.SetScript("job-0", cannotStart)
			st.queue(5)
			st.start()
			st.wantClaimed(5, 5)
		})
	})
	t.Run("jobs that fail by their own fault delay nothing", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			st.engine.SetDefaultScript(runtimetest.Script{Fail: fmt.Errorf("%w: no such image", runtime.ErrJobFault)})
			st.queue(30)
			st.start()
			st.wantClaimed(30, 30)
		})
	})
	t.Run("jobs that fail by their own fault do not end the series", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			st.engine.SetDefaultScript(cannotStart)
			st.engine.SetScript("job-1", runtimetest.Script{Fail: fmt.Errorf("%w: no such image", runtime.ErrJobFault)})
			st.queue(30)
			st.start()
			st.wantClaimed(30, 3)
		})
	})
	t.Run("definition that cannot be fetched counts as a failure", func(t *testing.T) {
		for _, refusal := range []error{errors.New("403 forbidden"), runtime.ErrGone} {
			play(t, spec(), func(t *testing.T, st *fixture) {
				st.cloud.Fail(runtimetest.Define, 30, refusal)
				st.queue(30)
				st.start()
				wait(time.Minute)
				st.wantClaimed(30, 5)
			})
		}
	})
	t.Run("runner that ends before its first step counts as a failure", func(t *testing.T) {
		for _, exit := range []runtime.Exit{{Code: runtime.CodeUsage}, {Code: runtime.CodeFailedUnreported},
			{Code: 137, Reason: "out of memory"}} {
			play(t, spec(), func(t *testing.T, st *fixture) {
				st.engine.SetDefaultScript(runtimetest.Script{Silent: true, Exit: exit})
				st.queue(30)
				st.start()
				wait(time.Minute)
				st.wantClaimed(30, 5)
				if why := st.pool.State().Reason; why == "" {
					t.Error("the pause has no reason")
				}
			})
		}
	})
	t.Run("runner that is killed in a step does not count as a failure", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			st.engine.SetDefaultScript(runtimetest.Script{Running: time.Second, Exit: runtime.Exit{Code: 137}})
			st.queue(30)
			st.start()
			wait(time.Minute)
			st.wantClaimed(30, 30)
		})
	})
	t.Run("cancelled starts do not count as failures", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			st.engine.SetDefaultScript(runtimetest.Script{Starting: time.Hour})
			st.queue(4)
			for i := range 4 {
				st.cloud.SetJobStatus(fmt.Sprint("job-", i), runtime.Cancelled)
			}
			st.start()
			wait(2*time.Minute + time.Second) // the status of each job is polled after 30 s
			st.wantClaimed(4, 4)
		})
	})
	t.Run("new settings for jobs end the backoff, and other edits do not", func(t *testing.T) {
		play(t, in("/a"), func(t *testing.T, st *fixture) {
			st.engine.SetDefaultScript(cannotStart)
			st.queue(30)
			st.start()
			wait(time.Minute) // during the backoff of 40 s
			st.wantClaimed(30, 5)
			st.pool.Tune(in("/a", most(3)))
			synctest.Wait()
			st.wantClaimed(30, 5)
			st.pool.Tune(in("/b", most(3)))
			synctest.Wait()
			st.wantClaimed(30, 6)
			st.wantPaused(5 * time.Second)
			st.engine.SetDefaultScript(runtimetest.Script{Running: time.Hour})
			st.pool.Tune(in("/c", most(3)))
			synctest.Wait()
			st.wantClaimed(30, 9)
		})
	})
	t.Run("executor is checked again after a failed start", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			st.engine.SetScript("job-0", cannotStart)
			st.queue(1)
			st.start()
			if checks := len(st.engine.Checks()); checks != 2 {
				t.Errorf("the executor was checked %d times, want once before each of the two polls", checks)
			}
		})
	})
	t.Run("adopted job does not count as a start", func(t *testing.T) {
		play(t, spec(most(2)), func(t *testing.T, st *fixture) {
			st.engine.SetDefaultScript(runtimetest.Script{Running: time.Hour, Progress: []runtimetest.TimedProgress{
				{After: 2 * time.Second, Progress: runtime.Progress{Step: 1, Status: runtime.Running}},
			}})
			adopted := job("adopted")
			adopted.Agent, adopted.Pool = "agent-1", spec().Key()
			st.cloud.AddClaimed(adopted, runtimetest.Definition("sleep 3600"))
			st.engine.Adopt(&adopted, time.Now())
			st.engine.SetDefaultScript(cannotStart)
			st.queue(30)
			st.start()
			wait(4 * time.Second)
			st.wantClaimed(30, 2)
		})
	})
}
