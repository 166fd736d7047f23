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

// sharing is several pools that share slots. Each pool has its own service and engine.
type sharing struct {
	testing.TB
	slots *pool.Slots
	pools []*fixture
}

// start starts the pools.
func (s *sharing) start() {
	for _, st := range s.pools {
		st.start()
	}
}

// playShared runs story as a subtest, in a synctest bubble, with n pools. Story starts the pools.
func playShared(t *testing.T, name string, spec runtime.PoolSpec, limit, n int, story func(s *sharing)) {
	t.Run(name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := &sharing{TB: t, slots: pool.NewSlots(limit)}
			for range n {
				st := newFixture(t, spec)
				st.rebuild(func(p *pool.Parts) { p.Slots = s.slots })
				s.pools = append(s.pools, st)
			}
			defer func() { // also if the story fails
				for _, st := range s.pools {
					st.shutdown()
				}
			}()
			story(s)
		})
	})
}

// share calls story with running pools that share slots. Jobs is the number of queued jobs of each
// pool; a job takes an hour.
func share(t *testing.T, name string, limit int, story func(s *sharing), jobs ...int) {
	shareFor(t, name, time.Hour, limit, story, jobs...)
}

// shareFor does what share does, with jobs that take the given time.
func shareFor(t *testing.T, name string, each time.Duration, limit int, story func(s *sharing), jobs ...int) {
	script := runtimetest.Script{Running: each, OnTerm: runtime.Exit{Code: runtime.CodeFailed}}
	playShared(t, name, spec(most(1000)), limit, len(jobs), func(s *sharing) {
		for i, st := range s.pools {
			st.engine.SetDefaultScript(script)
			for j := range jobs[i] {
				st.cloud.Queue(fmt.Sprintf("job-%d-%d", i, j))
			}
		}
		s.start()
		story(s)
	})
}

// running counts the jobs of each pool that have an instance, and their sum.
func (s *sharing) running() (all []int, sum int) {
	for _, st := range s.pools {
		n := len(st.engine.Present())
		all, sum = append(all, n), sum+n
	}
	return all, sum
}

// wantRunning checks how many jobs of each pool have an instance.
func (s *sharing) wantRunning(want ...int) {
	s.Helper()
	if got, _ := s.running(); !slices.Equal(got, want) {
		s.Errorf("%v jobs run, want %v", got, want)
	}
}

