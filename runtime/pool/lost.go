package pool

import (
	"context"
	"errors"
	"fmt"

	"github.com/cmwa-project/cmwa/runtime"
)

// isOverMessage is logged for a recovered job of which the service needs no report.
const isOverMessage = "job has already ended at the service: no outcome is reported"

// isRefusal reports whether err means that the service no longer has the job for this agent.
func isRefusal(err error) bool {
	return errors.Is(err, runtime.ErrGone) || errors.Is(err, runtime.ErrUnauthorized)
}

// isReplaced reports whether another agent may adopt the job. Then this agent must not report it as failed:
// the report would end the job, which the other agent may have started again. The reason of the failure is
// only logged.
func (r *jobRun) isReplaced(reason error) bool {
	adopter, ok := r.pool.parts.Executor.(runtime.Adopter)
	if !ok {
		return false
	}
	ctx, cancel := context.WithTimeout(r.pool.finalCtx, confirmLimit)
	defer cancel()
	if !adopter.Replaced(ctx) {
		return false
	}
	r.log().Warn("job not reported failed: this agent counts as ended, so another one adopts its jobs",
		"reason", reason)
	return true
}

// settle records the result of the last report of a job.
func (r *jobRun) settle(err error) {
	r.settled = err == nil || isRefusal(err)
	if err != nil && !r.settled {
		r.log().Error("cannot report job outcome; "+runtime.DeclaredFailed, "error", err)
	} else if err != nil {
		r.log().Info("service refused the report: the job has already ended there", "error", err)
	}
}

// reportLost reports that a job has failed which may have run and has no instance.
//
//  1. If the service reports that the job is over, the service knows the outcome already. If another agent
//     may have adopted the job, that agent reports it.
//  2. After the agent ended, the runner may have reported later steps than the recorded one.
func (r *jobRun) reportLost(ctx context.Context) {
	// 1. Request the status.
	r.recovery.outcome = runtime.OutcomeLost
	if r.isOver(ctx) {
		r.noteRecovery(runtime.RecoveryRemoved)
		r.log().Info(isOverMessage)
		r.settled = true
		return
	}
	if ctx.Err() != nil || r.isReplaced(errNoTrace) {
		r.recovery.outcome = "" // the next agent decides
		return
	}

	// 2. Find the step, and report it as failed.
	finalCtx, cancel := context.WithTimeout(r.pool.finalCtx, finalReportLimit)
	defer cancel()
	r.noteRecovery(runtime.RecoveryReported)
	err := r.fetchDefinition(finalCtx)
	r.log().Warn("job reported failed", "reason", errNoTrace)
	if err == nil {
		last := r.findStep(finalCtx)
		err = r.sendReports(finalCtx, finalReports(last, r.job.Definition.Steps, errNoTrace.Error()))
	}
	r.settle(err)
}

// isOver requests the status of a recovered job, and reports whether the job is over at the
// service. It repeats a request that fails, for up to statusLimit. Without a response the job
// counts as not over. A pool that is not configured has no credentials for the request.
func (r *jobRun) isOver(ctx context.Context) bool {
	if interval, _ := r.pool.statusInterval(); interval <= 0 {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, statusLimit)
	defer cancel()
	for delay := engineBackoff.First; ; delay = engineBackoff.Next(delay) {
		limited, stop := context.WithTimeout(ctx, confirmLimit)
		status, err := r.pool.parts.Cloud.JobStatus(limited, r.job)
		stop()
		switch {
		case err == nil:
			return status == runtime.Cancelled || status == runtime.Completing || status == runtime.Gone
		case isRefusal(err):
			return false
		}
		r.log().Debug("status request failed", "error", err, "retry_in", delay)
		if !runtime.Sleep(ctx, nil, delay) {
			return false
		}
	}
}

// findStep returns the progress of the step that runs: the recorded one, or a later one that
// the service accepts as running.
func (r *jobRun) findStep(ctx context.Context) runtime.Progress {
	last := r.lastProgress()
	first := last.Step
	switch last.Status {
	case runtime.Failed:
		return last
	case runtime.Succeeded:
		first++
	}
	for step := first; step < r.job.Definition.Steps && ctx.Err() == nil; step++ {
		limited, cancel := context.WithTimeout(ctx, findStepLimit)
		err := r.pool.parts.Cloud.Report(limited, r.job, runtime.Report{Step: step, Status: runtime.Running})
		cancel()
		switch {
		case err == nil && step == last.Step:
			return last
		case err == nil:
			return runtime.Progress{Step: step, Status: runtime.Running}
		}
	}
	return last
}

// fetchDefinition gets the number of steps and the names of a job whose definition this run does
// not have.
func (r *jobRun) fetchDefinition(ctx context.Context) error {
	if r.job.Definition.Steps > 0 {
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, confirmLimit)
	defer cancel()
	definition, err := r.pool.parts.Cloud.Definition(limited, r.job)
	if err != nil {
		return fmt.Errorf("fetch the job's definition: %w", err)
	}
	definition.Raw = nil
	r.setDefinition(definition)
	return nil
}

// sendReports sends the last reports of a job.
func (r *jobRun) sendReports(ctx context.Context, reports []runtime.Report) error {
	for _, report := range reports {
		if err := r.pool.parts.Cloud.Report(ctx, r.job, report); err != nil {
			return err
		}
	}
	return nil
}
