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
	for name, c := range map[string]struct {
		wait  time.Duration // delay of the next poll before Retry
		left  time.Duration // delay that Retry returns
		after time.Duration // from Retry to the next poll
	}{
		"a poll follows at once if Retry ends the delay": {10 * time.Minute, 0, 0},
		"the time of a Retry-After stays":                {10 * time.Minute, 3 * time.Minute, 2 * time.Minute},
		"a delay that Retry does not end stays":          {10 * time.Minute, 10 * time.Minute, 9 * time.Minute},
	} {
		play(t, name, spec(), func(st *fixture) {
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
					st.Fatal("the pool does not poll any more")
				}
				wait(time.Second)
			}
			if late := time.Since(retried) - c.after; late < 0 || late > time.Second {
				st.Errorf("the next poll comes %s after the retry, want %s", time.Since(retried), c.after)
			}
		})
	}
	play(t, "Retry does not delay a poll", spec(), func(st *fixture) {
		retrying := &retryingCloud{Cloud: st.cloud}
		st.use(retrying)
		st.start()
		retrying.left = held(2 * time.Hour)
		st.pool.Retry()
		st.cloud.Hold(runtime.NextPoll{})
		wait(time.Minute)
		st.wantAsked(runtimetest.Claim, 2)
	})
	play(t, "a poll that was sent before Retry and fails later delays no other poll", edited(), func(st *fixture) {
		st.startLate(func() { st.pool.Retry() })
		st.wantAsked(runtimetest.Claim, 2)
	})
	tenMinutes := func(t *runtime.Tuning) { t.BreakerTimeout = 10 * time.Minute }
	play(t, "a real client tries once more and then waits again", broken(tenMinutes), func(st *fixture) {
		dead := answering("")
		st.reach(dead)
		wait(time.Minute)
		st.pool.Retry()
		wait(9 * time.Minute)
		dead.wantDials(st, 2) // the first poll and the trial
		if _, opened := st.countLogged("WARN", "circuit breaker opened"); opened != 2 {
			st.Errorf("the open breaker is logged %d times, want 2:\n%s", opened, st.log)
		}
	})
	play(t, "a cloud without Retry continues", spec(), func(st *fixture) {
		st.cloud.Fail(runtimetest.Claim, 1, errors.New("500"))
		st.start()
		st.pool.Retry()
		wait(time.Minute)
		st.wantAsked(runtimetest.Claim, 2)
	})
}
