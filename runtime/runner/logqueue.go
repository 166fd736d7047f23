package runner

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/cmwa-project/cmwa/cloud"
	"github.com/cmwa-project/cmwa/runtime"
)

// Limits of batches. A line after a silence is sent almost immediately; lines in quick
// succession are collected.
const (
	fullLines  = 500       // lines that make a batch full
	fullBytes  = 256 << 10 // bytes that make a batch full; only a single line may be larger
	batchLines = 2500      // largest number of lines in a batch; many are added during a request
)

// Limits of a log queue.
const (
	maxLogQueue  = 8 << 20 // bytes
	lineOverhead = 64      // bytes of memory that a line takes in addition to its text
)

// logQueue is the queue of log lines of one step. One goroutine adds lines, and another
// sends them.
type logQueue struct {
	mu    sync.Mutex
	lines []cloud.LogLine
	bytes int
	lost  int       // number of lines that were dropped before the first of lines
	first time.Time // when the first of lines was added
	// stalled is the start of the request in flight, or the time of the last acceptance if
	// another request follows; zero without a request.
	stalled time.Time
	closed  bool

	changed chan struct{} // wakes the sender after a change
	freed   chan struct{} // wakes the writer after lines were taken
}

func newLogQueue() *logQueue {
	return &logQueue{changed: make(chan struct{}, 1), freed: make(chan struct{}, 1)}
}

// add adds lines. If the queue is full, it blocks while the service makes progress;
// without progress, it drops the oldest lines. It returns when ctx ends, because the
// sender has ended.
func (q *logQueue) add(ctx context.Context, lines []cloud.LogLine) {
	for len(lines) > 0 && ctx.Err() == nil {
		wait := q.tryAdd(lines)
		if wait == 0 {
			notify(q.changed)
			return
		}
		runtime.Sleep(ctx, q.freed, wait)
	}
}

// tryAdd adds lines, or returns how long to wait before the next attempt.
func (q *logQueue) tryAdd(lines []cloud.LogLine) (wait time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()

	if q.bytes > maxLogQueue {
		wait = batchInterval // the sender waits between two batches
		if !q.stalled.IsZero() {
			wait = stallLimit - now.Sub(q.stalled)
		}
		if wait > 0 {
			return wait
		}
		for q.bytes > maxLogQueue {
			q.take()
			q.lost++
		}
	}

	if len(q.lines) == 0 {
		q.first = now
	}
	for _, line := range lines {
		q.bytes += lineSize(line)
	}
	q.lines = append(q.lines, lines...)
	return 0
}

// take removes and returns the oldest line. The caller must hold the lock.
func (q *logQueue) take() cloud.LogLine {
	line := q.lines[0]
	q.bytes -= lineSize(line)
	q.lines[0] = cloud.LogLine{}
	q.lines = q.lines[1:]
	return line
}

// lineSize returns the memory that a line takes, in bytes.
func lineSize(line cloud.LogLine) int { return len(line.Text) + lineOverhead }

// close ends the queue: no more lines are added.
func (q *logQueue) close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	notify(q.changed)
}

// next blocks until the next batch is due, and returns it. The batch has at most limit
// bytes, unless it is a single line. The previous batch began at last. Next returns false
// when the queue is closed and empty, or when ctx ends.
func (q *logQueue) next(ctx context.Context, last time.Time, limit int) ([]cloud.LogLine, bool) {
	for {
		batch, wait, more := q.tryNext(time.Now(), last, limit)
		if len(batch) > 0 {
			notify(q.freed)
			return batch, true
		}
		if !more || !runtime.Sleep(ctx, q.changed, wait) {
			return nil, false
		}
	}
}

// tryNext returns a batch if one is due. Otherwise it returns how long to wait, and
// whether more lines may come.
func (q *logQueue) tryNext(now, last time.Time, limit int) (batch []cloud.LogLine, wait time.Duration, more bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case len(q.lines) == 0 && q.lost == 0 && q.closed:
		return nil, 0, false
	case len(q.lines) == 0 && (q.lost == 0 || !q.closed):
		return nil, time.Hour, true
	}

	full := q.closed || len(q.lines) >= fullLines || q.bytes >= fullBytes
	if wait := max(q.first.Add(batchDelay).Sub(now), last.Add(batchInterval).Sub(now)); wait > 0 && !full {
		return nil, wait, true
	}

	// Take lines. If lines were dropped, begin with a line that reports their number.
	if q.lost > 0 {
		batch = append(batch, cloud.LogLine{Time: now.UTC(), Text: lossNote(q.lost)})
		q.lost = 0
	}
	size := 0
	for len(q.lines) > 0 && len(batch) < batchLines {
		size += lineSize(q.lines[0])
		if len(batch) > 0 && size > limit {
			break
		}
		batch = append(batch, q.take())
	}
	q.first = now
	return batch, 0, true
}

func lossNote(lost int) string {
	return fmt.Sprintf("[lines missing here because the service did not accept them: %d]\n", lost)
}

// addLost counts lines that were taken and that the service did not accept.
func (q *logQueue) addLost(lines int) {
	q.mu.Lock()
	q.lost += lines
	q.mu.Unlock()
}

// busy records that a request begins, or that one was accepted and another follows.
func (q *logQueue) busy() {
	q.mu.Lock()
	q.stalled = time.Now()
	q.mu.Unlock()
}

// idle records that no request is in flight.
func (q *logQueue) idle() {
	q.mu.Lock()
	q.stalled = time.Time{}
	q.mu.Unlock()
	notify(q.freed)
}

// stalledFor returns for how long the service has accepted nothing.
func (q *logQueue) stalledFor() time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.stalled.IsZero() {
		return 0
	}
	return time.Since(q.stalled)
}

// notify wakes the receiver of a channel of length one.
func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
