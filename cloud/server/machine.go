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

// job is the job of a deployment or of a lease. Its methods decide which reports of a runner are
// accepted.
type job struct{ store.Job }

// asJob returns a job of the database.
func asJob(row store.Job, found bool, err error) (*job, bool, error) { return &job{row}, found, err }

// leased reports whether the job belongs to a lease, and not to a deployment.
func (j *job) leased() bool { return j.Kind == store.LeaseJob }

// outcome returns a status, or cancelled if a user has cancelled the job.
func outcome(status, ended string) string {
	if ended == endedByCancel {
		return cancelled
	}
	return status
}

// checkReport checks what every report must satisfy: the step exists, the job is claimed, and
// the service has not ended it.
func (j *job) checkReport(step int) error {
	switch {
	case step < 0 || step >= len(j.Steps):
		return notFound("the job has steps 0 to %d", len(j.Steps)-1)
	case j.Ended == endedByCancel:
		return conflict("the job was cancelled")
	case j.Ended == endedByNoHeartbeat:
		return conflict("the job has failed, because it sent no heartbeat for too long")
	case j.Ended == endedByLease:
		return conflict("the lease of the job has expired")
	case j.Ended == endedByPool && j.Status == failed:
		return conflict("the pool of the job was deleted")
	case j.Status == notStarted || j.Status == skipped:
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
func (j *job) report(step int, to string) (changed bool, err error) {
	switch to {
	case notStarted, running, succeeded, failed:
	default:
		return false, badRequest("status must be one of not-started, running, failed and succeeded")
	}
	if err := j.checkReport(step); err != nil {
		return false, err
	}

	// Change the status of the step (1), and with it that of the job (3).
	from := j.Steps[step].Status
	switch {
	case from == to:
		return false, nil
	case j.Ended != "":
		return false, conflict("the job has already ended: %s", j.Status)
	case from == notStarted && to == running:
		// 2. All steps before it have succeeded.
		if step > 0 && j.Steps[step-1].Status != succeeded {
			return false, conflict("step %d cannot run before step %d has succeeded", step, step-1)
		}
		j.Status = running
	case from == running && to == succeeded:
		if step == len(j.Steps)-1 {
			j.Status, j.Ended = succeeded, endedBySteps
		}
	case from == running && to == failed:
		j.Status, j.Ended = failed, endedBySteps
	default:
		return false, conflict("step %d is %s and cannot become %s", step, from, to)
	}
	j.Steps[step].Status = to
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
func (j *job) placeBatch(step, offset int) (batchAction, error) {
	interrupted := j.Ended == endedByCancel && step >= 0 && step < len(j.Steps) && j.Steps[step].Status == failed
	if err := j.checkReport(step); err != nil && !interrupted {
		return 0, err
	}
	s := j.Steps[step]
	switch {
	case offset < s.Lines:
		return compareBatch, nil
	case !interrupted && (s.Status != running || j.Ended != ""):
		return 0, conflict("step %d is %s: lines are accepted while it is running", step, s.Status)
	case offset > s.Lines:
		return 0, wrongOffset(s.Lines, "offset must be %d, the number of stored lines of step %d", s.Lines, step)
	}
	return appendBatch, nil
}

// stop ends a job without a report. A queued job becomes skipped. A claimed job and its
// running step become failed.
func (j *job) stop(by string) error {
	switch j.Status {
	case notStarted:
		j.Status = skipped
	case accepted, running:
		j.Status = failed
	default:
		return conflict("the deployment has already ended: %s", j.Status)
	}
	j.Ended = by
	for i := range j.Steps {
		if j.Steps[i].Status == running {
			j.Steps[i].Status = failed
		}
	}
	return nil
}
