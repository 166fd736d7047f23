package runtime_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
)

// share plays a story with several pools that share slots, each with a service
// and an engine of its own, and a queue of jobs that take an hour.
func share(t *testing.T, limit int, story func(t *testing.T, slots *runtime.Slots, stages []*stage), jobs ...int) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		slots := runtime.NewSlots(limit)
		var stages []*stage
		for i, n := range jobs {
			st := newStageWith(t, spec(most(1000)), slots)
			st.engine.Otherwise(runtimetest.Script{Running: time.Hour, OnTerm: runtime.Exit{Code: runtime.CodeFailed}})
			for j := range n {
				st.cloud.Queue(fmt.Sprintf("job-%d-%d", i, j))
			}
			stages = append(stages, st)
		}
		for _, st := range stages {
			st.start()
		}
		defer func() { // also of a story that breaks off
			for _, st := range stages {
				st.stop(errors.New("the story is over"))
				_ = st.end()
			}
		}()
		story(t, slots, stages)
	})
}

// running counts the jobs of each pool.
func running(stages []*stage) (all []int, sum int) {
	for _, st := range stages {
		n := len(st.engine.Present())
		all, sum = append(all, n), sum+n
	}
	return all, sum
}

// ended counts the jobs of each pool that have come to their end.
func ended(stages []*stage) (all []int) {
	for _, st := range stages {
		n := 0
		for _, event := range st.engine.Diary() {
			if event.Deed == runtimetest.RemoveEnd {
				n++
			}
		}
		all = append(all, n)
	}
	return all
}

func TestAllPoolsTogetherRunNoMoreJobsThanThereAreSlots(t *testing.T) {
	share(t, 3, func(t *testing.T, _ *runtime.Slots, stages []*stage) {
		for range 100 {
			wait(7 * time.Minute)
			if each, sum := running(stages); sum != 3 {
				t.Fatalf("%v jobs run, want 3 in all", each)
			}
		}
	}, 50, 50)
}

func TestNoPoolStarvesForSlots(t *testing.T) {
	for _, limit := range []int{1, 2} {
		share(t, limit, func(t *testing.T, _ *runtime.Slots, stages []*stage) {
			before := ended(stages)
			for range 20 {
				wait(6*time.Hour + time.Second)
				now := ended(stages)
				for i := range 3 {
					if now[i]-before[i] < limit {
						t.Fatalf("with %d slots the pools have ended %v and then %v jobs in six hours; want each served", limit, before, now)
					}
				}
				before = now
			}
			if limit == 1 && slices.Max(before[:3])-slices.Min(before[:3]) > 2 {
				t.Errorf("the pools have ended %v jobs, want the same for each that has any", before)
			}
		}, 1000, 1000, 1000, 0)
	}
}

func TestAPoolWithoutWorkDoesNotHoldItsSlot(t *testing.T) {
	share(t, 1, func(t *testing.T, _ *runtime.Slots, stages []*stage) {
		wait(10 * time.Hour)
		if polls := len(stages[0].cloud.Calls(runtimetest.Claim)); polls < 10 {
			t.Errorf("the pool without work has asked %d times in ten hours, want once between two jobs of the other", polls)
		}
		if each := ended(stages); each[1] < 9 { // it lost no time
			t.Errorf("the pools have ended %v jobs", each)
		}
	}, 0, 100)
}

func TestARaisedLimitIsUsedAtOnceAndALoweredOneLetsJobsFinish(t *testing.T) {
	share(t, 1, func(t *testing.T, slots *runtime.Slots, stages []*stage) {
		for _, limit := range []int{5, 2, 4} {
			slots.SetLimit(limit)
			synctest.Wait()
			_, before := running(stages)
			if before < limit {
				t.Errorf("%d jobs run right after the limit became %d", before, limit)
			}
			wait(10 * time.Minute)
			if _, now := running(stages); now != before {
				t.Errorf("of %d jobs %d run, though none had come to its end", before, now)
			}
			wait(150 * time.Minute)
			if each, now := running(stages); now != limit {
				t.Errorf("%v jobs run, want %d", each, limit)
			}
		}
		slots.SetLimit(0)
		wait(10 * time.Minute)
		if _, now := running(stages); now < 100 {
			t.Errorf("%d jobs run without a limit", now)
		}
	}, 100, 100)
}

