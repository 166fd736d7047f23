package runtime

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/cmwa-project/cmwa/schema/secret"
)

// Limits of a job's start.
const (
	beatInterval    = 30 * time.Second // between two heartbeats that the agent sends
	definitionLimit = 30 * time.Minute // for the definition, even while heartbeats are accepted
	recheckAfter    = time.Minute      // of preparation, after which the job may have been cancelled

	// silenceLimit is the time without an accepted heartbeat after which a start is
	// given up: a start must end before the service declares the job failed.
	silenceLimit = HeartbeatLimit - time.Minute
)

// errSilent ends a start of which the service has accepted no heartbeat.
var errSilent = fmt.Errorf("the service has accepted no heartbeat of the job for %s, "+
	"so it may have declared the job failed", silenceLimit)

// errNoDefinition ends a start whose definition cannot be fetched.
var errNoDefinition = fmt.Errorf("the service has not answered with a definition for %s", definitionLimit)

// start fetches the definition and makes the instance. It returns the instance's
// id, or the reason why the job has ended.
//
//  1. The agent sends heartbeats until the runner does. The whole start must end
//     before the service gives the job up.
//  2. The definition is fetched; without one, step 0 is reported as failed.
//  3. The executor makes the instance, and reports the set-up as it goes.
func (l *life) start(ctx context.Context, children *sync.WaitGroup) (id string, err error) {
	l.enter(Starting)
	job, cloud := l.job, l.pool.parts.Cloud

	// 1. Send heartbeats, and stop when none has been accepted for too long.
	limited, accepted, release := untilSilent(ctx)
	defer release()
	children.Go(func() { l.beat(limited, accepted) })

	// 2. Fetch the definition. A refusal ends the job here, and not at the service.
	setup := NewSetup(job, cloud, l.handover())
	fetching, cancel := context.WithTimeoutCause(limited, definitionLimit, errNoDefinition)
	definition, err := cloud.Definition(fetching, job)
	cancel()
	if err != nil {
		return "", l.fail(ctx, setup, fmt.Errorf("fetch the job's definition: %w", err))
	}
	job.Definition = definition
	setup.offer = l.handover()

	// 3. Make the instance.
	id, err = l.pool.parts.Executor.Start(limited, job, setup)
	if err != nil {
		return "", l.fail(ctx, setup, err)
	}
	l.saw(Progress{Step: 0, Lines: setup.told, Status: Running}, false)
	l.log.Info("job started", "environment", id)
	return id, nil
}

// untilSilent returns a context that ends when accepted has not been called for
// silenceLimit. The caller calls release.
func untilSilent(ctx context.Context) (limited context.Context, accepted, release func()) {
	limited, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(silenceLimit, func() { cancel(errSilent) })
	return limited, func() { timer.Reset(silenceLimit) }, func() {
		timer.Stop()
		cancel(nil)
	}
}

// fail reports step 0 of a job that could not be started as failed, unless the
// service itself has ended the job, and returns the reason.
func (l *life) fail(ctx context.Context, setup *Setup, reason error) error {
	if cause := context.Cause(ctx); cause != nil {
		reason = cause
	}
	l.log.Warn("job failed before its first step", "error", reason)
	fetched := len(l.job.Definition.Raw) > 0
	if errors.Is(reason, errCancelled) || errors.Is(reason, ErrGone) && fetched {
		return reason
	}
	final, cancel := context.WithTimeout(l.pool.final, farewellLimit)
	defer cancel()
	if err := setup.Fail(final, reason); err != nil {
		l.log.Error("cannot report a failed job; "+DeclaredFailed, "error", err)
	}
	return reason
}

