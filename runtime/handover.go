package runtime

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// HandoverVersion numbers the private language between agent and runner: the
// handover on the runner's standard input, and the progress on its standard
// output. Both ends are of one release, as upstream demands of its own
// (Pulumi documentation, "Customer-managed runners").
const HandoverVersion = 1

// maxHandover limits a handover in bytes: definitions carry whole scripts, and
// no honest one comes near.
const maxHandover = 64 << 20

// Handover is everything that a runner needs for one job. It travels on
// standard input, so that no token stands on a command line, in an environment
// or in a file.
type Handover struct {
	Version    int               `json:"version"`
	Service    string            `json:"service"`             // base URL without a trailing slash
	JobID      string            `json:"jobID"`               //
	Token      string            `json:"token"`               // the job's token
	OIDC       string            `json:"oidc,omitempty"`      // for cloud providers; may be empty
	Root       string            `json:"root"`                // what stands for "/" in the job's world: PULUMI_ENV, the default directory
	SetupLines int               `json:"setupLines"`          // lines of step 0 that the service has already
	Pending    []Line            `json:"pending,omitempty"`   // lines of step 0 behind these, which the service has not accepted
	Resend     int               `json:"resend,omitempty"`    // the first so many of Pending were sent as one batch: the service may have them
	Forward    map[string]string `json:"forward,omitempty"`   // the agent's own variables that go along
	Redact     []string          `json:"redact,omitempty"`    // further texts that must not be shown
	UserAgent  string            `json:"userAgent,omitempty"` //
	CA         string            `json:"ca,omitempty"`        // certificates in PEM form to trust beside the system's
	Grace      Seconds           `json:"grace,omitempty"`     // between TERM and KILL of a step; 0 is the runner's default
	Definition json.RawMessage   `json:"definition"`          // as the service sent it
}

// Format writes the job's id and nothing else, whatever the verb: the tokens
// stand in the open here, for the wire.
func (h Handover) Format(f fmt.State, _ rune) { fmt.Fprintf(f, "handover of job %s", h.JobID) }

// Seconds is a duration that stands in JSON as a number of seconds.
type Seconds float64

// Duration converts.
func (s Seconds) Duration() time.Duration { return time.Duration(float64(s) * float64(time.Second)) }

// ReadHandover reads one handover up to the end of r. Its errors never show
// what was read.
func ReadHandover(r io.Reader) (*Handover, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxHandover+1))
	if err != nil {
		return nil, fmt.Errorf("read the handover: %w", err)
	}
	var h Handover
	switch {
	case len(text) == 0:
		return nil, errors.New("no handover on standard input: this program is started by the agent, not by hand")
	case len(text) > maxHandover:
		return nil, fmt.Errorf("the handover is larger than %d MiB", maxHandover>>20)
	case json.Unmarshal(text, &h) != nil:
		return nil, errors.New("the handover is not in the form that the agent writes")
	case h.Version != HandoverVersion:
		return nil, fmt.Errorf("the handover is of version %d and this runner speaks %d: install agent and runner from one release", h.Version, HandoverVersion)
	}
	return &h, nil
}

// Progress is one line of a runner's standard output, as JSON: what the service
// has accepted so far. It is the agent's knowledge of where a job was when its
// environment dies without a word, and nothing else depends on it.
type Progress struct {
	Step   int    `json:"step"`
	Lines  int    `json:"lines"`            // of that step, accepted by the service
	Status Status `json:"status,omitempty"` // accepted by the service; empty when only lines were
}
