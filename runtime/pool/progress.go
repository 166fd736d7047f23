package pool

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/killpoint"
)

const (
	// maxSteps is the highest accepted number of steps of an adopted job whose definition this agent does not have.
	maxSteps = 10_000

	maxTimed  = 100 // steps of a job whose times are kept
	maxStages = 50  // the same for stages: a start that is tried again has several stages of a kind
)

// progressReader is the state of reading a job's stream of progress. It is kept when the
// stream is read again.
type progressReader struct {
	first   runtime.Progress // first line of the stream
	lines   int              // lines of progress in the longest stream
	reader  *bufio.Reader
	count   int  // lines of progress so far in the present stream
	rotated bool // the engine has rotated its log: lines of the present stream may have been read before
	ignored bool // a line was ignored, and the log has a warning about it
	stopped bool // a line of a running step had Progress.Stopped
}

// errTooLong is the reason why a line is ignored.
var errTooLong = fmt.Errorf("line is longer than %d bytes", runtime.MaxProgressLine)

// readStream reads one stream of progress to its end.
//
//  1. The stream is not trusted: a job whose steps have access to the runner's output can
//     write any text. A line that is too long or is not progress of this job is ignored,
//     and reading continues. Memory is limited to one line.
//  2. A stream that is read again starts with known lines, which are skipped. If its first
//     line differs, the engine has rotated its log and the known lines cannot be counted:
//     then one of the first lines counts only if it is later than the last progress.
func (r *jobRun) readStream(ctx context.Context) error {
	stream, err := r.pool.parts.Executor.Follow(ctx, r.id)
	if err != nil {
		return err
	}
	r.stream.begin(stream)
	err = r.readLines(ctx)
	_ = stream.Close()
	return err
}

// begin makes the reader read a stream from its beginning.
func (s *progressReader) begin(stream io.Reader) {
	if s.reader == nil {
		s.reader = bufio.NewReaderSize(stream, runtime.MaxProgressLine)
	}
	s.reader.Reset(stream)
	s.count, s.rotated = 0, false
}

// readLines reads the lines of a stream to its end. Thousands of goroutines may block in
// it, so the code that handles a line is in another function and not on their stacks.
func (r *jobRun) readLines(ctx context.Context) error {
	tooLong := false // the line is too long, and its beginning was skipped
	for {
		line, err := r.stream.reader.ReadSlice('\n')
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			tooLong = true
			continue
		case err != nil && !errors.Is(err, io.EOF):
			return err
		case tooLong:
			tooLong = false
			r.ignoreLine(errTooLong)
		case len(line) > 0:
			r.handleLine(ctx, line, err == nil)
		}
		if err != nil {
			return nil
		}
	}
}

// handleLine handles one line. Complete reports whether it ends with a newline.
func (r *jobRun) handleLine(ctx context.Context, line []byte, complete bool) {
	// 1. Ignore a line that is not progress of this job.
	progress, err := r.parseProgress(line)
	if err != nil {
		if complete { // otherwise the line was cut off
			r.ignoreLine(err)
		}
		return
	}

	// 2. Find out whether the line is new.
	stream := &r.stream
	stream.count++
	if stream.count == 1 && stream.lines > 0 {
		stream.rotated = progress != stream.first
	} else if stream.count == 1 {
		stream.first = progress
	}
	known := stream.count <= stream.lines
	stream.lines = max(stream.lines, stream.count)
	if known && !stream.rotated {
		return
	}

	// 3. Act on the line, which may have been read before.
	if since := r.setSilent(time.Time{}); !since.IsZero() {
		r.recordStage(runtime.StageFirstLine, since)
	}
	r.setPulumi(progress.Pulumi, progress.Stack)
	progress.Pulumi, progress.Stack = "", ""
	if r.observe(progress, known) && (progress.Step > 0 || progress.Status == runtime.Succeeded) {
		killpoint.Hit(killpoint.Running)
		r.pool.startSucceeded(r)
	}
	if progress.Stopped && progress.Status == runtime.Running && !stream.stopped {
		stream.stopped = true
		r.addEndReason(ctx)
	}
}

// parseProgress decodes one line of progress. Its errors do not contain the line.
func (r *jobRun) parseProgress(line []byte) (runtime.Progress, error) {
	var p runtime.Progress
	if json.Unmarshal(line, &p) != nil {
		return p, errors.New("line is not a JSON object of progress")
	}
	steps := cmp.Or(r.job.Definition.Steps, maxSteps)
	switch {
	case p.Step < 0 || p.Step >= steps:
		return p, fmt.Errorf("step %d is not one of the %d steps of this job", p.Step, steps)
	case p.Lines < 0:
		return p, fmt.Errorf("number of lines is %d", p.Lines)
	}
	switch p.Status {
	case "": // only lines were accepted: the step runs
		p.Status = runtime.Running
	case runtime.NotStarted, runtime.Running, runtime.Succeeded, runtime.Failed:
	default:
		return p, errors.New("status is unknown")
	}
	return p, nil
}

// ignoreLine logs the first line of a job that is ignored.
func (r *jobRun) ignoreLine(reason error) {
	if !r.stream.ignored {
		r.stream.ignored = true
		r.log().Warn("progress line ignored, and all others like it", "instance", r.id, "reason", reason)
	}
}

// observe records progress and reports whether it differs from the last one. The latest
// line counts, so that the runner's next line corrects a forged one. If forward is true, the
// line counts only if it is later than the last progress.
func (r *jobRun) observe(p runtime.Progress, forward bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if forward && !p.After(r.last) || p == r.last {
		return false
	}
	if !r.inherited { // an adopted job's lines are read long after they were written
		r.timeStep(p)
	}
	r.last, r.active = p, time.Now()
	if r.recorded {
		r.pool.parts.Journal.SetProgress(r.job.ID, p)
	}
	return true
}

// timeStep records when steps begin and end. A step without a line about its end ends when the next one begins. The
// caller holds the lock.
func (r *jobRun) timeStep(p runtime.Progress) {
	now := time.Now()
	if last := len(r.steps) - 1; last >= 0 && r.steps[last].End.IsZero() && p.Step > r.steps[last].Step {
		r.steps[last].Status, r.steps[last].End = runtime.Succeeded, now
	}
	if len(r.steps) == 0 || p.Step > r.steps[len(r.steps)-1].Step {
		if len(r.steps) == maxTimed {
			return
		}
		r.steps = append(r.steps, runtime.StepTime{Step: p.Step, Status: runtime.Running, Start: now})
	}
	step := &r.steps[len(r.steps)-1]
	if p.Step == step.Step && p.Status.Final() && step.End.IsZero() {
		step.Name, step.Status, step.End = p.StepName, p.Status, now
	}
}
