package reconcile_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/reconcile"
	"github.com/cmwa-project/cmwa/runtime"
)

// TestStatus checks health and readiness of an agent with two pools. Each case changes the
// second pool, or the status.
func TestStatus(t *testing.T) {
	type status = reconcile.Status
	type state = runtime.PoolState
	const threshold = time.Minute
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	ago := func(span time.Duration) time.Time { return now.Add(-span) }
	for name, c := range map[string]struct {
		change  func(*status, *state)
		healthy bool
		unready []string // "pool: part of the reason"; empty if the agent is ready
	}{
		"no problem": {func(*status, *state) {}, true, nil},
		"a pool without a response is healthy and not ready": {func(_ *status, p *state) {
			p.AnsweredAt, p.FailingSince, p.PollError = time.Time{}, ago(time.Second), "connection refused"
		}, true, []string{"two: no poll has succeeded yet"}},
		"a pool that gets no work is healthy and not ready": {
			func(_ *status, p *state) { p.Unserved = "the service leases no scans" }, true,
			[]string{"two: leases no scans"}},
		"a pool whose first poll is under way is not ready": {
			func(_ *status, p *state) { p.AnsweredAt = time.Time{} }, true, []string{"two: has not answered"}},
		"a pool that fails for as long as the threshold is ready": {
			func(_ *status, p *state) { p.FailingSince = ago(threshold) }, true, nil},
		"a pool that fails for longer is not ready": {func(_ *status, p *state) {
			p.FailingSince = ago(threshold + time.Second)
		}, true, []string{"two: since 2026-03-01T11:58:59Z"}},
		"a pool whose poll has no response for as long as the threshold is ready": {
			func(_ *status, p *state) { p.PollingSince = ago(threshold) }, true, nil},
		"a pool whose poll has no response for longer is not ready": {func(_ *status, p *state) {
			p.PollingSince = ago(threshold + time.Second)
		}, true, []string{"two: since 2026-03-01T11:58:59Z"}},
		"a pool with an old response and without a failure is ready": { // Retry-After, or a full pool
			func(_ *status, p *state) { p.AnsweredAt = ago(time.Hour) }, true, nil},
		"a pool whose executor cannot work is healthy and not ready": {func(_ *status, p *state) {
			p.ExecutorProblem = "no such network: start it"
		}, true, []string{"two: no such network: start it"}},
		"before the first poll the executor is the only reason": {func(_ *status, p *state) {
			p.ExecutorProblem, p.AnsweredAt = "no such network", time.Time{}
		}, true, []string{"two: no such network"}},
		"a draining pool needs no service": {func(_ *status, p *state) {
			p.Phase, p.AnsweredAt, p.ExecutorProblem = runtime.PoolDraining, time.Time{}, "engine down"
		}, true, nil},
		"a completed single run needs no service": {func(_ *status, p *state) {
			p.Phase, p.Completed, p.FailingSince, p.Due = runtime.PoolStopped, true, ago(time.Hour), ago(time.Hour)
		}, true, nil},
		"a stuck loop is not healthy": {
			func(_ *status, p *state) { p.Due = ago(threshold + time.Second) }, false, nil},
		"a pool that starts is not ready": {func(s *status, p *state) {
			p.Phase, p.Ready, p.AnsweredAt, s.Claiming = runtime.PoolStarting, false, time.Time{}, false
		}, true, []string{"two: starting"}},
		"a pool that cannot be built is not ready": {func(s *status, _ *state) {
			s.Problems["key"], s.Names["key"] = "cannot reach the engine", "three"
		}, true, []string{"three: cannot reach the engine"}},
		"a desired pool that does not exist yet is not ready": {
			func(s *status, _ *state) { s.Claiming = false }, true, []string{": not every pool"}},
		"the agent is ready while old pools drain": {
			func(s *status, p *state) { s.Desired, p.Phase = 2, runtime.PoolDraining }, true, nil},
		"a generation that is not in force is not ready": {func(s *status, p *state) {
			s.Desired, s.Pending, p.AnsweredAt = 2, true, time.Time{}
		}, true, []string{": generation 2", "two: has not answered"}},
		"a stopping agent is not ready": {func(s *status, _ *state) { s.Stopping = true }, true,
			[]string{": stopping"}},
		"an agent without a configuration is not ready": {
			func(s *status, _ *state) { *s = reconcile.Status{} }, true, []string{": no configuration"}},
	} {
		t.Run(name, func(t *testing.T) {
			status := reconcile.Status{
				Desired: 1, Applied: 1, Claiming: true, Problems: map[string]string{}, Names: map[string]string{},
				Process: reconcile.ProcessSpec{HealthThreshold: threshold},
			}
			for _, pool := range []string{"one", "two"} {
				status.Pools = append(status.Pools, runtime.PoolState{
					Spec: runtime.PoolSpec{Name: pool}, Phase: runtime.PoolPolling, Ready: true, Due: now,
					AnsweredAt: now,
				})
			}
			second := status.Pools[1]
			c.change(&status, &second)
			if len(status.Pools) > 0 {
				status.Pools[1] = second
			}
			if got := status.Healthy(now); got != c.healthy {
				t.Errorf("healthy is %v, want %v", got, c.healthy)
			}
			reasons := status.Unready(now)
			if ready := status.Ready(now); ready != (len(c.unready) == 0) || len(reasons) != len(c.unready) {
				t.Fatalf("ready is %v for the reasons %v, want the reasons %q", ready, reasons, c.unready)
			}
			for i, want := range c.unready {
				pool, part, _ := strings.Cut(want, ": ")
				if got := reasons[i]; got.Pool != pool || !strings.Contains(got.Reason, part) {
					t.Errorf("reason %d is %q, want %q", i, fmt.Sprint(got.Pool, ": ", got.Reason), want)
				}
			}
		})
	}
}
