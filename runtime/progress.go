package runtime

import (
	"strconv"
	"strings"
)

// MaxProgressLine is the longest line of progress in bytes, with its newline.
// The runner's lines are shorter than 180 bytes without the texts of an ended step.
// JSON may need six bytes for each byte of these texts.
const MaxProgressLine = 1 << 10

// Limits of the texts in a [Progress], in bytes.
const (
	MaxStepName      = 40
	MaxFailureReason = 100
	MaxStackName     = 60
)

// MaxLocalLine is the longest text of [LocalLine] in bytes. Container engines keep a line of 16 KiB or more in several
// parts, between which the log can have a line of [Progress], and only the first part would have the prefix.
const MaxLocalLine = 2 << 10

// LocalLine returns a line of the log of a step for the runner's standard error. It does not begin as a line of
// [Progress] does, because a Pod has one log for both streams.
func LocalLine(step int, text string) string {
	return localPrefix + strconv.Itoa(step) + localMark + strings.TrimSuffix(text, "\n") + "\n"
}

// IsLocalLine reports whether a line of the runner's standard error is from [LocalLine], and not a message of the
// runner itself.
func IsLocalLine(line string) bool {
	number, _, found := strings.Cut(strings.TrimPrefix(line, localPrefix), localMark)
	_, err := strconv.Atoi(number)
	return found && err == nil && strings.HasPrefix(line, localPrefix)
}

const (
	localPrefix = "step "
	localMark   = " | "
)

// Progress is one line of a runner's standard output, as JSON: what the service has
// accepted so far. If the instance ends before the runner has reported the outcome, the
// agent reports the outcome, and continues at this step and line. Progress has no other use,
// except in the agent's log and traces.
type Progress struct {
	Step   int    `json:"step"`
	Lines  int    `json:"lines"`            // of that step, accepted by the service
	Status Status `json:"status,omitempty"` // accepted by the service; empty if only lines were accepted

	// Sent is only in a [Record]: the number of further lines that the agent has sent and
	// that the service has not accepted yet.
	Sent int `json:"-"`

	// Stopped reports that the runner got a signal and has ended the step for this reason. With the status running,
	// it waits a moment before it reports the step as failed: the agent may add the reason.
	Stopped bool `json:"stopped,omitempty"`

	// These describe a step that has ended, for the agent's log and traces.
	StepName string `json:"stepName,omitempty"` // from the job's definition
	Reason   string `json:"reason,omitempty"`   // why the step failed

	// These describe the end of pulumi in a step that was stopped, for the agent's log: a
	// service that has cancelled the job may refuse its last lines.
	Pulumi Pulumi `json:"pulumi,omitempty"`
	Stack  string `json:"stack,omitempty"` // empty if unknown or too long
}

// After reports whether a runner reports p later than last.
func (p Progress) After(last Progress) bool {
	switch {
	case p.Step != last.Step:
		return p.Step > last.Step
	case last.Status.Final():
		return false
	}
	return p.Status.Final() || p.Lines >= last.Lines
}
