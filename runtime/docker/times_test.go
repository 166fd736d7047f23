package docker

import (
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/runtime/runtimetest"
)

// TestTimes checks the orders of times that keep a volume or a directory from being removed in use.
func TestTimes(t *testing.T) {
	runtimetest.WantAscending(t, map[string][]time.Duration{
		"a volume is filled before another agent removes its loader or the volume": {
			loaderPoll, loaderTimeout, fillLimit, oldLoader, oldVolume, idleVolume},
		"a call ends before the handoff or the start is given up": {
			pingLimit, shortLimit, longLimit, defaultPullTimeout},
		"the log of a pull is sent before the pull times out": {
			flushInterval, flushLimit, defaultPullTimeout},
		"a lost handoff is examined before the runner stops waiting for it": {
			handoffErrorPause, defaultHandoffErrorLimit, handoffTimeout},
		"a credential helper ends before the pull": {
			helperGrace, helperLimit, defaultPullTimeout},
	})
}
