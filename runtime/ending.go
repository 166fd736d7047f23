package runtime

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"
)

// close says how the job ended, and says it to the service too when the runner
// could not.
func (l *life) close(ctx context.Context, exit Exit, err error) {
	took := time.Since(l.since).Round(time.Millisecond)
	switch {
	case err == nil && exit.Code == CodeSucceeded:
		l.log.Info("job succeeded", "took", took)
		return
	case err == nil && exit.Code == CodeFailed && cmp.Or(l.endedBy(), exit.Reason) != "":
		l.log.Warn("job failed", "step", l.seen().Step, "reason", cmp.Or(l.endedBy(), exit.Reason), "took", took)
		return
	case err == nil && exit.Code == CodeFailed:
		l.log.Info("job failed", "step", l.seen().Step, "took", took)
		return
	case err == nil && exit.Code == CodeGone, errors.Is(context.Cause(ctx), errCancelled):
		l.log.Info("job cancelled by the service", "took", took)
		return
	case l.job.Token.Empty():
		l.log.Warn("a job of an earlier run ended without a word; "+DeclaredFailed, "took", took)
		return
	}

	// Report the outcome in the runner's place.
	reason := epitaph(exit, err)
	last := l.seen()
	last.Lines += l.added // the runner does not count it
	reports := lastWords(last, l.job.Definition.Steps, reason)
	if err == nil && exit.Code == CodeSucceededUnreported {
		reports = []Report{{Step: l.job.Definition.Steps - 1, Status: Succeeded}}
	}
	l.log.Warn("the runner could not tell how the job ended", "reason", reason, "took", took)
	final, cancel := context.WithTimeout(l.pool.final, farewellLimit)
	defer cancel()
	for _, report := range reports {
		if err := l.pool.parts.Cloud.Report(final, l.job, report); err != nil {
			l.log.Error("cannot report a job's outcome; "+DeclaredFailed, "error", err)
			return
		}
	}
}

// epitaph says in one line how a job ended whose runner said nothing.
func epitaph(exit Exit, err error) string {
	switch {
	case errors.Is(err, ErrNoEnvironment):
		return "the environment of this job was removed from outside"
	case err != nil:
		return fmt.Sprintf("the environment of this job was lost: %v", err)
	case exit.Code == CodeFailedUnreported && exit.Reason != "":
		return "the job failed, and the runner could not report it to the service: " + exit.Reason
	case exit.Code == CodeFailedUnreported:
		return "the job failed, and the runner could not report it to the service"
	case exit.Code == CodeSucceededUnreported:
		return "the job succeeded, and the runner could not report it to the service"
	case exit.Code == CodeUsage:
		return "the runner refused to start: agent and runner must be of one release"
	case exit.Reason != "":
		return fmt.Sprintf("the environment of this job ended without a word: %s (exit code %d)", exit.Reason, exit.Code)
	default:
		return fmt.Sprintf("the environment of this job ended without a word (exit code %d)", exit.Code)
	}
}

// lastWords are the reports that end a job whose runner got as far as last and
// then died: the step that ran, or the one that was next, has failed.
func lastWords(last Progress, steps int, reason string) []Report {
	line := []Line{{Time: time.Now(), Text: "Error: " + reason + "\n"}}
	switch {
	case last.Status == Failed:
		return nil
	case last.Status != Succeeded:
		return []Report{{Step: last.Step, Offset: last.Lines, Lines: line, Status: Failed}}
	case last.Step+1 >= steps:
		return nil // the last step's success is the job's
	default:
		return []Report{
			{Step: last.Step + 1, Status: Running},
			{Step: last.Step + 1, Lines: line, Status: Failed},
		}
	}
}

// addEnding adds a line to the log of a step whose runner was asked to end by others
// than this agent: why, as the engine puts it. The runner cannot know the reason. It has
// sent its last line, and reports the failure itself in a moment, so that a job is
// reported once, and also when no agent follows it.
func (l *life) addEnding(ctx context.Context) {
	explainer, ok := l.pool.parts.Executor.(Explainer)
	if !ok || l.job.Token.Empty() || l.state().Phase != Started {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, endingLimit)
	defer cancel()
	reason := explainer.Ending(ctx, l.id)
	if reason == "" || l.state().Phase != Started {
		return
	}
	last := l.seen()
	line := Line{Time: time.Now(), Text: "Reason: " + reason + "\n"}
	err := l.pool.parts.Cloud.Report(ctx, l.job, Report{Step: last.Step, Offset: last.Lines, Lines: []Line{line}})
	if err != nil {
		l.log.Warn("cannot add to the job's log why it ends", "reason", reason, "error", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.why = reason
	if err == nil {
		l.added = 1
	}
}

// endedBy returns why something else ended the job; empty if that is not known.
func (l *life) endedBy() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.why
}
