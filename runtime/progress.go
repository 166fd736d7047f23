package runtime

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

const (
	// maxProgressLine is the longest line of progress in bytes, with its newline.
	// The runner's own are shorter than 100 bytes.
	maxProgressLine = 1 << 10

	// maxSteps is the number of steps that a job may have whose definition is not
	// known here, because an earlier agent has started it.
	maxSteps = 10_000
)

// Progress is one line of a runner's standard output, as JSON: what the service
// has accepted so far. It is the agent's knowledge of where a job was when its
// environment dies without a word, and nothing else depends on it.
type Progress struct {
	Step   int    `json:"step"`
	Lines  int    `json:"lines"`            // of that step, accepted by the service
	Status Status `json:"status,omitempty"` // accepted by the service; empty when only lines were

	// Stopped reports that the runner was asked to end, has ended the step, and waits for
	// [Handover.Yield] before it reports the step as failed: the agent may add why.
	Stopped bool `json:"stopped,omitempty"`
}

// streamState is what is known of a job's stream of progress from one read of it
// to the next.
type streamState struct {
	first   Progress // its first line
	lines   int      // lines of progress in the longest read
	reader  *bufio.Reader
	known   knownLines
	ignored bool // a line was ignored, and that was logged
	stopped bool // a line reported that the runner was asked to end
}

// listen reads one stream of progress to its end. The stream is not trusted:
// a job whose steps reach the runner's output can write anything there. A line
// that is too long or that is no progress of this job is ignored, and the lines
// behind it are read. Memory is limited to one line.
//
// A stream that is read again begins with the lines that are known, which are
// skipped. If its first line is another one, the engine has rotated its log and
// the known lines cannot be counted: then those count that are further than the
// last.
func (l *life) listen(ctx context.Context) error {
	stream, err := l.pool.parts.Executor.Follow(ctx, l.id)
	if err != nil {
		return err
	}
	l.stream.begin(stream)
	err = l.readLines(ctx)
	_ = stream.Close()
	return err
}

// begin makes the reader read a stream from its beginning.
func (s *streamState) begin(stream io.Reader) {
	if s.reader == nil {
		s.reader = bufio.NewReaderSize(stream, maxProgressLine)
	}
	s.reader.Reset(stream)
	s.known = knownLines{}
}

// readLines reads the lines of a stream to its end. Thousands of goroutines may wait
// in it: what it does with a line is elsewhere, and not on all of their stacks.
func (l *life) readLines(ctx context.Context) error {
	tooLong := false // a part of this line was skipped already
	for {
		line, err := l.stream.reader.ReadSlice('\n')
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			tooLong = true
			continue
		case err != nil && !errors.Is(err, io.EOF):
			return err
		case tooLong:
			tooLong = false
			l.ignored(errTooLong)
		case len(line) > 0:
			l.heard(ctx, line, err == nil)
		}
		if err != nil {
			return nil
		}
	}
}

// knownLines tells the lines of a stream that were read before from those that are
// new.
type knownLines struct {
	count   int  // lines of progress so far
	rotated bool // the engine has rotated its log
}

// errTooLong is why a line is ignored.
var errTooLong = fmt.Errorf("line is longer than %d bytes", maxProgressLine)

// heard takes one line. Whole is whether it ends with a newline.
func (l *life) heard(ctx context.Context, line []byte, whole bool) {
	known := &l.stream.known
	progress, invalid := l.parse(line)
	if invalid != nil {
		if whole { // else the line was cut off
			l.ignored(invalid)
		}
		return
	}
	known.count++
	if known.count == 1 && l.stream.lines > 0 {
		known.rotated = progress != l.stream.first
	} else if known.count == 1 {
		l.stream.first = progress
	}
	old := known.count <= l.stream.lines
	l.stream.lines = max(l.stream.lines, known.count)
	if (!old || known.rotated) && l.saw(progress, old) && (progress.Step > 0 || progress.Status == Succeeded) {
		l.pool.startSucceeded(l)
	}
	if progress.Stopped && (!old || known.rotated) && !l.stream.stopped { // lines can be repeated
		l.stream.stopped = true
		l.addEnding(ctx)
	}
}

// parse decodes one line of progress. Its errors do not show the line.
func (l *life) parse(line []byte) (Progress, error) {
	var p Progress
	if json.Unmarshal(line, &p) != nil {
		return p, errors.New("line is not a JSON object of progress")
	}
	steps := l.job.Definition.Steps
	if steps == 0 {
		steps = maxSteps
	}
	switch {
	case p.Step < 0 || p.Step >= steps:
		return p, fmt.Errorf("step %d is not one of the %d steps of this job", p.Step, steps)
	case p.Lines < 0:
		return p, fmt.Errorf("number of lines is %d", p.Lines)
	}
	switch p.Status {
	case "": // only lines were accepted: the step runs
		p.Status = Running
	case NotStarted, Running, Succeeded, Failed:
	default:
		return p, errors.New("status is unknown")
	}
	return p, nil
}

// ignored logs the first line of a job that was ignored.
func (l *life) ignored(reason error) {
	if !l.stream.ignored {
		l.stream.ignored = true
		l.log.Warn("progress line ignored, and all others like it", "environment", l.id, "reason", reason)
	}
}

// saw records progress and reports whether it changed anything. The latest line
// wins, so that a forged line is corrected by the runner's next one. With forward
// a line counts only if it is further than the last.
func (l *life) saw(p Progress, forward bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if forward && !p.after(l.last) || p == l.last {
		return false
	}
	l.last = p
	return true
}

// after reports whether a runner reports p later than last.
func (p Progress) after(last Progress) bool {
	switch {
	case p.Step != last.Step:
		return p.Step > last.Step
	case last.Status.final():
		return false
	}
	return p.Status.final() || p.Lines >= last.Lines
}
