package pool_test

import (
	"strings"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/runtime/runtimetest"
)

func TestClaim(t *testing.T) {
	t.Run("a job that is handed out again is ignored, and the next poll waits for the interval", func(t *testing.T) {
		play(t, spec(most(3)), func(t *testing.T, st *fixture) {
			st.engine.SetDefaultScript(runtimetest.Script{Running: time.Hour})
			st.cloud.Queue("a", "a", "a")
			st.start()
			if asked := st.asked(runtimetest.Claim); asked != 2 {
				t.Fatalf("%d polls at the start, want 2: both return the same job", asked)
			}
			wait(time.Minute)
			if asked := st.asked(runtimetest.Claim); asked != 3 {
				t.Errorf("%d polls after a minute, want 3", asked)
			}
			st.wantOperations("a", "start", "started")
			if ignored := strings.Count(st.log.String(), "job that this agent already runs: ignored"); ignored != 2 {
				t.Errorf("the ignored job is logged %d times, want 2:\n%s", ignored, st.log)
			}
		})
	})
	t.Run("a job that is handed out again does not shorten a Retry-After", func(t *testing.T) {
		play(t, spec(most(3)), func(t *testing.T, st *fixture) {
			st.engine.SetDefaultScript(runtimetest.Script{Running: 2 * time.Hour})
			st.cloud.RetryAfter(10 * time.Minute)
			st.cloud.Queue("a", "a")
			st.start()
			wait(19 * time.Minute)
			if asked := st.asked(runtimetest.Claim); asked != 2 {
				t.Errorf("%d polls in 19 minutes, want 2", asked)
			}
			st.wantPaused(time.Minute)
			wait(2 * time.Minute)
			if asked := st.asked(runtimetest.Claim); asked != 3 {
				t.Errorf("%d polls in 21 minutes, want 3", asked)
			}
		})
	})
}
