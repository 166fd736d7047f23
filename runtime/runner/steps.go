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
)

// setUp ends step 0, which the agent has begun. Broken is why the definition
// cannot be carried out, if it cannot.
func (j *job) setUp(life, work context.Context, broken error) error {
	pending := logLines(j.handover.Pending)
	resend := min(max(0, j.handover.Resend), len(pending))
	log := j.openLog(life, 0, j.handover.SetupLines, pending[:resend])
	log.add(pending[resend:])
	j.say(log, fmt.Sprintf("Workflow runner %s (%s/%s) starts", j.options.Version, goruntime.GOOS, goruntime.GOARCH))
	reason := broken
	if reason == nil {
		reason = j.prepare(log)
	}
	if reason == nil && j.definition.Steps[0].Run != "" {
		if len(j.definition.Steps) == 1 {
			j.say(log, "This job has one step only, so its script is run in the place of set-up")
			reason = j.script(work, 0, log)
		} else {
			j.say(log, "The script of this step is not run: the first of several steps is set-up")
		}
	}
	return j.conclude(life, work, 0, log, reason)
}

// prepare makes what all steps need.
func (j *job) prepare(log *stepLog) (err error) {
	j.env, err = newEnviron(j.options.Environ, j.handover, j.definition)
	if err != nil {
		return err
	}
	j.learn()
	if err := j.makePrivate(); err != nil {
		return err
	}
	documented := j.root
	says, err := j.settle()
	if err != nil {
		return err
	}
	j.say(log, says...)
	if says, err = j.trust(); err != nil {
		return err
	}
	j.say(log, says...)
	j.envFile, err = newEnvFile(j.env[envFileVariable], j.root, j.private)
	if err != nil {
		return err
	}
	j.env[envFileVariable] = j.envFile.path
	if j.handover.OIDC != "" {
		remove, err := writeOIDC(documented, j.handover.OIDC)
		if err != nil && documented != j.root {
			remove, err = writeOIDC(j.root, j.handover.OIDC)
		}
		if err != nil {
			j.say(log, fmt.Sprintf("Warning: %v; the token is in %s alone", err, oidcVariable))
		} else {
			j.later(remove)
		}
	}
	shell, err := findShell(j.definition.Shell, j.env["PATH"])
	if err != nil {
		return err
	}
	j.say(log, fmt.Sprintf("Steps run in %s with %s", j.directory(), shell))
	return nil
}

// step runs one step from its first word to its last.
func (j *job) step(life, work context.Context, step int) error {
	if err := j.status(life, work, step, 0, runtime.Running); err != nil {
		return err
	}
	log := j.openLog(life, step, 0, nil)
	reason := j.script(work, step, log)
	if reason == nil {
		if says := j.envFile.load(j.env); len(says) > 0 {
			j.say(log, says...)
			j.learn()
		}
	}
	return j.conclude(life, work, step, log, reason)
}

// script runs a step's script and returns why it failed.
func (j *job) script(work context.Context, step int, log *stepLog) error {
	s := j.definition.Steps[step]
	if s.Run != "" {
		j.echo(log, s.Run)
	}
	if work.Err() != nil {
		return context.Cause(work)
	}
	if s.Run == "" {
		return nil
	}
	if limit := time.Duration(s.Timeout); limit > 0 {
		limited, release := context.WithTimeoutCause(work, limit, fmt.Errorf("the step took longer than its time limit of %s and was stopped", limit))
		defer release()
		work = limited
	}
	before := j.killedForMemory()
	reason := j.execute(work, step, log)
	if killed := j.killedForMemory() - before; killed > 0 {
		j.say(log, memoryNote(killed))
	}
	return reason
}

// conclude reports how a step ended, after all else was reported of it. Its error
// is errFailed for a failed step that the service knows of, and errSucceeded for the
// success of the last step that the service does not know of.
func (j *job) conclude(life, work context.Context, step int, log *stepLog, reason error) error {
	status := runtime.Succeeded
	if reason != nil {
		status = runtime.Failed
		if !errors.Is(reason, errGone) {
			j.say(log, "Error: "+reason.Error())
		}
	}
	told := log.close()
	if errors.Is(reason, errStopped) && j.handover.Yield > 0 {
		j.yield(life, step, told)
	}
	err := context.Cause(life)
	if err == nil {
		err = j.status(life, work, step, told, status)
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

// yield waits before the failure of a step is reported, so that the agent can add to its
// log why the job ends. The wait ends with the grace period of steps, because the runner is
// killed soon after that.
func (j *job) yield(life context.Context, step, told int) {
	j.progress.tell(runtime.Progress{Step: step, Lines: told, Status: runtime.Running, Stopped: true})
	left := min(j.handover.Yield.Duration(), time.Until(j.stopped.Add(j.grace())))
	timer := time.NewTimer(max(left, 0))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-j.options.Hurry:
	case <-life.Done():
	}
}

// learn takes note of what must not be shown, after the environment changed.
func (j *job) learn() {
	j.matcher = newMatcher(patterns(secretsOf(j.handover, j.definition, j.env)))
}

// say adds lines of the runner's own to a log.
func (j *job) say(log *stepLog, texts ...string) {
	for _, text := range texts {
		log.add(j.lines(text))
	}
}

// echo shows a script as a person would have typed it.
func (j *job) echo(log *stepLog, script string) {
	log.add(j.lines("$ " + strings.TrimRight(script, "\r\n")))
}

// logLines converts lines of the agent's.
func logLines(lines []runtime.Line) []cloud.LogLine {
	var all []cloud.LogLine
	for _, line := range lines {
		all = append(all, cloud.LogLine{Time: line.Time, Text: line.Text})
	}
	return all
}

// lines makes lines of a text, with its secrets marked.
func (j *job) lines(text string) []cloud.LogLine {
	var s splitter
	return s.write(nil, []byte(j.matcher.redact(text)+"\n"), time.Now().UTC())
}