// handover returns what the runner needs. The set-up adds its own part.
func (l *life) handover() Handover {
	job := l.job
	h := Handover{
		Version:    HandoverVersion,
		Service:    job.Service,
		JobID:      job.ID,
		Token:      job.Token.Reveal(),
		OIDC:       job.OIDC.Reveal(),
		UserAgent:  l.pool.parts.UserAgent,
		CA:         job.Tuning.CA,
		Grace:      Seconds((StopGrace - 5*time.Second).Seconds()), // inside the agent's own
		Forward:    map[string]string{},
		Definition: job.Definition.Raw,
	}
	if _, ok := l.pool.parts.Executor.(Explainer); ok {
		h.Yield = Seconds(yieldLimit.Seconds())
	}
	for _, name := range append([]string{"DOCKER_HOST"}, job.Tuning.Place.Forward...) {
		if value, ok := l.pool.parts.Environ(name); ok {
			h.Forward[name] = value
		}
	}
	if password := job.Definition.Image.Password; !password.Empty() {
		h.Redact = append(h.Redact, password.Reveal())
	}
	return h
}

// beat sends a heartbeat every beatInterval until ctx ends, also after failures: an
// image can take longer to pull than [HeartbeatLimit]. Each is limited to the interval,
// as request_timeout may be longer.
func (l *life) beat(ctx context.Context, accepted func()) {
	ticker := time.NewTicker(beatInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			once, cancel := context.WithTimeout(ctx, beatInterval)
			err := l.pool.parts.Cloud.Report(once, l.job, Report{})
			cancel()
			if err != nil {
				l.log.Debug("heartbeat failed", "error", err)
			} else {
				accepted()
			}
		}
	}
}

// maxSetupLine limits a line of the set-up's log, in bytes.
const maxSetupLine = 4 << 10

// Setup is step 0 of a job, while the agent still has the word: the lines that
// an executor says while it makes the environment, and the handover that ends
// the agent's turn. From the handover on, the runner goes on where the agent
// stopped, and reports the step's end itself, because only then it is proved
// that the environment works.
//
// A Setup belongs to one job and to the goroutine that starts it.
type Setup struct {
	job    *Job
	cloud  Cloud
	offer  Handover
	lines  []Line // said, not yet accepted
	told   int    // accepted by the service
	sent   int    // the first so many of lines were sent without an answer; the service may have them
	opened bool   // the service knows that the step runs
	handed bool   // the handover is made: the runner reports from there on

	began time.Time
}

// NewSetup makes the set-up of a job, with the handover it will end in but for
// what the set-up itself knows.
func NewSetup(job *Job, cloud Cloud, offer Handover) *Setup {
	return &Setup{job: job, cloud: cloud, offer: offer, began: time.Now()}
}

// Say adds a line to the log of step 0, or several. It does not block and cannot
// fail; [Setup.Flush] sends. What engines and registries say may be huge or hold
// what must not be shown, so lines are cut and the job's secrets marked.
func (s *Setup) Say(format string, args ...any) {
	text := strings.ToValidUTF8(fmt.Sprintf(format, args...), "\uFFFD")
	for _, hidden := range append([]string{s.offer.Token, s.offer.OIDC}, s.offer.Redact...) {
		if hidden != "" {
			text = strings.ReplaceAll(text, hidden, secret.Mark)
		}
	}
	for line := range strings.SplitSeq(strings.TrimRight(text, "\n"), "\n") {
		if len(line) > maxSetupLine {
			line = strings.ToValidUTF8(line[:maxSetupLine], "") + " …"
		}
		s.lines = append(s.lines, Line{Time: time.Now(), Text: line + "\n"})
	}
}

// Flush sends what was said. Lines that could not be sent are kept for the next
// time. After [Setup.Handover] it sends nothing, because the runner continues the
// log at the offset that the handover names; only [Setup.Fail] sends such lines.
func (s *Setup) Flush(ctx context.Context) error {
	if s.handed {
		return nil
	}
	for !s.opened || len(s.lines) > 0 {
		err := s.report(ctx)
		switch {
		case errors.Is(err, ErrUntold):
			return nil // log trouble never fails a job
		case err != nil:
			return fmt.Errorf("report the set-up: %w", err)
		}
	}
	return nil
}

