package pool_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/pool"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
)

// wantFailingSince checks for how long the pool's polls have been failing; less than 0
// means that the last poll did not fail.
func (st *fixture) wantFailingSince(span time.Duration) {
	st.t.Helper()
	state := st.pool.State()
	switch since := state.FailingSince; {
	case span < 0 && !since.IsZero():
		st.t.Errorf("the pool is failing since %s, want not failing", since)
	case span >= 0 && (since.IsZero() || time.Since(since) != span):
		st.t.Errorf("the pool is failing for %s, want %s", time.Since(since), span)
	}
}

// use replaces the pool by one with another service.
func (st *fixture) use(cloud runtime.Cloud) {
	st.pool = pool.New(spec(), pool.Parts{
		Cloud: cloud, Executor: st.engine, Agent: "agent-1", Log: slog.New(slog.NewTextHandler(st.log, nil)),
	})
}

func TestPoolState(t *testing.T) {
	refused := fmt.Errorf("poll: %w", runtime.ErrUnauthorized)

	t.Run("a rejected token keeps the loop on time and is not a response", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			st.cloud.Fail(runtimetest.Claim, 1000, refused)
			st.start()
			for range 60 {
				wait(time.Minute)
				st.wantNotOverdue()
			}
			if at := st.pool.State().AnsweredAt; !at.IsZero() {
				t.Errorf("the service counts as having answered at %s", at)
			}
			st.wantFailingSince(time.Hour)
		})
	})

	t.Run("a response ends the failure, and its time is kept during the next failure", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			st.cloud.Fail(runtimetest.Claim, 1, errors.New("connection refused"))
			st.start()
			wait(90 * time.Second)
			st.wantFailingSince(-1)
			answered := st.pool.State().AnsweredAt
			if since := time.Since(answered); since <= 0 || since > time.Minute {
				t.Fatalf("the service answered %s ago, want within the last minute", since)
			}
			st.cloud.Fail(runtimetest.Claim, 1000, refused)
			wait(5 * time.Minute)
			state := st.pool.State()
			if state.FailingSince.IsZero() || state.AnsweredAt.Before(answered) ||
				!state.AnsweredAt.Before(state.FailingSince) {
				t.Errorf("after more failures the last response was at %s, and polls fail since %s", state.AnsweredAt,
					state.FailingSince)
			}
		})
	})

	t.Run("a slow poll that succeeds is no failure", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			release := st.cloud.Hang(runtimetest.Claim)
			st.start()
			wait(20 * time.Second)
			st.cloud.Fail(runtimetest.Claim, 1000, refused)
			release()
			wait(0) // the first poll gets its response
			st.wantFailingSince(-1)
		})
	})

	t.Run("a failure counts from the start of its poll", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			late := &slowRefusal{Cloud: st.cloud, err: refused}
			st.use(late)
			st.start()
			wait(20 * time.Second)
			st.wantFailingSince(20 * time.Second)
		})
	})

	t.Run("a poll that is under way is in the state", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			st.start()
			wait(time.Minute)
			if state := st.pool.State(); !state.PollingSince.IsZero() {
				t.Fatalf("between two polls one is under way since %s", state.PollingSince)
			}
			release := st.cloud.Hang(runtimetest.Claim)
			wait(5 * time.Minute)
			state := st.pool.State()
			if since := time.Since(state.PollingSince); since < 3*time.Minute || since > 5*time.Minute {
				t.Errorf("after five minutes without a response the poll is under way for %s", since)
			}
			release()
			wait(0)
			if state := st.pool.State(); !state.PollingSince.IsZero() {
				t.Errorf("after its response the poll is under way since %s", state.PollingSince)
			}
		})
	})

	t.Run("answers to status polls count for a pool that runs too many jobs to poll", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			old := job("old")
			old.Pool, old.Agent = spec().Key(), "agent-1"
			st.cloud.AddClaimed(old, runtimetest.Definition("sleep 7200"))
			st.engine.SetScript("old", runtimetest.Script{Running: 2 * time.Hour})
			st.engine.Adopt(&old, time.Now())
			st.cloud.SetJobStatus("old", runtime.Unanswered)
			st.start()
			wait(time.Minute)
			if at := st.pool.State().AnsweredAt; !at.IsZero() {
				t.Errorf("a service without a response counts as having answered at %s", at)
			}
			st.cloud.SetJobStatus("old", runtime.Continue)
			wait(time.Minute)
			if at := st.pool.State().AnsweredAt; at.IsZero() || st.asked(runtimetest.Claim) > 0 {
				t.Errorf("the service answered at %s, after %d polls", at, st.asked(runtimetest.Claim))
			}
		})
	})

	t.Run("a full pool is not overdue", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			st.engine.SetDefaultScript(runtimetest.Script{Running: 3 * time.Hour})
			st.cloud.Queue("a")
			st.start()
			wait(time.Minute)
			release := st.cloud.Hang(runtimetest.JobStatus) // status polls of the job get no response
			wait(2 * time.Hour)
			st.wantNotOverdue()
			release()
		})
	})

	t.Run("a pool that waits for a slot is not overdue", func(t *testing.T) {
		share(t, 1, func(t *testing.T, _ *pool.Slots, fixtures []*fixture) {
			for range 20 {
				wait(time.Second)
				for _, st := range fixtures {
					st.wantNotOverdue()
				}
			}
		}, 1, 1)
	})

	t.Run("a pool that waits for a slot and may not poll has a deadline", func(t *testing.T) {
		share(t, 1, func(t *testing.T, _ *pool.Slots, fixtures []*fixture) {
			for _, st := range fixtures {
				if st.pool.State().Phase == runtime.PoolWaiting {
					st.cloud.Hold(runtime.NextPoll{At: time.Now().Add(time.Hour), Reason: "a test"})
					st.pool.Tune(spec(most(1000)))
					wait(time.Second)
					if state := st.pool.State(); time.Until(state.Due) != time.Hour-time.Second {
						t.Errorf("the next turn is due in %s, want %s, when the hold ends", time.Until(state.Due),
							time.Hour-time.Second)
					}
				}
			}
		}, 1, 1)
	})

	t.Run("a poll that does not return after its timeout makes the pool overdue", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			stuck := stuckCloud{Cloud: st.cloud, release: make(chan struct{})}
			st.use(stuck)
			st.start()
			wait(9 * time.Minute)
			st.wantNotOverdue()
			wait(time.Hour)
			if still := st.pool.State().Overdue(time.Now()); still < 50*time.Minute {
				t.Errorf("the blocked loop is overdue by %s, want at least 50m", still)
			}
			close(stuck.release)
		})
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
	play(t, spec(), func(t *testing.T, st *fixture) {
		if state := st.pool.State(); state.Service != (runtime.ServiceHealth{}) {
			t.Errorf("the health of a service without problems is %+v", state.Service)
		}
		st.use(healthCloud{st.cloud})
		if got, want := st.pool.State().Service, (healthCloud{}).Health(); got != want {
			t.Errorf("the health is %+v, want %+v", got, want)
		}
		st.start()
	})
}
