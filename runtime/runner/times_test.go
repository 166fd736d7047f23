package runner

import (
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
)

// TestTimes checks the orders of times at the end of a step and of a job.
func TestTimes(t *testing.T) {
	runtimetest.WantAscending(t, map[string][]time.Duration{
		"the agent, which waits for its grace period, kills nothing that the runner stops": {
			groupPoll, scanPoll, remainingGrace, killTimeout, runtime.StopGrace},
		"the agent adds its reason before the last reports, which end before a status is given up": {
			agentYield, finalReportTimeout, statusTimeout},
		"a status is reported again before the service declares the job failed": {
			retryWait, retryMaxWait, requestTimeout, runtime.HeartbeatLimit},
		"a line is sent at once, and a log without progress is dropped at last": {
			batchDelay, batchInterval, lineRetryDelay, unknownRetryDelay, stallLimit, flushTimeout},
	})
}
