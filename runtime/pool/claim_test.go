package pool_test

import (
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/runtime/runtimetest"
)

// TestClaim hands out the same job again.
func TestClaim(t *testing.T) {
	play(t, "the job is ignored, and the next poll waits for the interval", spec(most(3)), func(st *fixture) {
		st.startJobs(runtimetest.Script{Running: time.Hour}, "a", "a", "a")
		st.wantAsked(runtimetest.Claim, 2)
		wait(time.Minute)
		st.wantAsked(runtimetest.Claim, 3)
		st.wantOperations("a", "start", "started")
		st.wantRecorded(1, nil)
		if polls := st.metrics.Polls(); polls["default job"] != 3 {
			st.Errorf("recorded polls %v, want 3 with a job", polls)
		}
		st.wantLogTimes(2, "job that this agent already runs: ignored")
	})
	play(t, "the job does not shorten a Retry-After", spec(most(3)), func(st *fixture) {
		st.cloud.RetryAfter(10 * time.Minute)
		st.startJobs(runtimetest.Script{Running: 2 * time.Hour}, "a", "a")
		wait(19 * time.Minute)
		st.wantAsked(runtimetest.Claim, 2)
		st.wantBackoff(time.Minute)
		wait(2 * time.Minute)
		st.wantAsked(runtimetest.Claim, 3)
	})
}
