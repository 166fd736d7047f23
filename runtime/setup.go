package runtime

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cmwa-project/cmwa/runtime/killpoint"
	"github.com/cmwa-project/cmwa/schema/printable"
	"github.com/cmwa-project/cmwa/schema/secret"
)

const (
	maxSetupLine = 4 << 10     // length in bytes after which a line of the setup's log is cut
	recheckAfter = time.Minute // a setup that took longer checks the status of the job
)

// Setup is the agent's part of step 0 of a job: the log lines of the executor while it
// creates the instance, and the handoff. After the handoff the runner continues the log
// where the agent stopped. The runner also reports the end of the step, because only then
// the instance is known to work.
//
// A Setup belongs to one job and to the goroutine that starts it.
type Setup struct {
	job      *Job
	cloud    Cloud
	handoff  Handoff
	lines    []Line // added and not accepted by the service
	accepted int    // number of lines that the service has accepted
	sent     int    // number of the first of lines that were sent without a response; the service may have them
	opened   bool   // the service knows that the step runs
	unsure   int    // number of lines after accepted that an earlier run has sent; the service may have them
	moved    bool   // the service has corrected accepted
	handed   bool   // the handoff is written: from now on the runner reports step 0

	started time.Time
	hooks   SetupHooks
}

// SetupHooks are called by a [Setup]. Each of the functions may be nil.
type SetupHooks struct {
	Measured   func(stage Stage, start time.Time) // at the end of a stage; safe for concurrent use
	HandingOff func(ctx context.Context) error    // before the handoff is returned
	Withdrawn  func(ctx context.Context)          // by Withdraw, after a handoff
	Progressed func(Progress)                     // before a report, and when the service has accepted it
}

// NewSetup returns the setup of a job. The setup adds the state of step 0 to the handoff.
func NewSetup(job *Job, cloud Cloud, handoff Handoff) *Setup {
	return &Setup{job: job, cloud: cloud, handoff: handoff, started: time.Now()}
}

// Measure starts to measure a stage of the start, and returns a function that ends and
// records the measurement: defer setup.Measure(runtime.StagePull)(). Unlike the other
// methods it is safe for concurrent use.
func (s *Setup) Measure(stage Stage) (end func()) {
	start := time.Now()
	return func() {
		if s.hooks.Measured != nil {
			s.hooks.Measured(stage, start)
		}
	}
}

// Log adds one or more lines to the log of step 0. It does not block and cannot fail;
// [Setup.Flush] sends them. Texts of engines and registries may be large or contain
// secrets, so lines are cut, and a mark replaces each secret of the job.
func (s *Setup) Log(format string, args ...any) {
	text := strings.ToValidUTF8(fmt.Sprintf(format, args...), "\uFFFD")
	for _, hidden := range append([]string{s.handoff.Token, s.handoff.OIDC}, s.handoff.Redact...) {
		if hidden != "" {
			text = strings.ReplaceAll(text, hidden, secret.Mark)
		}
	}
	for line := range strings.SplitSeq(strings.TrimRight(text, "\n"), "\n") {
		s.lines = append(s.lines, Line{Time: time.Now(), Text: printable.Shorten(line, maxSetupLine) + "\n"})
	}
}

// Flush sends the lines that were added. Lines that could not be sent are kept for the
// next call. After [Setup.Handoff], Flush sends nothing, because the runner continues the
// log at the offset in the handoff. Only [Setup.Fail] sends lines that are added later.
func (s *Setup) Flush(ctx context.Context) error {
	if s.handed {
		return nil
	}
	for !s.opened || len(s.lines) > 0 {
		err := s.report(ctx)
		switch {
		case errors.Is(err, ErrLogsDropped):
			return nil // a problem with logs never fails a job
		case err != nil:
			return fmt.Errorf("report the setup: %w", err)
		}
	}
	return nil
}

// report sends the added lines in one report; the first report also sets the step to
// running. If the response to a report was lost, its lines are sent again first, without newer
// lines: a service that has stored them rejects other lines at the same offset.
func (s *Setup) report(ctx context.Context) error {
	lines, status := s.lines, Status("")
	if s.resends() {
		lines = lines[:s.sent]
	}
	if !s.opened {
		status = Running
	}
	s.sent = len(lines)
	s.recordProgress()
	err := s.cloud.Report(ctx, s.job, Report{Step: 0, Offset: s.accepted + s.unsure, Lines: lines, Status: status})
	var offset *OffsetError
	switch {
	case errors.As(err, &offset) && !s.moved: // an earlier run has sent lines that it did not record
		s.moved, s.opened = true, true
		s.accepted, s.unsure, s.sent = offset.Next, 0, 0
		return s.report(ctx)
	case s.unsure > 0 && errors.Is(err, ErrLogsDropped): // the service does not have the lines of the earlier run
		s.unsure, s.opened = 0, true
		return s.report(ctx)
	case err != nil:
		s.opened = s.opened || errors.Is(err, ErrLogsDropped)
		return err
	}
	if status == Running {
		killpoint.Hit(killpoint.SetupRunning)
	}
	s.accepted += s.unsure + len(lines)
	s.opened, s.sent, s.unsure = true, 0, 0
	s.lines = s.lines[len(lines):]
	s.recordProgress()
	return nil
}

// recordProgress records how many lines the service has, and how many more it may have.
func (s *Setup) recordProgress() {
	if s.hooks.Progressed == nil {
		return
	}
	p := Progress{Step: 0, Lines: s.accepted, Sent: s.unsure + s.sent}
	if s.opened {
		p.Status = Running
	}
	s.hooks.Progressed(p)
}

