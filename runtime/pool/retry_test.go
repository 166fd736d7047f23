package pool_test

import (
	"errors"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
)

// retryingCloud is a fake service that delays the next poll. Its Retry changes the time of the
// next poll to left.
type retryingCloud struct {
	*runtimetest.Cloud
	left runtime.NextPoll
}

func (c *retryingCloud) Retry() runtime.NextPoll {
	c.Hold(c.left)
	return c.left
}

// TestRetry tests how a pool uses the result of Cloud.Retry. Some delays end with a call of
// Retry and others do not: TestScheduleRetryNow of package cloud tests which.
func TestRetry(t *testing.T) {
	held := func(span time.Duration) runtime.NextPoll {
		return runtime.NextPoll{At: time.Now().Add(span), Reason: "a test"}
	}
	for name, c := range map[string]struct {
		wait  time.Duration // delay of the next poll before Retry
		left  time.Duration // delay that Retry returns
		after time.Duration // from Retry to the next poll
	}{
		"a poll follows at once if Retry ends the delay": {10 * time.Minute, 0, 0},
		"the time of a Retry-After stays":                {10 * time.Minute, 3 * time.Minute, 2 * time.Minute},
		"a delay that Retry does not end stays":          {10 * time.Minute, 10 * time.Minute, 9 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, edited(), func(t *testing.T, st *fixture) {
				st.cloud.Hold(held(c.wait))
				retrying := &retryingCloud{Cloud: st.cloud}
				if c.left > 0 {
					retrying.left = held(c.left)
				}
				st.use(retrying)
				st.start()
				wait(time.Minute)
				st.pool.Retry()
				retried := time.Now()
				wait(0)
				st.wantNotOverdue()
				for st.asked(runtimetest.Claim) < 1 {
					if time.Since(retried) > 2*time.Hour {
						t.Fatal("the pool does not poll any more")
					}
					wait(time.Second)
				}
				if late := time.Since(retried) - c.after; late < 0 || late > time.Second {
					t.Errorf("the next poll comes %s after the retry, want %s", time.Since(retried), c.after)
				}
			})
		})
	}
	t.Run("Retry does not delay a poll", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			retrying := &retryingCloud{Cloud: st.cloud}
			st.use(retrying)
			st.start()
			retrying.left = held(2 * time.Hour)
			st.pool.Retry()
			st.cloud.Hold(runtime.NextPoll{})
			wait(time.Minute)
			if asked := st.asked(runtimetest.Claim); asked != 2 {
				t.Errorf("%d polls in a minute, want 2", asked)
			}
		})
	})
	t.Run("a poll that was sent before Retry and fails later does not delay the next poll", func(t *testing.T) {
		play(t, edited(), func(t *testing.T, st *fixture) {
			st.startLate(func() { st.pool.Retry() })
			if asked := st.asked(runtimetest.Claim); asked != 2 {
				t.Errorf("%d polls, want 2", asked)
			}
		})
	})
	t.Run("a real client tries once more and then waits again", func(t *testing.T) {
		play(t, broken(), func(t *testing.T, st *fixture) {
			dead := answering("")
			st.reach(broken(func(t *runtime.Tuning) { t.BreakerTimeout = 10 * time.Minute }), dead)
			wait(time.Minute)
			st.pool.Retry()
			wait(9 * time.Minute)
			if polls := dead.dials.Load(); polls != 2 {
				t.Errorf("%d polls, want the first one and the trial", polls)
			}
			if _, opened := st.countLogged("WARN", "circuit breaker opened"); opened != 2 {
				t.Errorf("the open breaker is logged %d times, want 2:\n%s", opened, st.log)
			}
		})
	})
	t.Run("a cloud without Retry continues", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			st.cloud.Fail(runtimetest.Claim, 1, errors.New("500"))
			st.start()
			st.pool.Retry()
			wait(time.Minute)
			if asked := st.asked(runtimetest.Claim); asked != 2 {
				t.Errorf("%d polls in a minute, want 2", asked)
			}
		})
	})
}
