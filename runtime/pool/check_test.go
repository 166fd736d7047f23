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
	"github.com/cmwa-project/cmwa/runtime/pool"
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
	st.t.Helper()
	if claimed := n - len(st.cloud.Queued()); claimed != want {
		st.t.Errorf("%d of %d jobs were claimed, want %d", claimed, n, want)
	}
}

func TestExecutorCheck(t *testing.T) {
	t.Run("pool does not poll while the check fails, and polls within a second afterwards", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			st.engine.FailWhen(func(context.Context,
				runtime.Tuning) error {
				return errors.New("cannot reach the engine: start it")
			})
			st.queue(30)
			st.start()
			wait(time.Hour)
			st.wantClaimed(30, 0)
			state := st.pool.State()
			if state.Phase != runtime.PoolPaused || state.Reason == "" || !state.Until.IsZero() ||
				state.ExecutorProblem != "cannot reach the engine: start it" {
				t.Errorf("the state is %+v, want paused with the problem and without an end", state)
			}
			st.wantNotOverdue() // a wait for the executor counts as progress
			if lines := strings.Count(st.log.String(), "cannot reach the engine"); lines != 1 ||
				st.asked(runtimetest.Claim) != 0 {
				t.Errorf("the problem was logged %d times and the service polled %d times, want 1 and 0", lines,
					st.asked(runtimetest.Claim))
			}
			st.engine.FailWhen(nil)
			wait(time.Second)
			st.wantClaimed(30, 1)
			wait(time.Minute)
			st.wantClaimed(30, 30)
			if state := st.pool.State(); state.ExecutorProblem != "" || state.Phase != runtime.PoolPolling {
				t.Errorf("the state is %+v, want polling without a problem", state)
			}
			if log := st.log.String(); strings.Count(log, "polling resumed") != 1 {
				t.Errorf("the recovery is not logged once:\n%s", log)
			}
		})
	})
	t.Run("changed problem is logged again", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			begin := time.Now()
			st.engine.FailWhen(func(context.Context, runtime.Tuning) error {
				return fmt.Errorf("problem %d", int(time.Since(begin)/time.Minute))
			})
			st.start()
			wait(150 * time.Second)
			if log := st.log.String(); strings.Count(log, "polling paused") != 3 {
				t.Errorf("three problems are logged as\n%s", log)
			}
		})
	})
	t.Run("result is valid for five seconds", func(t *testing.T) {
		play(t, spec(func(t *runtime.Tuning) { t.PollingInterval = 100 * time.Millisecond }),
			func(t *testing.T, st *fixture) {
				st.start()
				wait(time.Minute)
				if polls, checks := st.asked(runtimetest.Claim), len(st.engine.Checks()); polls < 500 || checks < 11 ||
					checks > 13 {
					t.Errorf("%d polls caused %d checks, want at least 500 polls and about 12 checks", polls, checks)
				}
			})
	})
	t.Run("idle pool checks once before each poll", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			st.start()
			wait(time.Hour)
			if polls, checks := st.asked(runtimetest.Claim), len(st.engine.Checks()); checks != polls {
				t.Errorf("%d polls caused %d checks, want one check for each poll", polls, checks)
			}
		})
	})
	t.Run("edit that breaks the executor stops claims, and the opposite edit resumes them", func(t *testing.T) {
		hourly := func(t *runtime.Tuning) { t.PollingInterval = time.Hour }
		play(t, in("/good", hourly), func(t *testing.T, st *fixture) {
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
				t.Errorf("the problem is %q, want one with the directory /bad", problem)
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
	})
	t.Run("job of a poll before an edit starts with the checked settings", func(t *testing.T) {
		play(t, in("/good"), func(t *testing.T, st *fixture) {
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
	})
	t.Run("check that hangs is cancelled by an edit", func(t *testing.T) {
		play(t, in("/hangs"), func(t *testing.T, st *fixture) {
			st.engine.FailWhen(func(ctx context.Context, t runtime.Tuning) error {
				if t.Instance.WorkingDirectory == "/hangs" {
					<-ctx.Done()
					return errors.New("no response")
				}
				return nil
			})
			st.queue(1)
			st.start()
			wait(5 * time.Second)
			st.wantNotOverdue()
			st.wantClaimed(1, 0)
			st.pool.Tune(in("/works"))
			synctest.Wait()
			st.wantClaimed(1, 1)
			if strings.Contains(st.log.String(), "no response") {
				t.Error("the result of a check with the old settings was used")
			}
		})
	})
	t.Run("check that hangs has a limit and does not delay a stop", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			st := newFixture(t, spec())
			st.engine.FailWhen(func(ctx context.Context, _ runtime.Tuning) error {
				<-ctx.Done()
				return errors.New("no response")
			})
			st.queue(1)
			st.start()
			wait(11 * time.Second)
			if problem := st.pool.State().ExecutorProblem; problem != "no response" {
				t.Errorf("after 11 s the problem is %q", problem)
			}
			wait(5 * time.Second) // during the next check
			begin := time.Now()
			st.stop(errors.New("the agent is stopping"))
			if err := st.end(); err != nil || time.Since(begin) > 0 {
				t.Errorf("the pool took %s to stop (%v)", time.Since(begin), err)
			}
		})
	})
	t.Run("drained pool ends while the check finds a problem", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			st.engine.SetDefaultScript(runtimetest.Script{Running: time.Hour})
			st.queue(1)
			st.start()
			st.engine.FailWhen(func(context.Context, runtime.Tuning) error { return errors.New("gone") })
			st.pool.Drain()
			wait(time.Minute)
			if state := st.pool.State(); state.Phase != runtime.PoolDraining || state.ExecutorProblem != "" {
				t.Errorf("the state is %+v, want draining without a problem", state)
			}
			if err := st.end(); err != nil {
				t.Error(err)
			}
		})
	})
	t.Run("pool that cannot start jobs takes no slot from a pool that can", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			slots := pool.NewSlots(1)
			broken, works := newFixtureWith(t, spec(), slots), newFixtureWith(t, spec(), slots)
			broken.engine.FailWhen(func(context.Context, runtime.Tuning) error { return errors.New("gone") })
			broken.queue(3)
			works.queue(20)
			broken.start()
			works.start()
			wait(30 * time.Second)
			broken.wantClaimed(3, 0)
			works.wantClaimed(20, 20)
			broken.engine.FailWhen(nil)
			wait(time.Minute)
			broken.wantClaimed(3, 3)
			for _, st := range []*fixture{broken, works} {
				st.stop(errors.New("the test is over"))
				st.end()
			}
		})
	})
	t.Run("executor is checked again after the wait for a slot", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			slots := pool.NewSlots(1)
			first, second := newFixtureWith(t, spec(), slots), newFixtureWith(t, spec(), slots)
			first.engine.SetDefaultScript(runtimetest.Script{Running: time.Hour})
			first.queue(1)
			second.queue(1)
			first.start()
			second.start()
			wait(time.Minute)
			second.engine.FailWhen(func(context.Context, runtime.Tuning) error { return errors.New("gone") })
			wait(2 * time.Hour)
			second.wantClaimed(1, 0)
			second.engine.FailWhen(nil)
			wait(time.Second)
			second.wantClaimed(1, 1)
			for _, st := range []*fixture{first, second} {
				st.stop(errors.New("the test is over"))
				st.end()
			}
		})
	})
}
