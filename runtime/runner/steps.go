package runner

import (
	"context"
	"errors"
	"fmt"
	goruntime "runtime"
	"strings"
	"time"

	"github.com/cmwa-project/cmwa/cloud"
	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/schema/printable"
)

// setUp completes step 0, which the agent has started. Broken is the error of an invalid
// definition.
func (j *job) setUp(logCtx, jobCtx, workCtx context.Context, broken error) error {
	var pending []cloud.LogLine
	for _, line := range j.handoff.Pending {
		pending = append(pending, cloud.LogLine(line))
	}
	resend := min(max(0, j.handoff.Resend), len(pending))
	log := j.openLog(logCtx, 0, j.handoff.SetupLines, pending[:resend])
	log.add(pending[resend:])
	j.note(log, fmt.Sprintf("Workflow runner %s (%s/%s) starts", j.options.Version, goruntime.GOOS, goruntime.GOARCH))
	reason := broken
	if reason == nil {
		reason = j.prepare(log)
	}
	if reason == nil && j.definition.Steps[0].Run != "" {
		if len(j.definition.Steps) == 1 {
			j.note(log, "This job has one step only: its script runs as part of set-up")
			reason = j.script(workCtx, 0, log)
		} else {
			j.note(log, "The script of this step is not run: the first of several steps is set-up")
		}
	}
	return j.conclude(jobCtx, workCtx, 0, log, reason)
}

// prepare prepares the environment, directories and files for all steps.
func (j *job) prepare(log *stepLog) (err error) {
	// Set the environment, and redact its secrets before anything is logged.
	j.env, err = newEnviron(j.options.Environ, j.handoff, j.definition)
	if err != nil {
		return err
	}
	j.updateMatcher()
	if err := j.makePrivateDirectory(); err != nil {
		return err
	}

	documented := j.root
	messages, err := j.prepareUser()
	if err != nil {
		return err
	}
	j.note(log, messages...)
	if messages, err = j.trustCA(); err != nil {
		return err
	}
	j.note(log, messages...)

	j.envFile, err = newEnvFile(j.env[envFileVariable], j.root, j.private)
	if err != nil {
		return err
	}
	j.env[envFileVariable] = j.envFile.path
	if j.handoff.OIDC != "" {
		remove, err := writeOIDC(documented, j.handoff.OIDC)
		if err != nil && documented != j.root {
			remove, err = writeOIDC(j.root, j.handoff.OIDC)
		}
		if err != nil {
			j.note(log, fmt.Sprintf("Warning: %v; the token is only in %s", err, oidcVariable))
		} else {
			j.addCleanup(remove)
		}
	}

	shell, err := findShell(j.definition.Shell, j.env["PATH"])
	if err != nil {
		return err
	}
	j.note(log, fmt.Sprintf("Steps run in %s with %s", j.directory(), shell))
	return nil
}

func (j *job) step(logCtx, jobCtx, workCtx context.Context, step int) error {
	if err := j.reportStatus(jobCtx, workCtx, runtime.Progress{Step: step, Status: runtime.Running}); err != nil {
		return err
	}
	log := j.openLog(logCtx, step, 0, nil)
	reason := j.script(workCtx, step, log)
	if reason == nil {
		if messages := j.envFile.load(j.env); len(messages) > 0 {
			j.note(log, messages...)
			j.updateMatcher()
		}
	}
	return j.conclude(jobCtx, workCtx, step, log, reason)
}

// script runs the script of a step and returns why it failed.
func (j *job) script(workCtx context.Context, step int, log *stepLog) error {
	s := j.definition.Steps[step]
	if s.Run != "" { // add the script to the log, as if it was typed at a prompt
		j.note(log, "$ "+strings.TrimRight(s.Run, "\r\n"))
	}
	if workCtx.Err() != nil {
		return context.Cause(workCtx)
	}
	if s.Run == "" {
		return nil
	}

	if limit := time.Duration(s.Timeout); limit > 0 {
		limited, release := j.options.timeout(workCtx, limit,
			fmt.Errorf("the step took longer than its time limit of %s and was stopped", limit))
		defer release()
		workCtx = limited
	}
	before := j.killedForMemory()
	reason := j.execute(workCtx, step, log)
	if killed := j.killedForMemory() - before; killed > 0 {
		j.note(log, memoryNote(killed))
	}
	return reason
}

// conclude reports how a step ended, after its log was sent. It returns errFailed for a
// failed step that was reported, and errSucceeded if the success of the last step could
// not be reported.
func (j *job) conclude(jobCtx, workCtx context.Context, step int, log *stepLog, reason error) error {
	now := runtime.Progress{Step: step, Status: runtime.Succeeded}
	if step < len(j.definition.Steps) { // a definition that cannot be read has no steps
		now.StepName = j.shortText(j.definition.Steps[step].Name, runtime.MaxStepName)
	}
	if reason != nil {
		now.Status, now.Stopped = runtime.Failed, errors.Is(reason, errStopped)
		now.Reason = j.shortText(reason.Error(), runtime.MaxFailureReason)
		j.note(log, "Error: "+reason.Error())
	}
	now.Lines = log.close()
	if now.Stopped {
		j.yield(jobCtx, step, now.Lines)
	}

	err := context.Cause(jobCtx)
	if err == nil {
		err = j.reportStatus(jobCtx, workCtx, now)
	}
	switch {
	case err != nil && reason == nil && step == len(j.definition.Steps)-1:
		return fmt.Errorf("%w: %w", errSucceeded, err)
	case err != nil:
		return err
	case reason != nil:
		return errFailed
	}
	return nil
}

// yield waits before the failure of a stopped step is reported, so that the agent can add
// the reason to the log of the step. The wait ends with the next signal. If the agent has
// not requested the stop, the wait also ends with the grace periods, because the runner is
// killed soon after these.
func (j *job) yield(jobCtx context.Context, step, accepted int) {
	limit := min(j.handoff.Yield.Duration(), time.Until(j.stopped.Add(j.cancelGrace()+j.grace())))
	if closed(j.options.Interrupted) {
		limit = agentYield
	}
	if limit <= 0 {
		return
	}
	j.progress.report(runtime.Progress{Step: step, Lines: accepted, Status: runtime.Running, Stopped: true})
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-j.options.Terminate:
	case <-j.options.ForceStop:
	case <-jobCtx.Done():
	}
}

// closed reports whether a channel, such as that of a request, is closed.
func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// updateMatcher updates the texts to redact after the environment has changed.
func (j *job) updateMatcher() {
	j.matcher = newMatcher(patterns(secretsOf(j.handoff, j.definition, j.env)))
}

// note redacts texts and adds their lines to a log.
func (j *job) note(log *stepLog, texts ...string) {
	for _, text := range texts {
		var s splitter
		log.add(s.write(nil, []byte(j.matcher.redact(text)+"\n"), time.Now().UTC()))
	}
}

// shortText returns a text without secrets, cut to a limit in bytes.
func (j *job) shortText(text string, limit int) string {
	return printable.Shorten(j.matcher.redact(text), limit)
}
