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
	"github.com/cmwa-project/cmwa/schema/secret"
)

func TestStartBackoff(t *testing.T) {
	gone := errors.New("the engine is gone")
	cannotStart := runtimetest.Script{Fail: gone}
	jobFault := runtimetest.Script{Fail: fmt.Errorf("%w: no such image", runtime.ErrJobFault)}
	play(t, "two failures cause delays from 5 s to 5 min before each claim", spec(), func(st *fixture) {
		st.engine.SetDefaultScript(cannotStart)
		st.queue(30)
		st.start()
		st.wantClaimed(30, 2)
		st.wantBackoff(5 * time.Second)
		claimed := 2
		for _, pause := range []time.Duration{5, 10, 20, 40, 80, 160, 300, 300, 300} {
			wait(pause*time.Second - time.Millisecond)
			st.wantClaimed(30, claimed)
			wait(time.Millisecond)
			claimed++
			st.wantClaimed(30, claimed)
		}
		why := st.pool.State().Reason
		if !strings.Contains(why, "11 jobs in a row") || !strings.Contains(why, gone.Error()) {
			st.Errorf("the reason is %q", why)
		}
		st.engine.SetDefaultScript(runtimetest.Script{Running: time.Second})
		wait(6 * time.Minute)
		st.wantClaimed(30, 30)
		st.wantPhase(runtime.PoolPolling, false)
	})
	play(t, "pool of eight tries one job at a time", spec(most(8)), func(st *fixture) {
		st.engine.SetDefaultScript(runtimetest.Script{Starting: time.Minute, Fail: gone})
		st.queue(30)
		st.start()
		wait(time.Minute) // eight jobs were being started
		st.wantClaimed(30, 8)
		st.wantBackoff(5 * time.Second) // the eight failures cause one backoff
		wait(5*time.Second + 30*time.Second)
		st.wantClaimed(30, 9) // one job is being started
		wait(30 * time.Second)
		st.wantBackoff(10 * time.Second)
		st.engine.SetDefaultScript(runtimetest.Script{Running: time.Hour})
		wait(10 * time.Second)
		st.wantClaimed(30, 9+8)
	})
	play(t, "single failure delays nothing", spec(most(4)), func(st *fixture) {
		st.engine.SetScript("job-0", cannotStart)
		st.queue(5)
		st.start()
		st.wantClaimed(5, 5)
	})
	play(t, "jobs that fail by their own fault delay nothing", spec(), func(st *fixture) {
		st.engine.SetDefaultScript(jobFault)
		st.queue(30)
		st.start()
		st.wantClaimed(30, 30)
	})
	play(t, "jobs that fail by their own fault do not end the series", spec(), func(st *fixture) {
		st.engine.SetDefaultScript(cannotStart)
		st.engine.SetScript("job-1", jobFault)
		st.queue(30)
		st.start()
		st.wantClaimed(30, 3)
	})
	for _, refusal := range []error{errors.New("403 forbidden"), runtime.ErrGone} {
		play(t, "definition that cannot be fetched counts as a failure: "+refusal.Error(), spec(), func(st *fixture) {
			st.cloud.Fail(runtimetest.Define, 30, refusal)
			st.queue(30)
			st.start()
			wait(time.Minute)
			st.wantClaimed(30, 5)
		})
	}
	for _, exit := range []runtime.Exit{{Code: runtime.CodeUsage}, {Code: runtime.CodeFailedUnreported}, killed} {
		name := fmt.Sprintf("exit of the runner with code %d before its first step counts as a failure", exit.Code)
		play(t, name, spec(), func(st *fixture) {
			st.engine.SetDefaultScript(runtimetest.Script{Silent: true, Exit: exit})
			st.queue(30)
			st.start()
			wait(time.Minute)
			st.wantClaimed(30, 5)
			if why := st.pool.State().Reason; why == "" {
				st.Error("the pause has no reason")
			}
		})
	}
	play(t, "runner that is killed in a step does not count as a failure", spec(), func(st *fixture) {
		st.engine.SetDefaultScript(runtimetest.Script{Running: time.Second, Exit: killed})
		st.queue(30)
		st.start()
		wait(time.Minute)
		st.wantClaimed(30, 30)
	})
	play(t, "cancelled starts do not count as failures", spec(), func(st *fixture) {
		st.engine.SetDefaultScript(runtimetest.Script{Starting: time.Hour})
		st.queue(4)
		for i := range 4 {
			st.cloud.SetJobStatus(fmt.Sprint("job-", i), runtime.Cancelled)
		}
		st.start()
		wait(2*time.Minute + time.Second) // the status of each job is polled after 30 s
		st.wantClaimed(4, 4)
	})
	play(t, "new settings for jobs end the backoff, and other edits do not", in("/a"), func(st *fixture) {
		st.engine.SetDefaultScript(cannotStart)
		st.queue(30)
		st.start()
		wait(time.Minute) // during the backoff of 40 s
		st.wantClaimed(30, 5)
		for range 4 {
			st.pool.Tune(in("/a", most(3), func(t *runtime.Tuning) {
				t.PollingInterval, t.PollingOverride, t.Token = time.Second, true, secret.New("new")
			}))
			wait(time.Second)
		}
		st.wantClaimed(30, 5)
		st.wantBackoff(11 * time.Second)
		st.pool.Tune(in("/b", most(3)))
		synctest.Wait()
		st.wantClaimed(30, 6)
		st.wantBackoff(5 * time.Second)
		st.engine.SetDefaultScript(runtimetest.Script{Running: time.Hour})
		st.pool.Tune(in("/c", most(3)))
		synctest.Wait()
		st.wantClaimed(30, 9)
	})
	play(t, "executor is checked again after a failed start", spec(), func(st *fixture) {
		st.engine.SetScript("job-0", cannotStart)
		st.queue(1)
		st.start()
		if checks := len(st.engine.Checks()); checks != 2 {
			st.Errorf("the executor was checked %d times, want once before each of the two polls", checks)
		}
	})
	play(t, "adopted job does not count as a start", spec(most(2)), func(st *fixture) {
		st.leaveInstance("adopted", runtimetest.Script{Running: time.Hour, Progress: []runtimetest.TimedProgress{
			{After: 2 * time.Second, Progress: runtime.Progress{Step: 1, Status: runtime.Running}},
		}}, 0)
		st.engine.SetDefaultScript(cannotStart)
		st.queue(30)
		st.start()
		wait(4 * time.Second)
		st.wantClaimed(30, 2)
	})
}
