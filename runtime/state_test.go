package runtime_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
)

// wantFailingSince checks for how long the pool has had no answer; less than 0
// means that it is not failing.
func (st *stage) wantFailingSince(span time.Duration) {
	st.t.Helper()
	state := st.pool.State()
	switch since := state.FailingSince; {
	case span < 0 && !since.IsZero():
		st.t.Errorf("the pool is failing since %s, want not failing", since)
	case span >= 0 && (since.IsZero() || time.Since(since) != span):
		st.t.Errorf("the pool is failing for %s, want %s", time.Since(since), span)
	}
}

// use gives the stage a pool that asks another service.
func (st *stage) use(cloud runtime.Cloud) {
	st.pool = runtime.NewPool(spec(), runtime.Parts{
		Cloud: cloud, Executor: st.engine, Agent: "agent-1", Log: slog.New(slog.NewTextHandler(st.log, nil)),
	})
}

func TestPoolState(t *testing.T) {
	refused := fmt.Errorf("poll: %w", runtime.ErrUnauthorized)

	t.Run("a refused token is activity and no answer", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *stage) {
			st.cloud.Fail(runtimetest.Claim, 1000, refused)
			st.start()
			for range 60 {
				wait(time.Minute)
				st.wantFresh()
			}
			if at := st.pool.State().AnsweredAt; !at.IsZero() {
				t.Errorf("the service counts as having answered at %s", at)
			}
			st.wantFailingSince(time.Hour)
		})
	})

	t.Run("an answer ends the failure and is kept through the next one", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *stage) {
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
			if state.FailingSince.IsZero() || state.AnsweredAt.Before(answered) || !state.AnsweredAt.Before(state.FailingSince) {
				t.Errorf("after more failures the pool was answered at %s and is failing since %s", state.AnsweredAt, state.FailingSince)
			}
		})
	})

	t.Run("a failure begins with its call", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *stage) {
			release := st.cloud.Hang(runtimetest.Claim)
			st.start()
			wait(20 * time.Second)
			st.cloud.Fail(runtimetest.Claim, 1000, refused)
			release()
			wait(0) // the first call had an answer
			st.wantFailingSince(-1)
		})
		play(t, spec(), func(t *testing.T, st *stage) {
			late := &slowRefusal{Cloud: st.cloud, err: refused}
			st.use(late)
			st.start()
			wait(20 * time.Second)
			st.wantFailingSince(20 * time.Second)
		})
	})

	t.Run("a poll without an answer so far is told", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *stage) {
			st.start()
			wait(time.Minute)
			if state := st.pool.State(); !state.PollingSince.IsZero() {
				t.Fatalf("between two polls one is under way since %s", state.PollingSince)
			}
			release := st.cloud.Hang(runtimetest.Claim)
			wait(5 * time.Minute)
			state := st.pool.State()
			if since := time.Since(state.PollingSince); since < 3*time.Minute || since > 5*time.Minute {
				t.Errorf("after five minutes without an answer the poll is under way for %s", since)
			}
			release()
			wait(0)
			if state := st.pool.State(); !state.PollingSince.IsZero() {
				t.Errorf("after its answer the poll is under way since %s", state.PollingSince)
			}
		})
	})

	t.Run("a pool full of adopted jobs is answered about them", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *stage) {
			old := job("old")
			old.Pool, old.Agent = spec().Key(), "agent-1"
			st.cloud.Know(old, runtimetest.Definition("sleep 7200"))
			st.engine.Script("old", runtimetest.Script{Running: 2 * time.Hour})
			st.engine.Adopt(&old, time.Now())
			st.cloud.Answer("old", runtime.Unanswered)
			st.start()
			wait(time.Minute)
			if at := st.pool.State().AnsweredAt; !at.IsZero() {
				t.Errorf("a service without an answer counts as having answered at %s", at)
			}
			st.cloud.Answer("old", runtime.CarryOn)
			wait(time.Minute)
			if at := st.pool.State().AnsweredAt; at.IsZero() || st.asked(runtimetest.Claim) > 0 {
				t.Errorf("the service answered at %s, after %d polls", at, st.asked(runtimetest.Claim))
			}
		})
	})

	t.Run("a full pool is no standstill", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *stage) {
			st.engine.Otherwise(runtimetest.Script{Running: 3 * time.Hour})
			st.cloud.Queue("a")
			st.start()
			wait(time.Minute)
			hung := st.cloud.Hang(runtimetest.Wanted) // nothing about the job moves
			wait(2 * time.Hour)
			st.wantFresh()
			hung()
		})
	})

	t.Run("a pool that waits for a slot is no standstill", func(t *testing.T) {
		share(t, 1, func(t *testing.T, _ *runtime.Slots, stages []*stage) {
			for range 20 {
				wait(time.Second)
				for _, st := range stages {
					st.wantFresh()
				}
			}
		}, 1, 1)
	})

	t.Run("a pool that waits for a slot and may not poll has a deadline", func(t *testing.T) {
		share(t, 1, func(t *testing.T, _ *runtime.Slots, stages []*stage) {
			for _, st := range stages {
				if st.pool.State().Phase == runtime.PoolWaiting {
					st.cloud.Hold(runtime.NextPoll{At: time.Now().Add(time.Hour), Reason: "a test"})
					st.pool.Tune(spec(most(1000)))
					wait(time.Second)
					if state := st.pool.State(); time.Until(state.Due) != time.Hour-time.Second {
						t.Errorf("the next turn is due in %s, want when the hold ends", time.Until(state.Due))
					}
				}
			}
		}, 1, 1)
	})

	t.Run("a poll that its own limit does not end is a standstill", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *stage) {
			deaf := deafCloud{Cloud: st.cloud, release: make(chan struct{})}
			st.use(deaf)
			st.start()
			wait(9 * time.Minute)
			st.wantFresh()
			wait(time.Hour)
			if still := st.pool.State().Overdue(time.Now()); still < 50*time.Minute {
				t.Errorf("the loop that is held in a call counts as standing still for %s", still)
			}
			close(deaf.release)
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

// deafCloud does not return from a claim before it is released, even when its
// context ends.
type deafCloud struct {
	*runtimetest.Cloud
	release chan struct{}
}

func (c deafCloud) Claim(context.Context) (runtime.Claim, error) {
	<-c.release
	return runtime.Claim{Next: runtime.NextPoll{At: time.Now().Add(time.Minute)}}, errors.New("too late")
}
