package server

import (
	"slices"
	"time"

	"github.com/cmwa-project/cmwa/cloud"

	"github.com/cmwa-project/cmwa/cloud/server/store"
)

// Statuses of activities, as Pulumi's engineering blog names them (February 2026).
const (
	activityReady      = "Ready"      // waits for an agent
	activityPending    = "Pending"    // leased, not started
	activityExecuting  = "Executing"  // leased and started
	activityRestarting = "Restarting" // its lease expired, and it waits for an agent
	activityCompleted  = "Completed"
	activityFailed     = "Failed"
	activityCanceled   = "Canceled"
)

// ActivityKinds returns the kinds of leased work.
func ActivityKinds() []string { return []string{"insights_scan", "policy_evaluation"} }

// activity is leased work. Its methods decide which calls of agents are accepted. Before them,
// heldLease checks that the caller holds the present lease.
type activity struct{ store.Activity }

// ended reports whether the status is final.
func (a *activity) ended() bool {
	return slices.Contains([]string{activityCompleted, activityFailed, activityCanceled}, a.Status)
}

// held reports whether an agent holds a lease.
func (a *activity) held() bool {
	return a.Status == activityPending || a.Status == activityExecuting
}

// acquire gives a lease of an activity whose status is Ready or Restarting.
func (a *activity) acquire() { a.Status, a.Reason = activityPending, "" }

// complete ends a lease that is held. Succeeded reports whether the steps of its job have
// succeeded.
//
//  1. The result must be success if all steps have succeeded, and only then.
//  2. A failure is final.
//  3. A retry uses one of the retries. Without any left, the activity fails.
func (a *activity) complete(result, reason string, succeeded bool, now time.Time) error {
	switch {
	case result == cloud.ResultSucceeded && !succeeded: // 1.
		return conflict("the steps of the job have not succeeded")
	case result != cloud.ResultSucceeded && succeeded:
		return conflict("the steps of the job have succeeded")
	case result == cloud.ResultSucceeded:
		a.Status, a.Reason = activityCompleted, ""
	case result == cloud.ResultFailed: // 2.
		a.Status, a.Reason = activityFailed, reason
	case result == cloud.ResultRetry: // 3.
		a.retry(activityReady, reason)
		a.Due = now.Add(a.Delay)
	default:
		return badRequest("result must be one of succeeded, failed and retry")
	}
	return nil
}

// expire ends a lease that is held and has expired. The work is not repeated if all steps
// have succeeded: completeBySteps has then completed the activity, so no lease is held. Work
// that has started is not leased again for the time stop, because its runner may continue
// without its agent until it has found that the lease is lost.
func (a *activity) expire(now time.Time, stop time.Duration) {
	a.Due = now
	if a.Status == activityExecuting {
		a.Due = now.Add(stop)
	}
	a.retry(activityRestarting, "its lease expired: the agent has stopped or lost its connection")
}

// retry uses one of the retries. If none is left, the activity fails.
func (a *activity) retry(status, reason string) {
	a.Reason = reason
	if a.Retries == 0 {
		a.Status = activityFailed
		a.Reason += " (no retries are left)"
		return
	}
	a.Status = status
	a.Retries--
}

// cancel ends an activity that has not ended.
func (a *activity) cancel(reason string) error {
	if a.ended() {
		return conflict("the activity has already ended: %s", a.Status)
	}
	a.Status, a.Reason = activityCanceled, reason
	return nil
}

// describeLeaseEnd returns the last header of the log of a leased job whose end was not the
// result of its steps.
func describeLeaseEnd(j *job) string {
	switch j.Ended {
	case endedByCancel:
		return "run cancelled at " + j.Modified.Format(time.RFC3339)
	case endedByLease:
		return "run ended at " + j.Modified.Format(time.RFC3339) + ": its lease expired"
	case endedByPool:
		return "run cancelled: its pool was deleted"
	case endedByAgent:
		return "run ended by its agent"
	default:
		return "run " + j.Status
	}
}

// maxReason limits the reason that an agent reports with a result, in bytes.
const maxReason = 1000