func TestWaitingForASlotIsShownAndIsNoStandstill(t *testing.T) {
	share(t, 1, func(t *testing.T, _ *runtime.Slots, stages []*stage) {
		wait(50 * time.Minute)
		state := stages[1].pool.State()
		if state.Phase != runtime.PoolWaiting || state.Why == "" || state.Overdue(time.Now()) > time.Second || len(state.Jobs) > 0 {
			t.Errorf("the pool that waits is %+v", state)
		}
		if polls := stages[1].cloud.Calls(runtimetest.Claim); len(polls) > 0 {
			t.Errorf("it has asked for work at %v without a place for a job", polls)
		}
		wait(15 * time.Minute)
		state = stages[1].pool.State()
		if len(state.Jobs) != 1 {
			t.Errorf("after the other's job it is %+v, want one job", state)
		}
	}, 10, 10)
}

func TestTheReasonOfAWaitForASlotIsTrueWhetherJobsRunOrAnotherPoolAsks(t *testing.T) {
	share(t, 1, func(t *testing.T, _ *runtime.Slots, stages []*stage) {
		defer stages[0].cloud.Hang(runtimetest.Claim)()
		stages[1].pool.Drain() // its job is the only one, and runs for an hour
		stages[2].pool.Tune(spec(most(1000), func(t *runtime.Tuning) { t.PollingInterval = time.Second }))
		wait(time.Hour - time.Second)
		behindAJob := stages[2].pool.State()
		for range 100 { // until the pool waits behind a question
			wait(100 * time.Millisecond)
			_, sum := running(stages)
			if now := stages[2].pool.State(); sum == 0 && now.Phase == runtime.PoolWaiting {
				if now.Why != behindAJob.Why || !strings.Contains(now.Why, "asks for work") {
					t.Errorf("behind a question it says %q, and behind a job %q", now.Why, behindAJob.Why)
				}
				return
			}
		}
		t.Error("the pool has never waited behind a question")
	}, 0, 1, 0)
}

func TestAServiceThatDoesNotAnswerHoldsUpNoOtherPool(t *testing.T) {
	share(t, 1, func(t *testing.T, _ *runtime.Slots, stages []*stage) {
		defer stages[0].cloud.Hang(runtimetest.Claim)()
		wait(9 * time.Minute)
		if asked := stages[0].cloud.Calls(runtimetest.Claim); len(asked) != 2 {
			t.Fatalf("the silent service was asked at %v, want one question that is still open", asked)
		}
		asked := stages[1].cloud.Calls(runtimetest.Claim)
		last := asked[0]
		for _, at := range append(asked[1:], time.Now()) {
			if gap := at.Sub(last); gap > 69*time.Second { // the interval with its jitter, and the patience
				t.Errorf("the other pool did not ask for %v", gap)
			}
			last = at
		}
	}, 0, 0)
}

func TestAnyNumberOfSilentServicesCostOnePoolSecondsAndNotMinutes(t *testing.T) {
	share(t, 1, func(t *testing.T, _ *runtime.Slots, stages []*stage) {
		for _, st := range stages[:5] {
			defer st.cloud.Hang(runtimetest.Claim)()
		}
		wait(70 * time.Second) // all of them ask
		stages[5].cloud.Queue("x", "y")
		wait(80 * time.Second)
		if now := stages[5].engine.Present(); len(now) != 1 {
			t.Errorf("%v run beside five silent services, want one job", now)
		}
	}, 0, 0, 0, 0, 0, 0)
}

func TestALateAnswerThatIsAJobIsCarriedOutBeyondTheLimit(t *testing.T) {
	share(t, 1, func(t *testing.T, _ *runtime.Slots, stages []*stage) {
		release := stages[0].cloud.Hang(runtimetest.Claim)
		defer release()
		stages[0].cloud.Queue("late", "later")
		wait(70 * time.Second) // the first pool asks
		stages[1].cloud.Queue("x", "y")
		wait(80 * time.Second)
		if each, _ := running(stages); !slices.Equal(each, []int{0, 1}) {
			t.Fatalf("%v jobs run while the first service is silent", each)
		}
		release()
		synctest.Wait()
		if each, _ := running(stages); !slices.Equal(each, []int{1, 1}) {
			t.Errorf("%v jobs run after the late answer, want it carried out", each)
		}
		wait(61 * time.Minute) // the end of the first one makes no room, as there was one too many
		for range 60 {
			wait(7 * time.Minute)
			if each, sum := running(stages); sum > 1 {
				t.Errorf("%v jobs run in one slot", each)
			}
		}
		if each := ended(stages); !slices.Equal(each, []int{2, 2}) {
			t.Errorf("the pools have ended %v jobs, want two each", each)
		}
		if log := stages[0].log.String(); !strings.Contains(log, "beyond the limit") {
			t.Errorf("the log does not say why two jobs ran:\n%s", log)
		}
	}, 0, 0)
}

