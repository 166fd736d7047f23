package server

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/cmwa-project/cmwa/cloud/server/store"
)

// TestActivityStateProperty makes random calls for an activity. After each call it checks
// that no more leases were given than the retries allow, and that the activity either waits,
// is held, or has ended.
func TestActivityStateProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		budget := rapid.IntRange(0, 4).Draw(t, "retries")
		a := activity{store.Activity{Status: activityReady, Retries: budget}}
		leases, now := 0, time.Unix(1_700_000_000, 0)
		t.Repeat(map[string]func(*rapid.T){
			"acquire": func(t *rapid.T) {
				if a.Status == activityReady || a.Status == activityRestarting {
					a.acquire()
					leases++
				}
			},
			"complete": func(t *rapid.T) {
				if !a.held() {
					return
				}
				before := a
				result := rapid.SampledFrom([]string{"succeeded", "failed", "retry", "x"}).Draw(t, "result")
				steps := rapid.Bool().Draw(t, "steps")
				err := a.complete(result, "r", steps, now)
				if err != nil && a != before {
					t.Fatalf("a refused call changed the state to %+v, from %+v", a, before)
				}
				if err == nil && (result == "succeeded") != (a.Status == activityCompleted) {
					t.Fatalf("%s changed the state to %+v, from %+v", result, a, before)
				}
			},
			"expire": func(t *rapid.T) {
				if a.held() {
					started := a.Status == activityExecuting
					a.expire(now, time.Minute)
					if wait := a.Due.Sub(now); started != (wait == time.Minute) || !started && wait != 0 {
						t.Fatalf("the work is leased again after %s; started: %v", wait, started)
					}
				}
			},
			"cancel": func(t *rapid.T) {
				ended := a.ended()
				if err := a.cancel("c"); (err != nil) != ended {
					t.Fatalf("cancel returns %v for %+v", err, a)
				}
			},
			"": func(t *rapid.T) {
				waiting := a.Status == activityReady || a.Status == activityRestarting
				switch {
				case a.Retries < 0 || a.Retries > budget:
					t.Fatalf("%d retries are left, want 0 to %d", a.Retries, budget)
				case leases > budget+1:
					t.Fatalf("%d leases with %d retries", leases, budget)
				case waiting == a.held() && !a.ended():
					t.Fatalf("the status is %q", a.Status)
				}
			},
		})
	})
}
