package kube

import (
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
)

// TestTimes checks the orders of times that keep a job from being lost or from running twice.
func TestTimes(t *testing.T) {
	runtimetest.WantAscending(t, map[string][]time.Duration{
		"the handoff is sent before the service declares the job failed": {
			newerLimit, resendLimit, minSendTime, maxSendTime, runtime.HeartbeatLimit},
		"a refusal is accepted, and an outage noticed, before a stuck start fails": {
			refusalLimit, outageGrace, stuckLimit, StartTimeout},
		"a request ends before its start is given up as stuck": {
			eventsLimit, identifyLimit, streamLimit, callLimit, stuckLimit},
		"an object is swept after its last use": {
			callLimit, sweepMargin, keepTime},
		"a bookmark of the API server comes before a watch without headers is closed": {
			time.Minute, watchStartLimit},
	})
}
