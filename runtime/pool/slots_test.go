package pool_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/pool"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
)

// share calls story with several running pools that share slots. Each pool has its own
// service and engine. Jobs is the number of queued jobs of each pool; a job takes an hour.
func share(t *testing.T, limit int, story func(t *testing.T, slots *pool.Slots, fixtures []*fixture), jobs ...int) {
	t.Helper()
	shareFor(t, time.Hour, limit, story, jobs...)
}

// shareFor does what share does, with jobs that take the given time.
func shareFor(
	t *testing.T, each time.Duration, limit int,
	story func(t *testing.T, slots *pool.Slots, fixtures []*fixture), jobs ...int,
) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		slots := pool.NewSlots(limit)
		var fixtures []*fixture
		for i, n := range jobs {
			st := newFixtureWith(t, spec(most(1000)), slots)
			st.engine.SetDefaultScript(runtimetest.Script{Running: each,
				OnTerm: runtime.Exit{Code: runtime.CodeFailed}})
			for j := range n {
				st.cloud.Queue(fmt.Sprintf("job-%d-%d", i, j))
			}
			fixtures = append(fixtures, st)
		}
		for _, st := range fixtures {
			st.start()
		}
		defer func() { // also if the story fails
			for _, st := range fixtures {
				st.stop(errors.New("the test is over"))
				_ = st.end()
			}
		}()
		story(t, slots, fixtures)
	})
}

// running counts the jobs of each pool that have an instance, and their sum.
func running(fixtures []*fixture) (all []int, sum int) {
	for _, st := range fixtures {
		n := len(st.engine.Present())
		all, sum = append(all, n), sum+n
	}
	return all, sum
}

// ended counts the jobs of each pool that have ended.
func ended(fixtures []*fixture) (all []int) {
	for _, st := range fixtures {
		n := 0
		for _, event := range st.engine.Events() {
			if event.Operation == runtimetest.RemoveEnd {
				n++
			}
		}
		all = append(all, n)
	}
	return all
}

