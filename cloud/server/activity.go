package server

import (
	"slices"
	"time"

	"github.com/cmwa-project/cmwa/cloud"
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

// activityState is the state of an activity. Its methods decide which calls of agents are
// accepted. Before them, heldLease checks that the caller holds the present lease.
type activityState struct {
	status  string
	reason  string        // of the status; may be empty
	retries int           // that are left
	delay   time.Duration // after an agent has given the activity back, before it is leased again
	due     time.Time     // the activity is not leased before this time
}

// ended reports whether the status is final.
func (a *activityState) ended() bool {
	return slices.Contains([]string{activityCompleted, activityFailed, activityCanceled}, a.status)
}

// held reports whether an agent holds a lease.
func (a *activityState) held() bool {
	return a.status == activityPending || a.status == activityExecuting
}

// acquire gives a lease of an activity whose status is Ready or Restarting.
func (a *activityState) acquire() { a.status, a.reason = activityPending, "" }

// complete ends a lease that is held. Succeeded reports whether the steps of its job have
// succeeded.
//
//  1. The result must be success if all steps have succeeded, and only then.
//  2. A failure is final.
//  3. A retry uses one of the retries. Without any left, the activity fails.
func (a *activityState) complete(result, reason string, succeeded bool, now time.Time) error {
	switch {
	case result == cloud.ResultSucceeded && !succeeded: // 1.
		return conflict("the steps of the job have not succeeded")
	case result != cloud.ResultSucceeded && succeeded:
		return conflict("the steps of the job have succeeded")
	case result == cloud.ResultSucceeded:
		a.status, a.reason = activityCompleted, ""
	case result == cloud.ResultFailed: // 2.
		a.status, a.reason = activityFailed, reason
	case result == cloud.ResultRetry: // 3.
		a.retry(activityReady, reason)
		a.due = now.Add(a.delay)
	default:
		return badRequest("result must be one of succeeded, failed and retry")
	}
	return nil
}

// expire ends a lease that is held and has expired. The work is not repeated if all steps
// have succeeded: completeBySteps has then completed the activity, so no lease is held. Work
// that has started is not leased again for the time stop, because its runner may continue
// without its agent until it has found that the lease is lost.
func (a *activityState) expire(now time.Time, stop time.Duration) {
	a.due = now
	if a.status == activityExecuting {
		a.due = now.Add(stop)
	}
	a.retry(activityRestarting, "its lease expired: the agent has stopped or lost its connection")
}

// retry uses one of the retries. If none is left, the activity fails.
func (a *activityState) retry(status, reason string) {
	a.reason = reason
	if a.retries == 0 {
		a.status = activityFailed
		a.reason += " (no retries are left)"
		return
	}
	a.status = status
	a.retries--
}

// cancel ends an activity that has not ended.
func (a *activityState) cancel(reason string) error {
	if a.ended() {
		return conflict("the activity has already ended: %s", a.status)
	}
	a.status, a.reason = activityCanceled, reason
	return nil
}

// describeLeaseEnd returns the last header of the log of a leased job whose end was not the
// result of its steps.
func describeLeaseEnd(j *job) string {
	switch j.ended {
	case endedByCancel:
		return "run cancelled at " + j.modified.Format(time.RFC3339)
	case endedByLease:
		return "run ended at " + j.modified.Format(time.RFC3339) + ": its lease expired"
	case endedByPool:
		return "run cancelled: its pool was deleted"
	case endedByAgent:
		return "run ended by its agent"
	default:
		return "run " + j.status
	}
}

// maxReason limits the reason that an agent reports with a result, in bytes.
const maxReason = 1000
