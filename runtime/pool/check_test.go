package pool_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
)

// queue queues n jobs, job-0 and so on.
func (st *fixture) queue(n int) {
	for i := range n {
		st.cloud.Queue(fmt.Sprint("job-", i))
	}
}

// in returns a spec with the directory of the runner.
func in(directory string, edits ...func(*runtime.Tuning)) runtime.PoolSpec {
	return spec(append(edits, func(t *runtime.Tuning) { t.Instance.WorkingDirectory = directory })...)
}

// failsWith returns a check that fails with this error.
func failsWith(err error) func(context.Context, runtime.Tuning) error {
	return func(context.Context, runtime.Tuning) error { return err }
}

// failsUnless returns a check that fails unless the directory of the runner is this directory.
func failsUnless(directory string) func(context.Context, runtime.Tuning) error {
	return func(_ context.Context, t runtime.Tuning) error {
		if t.Instance.WorkingDirectory != directory {
			return fmt.Errorf("there is no runner in %s: set working_directory", t.Instance.WorkingDirectory)
		}
		return nil
	}
}

// wantClaimed checks how many of n queued jobs were claimed.
func (st *fixture) wantClaimed(n, want int) {
	st.Helper()
	if claimed := n - len(st.cloud.Queued()); claimed != want {
		st.Errorf("%d of %d jobs were claimed, want %d", claimed, n, want)
	}
}

