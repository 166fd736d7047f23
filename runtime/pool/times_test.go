package pool

import (
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
)

// TestTimes checks the orders of times that keep a job from being lost or from running twice.
func TestTimes(t *testing.T) {
	runtimetest.WantAscending(t, map[string][]time.Duration{
		"a heartbeat comes before the service gives the job to another agent, and a start ends before " +
			"the service declares the job failed": {
			runtime.HeartbeatInterval, requeue, confirmLimit, heartbeatTimeout, runtime.HeartbeatLimit},
		"a refusal is accepted before a request times out":  {refusal, confirmLimit, statusLimit},
		"the agent adds the reason while the runner waits":  {reasonLimit, reasonWait, runtime.StopGrace},
		"the stream ends before the engine reports the end": {exitGrace, streamGrace, waitGrace},
		"an attempt to adopt ends before the next sweep":    {adoptInterval, adoptLimit, sweepInterval},
	})
}

// Times of the other side.
const (
	requeue = 35 * time.Second // cloud/server: without a definition, a claimed deployment returns to the queue
	refusal = 30 * time.Second // cloud: a refusal that is repeated for this long is accepted
)