// ended counts the jobs of each pool that have ended.
func (s *sharing) ended() (all []int) {
	for _, st := range s.pools {
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
	share(t, "all pools together run no more jobs than slots", 3, func(s *sharing) {
		for range 100 {
			wait(7 * time.Minute)
			if each, sum := s.running(); sum != 3 {
				s.Fatalf("%v jobs run, want 3 in all", each)
			}
		}
	}, 50, 50)

	for _, limit := range []int{1, 2} {
		const each = 2 * time.Minute // short, because a pool that waits turns its loop every five seconds
		shareFor(t, fmt.Sprintf("no pool starves with limit %d", limit), each, limit, func(s *sharing) {
			before := s.ended()
			for range 20 {
				wait(6*each + time.Second)
				now := s.ended()
				for i := range 3 {
					if now[i]-before[i] < limit {
						s.Fatalf("the pools ended %v, then %v jobs; want all served", before, now)
					}
				}
				before = now
			}
			if limit == 1 && slices.Max(before[:3])-slices.Min(before[:3]) > 2 {
				s.Errorf("the pools have ended %v jobs, want the same number for each pool with jobs", before)
			}
		}, 1000, 1000, 1000, 0)
	}

	share(t, "pool without a job releases its slot", 1, func(s *sharing) {
		wait(10 * time.Hour)
		if polls := s.pools[0].asked(runtimetest.Claim); polls < 10 {
			s.Errorf("%d polls of the pool without jobs, want one between two jobs of the other", polls)
		}
		if each := s.ended(); each[1] < 9 { // it was not delayed
			s.Errorf("the pools have ended %v jobs", each)
		}
	}, 0, 100)

	share(t, "raised limit applies at once and a lowered one lets jobs finish", 1, func(s *sharing) {
		for _, limit := range []int{5, 2, 4} {
			s.slots.SetLimit(limit)
			synctest.Wait()
			_, before := s.running()
			if before < limit {
				s.Errorf("%d jobs run right after the limit became %d", before, limit)
			}
			wait(10 * time.Minute)
			if _, now := s.running(); now != before {
				s.Errorf("%[2]d of %[1]d jobs run, want all", before, now)
			}
			wait(150 * time.Minute)
			if each, now := s.running(); now != limit {
				s.Errorf("%v jobs run, want %d", each, limit)
			}
		}
		s.slots.SetLimit(0)
		wait(10 * time.Minute)
		if _, now := s.running(); now < 100 {
			s.Errorf("%d jobs run without a limit, want at least 100", now)
		}
	}, 100, 100)

	share(t, "waiting pool has its phase and is not overdue", 1, func(s *sharing) {
		wait(50 * time.Minute)
		state := s.pools[1].pool.State()
		if state.Phase != runtime.PoolWaiting || state.Reason == "" || state.Overdue(time.Now()) > time.Second ||
			len(state.Jobs) > 0 {
			s.Errorf("the waiting pool is %+v", state)
		}
		s.pools[1].wantAsked(runtimetest.Claim, 0)
		wait(15 * time.Minute)
		s.pools[1].wantJobs(1) // after the job of the other pool
	}, 10, 10)

	share(t, "reason is the same for jobs and for polls of other pools", 1, func(s *sharing) {
		defer s.pools[0].cloud.Hang(runtimetest.Claim)()
		s.pools[1].pool.Drain() // its job is the only one, and runs for an hour
		s.pools[2].pool.Tune(spec(most(1000), func(t *runtime.Tuning) { t.PollingInterval = time.Second }))
		wait(time.Hour - time.Second)
		withJob := s.pools[2].pool.State()
		for range 100 { // until the pool waits for a poll
			wait(100 * time.Millisecond)
			_, sum := s.running()
			if now := s.pools[2].pool.State(); sum == 0 && now.Phase == runtime.PoolWaiting {
				if now.Reason != withJob.Reason || !strings.Contains(now.Reason, "polls of other pools") {
					s.Errorf("while another pool polls the reason is %q, and while a job runs %q", now.Reason,
						withJob.Reason)
				}
				return
			}
		}
		s.Error("the pool has never waited for a poll")
	}, 0, 1, 0)

	share(t, "service that does not answer blocks no other pool", 1, func(s *sharing) {
		defer s.pools[0].cloud.Hang(runtimetest.Claim)()
		wait(9 * time.Minute)
		s.pools[0].wantAsked(runtimetest.Claim, 2) // the first and one that is under way
		asked := s.pools[1].cloud.Calls(runtimetest.Claim)
		last := asked[0]
		for _, at := range append(asked[1:], time.Now()) {
			if gap := at.Sub(last); gap > 69*time.Second { // the interval with its jitter, and slotGrace
				s.Errorf("the other pool did not poll for %v", gap)
			}
			last = at
		}
	}, 0, 0)

	share(t, "several services without responses delay a pool by seconds", 1, func(s *sharing) {
		for _, st := range s.pools[:5] {
			defer st.cloud.Hang(runtimetest.Claim)()
		}
		wait(70 * time.Second) // all of them poll
		s.pools[5].cloud.Queue("x", "y")
		wait(80 * time.Second)
		s.pools[5].wantInstances(1)
	}, 0, 0, 0, 0, 0, 0)

	share(t, "job of a late response may exceed the limit", 1, func(s *sharing) {
		release := s.pools[0].cloud.Hang(runtimetest.Claim)
		defer release()
		s.pools[0].cloud.Queue("late", "later")
		wait(70 * time.Second) // the first pool polls
		s.pools[1].cloud.Queue("x", "y")
		wait(80 * time.Second)
		s.wantRunning(0, 1)
		release()
		synctest.Wait()
		s.wantRunning(1, 1)    // the late job runs
		wait(61 * time.Minute) // the end of the first job frees no slot, because the limit was exceeded
		for range 60 {
			wait(7 * time.Minute)
			if each, sum := s.running(); sum > 1 {
				s.Errorf("%v jobs run in one slot", each)
			}
		}
		if each := s.ended(); !slices.Equal(each, []int{2, 2}) {
			s.Errorf("the pools have ended %v jobs, want two each", each)
		}
		s.pools[0].wantInLog("exceeds the limit")
	}, 0, 0)

	share(t, "late response without a job leaves the slot to its new pool", 1, func(s *sharing) {
		release := s.pools[0].cloud.Hang(runtimetest.Claim)
		defer release()
		wait(70 * time.Second)
		s.pools[1].cloud.Queue("x", "y")
		wait(80 * time.Second)
		release()
		for range 40 {
			wait(time.Minute)
			s.wantRunning(0, 1)
		}
	}, 0, 0)

	share(t, "idle pool polls after each job of a busy one", 1, func(s *sharing) {
		for n := range 5 {
			asked := s.pools[1].asked(runtimetest.Claim)
			wait(time.Hour + time.Second)
			if s.pools[1].asked(runtimetest.Claim) == asked {
				s.Errorf("the idle pool has not polled within job %d of the other", n+1)
			}
		}
	}, 100, 0)

	share(t, "free slot goes to the pool with the fewest", 4, func(s *sharing) {
		s.pools[1].cloud.Queue("x", "y", "z", "w") // the first pool has all slots, and is first in the queue
		wait(50 * time.Minute)
		for limit := 5; limit <= 6; limit++ {
			s.slots.SetLimit(limit)
			synctest.Wait()
		}
		s.wantRunning(4, 2) // both new slots went to the second pool
	}, 100, 0)

	share(t, "waiting pool can be drained and stopped", 1, func(s *sharing) {
		s.pools[1].pool.Drain()
		s.pools[2].stop(errors.New("stopped"))
		synctest.Wait()
		for _, st := range s.pools[1:3] {
			st.wantPhase(runtime.PoolStopped, false)
			st.wantAsked(runtimetest.Claim, 0)
		}
		wait(90 * time.Minute)
		s.wantRunning(0, 0, 0, 1) // the slot went to the last pool, because the others have left
	}, 1, 10, 10, 10)

	play(t, "jobs of an earlier run take slots", spec(most(5)), func(st *fixture) {
		st.rebuild(func(p *pool.Parts) { p.Slots = pool.NewSlots(2) })
		hour := runtimetest.Script{Running: time.Hour, OnTerm: runtime.Exit{Code: runtime.CodeFailed}}
		for _, id := range []string{"old-0", "old-1", "old-2"} {
			st.leaveInstance(id, hour, 0)
		}
		st.startJobs(hour, "a", "b", "c")
		wait(59 * time.Minute)
		st.wantQueued("a", "b", "c") // three adopted jobs use the two slots
		wait(2 * time.Minute)
		st.wantInstances(2)
	})
}