func TestExecutorCheck(t *testing.T) {
	play(t, "pool does not poll while the check fails, and polls a second afterwards", spec(), func(st *fixture) {
		st.engine.FailWhen(failsWith(errors.New("cannot reach the engine: start it")))
		st.queue(30)
		st.start()
		wait(time.Hour)
		st.wantClaimed(30, 0)
		state := st.pool.State()
		if state.Phase != runtime.PoolBackoff || state.Reason == "" || !state.Until.IsZero() ||
			state.ExecutorProblem != "cannot reach the engine: start it" {
			st.Errorf("the state is %+v, want paused with the problem and without an end", state)
		}
		st.wantNotOverdue() // a wait for the executor counts as progress
		st.wantLogTimes(1, "cannot reach the engine")
		st.wantAsked(runtimetest.Claim, 0)
		st.engine.FailWhen(nil)
		wait(time.Second)
		st.wantClaimed(30, 1)
		wait(time.Minute)
		st.wantClaimed(30, 30)
		if state := st.pool.State(); state.ExecutorProblem != "" || state.Phase != runtime.PoolPolling {
			st.Errorf("the state is %+v, want polling without a problem", state)
		}
		st.wantLogTimes(1, "polling resumed")
	})
	play(t, "changed problem is logged again", spec(), func(st *fixture) {
		begin := time.Now()
		st.engine.FailWhen(func(context.Context, runtime.Tuning) error {
			return fmt.Errorf("problem %d", int(time.Since(begin)/time.Minute))
		})
		st.start()
		wait(150 * time.Second)
		st.wantLogTimes(3, "polling paused")
	})
	often := func(t *runtime.Tuning) { t.PollingInterval = 100 * time.Millisecond }
	play(t, "result is valid for five seconds", spec(often), func(st *fixture) {
		st.start()
		wait(time.Minute)
		polls, checks := st.asked(runtimetest.Claim), len(st.engine.Checks())
		if polls < 500 || checks < 11 || checks > 13 {
			st.Errorf("%d polls caused %d checks, want at least 500 polls and about 12 checks", polls, checks)
		}
	})
	play(t, "idle pool checks once before each poll", spec(), func(st *fixture) {
		st.start()
		wait(time.Hour)
		if polls, checks := st.asked(runtimetest.Claim), len(st.engine.Checks()); checks != polls {
			st.Errorf("%d polls caused %d checks, want one check for each poll", polls, checks)
		}
	})
	hourly := func(t *runtime.Tuning) { t.PollingInterval = time.Hour }
	play(t, "edit that breaks the executor stops claims until the next edit", in("/good", hourly), func(st *fixture) {
		st.engine.FailWhen(failsUnless("/good"))
		st.engine.SetDefaultScript(runtimetest.Script{Running: 10 * time.Second})
		st.queue(11)
		st.start()
		wait(time.Second)
		st.pool.Tune(in("/bad", hourly))
		wait(30 * time.Minute)
		st.wantClaimed(11, 1)
		st.wantOperations("job-0", "start", "started", "remove", "removed")
		if problem := st.pool.State().ExecutorProblem; !strings.Contains(problem, "/bad") {
			st.Errorf("the problem is %q, want one with the directory /bad", problem)
		}
		st.pool.Tune(in("/good", hourly))
		synctest.Wait() // no time passes
		st.wantClaimed(11, 2)
		wait(2 * time.Minute)
		st.wantClaimed(11, 11)
		for i := range 11 {
			st.wantOperations(fmt.Sprint("job-", i), "start", "started", "remove", "removed")
		}
	})
	play(t, "job of a poll before an edit starts with the checked settings", in("/good"), func(st *fixture) {
		st.engine.FailWhen(failsUnless("/good"))
		st.queue(2)
		release := st.cloud.Hang(runtimetest.Claim)
		st.start()
		st.pool.Tune(in("/bad"))
		release()
		wait(time.Minute)
		st.wantClaimed(2, 1)
		st.wantOperations("job-0", "start", "started", "remove", "removed")
	})
	hangs := func(ctx context.Context, t runtime.Tuning) error {
		if t.Instance.WorkingDirectory != "/hangs" {
			return nil
		}
		<-ctx.Done()
		return errors.New("no response")
	}
	play(t, "check that hangs is cancelled by an edit", in("/hangs"), func(st *fixture) {
		st.engine.FailWhen(hangs)
		st.queue(1)
		st.start()
		wait(5 * time.Second)
		st.wantNotOverdue()
		st.wantClaimed(1, 0)
		st.pool.Tune(in("/works"))
		synctest.Wait()
		st.wantClaimed(1, 1)
		st.wantLogTimes(0, "no response") // of a check with the old settings
	})
	play(t, "check that hangs has a limit and does not delay a stop", in("/hangs"), func(st *fixture) {
		st.engine.FailWhen(hangs)
		st.queue(1)
		st.start()
		wait(11 * time.Second)
		if problem := st.pool.State().ExecutorProblem; problem != "no response" {
			st.Errorf("after 11 s the problem is %q", problem)
		}
		wait(5 * time.Second) // during the next check
		begin := time.Now()
		st.shutdown()
		if took := time.Since(begin); took > 0 {
			st.Errorf("the pool took %s to stop", took)
		}
	})
	play(t, "drained pool ends while the check finds a problem", spec(), func(st *fixture) {
		st.startJobs(runtimetest.Script{Running: time.Hour}, "a")
		st.engine.FailWhen(failsWith(errors.New("gone")))
		st.pool.Drain()
		wait(time.Minute)
		if state := st.pool.State(); state.Phase != runtime.PoolDraining || state.ExecutorProblem != "" {
			st.Errorf("the state is %+v, want draining without a problem", state)
		}
		st.wantEnd()
	})
	playShared(t, "pool that cannot start jobs takes no slot from a pool that can", spec(), 1, 2, func(s *sharing) {
		broken, works := s.pools[0], s.pools[1]
		broken.engine.FailWhen(failsWith(errors.New("gone")))
		broken.queue(3)
		works.queue(20)
		s.start()
		wait(30 * time.Second)
		broken.wantClaimed(3, 0)
		works.wantClaimed(20, 20)
		broken.engine.FailWhen(nil)
		wait(time.Minute)
		broken.wantClaimed(3, 3)
	})
	playShared(t, "executor is checked again after the wait for a slot", spec(), 1, 2, func(s *sharing) {
		first, second := s.pools[0], s.pools[1]
		first.engine.SetDefaultScript(runtimetest.Script{Running: time.Hour})
		first.queue(1)
		second.queue(1)
		s.start()
		wait(time.Minute)
		second.engine.FailWhen(failsWith(errors.New("gone")))
		wait(2 * time.Hour)
		second.wantClaimed(1, 0)
		second.engine.FailWhen(nil)
		wait(time.Second)
		second.wantClaimed(1, 1)
	})
}
