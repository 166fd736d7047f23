package pool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
)

// reportEnd logs how the job ended. If the runner did not report the outcome to the
// service, reportEnd does. The result is whether the service needs no further report.
func (r *jobRun) reportEnd(ctx context.Context, exit runtime.Exit, err error) (settled bool) {
	if err != nil {
		exit.Code = runtime.CodeUnknown
	}

	// Log an outcome that the service knows, or that this agent cannot report.
	r.logPulumi(exit)
	duration := slog.Duration("duration", time.Since(r.since).Round(time.Millisecond))
	switch {
	case exit.Code == runtime.CodeSucceeded:
		r.log().Info("job succeeded", duration)
		return true
	case exit.Code == runtime.CodeFailed, r.failedBefore() && errors.Is(context.Cause(ctx), runtime.ErrCancelled):
		r.log().Warn("job failed", append(r.failure(exit), duration)...)
		return true
	case errors.As(context.Cause(ctx), new(leaseError)):
		r.log().Warn("job stopped; the agent reports nothing more about it",
			slog.Any("reason", context.Cause(ctx)), duration)
		return true
	case exit.Code == runtime.CodeGone, errors.Is(context.Cause(ctx), runtime.ErrCancelled):
		r.log().Info("job cancelled by the service", duration)
		return true
	case r.job.Token.Empty():
		r.log().Warn("adopted job ended and its runner did not report how; "+runtime.DeclaredFailed, duration)
		return true
	}

	// Report nothing if an earlier run of the agent has reported the outcome.
	reason := describeExit(exit, err)
	r.log().Warn("runner did not report how the job ended", slog.String("reason", reason), duration)
	if r.recovery != nil && r.isOver(ctx) {
		r.log().Info(isOverMessage)
		return true
	}

	// Report the outcome in place of the runner. The runner's line count does not include
	// the lines that the agent has added.
	last := r.lastProgress()
	last.Lines += r.ending.agentLogLines
	finalCtx, cancel := context.WithTimeout(r.reporting, finalReportLimit)
	defer cancel()
	defer r.measure(runtime.StageReport)()
	failure := r.fetchDefinition(finalCtx)
	if failure == nil {
		steps := r.job.Definition.Steps
		reports := finalReports(last, steps, reason)
		if exit.Code == runtime.CodeSucceededUnreported {
			reports = []runtime.Report{{Step: steps - 1, Status: runtime.Succeeded}}
		}
		failure = r.sendReports(finalCtx, reports)
	}
	if failure != nil {
		r.log().Error("cannot report job outcome; "+runtime.DeclaredFailed, "error", failure)
	}
	return failure == nil || isRefusal(failure)
}

// failure returns the log attributes of the step that failed.
func (r *jobRun) failure(exit runtime.Exit) []any {
	last, known := r.lastProgress(), r.knownEnding()
	if r.failedBefore() {
		known.stopReason = ""
		if exit.Code != runtime.CodeFailed { // the runner was killed after the failure
			exit.Reason = ""
		}
	}
	attrs := []any{slog.Int("step", last.Step)}
	if last.StepName != "" {
		attrs = append(attrs, slog.String("step_name", last.StepName))
	}
	if reason := cmp.Or(known.endReason, known.stopReason, exit.Reason, last.Reason); reason != "" {
		attrs = append(attrs, slog.String("reason", reason))
	}
	return attrs
}

const noOutcome = "the instance of this job ended before the runner reported an outcome"

// describeExit returns one line about the end of a job that its runner did not report.
func describeExit(exit runtime.Exit, err error) string {
	switch {
	case errors.Is(err, runtime.ErrNoInstance):
		return "the instance of this job was removed, and not by the agent"
	case err != nil:
		return fmt.Sprintf("the instance of this job was lost: %v", err)
	case exit.Code == runtime.CodeFailedUnreported && exit.Reason != "":
		return "the job failed, and the runner could not report it to the service: " + exit.Reason
	case exit.Code == runtime.CodeFailedUnreported:
		return "the job failed, and the runner could not report it to the service"
	case exit.Code == runtime.CodeSucceededUnreported:
		return "the job succeeded, and the runner could not report it to the service"
	case exit.Code == runtime.CodeUsage && exit.Reason != "":
		return "the runner did not start (agent and runner must be of the same release): " + exit.Reason
	case exit.Code == runtime.CodeUsage:
		return "the runner did not start: install agent and runner from the same release"
	case exit.Reason != "":
		return fmt.Sprintf("%s: %s (exit code %d)", noOutcome, exit.Reason, exit.Code)
	default:
		return fmt.Sprintf("%s (exit code %d)", noOutcome, exit.Code)
	}
}

// finalReports returns the reports that end a job whose runner ended without a report of the
// outcome. Last is the last progress that the runner has reported. If its step has succeeded,
// the next step counts as failed; otherwise its step does. finalReports returns no report if
// the runner has already reported the end of the job.
func finalReports(last runtime.Progress, steps int, reason string) []runtime.Report {
	line := []runtime.Line{{Time: time.Now(), Text: "Error: " + reason + "\n"}}
	switch {
	case last.Status == runtime.Failed:
		return nil
	case last.Status != runtime.Succeeded:
		return []runtime.Report{{Step: last.Step, Offset: last.Lines, Lines: line, Status: runtime.Failed}}
	case last.Step+1 >= steps:
		return nil // the last step has succeeded, so the job has
	default:
		return []runtime.Report{
			{Step: last.Step + 1, Status: runtime.Running},
			{Step: last.Step + 1, Lines: line, Status: runtime.Failed},
		}
	}
}

