package runtime_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
)

func TestRetry(t *testing.T) {
	down := errors.New("connection refused")
	wait10 := func(reason string, wish time.Duration) *runtime.Pause {
		pause := &runtime.Pause{Until: time.Now().Add(10 * time.Minute), Reason: reason, Err: down}
		if wish > 0 {
			pause.Wish = time.Now().Add(wish)
		}
		return pause
	}
	for name, c := range map[string]struct {
		fault func() error
		after time.Duration // from the retry to the next poll
	}{
		"an open breaker polls at once":               {func() error { return wait10(runtime.BreakerOpen, 0) }, 0},
		"a repetition is made at once":                {func() error { return wait10("try 1 of 3", 0) }, 0},
		"a refused token is tried at once":            {func() error { return fmt.Errorf("poll: %w", runtime.ErrUnauthorized) }, 0},
		"a Retry-After stays, less than the back-off": {func() error { return wait10("try 1 of 3", 3*time.Minute) }, 2 * time.Minute},
		"a Retry-After stays, as long as the wait":    {func() error { return wait10("try 1 of 3", 10*time.Minute) }, 9 * time.Minute},
		"a Retry-After stays beside an open breaker":  {func() error { return wait10(runtime.BreakerOpen, 5*time.Minute) }, 4 * time.Minute},
		"the interval after an answer stays":          {nil, 59 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			s := spec(func(t *runtime.Tuning) { t.PollingInterval = time.Hour })
			play(t, s, func(t *testing.T, st *stage) {
				if c.fault != nil {
					st.cloud.Fail(runtimetest.Claim, 1, c.fault())
				}
				st.start()
				wait(time.Minute)
				st.pool.Retry()
				retried := time.Now()
				wait(0)
				st.wantFresh()
				for st.asked(runtimetest.Claim) < 2 {
					if time.Since(retried) > 2*time.Hour {
						t.Fatal("the pool polls no more")
					}
					wait(time.Second)
				}
				late := time.Since(retried) - c.after
				if slack := time.Second; c.fault == nil && (late < -10*time.Minute || late > 10*time.Minute) || c.fault != nil && (late < 0 || late > slack) {
					t.Errorf("the next poll comes %s after the retry, want %s", time.Since(retried), c.after)
				}
			})
		})
	}

	t.Run("a failure after it is logged and waits again", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *stage) {
			st.cloud.Fail(runtimetest.Claim, 1, wait10(runtime.BreakerOpen, 0))
			st.start()
			wait(time.Minute)
			st.cloud.Fail(runtimetest.Claim, 1, wait10(runtime.BreakerOpen, 0))
			st.pool.Retry()
			wait(9 * time.Minute)
			if asked := st.asked(runtimetest.Claim); asked != 2 {
				t.Errorf("%d polls, want the first one and the trial", asked)
			}
			if said := strings.Count(st.log.String(), "the circuit breaker is open"); said != 2 {
				t.Errorf("the open breaker is logged %d times, want 2:\n%s", said, st.log)
			}
		})
	})
}
