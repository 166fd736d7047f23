package cloud

import (
	"slices"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
)

// TestTimes checks the orders of times that keep a job from being given up or reported failed too early.
func TestTimes(t *testing.T) {
	for name, chain := range map[string][]time.Duration{
		"a refusal is confirmed several times before it is accepted": {
			confirmWait, refusalMaxGap, refusalMinDuration},
		"a dead connection is closed before the next heartbeat": {
			probeInterval, pingTimeout, pingIdle, unackedLimit, runtime.HeartbeatInterval},
		"a report is repeated several times before the service declares the job failed": {
			statusHeartbeatTimeout, jobMaxWait, runtime.HeartbeatInterval, linesTimeout, runtime.HeartbeatLimit},
		"a token is renewed several times before it expires": {
			renewRetry, defaultTokenLifetime, maxTokenLifetime},
		"a refusal is remembered longer than the longest interval of status polls": {
			24 * time.Hour, refusalRetention},
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
