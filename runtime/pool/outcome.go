package pool

import (
	"context"
	"errors"

	"github.com/cmwa-project/cmwa/runtime"
)

// startOutcome returns the outcome of a job that could not be started.
func startOutcome(ctx context.Context, err error) runtime.Outcome {
	switch {
	case errors.Is(err, runtime.ErrGone), errors.Is(err, errJobGone):
		return runtime.OutcomeLost
	case ctx.Err() != nil, errors.Is(err, runtime.ErrCancelled):
		return runtime.OutcomeCancelled
	}
	return runtime.OutcomeFailed
}

// outcome returns the outcome of a job whose instance has ended.
//
//  1. The job succeeded if the runner's exit code means success, or if the service has
//     accepted the success of the last step.
//  2. A job that was stopped and has not succeeded was cancelled, unless it exceeded its time
//     limit, its runner did not exit, or a step had failed before. It is lost if the service no
//     longer has the job.
//  3. Otherwise the job failed. The outcome is lost if it is not known how the instance
//     ended, or if the job was adopted without a token and the agent cannot report it.
func (r *jobRun) outcome(ctx context.Context, end instanceEnd) runtime.Outcome {
	// 1. Check whether the job succeeded.
	cause, last := context.Cause(ctx), r.lastProgress()
	steps := r.job.Definition.Steps
	switch {
	case end.err == nil && (end.exit.Code == runtime.CodeSucceeded || end.exit.Code == runtime.CodeSucceededUnreported),
		last.Status == runtime.Succeeded && steps > 0 && last.Step == steps-1:
		return runtime.OutcomeSucceeded
	}

	// 2. Find out whether the job was stopped.
	switch {
	case r.failedBefore():
		return runtime.OutcomeFailed
	case errors.Is(cause, errJobGone):
		return runtime.OutcomeLost
	case cause != nil && !errors.Is(cause, errTimeLimit) && !errors.Is(cause, errRunnerHung),
		end.err == nil && end.exit.Code == runtime.CodeGone:
		return runtime.OutcomeCancelled
	}

	// 3. Distinguish a failure from an unknown end.
	switch {
	case last.Status == runtime.Failed, end.err == nil && runtime.IsRunnerCode(end.exit.Code):
		return runtime.OutcomeFailed
	case end.err != nil, r.job.Token.Empty():
		return runtime.OutcomeLost
	}
	return runtime.OutcomeFailed
}

// failedBefore reports whether a step has failed, and not because this agent stopped the job. The agent may stop such a
// job all the same: the service gives the same status to a failed and to a cancelled job, and perhaps before the
// runner's progress arrives.
func (r *jobRun) failedBefore() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last.Status == runtime.Failed && (!r.last.Stopped || r.ending.external)
}
