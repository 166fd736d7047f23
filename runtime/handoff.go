package runtime

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// HandoffVersion is the version of the protocol between agent and runner: the handoff on
// the runner's standard input, and the progress on its standard output. Agent and runner
// must be of the same release, as Pulumi's agent also requires (Pulumi documentation,
// "Customer-managed runners").
const HandoffVersion = 1

// RunnerMark is a text that is in the file of each runner with this HandoffVersion. An agent reads it
// to find out before a claim whether the runner is of its release.
const RunnerMark = "this is a runner of cmwa for handoffs of version 1"

// maxHandoff is the largest handoff in bytes: a definition has at most 8 MiB, and the other
// fields together less than 8 MiB.
const maxHandoff = 16 << 20

// Handoff is the data that a runner needs for one job. It is sent on standard input, so
// that no token is in a command line, in an environment variable or in a file.
type Handoff struct {
	Version   int    `json:"version"`
	Service   string `json:"service"` // base URL without a trailing slash
	JobID     string `json:"jobID"`
	Token     string `json:"token"`               // the job's token
	OIDC      string `json:"oidc,omitempty"`      // for cloud providers; may be empty
	Root      string `json:"root"`                // the "/" of the job, with its default directory and PULUMI_ENV
	Directory string `json:"directory,omitempty"` // in which steps start; empty is Root

	// The log of step 0: the number of lines that the service has accepted, the next
	// lines, and how many of these were sent in one report whose response was lost.
	SetupLines int    `json:"setupLines"`
	Pending    []Line `json:"pending,omitempty"`
	Resend     int    `json:"resend,omitempty"`

	Forward   map[string]string `json:"forward,omitempty"` // the agent's own variables for the job
	Redact    []string          `json:"redact,omitempty"`  // further secrets
	UserAgent string            `json:"userAgent,omitempty"`

	TraceParent string `json:"traceParent,omitempty"` // TRACEPARENT of the steps: see [Tracer]
	LocalLog    bool   `json:"localLog,omitempty"`    // write the output of steps to standard error too

	CA         string          `json:"ca,omitempty"`         // PEM certificates to trust in addition to the system's
	Yield      Seconds         `json:"yield,omitempty"`      // wait for the agent's reason after a SIGTERM
	Grace      Seconds         `json:"grace,omitempty"`      // between SIGTERM and SIGKILL of a step; 0: the default
	Definition json.RawMessage `json:"definition,omitempty"` // as the service sent it

	// CancelGrace is the time between SIGINT and SIGTERM of a step. If the agent itself
	// interrupts the job, the agent decides when this time ends; see package runner. With 0
	// a step gets no SIGINT.
	CancelGrace Seconds `json:"cancelGrace,omitempty"`
}

// Format writes only the job's id, for every verb, because the fields contain tokens in
// clear text.
func (h Handoff) Format(f fmt.State, _ rune) { fmt.Fprintf(f, "handoff of job %s", h.JobID) }

// encode returns the handoff as JSON. It copies the definition, which is JSON already, only once
// and without a change. json.Marshal would make it up to six times as long: for example, it writes
// "<" as "\u003c".
func (h Handoff) encode() ([]byte, error) {
	definition := h.Definition
	h.Definition = nil
	text, err := json.Marshal(h)
	if err != nil || len(definition) == 0 {
		return text, err
	}
	const field = `,"definition":`
	all := make([]byte, 0, len(text)+len(field)+len(definition))
	all = append(all, text[:len(text)-1]...)
	all = append(all, field...)
	all = append(all, definition...)
	return append(all, '}'), nil
}

// Seconds is a duration that JSON represents as a number of seconds.
type Seconds float64

// Duration returns the duration.
func (s Seconds) Duration() time.Duration { return time.Duration(float64(s) * float64(time.Second)) }

// ReadHandoff reads one handoff up to the end of r. Its errors never contain the input.
func ReadHandoff(r io.Reader) (*Handoff, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxHandoff+1))
	if err != nil {
		return nil, fmt.Errorf("read the handoff: %w", err)
	}
	var h Handoff
	switch {
	case len(text) == 0:
		return nil, errors.New("no handoff on standard input: only the agent starts this program")
	case len(text) > maxHandoff:
		return nil, fmt.Errorf("the handoff is larger than %d MiB", maxHandoff>>20)
	case json.Unmarshal(text, &h) != nil:
		return nil, errors.New("the handoff is not in the form that the agent writes")
	case h.Version != HandoffVersion:
		return nil, fmt.Errorf("the handoff has version %d, and "+RunnerMark+": "+
			"install agent and runner from the same release", h.Version)
	}
	return &h, nil
}
