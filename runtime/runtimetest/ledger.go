package runtimetest

import (
	"net/http"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/cmwa-project/cmwa/cloud"
	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// Record contains the reports of one job at a [Service].
type Record struct {
	Steps      []StepRecord
	Heartbeats int
}

// StepRecord contains the reports of one step.
type StepRecord struct {
	Status runtime.Status
	Lines  []cloud.LogLine
}

// Text returns the log of a step as one text, empty for a step that does not exist.
func (r Record) Text(step int) string {
	if step >= len(r.Steps) {
		return ""
	}
	var text strings.Builder
	for _, line := range r.Steps[step].Lines {
		text.WriteString(line.Text)
	}
	return text.String()
}

// Statuses returns the state of each step in order.
func (r Record) Statuses() []runtime.Status {
	var states []runtime.Status
	for _, step := range r.Steps {
		states = append(states, step.Status)
	}
	return states
}

// ledger is the record of one job, which accepts only valid reports.
type ledger struct {
	token      secret.String
	steps      []StepRecord
	heartbeats int
}

func newLedger(job *runtime.Job) *ledger {
	l := &ledger{token: job.Token, steps: make([]StepRecord, job.Definition.Steps)}
	for i := range l.steps {
		l.steps[i].Status = runtime.NotStarted
	}
	return l
}

func (l *ledger) snapshot() Record {
	record := Record{Heartbeats: l.heartbeats}
	for _, step := range l.steps {
		record.Steps = append(record.Steps, StepRecord{Status: step.Status, Lines: slices.Clone(step.Lines)})
	}
	return record
}

// status sets the status of a step. It accepts the same status again. A step can start only
// when all earlier steps have succeeded, and it can end only once.
func (l *ledger) status(step int, to runtime.Status) *refusal {
	if step < 0 || step >= len(l.steps) {
		return &refusal{http.StatusNotFound, "there is no such step"}
	}
	from := l.steps[step].Status
	switch {
	case from == to:
		return nil
	case from == runtime.NotStarted && to == runtime.Running:
		for _, earlier := range l.steps[:step] {
			if earlier.Status != runtime.Succeeded {
				return badRequest("step %d cannot run before all earlier steps have succeeded", step)
			}
		}
	case from == runtime.Running && (to == runtime.Succeeded || to == runtime.Failed):
	default:
		return badRequest("step %d cannot go from %q to %q", step, from, to)
	}
	l.steps[step].Status = to
	return nil
}

// log adds lines to the log of a running step. Lines that the log already has may be sent
// again, but must be unchanged. No line may be missing before the new ones.
func (l *ledger) log(step int, batch cloud.LogBatch) *refusal {
	if step < 0 || step >= len(l.steps) {
		return &refusal{http.StatusNotFound, "there is no such step"}
	}
	lines := l.steps[step].Lines
	if batch.Offset < 0 || batch.Offset > len(lines) {
		return badRequest("the batch starts at line %d of step %d, which has %d", batch.Offset, step, len(lines))
	}

	for i, line := range batch.Lines {
		switch at := batch.Offset + i; {
		case at < len(lines):
			if lines[at].Text != line.Text || !lines[at].Time.Equal(line.Time) {
				return badRequest("line %d of step %d is sent a second time, and differs", at, step)
			}
		case l.steps[step].Status != runtime.Running:
			return badRequest("step %d is %s and takes no more lines", step, l.steps[step].Status)
		case line.Time.IsZero():
			return badRequest("line %d of step %d has no time", at, step)
		case !utf8.ValidString(line.Text) || strings.Contains(strings.TrimSuffix(line.Text, "\n"), "\n"):
			return badRequest("line %d of step %d is not one line of UTF-8", at, step)
		default:
			lines = append(lines, line)
		}
	}
	l.steps[step].Lines = lines
	return nil
}
