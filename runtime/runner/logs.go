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

// maxLineTries is how often a rejected line that cannot be split is sent before it is dropped. If
// the line before it was dropped, it is sent once.
const maxLineTries = 2

// maxRefusals is the number of consecutive lines that a service may reject before the
// runner stops sending the log of the step.
const maxRefusals = 20

// sender sends the log of one step, one batch at a time and at exact offsets. The
// client retries a batch unchanged, because the service may have accepted it.
type sender struct {
	jobs       *cloud.Jobs
	step       int
	onAccepted func(lines int) // called after each acceptance, with the total of the step
	onGone     func(error)     // called when the service no longer has the job
	log        *slog.Logger
	first      []cloud.LogLine // batch that the service may already have; sent first; may be empty

	accepted int // number of lines that the service has
	limit    int // largest batch, in bytes
	tries    int // attempts with a rejected line that cannot be split
	refusals int // consecutive rejected lines
}

// run sends lines until the queue is closed and empty, or ctx ends. If the service rejects
// all lines, run takes further lines from the queue and does not send them. The batch in
// first is sent without other lines, because a service that already has it rejects any other
// batch at its offset.
func (s *sender) run(ctx context.Context, q *logQueue) {
	s.send(ctx, q, s.first)
	var last time.Time
	for {
		batch, ok := q.next(ctx, last, s.limit)
		if !ok {
			return
		}
		last = time.Now()
		if s.refusals < maxRefusals {
			s.send(ctx, q, batch)
		}
	}
}

// send sends one batch, in parts if the service requires it.
func (s *sender) send(ctx context.Context, q *logQueue, batch []cloud.LogLine) {
	q.busy()
	defer q.idle()
	for len(batch) > 0 && ctx.Err() == nil {
		part := batch[:s.countFitting(batch)]
		err := s.jobs.Logs(ctx, s.step, cloud.LogBatch{Offset: s.accepted, Lines: part})
		result, stored := batchResultOf(err), len(part)
		if lines, ok := cloud.StoredLines(err); ok && lines > s.accepted && lines <= s.accepted+len(batch) {
			// The service has stored lines of an earlier attempt whose response was lost.
			result, stored = batchAccepted, lines-s.accepted
		}
		switch {
		case result == batchAccepted:
			s.accepted += stored
			s.refusals, s.tries = 0, 0
			batch = batch[stored:]
			s.onAccepted(s.accepted)
			q.busy()
		case result == batchGone:
			s.refusals = maxRefusals
			s.onGone(err)
			return
		case result == batchTooLarge && len(part) > 1:
			s.limit = max(totalSize(part)/2, 1)
		case result == batchTooLarge && len(part[0].Text) > 1<<10:
			batch = append(splitLine(part[0]), batch[1:]...)
		case result == batchTooLarge && s.refusals == 0 && s.tries < maxLineTries:
			// A single response may come from a proxy.
			s.tries++
			runtime.Sleep(ctx, nil, lineRetryDelay)
		case result == batchTooLarge:
			s.refusals, s.tries = s.refusals+1, 0
			if s.refusals == maxRefusals {
				s.log.Warn("log rejected; the log of this step ends here", "step", s.step, "error", err)
				return
			}
			q.addLost(len(part))
			batch = batch[len(part):]
		case result == batchRejected:
			s.refusals = maxRefusals
			s.log.Warn("log rejected; the log of this step ends here", "step", s.step, "error", err)
			return
		case result == batchUnknown: // an error that the client does not retry, such as a wrong certificate
			runtime.Sleep(ctx, nil, unknownRetryDelay)
		}
	}
}

// countFitting returns how many lines of a batch fit into one request.
func (s *sender) countFitting(batch []cloud.LogLine) int {
	total := 0
	for i, line := range batch {
		if total += lineSize(line); total > s.limit && i > 0 {
			return i
		}
	}
	return len(batch)
}

func totalSize(lines []cloud.LogLine) int {
	total := 0
	for _, line := range lines {
		total += lineSize(line)
	}
	return total
}

func splitLine(line cloud.LogLine) []cloud.LogLine {
	cut := runeCut(line.Text, len(line.Text)/2)
	return []cloud.LogLine{{Time: line.Time, Text: line.Text[:cut]}, {Time: line.Time, Text: line.Text[cut:]}}
}

// batchResult is the meaning of a response to a batch.
type batchResult int

const (
	batchAccepted batchResult = iota
	batchUnknown              // it is not known whether the service has the batch
	batchTooLarge             // a smaller batch may be accepted
	batchGone                 // the service no longer has the job
	batchRejected             // no batch will be accepted
)

// batchResultOf returns the meaning of the response to a batch. A batch that the service
// calls invalid may be too large for it, or contain one line that it rejects.
func batchResultOf(err error) batchResult {
	status, answered := errors.AsType[*cloud.StatusError](err)
	switch {
	case err == nil:
		return batchAccepted
	case errors.Is(err, runtime.ErrGone), errors.Is(err, runtime.ErrUnauthorized):
		return batchGone
	case !answered:
		return batchUnknown
	}
	switch status.Code {
	case http.StatusRequestEntityTooLarge, http.StatusBadRequest, http.StatusUnprocessableEntity:
		return batchTooLarge
	}
	return batchRejected
}

// stepLog sends the log of one step to the service.
type stepLog struct {
	local  *localLog
	queue  *logQueue
	sender *sender
	done   chan struct{}
	ctx    context.Context // of the sender
	cancel context.CancelFunc
}

// openLog starts the sender of a step's log. The caller must close the log.
func openLog(ctx context.Context, s *sender, local *localLog) *stepLog {
	l := &stepLog{local: local, queue: newLogQueue(), sender: s, done: make(chan struct{})}
	s.limit = fullBytes
	l.ctx, l.cancel = context.WithCancel(ctx)
	go func() {
		defer close(l.done)
		s.run(l.ctx, l.queue)
	}()
	return l
}

// add adds lines; see [logQueue.add].
func (l *stepLog) add(lines []cloud.LogLine) {
	l.local.add(l.sender.step, lines)
	for part := range slices.Chunk(lines, fullLines) {
		l.queue.add(l.ctx, part)
	}
}

// close blocks until the service has accepted every line, or has accepted none for
// flushTimeout. It returns the number of accepted lines. Nothing is sent afterwards.
func (l *stepLog) close() (accepted int) {
	l.queue.close()
	for !closed(l.done) {
		stalled := l.queue.stalledFor()
		if stalled >= flushTimeout {
			l.sender.log.Warn("log dropped: service did not accept its last lines", "step", l.sender.step)
			break
		}
		runtime.Sleep(context.Background(), l.done, flushTimeout-stalled)
	}
	l.cancel()
	<-l.done // a request ends with its context
	return l.sender.accepted
}
