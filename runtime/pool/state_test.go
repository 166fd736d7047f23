package pool_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/pool"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
)

// wantFailingSince checks for how long the pool's polls have been failing; less than 0
// means that the last poll did not fail.
func (st *fixture) wantFailingSince(span time.Duration) {
	st.Helper()
	state := st.pool.State()
	switch since := state.FailingSince; {
	case span < 0 && !since.IsZero():
		st.Errorf("the pool is failing since %s, want not failing", since)
	case span >= 0 && (since.IsZero() || time.Since(since) != span):
		st.Errorf("the pool is failing for %s, want %s", time.Since(since), span)
	}
}

// use replaces the pool by one with another service.
func (st *fixture) use(cloud runtime.Cloud) { st.rebuild(func(p *pool.Parts) { p.Cloud = cloud }) }

func TestPoolState(t *testing.T) {
	refused := fmt.Errorf("poll: %w", runtime.ErrUnauthorized)

	play(t, "a rejected token keeps the loop on time and is not a response", spec(), func(st *fixture) {
		st.cloud.Fail(runtimetest.Claim, 1000, refused)
		st.start()
		for range 60 {
			wait(time.Minute)
			st.wantNotOverdue()
		}
		if at := st.pool.State().AnsweredAt; !at.IsZero() {
			st.Errorf("the service counts as having answered at %s", at)
		}
		st.wantFailingSince(time.Hour)
	})

	play(t, "a response ends the failure, and its time is kept during the next failure", spec(), func(st *fixture) {
		st.cloud.Fail(runtimetest.Claim, 1, errors.New("connection refused"))
		st.start()
		wait(90 * time.Second)
		st.wantFailingSince(-1)
		answered := st.pool.State().AnsweredAt
		if since := time.Since(answered); since <= 0 || since > time.Minute {
			st.Fatalf("the service answered %s ago, want within the last minute", since)
		}
		st.cloud.Fail(runtimetest.Claim, 1000, refused)
		wait(5 * time.Minute)
		state := st.pool.State()
		if state.FailingSince.IsZero() || state.AnsweredAt.Before(answered) ||
			!state.AnsweredAt.Before(state.FailingSince) {
			st.Errorf("after more failures the last response was at %s, and polls fail since %s", state.AnsweredAt,
				state.FailingSince)
		}
	})

	play(t, "a slow poll that succeeds is no failure", spec(), func(st *fixture) {
		release := st.cloud.Hang(runtimetest.Claim)
		st.start()
		wait(20 * time.Second)
		st.cloud.Fail(runtimetest.Claim, 1000, refused)
		release()
		wait(0) // the first poll gets its response
		st.wantFailingSince(-1)
	})

	play(t, "a failure counts from the start of its poll", spec(), func(st *fixture) {
		st.use(&slowRefusal{Cloud: st.cloud, err: refused})
		st.start()
		wait(20 * time.Second)
		st.wantFailingSince(20 * time.Second)
	})

	play(t, "a poll that is under way is in the state", spec(), func(st *fixture) {
		st.start()
		wait(time.Minute)
		if state := st.pool.State(); !state.PollingSince.IsZero() {
			st.Fatalf("between two polls one is under way since %s", state.PollingSince)
		}
		release := st.cloud.Hang(runtimetest.Claim)
		wait(5 * time.Minute)
		state := st.pool.State()
		if since := time.Since(state.PollingSince); since < 3*time.Minute || since > 5*time.Minute {
			st.Errorf("after five minutes without a response the poll is under way for %s", since)
		}
		release()
		wait(0)
		if state := st.pool.State(); !state.PollingSince.IsZero() {
			st.Errorf("after its response the poll is under way since %s", state.PollingSince)
		}
	})

	play(t, "answers to status polls count for a pool that runs too many jobs to poll", spec(), func(st *fixture) {
		st.leaveInstance("old", runtimetest.Script{Running: 2 * time.Hour}, 0)
		st.cloud.SetJobStatus("old", runtime.Unanswered)
		st.start()
		wait(time.Minute)
		if at := st.pool.State().AnsweredAt; !at.IsZero() {
			st.Errorf("a service without a response counts as having answered at %s", at)
		}
		st.cloud.SetJobStatus("old", runtime.Continue)
		wait(time.Minute)
		if at := st.pool.State().AnsweredAt; at.IsZero() || st.asked(runtimetest.Claim) > 0 {
			st.Errorf("the service answered at %s, after %d polls", at, st.asked(runtimetest.Claim))
		}
	})

	play(t, "a poll without a response is no activity", spec(), func(st *fixture) {
		st.cloud.Fail(runtimetest.Claim, 1000, refused)
		st.start()
		wait(time.Hour)
		if ago := time.Since(st.pool.State().ActiveAt); ago != time.Hour {
			st.Errorf("the pool was active %s ago, want only its start an hour ago", ago)
		}
	})

	play(t, "progress of a job is activity", spec(func(t *runtime.Tuning) { t.StatusInterval, t.MaxJobs = 0, 1 }),
		func(st *fixture) {
			st.startJobs(runtimetest.Script{Running: 3 * time.Hour, Progress: []runtimetest.TimedProgress{
				{After: time.Hour, Progress: runtime.Progress{Step: 1, Lines: 1, Status: runtime.Running}},
			}}, "a")
			for _, want := range []time.Duration{30 * time.Minute, 0, 30 * time.Minute} {
				wait(30 * time.Minute)
				if ago := time.Since(st.pool.State().ActiveAt); ago.Round(time.Minute) != want {
					st.Errorf("the pool was active %s ago, want %s", ago, want)
				}
			}
		})

	play(t, "a full pool is not overdue", spec(), func(st *fixture) {
		st.startJobs(runtimetest.Script{Running: 3 * time.Hour}, "a")
		wait(time.Minute)
		release := st.cloud.Hang(runtimetest.JobStatus) // status polls of the job get no response
		wait(2 * time.Hour)
		st.wantNotOverdue()
		release()
	})

	share(t, "a pool that waits for a slot is not overdue", 1, func(s *sharing) {
		for range 20 {
			wait(time.Second)
			for _, st := range s.pools {
				st.wantNotOverdue()
			}
		}
	}, 1, 1)

	share(t, "a pool that waits for a slot and may not poll has a deadline", 1, func(s *sharing) {
		for _, st := range s.pools {
			if st.pool.State().Phase == runtime.PoolWaiting {
				st.cloud.Hold(held(time.Hour))
				st.pool.Tune(spec(most(1000)))
				wait(time.Second)
				if due := time.Until(st.pool.State().Due); due != time.Hour-time.Second {
					s.Errorf("the next turn is due in %s, want %s, when the hold ends", due, time.Hour-time.Second)
				}
			}
		}
	}, 1, 1)

	play(t, "a poll that does not return after its timeout makes the pool overdue", spec(), func(st *fixture) {
		stuck := stuckCloud{Cloud: st.cloud, release: make(chan struct{})}
		st.use(stuck)
		st.start()
		wait(9 * time.Minute)
		st.wantNotOverdue()
		wait(time.Hour)
		if still := st.pool.State().Overdue(time.Now()); still < 50*time.Minute {
			st.Errorf("the blocked loop is overdue by %s, want at least 50m", still)
		}
		close(stuck.release)
	})
}