// Hook sets the hooks of the setup.
func (s *Setup) Hook(hooks SetupHooks) { s.hooks = hooks }

// SetHandoff replaces the handoff, to which the setup adds the state of step 0.
func (s *Setup) SetHandoff(handoff Handoff) { s.handoff = handoff }

// Accepted returns the number of lines of step 0 that the service has accepted.
func (s *Setup) Accepted() int { return s.accepted }

// Resume continues the log of an earlier run of the agent that ended before the first step.
func (s *Setup) Resume(last Progress) {
	if last.Step == 0 {
		s.accepted, s.unsure = last.Lines, last.Sent
	}
}

// resends reports whether the next report must repeat an earlier one.
func (s *Setup) resends() bool { return s.sent > 0 && s.sent < len(s.lines) }

// SetDirectory sets the directory in which steps start. The default is the root of the
// handoff.
func (s *Setup) SetDirectory(directory string) { s.handoff.Directory = directory }

// LimitStop applies the time between SIGTERM and SIGKILL of an instance that something other
// than the agent stops. If the cancel grace period and StopGrace together are longer, it
// shortens the cancel grace period in the handoff by the difference, down to 0.
func (s *Setup) LimitStop(limit time.Duration) {
	fits := max(0, limit-StopGrace)
	s.handoff.CancelGrace = min(s.handoff.CancelGrace, Seconds(fits.Seconds()))
}

// HandoffSize returns the current length of the handoff in bytes. Lines that the service has
// not accepted when Handoff is called make it longer.
func (s *Setup) HandoffSize() int {
	text, _ := s.handoff.encode() // Handoff returns the error
	return len(text)
}

// Handoff sends the added lines and returns the bytes for the runner's standard input. An
// executor calls it in each start immediately before the runner starts. An executor that can replace
// a handoff which has not been read calls it again when lines were added; see [Setup.FlushHandoff]. Root is
// the "/" of the job. If the preparation of a deployment took longer than a minute, Handoff checks the
// status of the job, and returns an error if the job was cancelled. Handoff sets the stage of the job's
// record to [RecordHandedOff] before it returns.
func (s *Setup) Handoff(ctx context.Context, root string) ([]byte, error) {
	if err := s.Flush(ctx); err != nil {
		return nil, err
	}
	if !s.job.Kind.Leased() && time.Since(s.started) > recheckAfter { // the end of a lease cancels ctx
		status, err := s.cloud.JobStatus(ctx, s.job)
		if err == nil && (status == Cancelled || status == Completing || status == Gone) {
			return nil, fmt.Errorf("the job was not started: %w", ErrCancelled)
		}
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}

	// A later handoff of the same start has the lines that were added since the first one.
	if s.handed && s.sent == 0 {
		s.sent = len(s.lines)
	}
	s.handoff.Root = root
	s.handoff.SetupLines, s.handoff.Pending, s.handoff.Resend = s.accepted, s.lines, s.sent
	text, err := s.handoff.encode()
	if err != nil {
		return nil, fmt.Errorf("write the handoff: %w", err)
	}

	// Record that the job may run from now on.
	if s.hooks.HandingOff != nil {
		if err := s.hooks.HandingOff(ctx); err != nil {
			return nil, err
		}
	}
	s.handed = true
	return text, nil
}

// FlushHandoff sends the lines that the last handoff repeats. Runner and agent send the same lines
// in one report at the same offset, so that the service has them once, in either order. The
// executor calls it when a handoff after the first one has arrived and the runner has not started: without
// the call, a user would see these lines only when the runner starts. After an error, the lines are kept.
func (s *Setup) FlushHandoff(ctx context.Context) error {
	if !s.handed || s.sent == 0 {
		return nil
	}
	lines := s.lines[:s.sent]
	err := s.cloud.Report(ctx, s.job, Report{Step: 0, Offset: s.accepted, Lines: lines})
	if err != nil {
		return fmt.Errorf("report the setup: %w", err)
	}
	s.accepted, s.lines, s.sent = s.accepted+len(lines), s.lines[len(lines):], 0
	s.recordProgress()
	return nil
}

// Withdraw records that no runner has the whole handoff, so that nothing of the job has run,
// and lets the agent continue the log. An executor calls it after an error that wraps
// [ErrConnectionLost], or when it replaces a lost instance, and before it removes the instance. In
// the opposite order, an agent that is killed in between leaves a record of a handoff and no
// instance, which means that the job may have run. Without a handoff Withdraw does nothing.
func (s *Setup) Withdraw(ctx context.Context) {
	if !s.handed {
		return
	}
	s.handed = false
	if s.hooks.Withdrawn != nil {
		s.hooks.Withdrawn(ctx)
	}
}

// Fail ends step 0 as failed, with the reason as its last line.
func (s *Setup) Fail(ctx context.Context, reason error) error {
	s.Log("Error: %v", reason)
	for !s.opened || s.resends() {
		if err := s.report(ctx); errors.Is(err, ErrLogsDropped) {
			break // the status is more important
		} else if err != nil {
			return fmt.Errorf("report the failed setup: %w", err)
		}
	}
	err := s.cloud.Report(ctx, s.job, Report{Step: 0, Offset: s.accepted, Lines: s.lines, Status: Failed})
	if err != nil {
		return fmt.Errorf("report the failed setup: %w", err)
	}
	return nil
}
