package pool

import (
	"slices"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
)

// TestTimes checks the orders of times that keep a job from being lost or from running twice.
func TestTimes(t *testing.T) {
	for name, chain := range map[string][]time.Duration{
		"a heartbeat comes before the service gives the job to another agent, and a start ends before " +
			"the service declares the job failed": {
			runtime.HeartbeatInterval, requeue, confirmLimit, heartbeatTimeout, runtime.HeartbeatLimit},
		"a refusal is accepted before a request times out":  {refusal, confirmLimit, statusLimit},
		"the agent adds the reason while the runner waits":  {reasonLimit, reasonWait, runtime.StopGrace},
		"the stream ends before the engine reports the end": {exitGrace, streamGrace, waitGrace},
		"an attempt to adopt ends before the next sweep":    {adoptInterval, adoptLimit, sweepInterval},
	} {
		for i := range chain[1:] {
			if chain[i] >= chain[i+1] {
				t.Errorf("%s: %v is not in ascending order", name, chain)
			}
		}
		if slices.Min(chain) <= 0 {
			t.Errorf("%s: %v contains a time that is not positive", name, chain)
		}
	}
}

// Times of the other side.
const (
	requeue = 35 * time.Second // cloud/server: without a definition, a claimed deployment returns to the queue
	refusal = 30 * time.Second // cloud: a refusal that is repeated for this long is accepted
)