// slowRefusal refuses each claim after ten seconds.
type slowRefusal struct {
	*runtimetest.Cloud
	err error
}

func (c *slowRefusal) Claim(context.Context) (runtime.Claim, error) {
	time.Sleep(10 * time.Second)
	return runtime.Claim{Next: runtime.NextPoll{At: time.Now().Add(time.Minute)}}, c.err
}

// stuckCloud does not return from a claim before it is released, even when its
// context ends.
type stuckCloud struct {
	*runtimetest.Cloud
	release chan struct{}
}

func (c stuckCloud) Claim(context.Context) (runtime.Claim, error) {
	<-c.release
	return runtime.Claim{Next: runtime.NextPoll{At: time.Now().Add(time.Minute)}}, errors.New("too late")
}

// healthCloud is a fake service whose circuit breaker is open.
type healthCloud struct{ *runtimetest.Cloud }

func (healthCloud) Health() runtime.ServiceHealth {
	return runtime.ServiceHealth{BreakerOpen: true, TokenExpiry: time.Unix(1, 0)}
}

func TestServiceHealth(t *testing.T) {
	play(t, "health is that of the cloud", spec(), func(st *fixture) {
		if state := st.pool.State(); state.Service != (runtime.ServiceHealth{}) {
			st.Errorf("the health of a service without problems is %+v", state.Service)
		}
		st.use(healthCloud{st.cloud})
		if got, want := st.pool.State().Service, (healthCloud{}).Health(); got != want {
			st.Errorf("the health is %+v, want %+v", got, want)
		}
		st.start()
	})
}
