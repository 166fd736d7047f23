package runtime

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cmwa-project/cmwa/schema/secret"
)

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
// time.
func (s *Setup) Flush(ctx context.Context) error {
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
