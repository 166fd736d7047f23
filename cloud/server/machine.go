package server

// Status words of deployments, their jobs and their steps (Pulumi Cloud REST
// API documentation). Steps are never accepted or skipped.
const (
	notStarted = "not-started"
	accepted   = "accepted"
	running    = "running"
	succeeded  = "succeeded"
	failed     = "failed"
	skipped    = "skipped"
)

// What ended a job.
const (
	endedBySteps  = "steps"
	endedByCancel = "cancel"
	endedBySilent = "silence"
	endedByAge    = "age"
)

// jobState is a job in the eyes of the rules below, which are all that decides
// what a runner may say.
type jobState struct {
	status string
	ended  string // empty while it has not
	steps  []stepState
}

type stepState struct {
	status string
	lines  int // of its log
}

// mayReport is the part of the rules that every report of a runner keeps to: it
// is about a step that there is, of a job that nobody else has ended.
func (j *jobState) mayReport(step int) error {
	switch {
	case step < 0 || step >= len(j.steps):
		return notFound("the job has steps 0 to %d", len(j.steps)-1)
	case j.ended == endedByCancel:
		return conflict("the job was cancelled")
	case j.ended == endedBySilent:
		return conflict("the job has failed, because nothing was heard of it for too long")
	case j.status == notStarted || j.status == skipped:
		return conflict("the job is not claimed")
	}
	return nil
}

// report sets a step's status. Changed is false for the repetition of what is
// known, which is always fine. The rules:
//
//  1. A step goes from not-started to running, and from there to succeeded or
//     failed. There is no way back.
//  2. A step runs only when all before it have succeeded.
//  3. The first running step makes the job running, the last one's success
//     makes it succeeded, and any failure makes it failed, for good.
func (j *jobState) report(step int, to string) (changed bool, err error) {
	switch to {
	case notStarted, running, succeeded, failed:
	default:
		return false, badRequest("status must be one of not-started, running, failed and succeeded")
	}
	if err := j.mayReport(step); err != nil {
		return false, err
	}
	from := j.steps[step].status
	switch {
	case from == to:
		return false, nil
	case j.ended != "":
		return false, conflict("the job has %s already", j.status)
	case from == notStarted && to == running:
		if step > 0 && j.steps[step-1].status != succeeded {
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
	j.steps[step].status = to
	return true, nil
}

// batchPlace is what is to be done with a batch of lines.
type batchPlace int

const (
	appendBatch  batchPlace = iota
	compareBatch            // it may be one that is stored already
)

// place decides about a batch. Lines come between a step's running and its end,
// one after another without a gap; only the repetition of a stored batch may
// come later.
func (j *jobState) place(step, offset int) (batchPlace, error) {
	if err := j.mayReport(step); err != nil {
		return 0, err
	}
	s := j.steps[step]
	switch {
	case offset < s.lines:
		return compareBatch, nil
	case s.status != running || j.ended != "":
		return 0, conflict("step %d is %s: lines are taken while it is running", step, s.status)
	case offset > s.lines:
		return 0, badRequest("offset must be %d, the number of lines that step %d has already", s.lines, step)
	}
	return appendBatch, nil
}

// stop ends a job from outside: a waiting one is skipped, a claimed one has
// failed, and so has the step that was running.
func (j *jobState) stop(by string) error {
	switch j.status {
	case notStarted:
		j.status = skipped
	case accepted, running:
		j.status = failed
	default:
		return conflict("the deployment has %s already", j.status)
	}
	j.ended = by
	for i := range j.steps {
		if j.steps[i].status == running {
			j.steps[i].status = failed
		}
	}
	return nil
}
