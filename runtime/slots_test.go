package runtime_test

import (
	"errors"
	"fmt"
	"slices"
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
		story(t, slots, stages)
		for _, st := range stages {
			st.stop(errors.New("the story is over"))
			_ = st.end()
		}
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
		if polls := len(stages[0].cloud.Calls(runtimetest.Claim)); polls < 5 {
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
		if state.Phase != runtime.PoolWaiting || state.Why == "" || time.Since(state.Progress) > time.Second || len(state.Jobs) > 0 {
			t.Errorf("the pool that waits is %+v", state)
		}
		if polls := stages[1].cloud.Calls(runtimetest.Claim); len(polls) > 0 {
			t.Errorf("it has asked for work at %v without a place for a job", polls)
		}
		wait(75 * time.Minute) // the other one was first in the queue, too
		state = stages[1].pool.State()
		if len(state.Jobs) != 1 {
			t.Errorf("after the other's jobs it is %+v, want one job", state)
		}
	}, 10, 10)
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
