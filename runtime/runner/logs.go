package runner

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/cmwa-project/cmwa/cloud"
	"github.com/cmwa-project/cmwa/runtime"
)

// flushPatience is how long the lines of an ended step may make no progress
// until they are given up: log trouble never fails a job.
const flushPatience = 5 * time.Minute

// undonePause is the wait before a batch is tried again that the client did not
// want to repeat by itself.
const undonePause = 5 * time.Second

// A line that is refused and cannot be made smaller is sent again before it is given
// up, unless the line before it was given up too.
const (
	lineTries = 2
	linePause = time.Second
)

// maxRefusals is the number of lines that a service may refuse in a row until
// it gets no more lines of the step.
const maxRefusals = 20

// sender sends one step's journal, one batch at a time and at exact offsets. A
// batch that may have been accepted is repeated unchanged, by the client.
type sender struct {
	jobs     *cloud.Jobs
	step     int
	accepted func(lines int) // told after each acceptance, with the step's total
	gone     func(error)     // told when the service does not want the job any more
	log      *slog.Logger
	first    []cloud.LogLine // batch that the service may have already, sent before all else; may be empty

	told     int // lines that the service has
	limit    int // bytes of a batch
	tries    int // of a line that was refused and cannot be made smaller
	refusals int // lines refused in a row
}

// run sends until the journal is closed and empty, or ctx ends. A service that
// refuses all lines gets no more. The first batch is sent as it is, without other
// lines: a service that has it refuses any other batch at its offset.
func (s *sender) run(ctx context.Context, j *journal) {
	if len(s.first) > 0 {
		j.busy()
		s.send(ctx, j, s.first)
		j.idle()
	}
	var last time.Time
	for {
		batch, ok := j.next(ctx, last, s.limit)
		if !ok {
			return
		}
		last = time.Now()
		if s.refusals < maxRefusals {
			j.busy()
			s.send(ctx, j, batch)
			j.idle()
		}
	}
}

// send brings one batch to the service, in parts if it must.
func (s *sender) send(ctx context.Context, j *journal, batch []cloud.LogLine) {
	for len(batch) > 0 && ctx.Err() == nil {
		part := batch[:s.fit(batch)]
		err := s.jobs.Logs(ctx, s.step, cloud.LogBatch{Offset: s.told, Lines: part})
		switch verdict := judge(err); {
		case verdict == taken:
			s.told += len(part)
			s.refusals, s.tries = 0, 0
			batch = batch[len(part):]
			s.accepted(s.told)
			j.busy()
		case verdict == unwanted:
			s.gone(err)
			return
		case verdict == tooMuch && len(part) > 1:
			s.limit = max(size(part)/2, 1)
		case verdict == tooMuch && len(part[0].Text) > 1<<10:
			batch = append(halves(part[0]), batch[1:]...)
		case verdict == tooMuch && s.refusals == 0 && s.tries < lineTries: // a single answer may be a proxy's
			s.tries++
			wait(ctx, linePause)
		case verdict == tooMuch:
			s.refusals, s.tries = s.refusals+1, 0
			if s.refusals == maxRefusals {
				s.log.Warn("the service refuses this log; no more of it is sent", "step", s.step, "error", err)
				return
			}
			j.giveUp(len(part))
			batch = batch[len(part):]
		case verdict == refused:
			s.refusals = maxRefusals
			s.log.Warn("the service refuses this log; no more of it is sent", "step", s.step, "error", err)
			return
		case verdict == undone: // a fault that the client does not repeat, such as a wrong certificate
			wait(ctx, undonePause)
		}
	}
}

// wait blocks for a time, or until ctx ends.
func wait(ctx context.Context, duration time.Duration) {
	timer := time.NewTimer(duration)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// fit returns how many lines of a batch go into one request.
func (s *sender) fit(batch []cloud.LogLine) int {
	total := 0
	for i, line := range batch {
		if total += cost(line); total > s.limit && i > 0 {
			return i
		}
	}
	return len(batch)
}

func size(lines []cloud.LogLine) int {
	total := 0
	for _, line := range lines {
		total += cost(line)
	}
	return total
}

// halves makes two lines of one.
func halves(line cloud.LogLine) []cloud.LogLine {
	cut := runeCut(line.Text, len(line.Text)/2)
	return []cloud.LogLine{{Time: line.Time, Text: line.Text[:cut]}, {Time: line.Time, Text: line.Text[cut:]}}
}

// verdict is what an answer means for a batch.
type verdict int

const (
	taken    verdict = iota
	undone           // nobody knows
	tooMuch          // a smaller one may be taken
	unwanted         // the service does not want the job any more
	refused          // no batch will be taken
)

// judge reads the answer to a batch. A batch that a service calls wrong may be
// too large for it, or hold one line that it cannot take.
func judge(err error) verdict {
	var status *cloud.StatusError
	switch {
	case err == nil:
		return taken
	case errors.Is(err, runtime.ErrGone), errors.Is(err, runtime.ErrUnauthorized):
		return unwanted
	case !errors.As(err, &status):
		return undone
	}
	switch status.Code {
	case http.StatusRequestEntityTooLarge, http.StatusBadRequest, http.StatusUnprocessableEntity:
		return tooMuch
	}
	return refused
}

// stepLog is the log of one step on its way to the service.
type stepLog struct {
	journal *journal
	sender  *sender
	done    chan struct{}
	ctx     context.Context // of the sender
	cancel  context.CancelFunc
}

// openLog begins a step's log at an offset. The caller closes it.
func openLog(ctx context.Context, s *sender) *stepLog {
	l := &stepLog{journal: newJournal(), sender: s, done: make(chan struct{})}
	s.limit = fullBytes
	l.ctx, l.cancel = context.WithCancel(ctx)
	go func() {
		defer close(l.done)
		s.run(l.ctx, l.journal)
	}()
	return l
}

// add adds lines; see [journal.add].
func (l *stepLog) add(lines []cloud.LogLine) {
	for part := range slices.Chunk(lines, fullLines) {
		l.journal.add(l.ctx, part)
	}
}

// close waits until the service has accepted every line, or has accepted none
// for flushPatience, and returns how many it has. Nothing is sent afterwards.
func (l *stepLog) close() (told int) {
	l.journal.close()
	for {
		timer := time.NewTimer(max(flushPatience-l.journal.stuck(), time.Millisecond))
		select {
		case <-l.done:
			timer.Stop()
			l.cancel()
			return l.sender.told
		case <-timer.C:
			if l.journal.stuck() < flushPatience {
				continue
			}
			l.sender.log.Warn("the service does not take the rest of a log, which is given up", "step", l.sender.step)
			l.cancel()
			<-l.done // a request ends with its context
			return l.sender.told
		}
	}
}
