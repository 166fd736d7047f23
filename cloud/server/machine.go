package server

import "github.com/cmwa-project/cmwa/cloud/server/store"

// Statuses of deployments, their jobs and their steps (Pulumi Cloud REST API
// documentation). Steps are never accepted or skipped.
const (
	notStarted = "not-started"
	accepted   = "accepted"
	running    = "running"
	succeeded  = "succeeded"
	failed     = "failed"
	skipped    = "skipped"
)

// cancelled is the outcome of a deployment that a user has cancelled. The documented API has
// no such status: the status of the deployment is failed, or skipped if no agent had claimed
// it.
const cancelled = "cancelled"

// Reasons for the end of a job.
const (
	endedBySteps       = "steps"
	endedByCancel      = "cancel"
	endedByNoHeartbeat = "silence"
	endedByQueueLimit  = "age"
	endedBySuperseded  = "superseded" // by a newer deployment of the same stack and operation
	endedByPool        = "pool"       // its pool was deleted
	endedByLease       = "lease"      // its lease expired
	endedByAgent       = "agent"      // its agent completed the lease before the steps ended
)

// jobState is the state of a job. Its methods decide which reports of a runner are
// accepted.
type jobState struct {
	status string
	ended  string // reason for the end of the job; empty before the end
	steps  []store.Step
}

// outcome returns the status, or cancelled for a job that a user has cancelled.
func (j *jobState) outcome() string {
	if j.ended == endedByCancel {
		return cancelled
	}
	return j.status
}

// checkReport checks what every report must satisfy: the step exists, the job is claimed, and
// the service has not ended it.
func (j *jobState) checkReport(step int) error {
	switch {
	case step < 0 || step >= len(j.steps):
		return notFound("the job has steps 0 to %d", len(j.steps)-1)
	case j.ended == endedByCancel:
		return conflict("the job was cancelled")
	case j.ended == endedByNoHeartbeat:
		return conflict("the job has failed, because it sent no heartbeat for too long")
	case j.ended == endedByLease:
		return conflict("the lease of the job has expired")
	case j.ended == endedByPool && j.status == failed:
		return conflict("the pool of the job was deleted")
	case j.status == notStarted || j.status == skipped:
		return conflict("the job is not claimed")
	}
	return nil
}

// report sets the status of a step. A report of the present status is accepted, and
// changed is false. The rules:
//
//  1. A step goes from not-started to running, and from running to succeeded or failed.
//     No other change is possible.
//  2. A step runs only when all steps before it have succeeded.
//  3. The first running step makes the job running. The success of the last step makes
//     the job succeeded. Any failed step makes it failed. These two statuses are final.
func (j *jobState) report(step int, to string) (changed bool, err error) {
	switch to {
	case notStarted, running, succeeded, failed:
	default:
		return false, badRequest("status must be one of not-started, running, failed and succeeded")
	}
	if err := j.checkReport(step); err != nil {
		return false, err
	}

	// Change the status of the step (1), and with it that of the job (3).
	from := j.steps[step].Status
	switch {
	case from == to:
		return false, nil
	case j.ended != "":
		return false, conflict("the job has already ended: %s", j.status)
	case from == notStarted && to == running:
		// 2. All steps before it have succeeded.
		if step > 0 && j.steps[step-1].Status != succeeded {
			return false, conflict("step %d cannot run before step %d has succeeded", step, step-1)
		}
		j.status = running
	case from == running && to == succeeded:
		if step == len(j.steps)-1 {
			j.status, j.ended = succeeded, endedBySteps
		}
	case from == running && to == failed:
		j.status, j.ended = failed, endedBySteps
	default:
		return false, conflict("step %d is %s and cannot become %s", step, from, to)
	}
	j.steps[step].Status = to
	return true, nil
}

// batchAction is how a batch of lines is handled.
type batchAction int

const (
	appendBatch  batchAction = iota
	compareBatch             // it may be a retry of a stored batch
)

// placeBatch returns how to handle a batch. New lines are accepted while the step is
// running, without gaps. A retry of a stored batch is accepted also later. If a job was
// cancelled during the step, new lines are accepted until the job's token expires: the
// runner still has to interrupt the step, and logs how the step has ended.
func (j *jobState) placeBatch(step, offset int) (batchAction, error) {
	interrupted := j.ended == endedByCancel && step >= 0 && step < len(j.steps) && j.steps[step].Status == failed
	if err := j.checkReport(step); err != nil && !interrupted {
		return 0, err
	}
	s := j.steps[step]
	switch {
	case offset < s.Lines:
		return compareBatch, nil
	case !interrupted && (s.Status != running || j.ended != ""):
		return 0, conflict("step %d is %s: lines are accepted while it is running", step, s.Status)
	case offset > s.Lines:
		return 0, wrongOffset(s.Lines, "offset must be %d, the number of stored lines of step %d", s.Lines, step)
	}
	return appendBatch, nil
}

// stop ends a job without a report. A queued job becomes skipped. A claimed job and its
// running step become failed.
func (j *jobState) stop(by string) error {
	switch j.status {
	case notStarted:
		j.status = skipped
	case accepted, running:
		j.status = failed
	default:
		return conflict("the deployment has already ended: %s", j.status)
	}
	j.ended = by
	for i := range j.steps {
		if j.steps[i].Status == running {
			j.steps[i].Status = failed
		}
	}
	return nil
}