// report makes one report of the lines that were said; the first one also reports
// the step as running. Lines whose answer was lost are sent again first, and without
// newer ones: a service that has them refuses other lines at their offset.
func (s *Setup) report(ctx context.Context) error {
	lines, status := s.lines, Status("")
	if s.resends() {
		lines = lines[:s.sent]
	}
	if !s.opened {
		status = Running
	}
	s.sent = len(lines)
	err := s.cloud.Report(ctx, s.job, Report{Step: 0, Offset: s.told, Lines: lines, Status: status})
	if err != nil {
		s.opened = s.opened || errors.Is(err, ErrUntold)
		return err
	}
	s.opened, s.sent = true, 0
	s.told += len(lines)
	s.lines = s.lines[len(lines):]
	return nil
}

// resends reports whether the next report must repeat an earlier one.
func (s *Setup) resends() bool { return s.sent > 0 && s.sent < len(s.lines) }

// StartIn sets the folder in which steps start. Without it they start in the root of
// the job's world.
func (s *Setup) StartIn(directory string) { s.offer.Directory = directory }

// Size returns the length of the handover in bytes as it is now. Lines that the
// service does not accept in time make it longer.
func (s *Setup) Size() int {
	text, err := json.Marshal(s.offer)
	if err != nil {
		return 0 // Handover returns the error
	}
	return len(text)
}

// Handover sends what was said and returns the bytes for the runner's standard
// input. An executor calls it once, at the last moment before the runner
// starts. Root is what stands for "/" in the job's world. After a long preparation
// it asks the service whether the job is still wanted, and returns an error if it
// is not.
func (s *Setup) Handover(ctx context.Context, root string) ([]byte, error) {
	if err := s.Flush(ctx); err != nil {
		return nil, err
	}
	if time.Since(s.began) > recheckAfter {
		verdict, err := s.cloud.Wanted(ctx, s.job)
		if err == nil && (verdict == Ended || verdict == Finishing || verdict == Gone) {
			return nil, fmt.Errorf("the job was not started: %w", errCancelled)
		}
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	s.offer.Root = root
	s.offer.SetupLines, s.offer.Pending, s.offer.Resend = s.told, s.lines, s.sent
	text, err := json.Marshal(s.offer)
	if err != nil {
		return nil, fmt.Errorf("write the handover: %w", err)
	}
	s.handed = true
	return text, nil
}

// Fail ends step 0 as failed, with the reason as its last line.
func (s *Setup) Fail(ctx context.Context, reason error) error {
	s.Say("Error: %v", reason)
	for !s.opened || s.resends() {
		if err := s.report(ctx); errors.Is(err, ErrUntold) {
			break // the status matters more
		} else if err != nil {
			return fmt.Errorf("report the failed set-up: %w", err)
		}
	}
	err := s.cloud.Report(ctx, s.job, Report{Step: 0, Offset: s.told, Lines: s.lines, Status: Failed})
	if err != nil {
		return fmt.Errorf("report the failed set-up: %w", err)
	}
	return nil
}

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
	Directory  string            `json:"directory,omitempty"` // where steps start; empty is Root
	SetupLines int               `json:"setupLines"`          // lines of step 0 that the service has already
	Pending    []Line            `json:"pending,omitempty"`   // lines of step 0 behind these, which the service has not accepted
	Resend     int               `json:"resend,omitempty"`    // the first so many of Pending were sent as one batch: the service may have them
	Forward    map[string]string `json:"forward,omitempty"`   // the agent's own variables that go along
	Redact     []string          `json:"redact,omitempty"`    // further texts that must not be shown
	UserAgent  string            `json:"userAgent,omitempty"` //
	CA         string            `json:"ca,omitempty"`        // certificates in PEM form to trust beside the system's
	Yield      Seconds           `json:"yield,omitempty"`     // for which a runner that is asked to end lets the agent add why
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