// addEndReason adds a line to the log of a step that was stopped: why this agent stops the
// job, or the engine's reason for a SIGTERM that this agent did not send. The runner does not
// know the reason. The runner has sent its last line, and reports the failure itself after
// [runtime.Handoff.Yield] or at the agent's next signal. So the failure is reported exactly once,
// even if no agent runs.
func (r *jobRun) addEndReason(ctx context.Context) {
	// Get the reason from this agent or from the engine.
	defer close(r.stepEnded)
	ctx, cancel := context.WithTimeout(ctx, reasonLimit)
	defer cancel()
	r.mu.Lock()
	reason := r.ending.stopReason
	r.ending.external = reason == "" && !r.inherited
	r.mu.Unlock()
	explainer, ok := r.pool.parts.Executor.(runtime.Explainer)
	if ok && reason == "" && r.state().Phase == runtime.Started {
		reason = explainer.EndReason(ctx, r.id)
	}
	if reason == "" {
		return
	}
	r.mu.Lock()
	r.ending.endReason = reason
	r.mu.Unlock()
	if r.job.Token.Empty() || r.lease.leaser != nil { // the lease may be lost
		return
	}

	// Add it to the log of the step.
	last := r.lastProgress()
	line := runtime.Line{Time: time.Now(), Text: "Reason: " + reason + "\n"}
	report := runtime.Report{Step: last.Step, Offset: last.Lines, Lines: []runtime.Line{line}}
	err := r.pool.parts.Cloud.Report(ctx, r.job, report)
	if offset := new(runtime.OffsetError); errors.As(err, &offset) {
		report.Offset = offset.Next
		err = r.pool.parts.Cloud.Report(ctx, r.job, report)
	}
	switch {
	case err == nil:
		r.mu.Lock()
		defer r.mu.Unlock()
		r.ending.agentLogLines = 1
	case !errors.Is(err, runtime.ErrGone):
		r.log().Warn("cannot add the end reason to the job's log", "reason", reason, "error", err)
	}
}

// knownEnding returns what is known so far about why the job ends.
func (r *jobRun) knownEnding() ending {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ending
}

// setPulumi records how pulumi ended, and its stack. The runner's texts are not trusted, so
// invalid ones are ignored.
func (r *jobRun) setPulumi(end runtime.Pulumi, stack string) {
	if !runtime.ValidStack(stack) {
		stack = ""
	}
	switch end {
	case runtime.PulumiEnded, runtime.PulumiTerminated, runtime.PulumiKilled:
		r.mu.Lock()
		defer r.mu.Unlock()
		r.ending.pulumi, r.ending.stack = end, stack
	}
}

// logPulumi logs how pulumi ended in a step that was stopped. The job's log may lack this,
// because the service may have refused its last lines.
func (r *jobRun) logPulumi(exit runtime.Exit) {
	known := r.knownEnding()
	commands := runtime.PulumiCommands(known.stack)
	hint := strings.TrimSpace(commands[0]) + "; " + strings.TrimSpace(commands[1])
	switch {
	case known.pulumi == runtime.PulumiEnded:
		r.log().Info("pulumi ended by itself after the interrupt", "pulumi_stack", known.stack)
	case known.pulumi != "":
		r.log().Warn("pulumi did not end in time; its stack may be locked or have pending operations",
			"pulumi", known.pulumi, "pulumi_stack", known.stack, "hint", hint)
	case known.stopReason != "" && !runtime.IsRunnerCode(exit.Code):
		r.log().Warn("the runner was killed; if pulumi ran, its stack may be locked or have pending operations",
			"hint", hint)
	}
}

// leaseResult returns the result of leased work that has ended. It is empty if the lease is
// lost, and if the service has cancelled the work or no longer accepts reports of it. If the
// instance is not gone, the result is empty unless it is final and the end is known: the
// service must not lease work again that may still run.
func (r *jobRun) leaseResult(ctx context.Context, gone bool) (result runtime.LeaseResult, reason string) {
	cause, job := context.Cause(ctx), r.result
	switch {
	case errors.Is(cause, runtime.ErrCancelled), job.end.exit.Code == runtime.CodeGone:
		return "", ""
	case job.outcome != runtime.OutcomeSucceeded && r.operator.Err() != nil:
		return runtime.LeaseFailed, errOperator.Error() // otherwise the service would lease the work again
	case !gone && job.end.err != nil:
		return "", ""
	case job.outcome == runtime.OutcomeSucceeded:
		return runtime.LeaseSucceeded, ""
	case errors.Is(job.startErr, runtime.ErrJobFault), job.startErr == nil && job.outcome == runtime.OutcomeFailed:
		return runtime.LeaseFailed, r.failedBecause()
	case !gone:
		return "", ""
	case cause != nil:
		return runtime.LeaseRetry, "the agent stopped the work: " + cause.Error()
	}
	return runtime.LeaseRetry, r.failedBecause()
}

// failedBecause returns a readable text about why the job has failed.
func (r *jobRun) failedBecause() string {
	last := r.lastProgress()
	switch {
	case r.result.startErr != nil:
		return "the work could not be started: " + r.result.startErr.Error()
	case last.Reason != "":
		return last.Reason
	case last.Status == runtime.Failed:
		return "a step failed"
	}
	return describeExit(r.result.end.exit, r.result.end.err)
}

// completeLease completes the lease. If that fails, the lease expires.
func (r *jobRun) completeLease(result runtime.LeaseResult, reason string) {
	ctx, cancel := context.WithTimeout(r.pool.finalCtx, completeLimit)
	defer cancel()
	if err := r.lease.leaser.Complete(ctx, r.job, result, reason); err != nil {
		r.log().Warn("cannot complete lease; it expires", "result", string(result), "error", err)
		return
	}
	r.log().Info("lease completed", "result", string(result))
}