func TestALateAnswerWithoutAJobLeavesTheSlotToWhoeverHasItNow(t *testing.T) {
	share(t, 1, func(t *testing.T, _ *runtime.Slots, stages []*stage) {
		release := stages[0].cloud.Hang(runtimetest.Claim)
		defer release()
		wait(70 * time.Second)
		stages[1].cloud.Queue("x", "y")
		wait(80 * time.Second)
		release()
		for range 40 {
			wait(time.Minute)
			if each, _ := running(stages); !slices.Equal(each, []int{0, 1}) {
				t.Fatalf("%v jobs run in one slot", each)
			}
		}
	}, 0, 0)
}

func TestAnIdlePoolAsksAfterEachJobOfABusyOneAndNotAfterTwo(t *testing.T) {
	share(t, 1, func(t *testing.T, _ *runtime.Slots, stages []*stage) {
		for n := range 5 {
			asked := len(stages[1].cloud.Calls(runtimetest.Claim))
			wait(time.Hour + time.Second)
			if now := len(stages[1].cloud.Calls(runtimetest.Claim)); now == asked {
				t.Errorf("the idle pool has not asked within job %d of the other", n+1)
			}
		}
	}, 100, 0)
}

func TestAFreeSlotGoesToThePoolThatHoldsTheFewest(t *testing.T) {
	share(t, 4, func(t *testing.T, slots *runtime.Slots, stages []*stage) {
		stages[1].cloud.Queue("x", "y", "z", "w") // the first pool has all slots, and is first in the queue
		wait(50 * time.Minute)
		for limit := 5; limit <= 6; limit++ {
			slots.SetLimit(limit)
			synctest.Wait()
		}
		if each, _ := running(stages); !slices.Equal(each, []int{4, 2}) {
			t.Errorf("%v jobs run, want both new slots with the second pool", each)
		}
	}, 100, 0)
}

func TestAPoolThatWaitsForASlotCanBeDrainedAndStopped(t *testing.T) {
	share(t, 1, func(t *testing.T, slots *runtime.Slots, stages []*stage) {
		stages[1].pool.Drain()
		stages[2].stop(errors.New("stopped"))
		synctest.Wait()
		for _, st := range stages[1:3] {
			if state := st.pool.State(); state.Phase != runtime.PoolStopped || len(st.cloud.Calls(runtimetest.Claim)) > 0 {
				t.Errorf("the pool is %+v", state)
			}
		}
		wait(90 * time.Minute) // the slot went to the last pool, and not to one that has left
		if each, _ := running(stages); !slices.Equal(each, []int{0, 0, 0, 1}) {
			t.Errorf("%v jobs run", each)
		}
	}, 1, 10, 10, 10)
}

func TestJobsOfAnEarlierRunTakeSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slots := runtime.NewSlots(2)
		st := newStageWith(t, spec(most(5)), slots)
		st.engine.Otherwise(runtimetest.Script{Running: time.Hour, OnTerm: runtime.Exit{Code: runtime.CodeFailed}})
		for i := range 3 {
			job := runtime.Job{ID: fmt.Sprint("old-", i), Agent: "agent-1", Pool: spec().Key()}
			st.cloud.Know(job, runtimetest.Definition("true"))
			st.engine.Adopt(&job, time.Now())
		}
		st.cloud.Queue("a", "b", "c")
		st.start()
		wait(59 * time.Minute)
		if left := st.cloud.Queued(); len(left) != 3 {
			t.Errorf("of three jobs %v are left beside three old ones in two slots", left)
		}
		wait(2 * time.Minute)
		if now := st.engine.Present(); len(now) != 2 {
			t.Errorf("%v run, want two", now)
		}
		st.stop(errors.New("the story is over"))
		_ = st.end()
	})
}