func TestSlots(t *testing.T) {
	t.Run("all pools together run no more jobs than slots", func(t *testing.T) {
		share(t, 3, func(t *testing.T, _ *pool.Slots, fixtures []*fixture) {
			for range 100 {
				wait(7 * time.Minute)
				if each, sum := running(fixtures); sum != 3 {
					t.Fatalf("%v jobs run, want 3 in all", each)
				}
			}
		}, 50, 50)
	})

	t.Run("no pool starves", func(t *testing.T) {
		const each = 2 * time.Minute // short, because a pool that waits turns its loop every five seconds
		for _, limit := range []int{1, 2} {
			shareFor(t, each, limit, func(t *testing.T, _ *pool.Slots, fixtures []*fixture) {
				before := ended(fixtures)
				for range 20 {
					wait(6*each + time.Second)
					now := ended(fixtures)
					for i := range 3 {
						if now[i]-before[i] < limit {
							t.Fatalf("%d slots: the pools ended %v, then %v jobs; want all served", limit, before, now)
						}
					}
					before = now
				}
				if limit == 1 && slices.Max(before[:3])-slices.Min(before[:3]) > 2 {
					t.Errorf("the pools have ended %v jobs, want the same number for each pool with jobs", before)
				}
			}, 1000, 1000, 1000, 0)
		}
	})

	t.Run("pool without a job releases its slot", func(t *testing.T) {
		share(t, 1, func(t *testing.T, _ *pool.Slots, fixtures []*fixture) {
			wait(10 * time.Hour)
			if polls := len(fixtures[0].cloud.Calls(runtimetest.Claim)); polls < 10 {
				t.Errorf("%d polls of the pool without jobs, want one between two jobs of the other",
					polls)
			}
			if each := ended(fixtures); each[1] < 9 { // it was not delayed
				t.Errorf("the pools have ended %v jobs", each)
			}
		}, 0, 100)
	})

	t.Run("raised limit applies at once and a lowered one lets jobs finish", func(t *testing.T) {
		share(t, 1, func(t *testing.T, slots *pool.Slots, fixtures []*fixture) {
			for _, limit := range []int{5, 2, 4} {
				slots.SetLimit(limit)
				synctest.Wait()
				_, before := running(fixtures)
				if before < limit {
					t.Errorf("%d jobs run right after the limit became %d", before, limit)
				}
				wait(10 * time.Minute)
				if _, now := running(fixtures); now != before {
					t.Errorf("%[2]d of %[1]d jobs run, want all", before, now)
				}
				wait(150 * time.Minute)
				if each, now := running(fixtures); now != limit {
					t.Errorf("%v jobs run, want %d", each, limit)
				}
			}
			slots.SetLimit(0)
			wait(10 * time.Minute)
			if _, now := running(fixtures); now < 100 {
				t.Errorf("%d jobs run without a limit, want at least 100", now)
			}
		}, 100, 100)
	})

	t.Run("waiting pool has its phase and is not overdue", func(t *testing.T) {
		share(t, 1, func(t *testing.T, _ *pool.Slots, fixtures []*fixture) {
			wait(50 * time.Minute)
			state := fixtures[1].pool.State()
			if state.Phase != runtime.PoolWaiting || state.Reason == "" || state.Overdue(time.Now()) > time.Second ||
				len(state.Jobs) > 0 {
				t.Errorf("the waiting pool is %+v", state)
			}
			if polls := fixtures[1].cloud.Calls(runtimetest.Claim); len(polls) > 0 {
				t.Errorf("polls at %v without a slot", polls)
			}
			wait(15 * time.Minute)
			state = fixtures[1].pool.State()
			if len(state.Jobs) != 1 {
				t.Errorf("after the job of the other pool the state of the waiting pool is %+v, want one job", state)
			}
		}, 10, 10)
	})

	t.Run("reason is the same for jobs and for polls of other pools", func(t *testing.T) {
		share(t, 1, func(t *testing.T, _ *pool.Slots, fixtures []*fixture) {
			defer fixtures[0].cloud.Hang(runtimetest.Claim)()
			fixtures[1].pool.Drain() // its job is the only one, and runs for an hour
			fixtures[2].pool.Tune(spec(most(1000), func(t *runtime.Tuning) { t.PollingInterval = time.Second }))
			wait(time.Hour - time.Second)
			withJob := fixtures[2].pool.State()
			for range 100 { // until the pool waits for a poll
				wait(100 * time.Millisecond)
				_, sum := running(fixtures)
				if now := fixtures[2].pool.State(); sum == 0 && now.Phase == runtime.PoolWaiting {
					if now.Reason != withJob.Reason || !strings.Contains(now.Reason, "polls of other pools") {
						t.Errorf("while another pool polls the reason is %q, and while a job runs %q", now.Reason,
							withJob.Reason)
					}
					return
				}
			}
			t.Error("the pool has never waited for a poll")
		}, 0, 1, 0)
	})

	t.Run("service that does not answer blocks no other pool", func(t *testing.T) {
		share(t, 1, func(t *testing.T, _ *pool.Slots, fixtures []*fixture) {
			defer fixtures[0].cloud.Hang(runtimetest.Claim)()
			wait(9 * time.Minute)
			if asked := fixtures[0].cloud.Calls(runtimetest.Claim); len(asked) != 2 {
				t.Fatalf("polls of the service without responses at %v, want the first and one that is under way", asked)
			}
			asked := fixtures[1].cloud.Calls(runtimetest.Claim)
			last := asked[0]
			for _, at := range append(asked[1:], time.Now()) {
				if gap := at.Sub(last); gap > 69*time.Second { // the interval with its jitter, and slotGrace
					t.Errorf("the other pool did not poll for %v", gap)
				}
				last = at
			}
		}, 0, 0)
	})

	t.Run("several services without responses delay a pool by seconds", func(t *testing.T) {
		share(t, 1, func(t *testing.T, _ *pool.Slots, fixtures []*fixture) {
			for _, st := range fixtures[:5] {
				defer st.cloud.Hang(runtimetest.Claim)()
			}
			wait(70 * time.Second) // all of them poll
			fixtures[5].cloud.Queue("x", "y")
			wait(80 * time.Second)
			if now := fixtures[5].engine.Present(); len(now) != 1 {
				t.Errorf("%v jobs run next to five services without responses, want one", now)
			}
		}, 0, 0, 0, 0, 0, 0)
	})

	t.Run("job of a late response may exceed the limit", func(t *testing.T) {
		share(t, 1, func(t *testing.T, _ *pool.Slots, fixtures []*fixture) {
			release := fixtures[0].cloud.Hang(runtimetest.Claim)
			defer release()
			fixtures[0].cloud.Queue("late", "later")
			wait(70 * time.Second) // the first pool polls
			fixtures[1].cloud.Queue("x", "y")
			wait(80 * time.Second)
			if each, _ := running(fixtures); !slices.Equal(each, []int{0, 1}) {
				t.Fatalf("%v jobs run while the first service does not answer", each)
			}
			release()
			synctest.Wait()
			if each, _ := running(fixtures); !slices.Equal(each, []int{1, 1}) {
				t.Errorf("%v jobs run after the late response, want the late job to run", each)
			}
			wait(61 * time.Minute) // the end of the first job frees no slot, because the limit was exceeded
			for range 60 {
				wait(7 * time.Minute)
				if each, sum := running(fixtures); sum > 1 {
					t.Errorf("%v jobs run in one slot", each)
				}
			}
			if each := ended(fixtures); !slices.Equal(each, []int{2, 2}) {
				t.Errorf("the pools have ended %v jobs, want two each", each)
			}
			if log := fixtures[0].log.String(); !strings.Contains(log, "exceeds the limit") {
				t.Errorf("the log lacks the reason why two jobs ran:\n%s", log)
			}
		}, 0, 0)
	})

	t.Run("late response without a job leaves the slot to its new pool", func(t *testing.T) {
		share(t, 1, func(t *testing.T, _ *pool.Slots, fixtures []*fixture) {
			release := fixtures[0].cloud.Hang(runtimetest.Claim)
			defer release()
			wait(70 * time.Second)
			fixtures[1].cloud.Queue("x", "y")
			wait(80 * time.Second)
			release()
			for range 40 {
				wait(time.Minute)
				if each, _ := running(fixtures); !slices.Equal(each, []int{0, 1}) {
					t.Fatalf("%v jobs run in one slot", each)
				}
			}
		}, 0, 0)
	})

	t.Run("idle pool polls after each job of a busy one", func(t *testing.T) {
		share(t, 1, func(t *testing.T, _ *pool.Slots, fixtures []*fixture) {
			for n := range 5 {
				asked := len(fixtures[1].cloud.Calls(runtimetest.Claim))
				wait(time.Hour + time.Second)
				if now := len(fixtures[1].cloud.Calls(runtimetest.Claim)); now == asked {
					t.Errorf("the idle pool has not polled within job %d of the other", n+1)
				}
			}
		}, 100, 0)
	})

	t.Run("free slot goes to the pool with the fewest", func(t *testing.T) {
		share(t, 4, func(t *testing.T, slots *pool.Slots, fixtures []*fixture) {
			fixtures[1].cloud.Queue("x", "y", "z", "w") // the first pool has all slots, and is first in the queue
			wait(50 * time.Minute)
			for limit := 5; limit <= 6; limit++ {
				slots.SetLimit(limit)
				synctest.Wait()
			}
			if each, _ := running(fixtures); !slices.Equal(each, []int{4, 2}) {
				t.Errorf("%v jobs run, want both new slots with the second pool", each)
			}
		}, 100, 0)
	})

	t.Run("waiting pool can be drained and stopped", func(t *testing.T) {
		share(t, 1, func(t *testing.T, slots *pool.Slots, fixtures []*fixture) {
			fixtures[1].pool.Drain()
			fixtures[2].stop(errors.New("stopped"))
			synctest.Wait()
			for _, st := range fixtures[1:3] {
				if state := st.pool.State(); state.Phase != runtime.PoolStopped ||
					len(st.cloud.Calls(runtimetest.Claim)) > 0 {
					t.Errorf("the pool is %+v", state)
				}
			}
			wait(90 * time.Minute) // the slot went to the last pool, because the others have left
			if each, _ := running(fixtures); !slices.Equal(each, []int{0, 0, 0, 1}) {
				t.Errorf("%v jobs run, want one of the last pool", each)
			}
		}, 1, 10, 10, 10)
	})

	t.Run("jobs of an earlier run take slots", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			slots := pool.NewSlots(2)
			st := newFixtureWith(t, spec(most(5)), slots)
			st.engine.SetDefaultScript(runtimetest.Script{Running: time.Hour,
				OnTerm: runtime.Exit{Code: runtime.CodeFailed}})
			for i := range 3 {
				job := runtime.Job{ID: fmt.Sprint("old-", i), Agent: "agent-1", Pool: spec().Key()}
				st.cloud.AddClaimed(job, runtimetest.Definition("true"))
				st.engine.Adopt(&job, time.Now())
			}
			st.cloud.Queue("a", "b", "c")
			st.start()
			wait(59 * time.Minute)
			if left := st.cloud.Queued(); len(left) != 3 {
				t.Errorf("queued: %v, want all three: three adopted jobs use the two slots", left)
			}
			wait(2 * time.Minute)
			if now := st.engine.Present(); len(now) != 2 {
				t.Errorf("%v run, want two", now)
			}
			st.stop(errors.New("the test is over"))
			_ = st.end()
		})
	})
}
