package runner

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/cmwa-project/cmwa/cloud"
)

// Limits of batches. A line after a silence is sent almost immediately; lines in quick
// succession are collected.
const (
	batchDelay    = 20 * time.Millisecond  // wait after the first line of a batch
	batchInterval = 250 * time.Millisecond // between the starts of two batches, unless the next is full
	fullLines     = 500                    // lines that make a batch full
	fullBytes     = 256 << 10              // bytes that make a batch full; only a single line may be larger
	batchLines    = 2500                   // largest number of lines in a batch; many are added during a request
)

// Limits of a journal.
const (
	maxJournal   = 8 << 20          // bytes
	lineOverhead = 64               // bytes of memory that a line takes in addition to its text
	stallLimit   = 10 * time.Second // time without progress after which the oldest lines are dropped
)

// journal is the queue of log lines of one step. One goroutine adds lines, and another
// sends them.
type journal struct {
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

func newJournal() *journal {
	return &journal{changed: make(chan struct{}, 1), freed: make(chan struct{}, 1)}
}

// add adds lines. If the journal is full, it blocks while the service makes progress;
// without progress, it drops the oldest lines. It returns when ctx ends, because the
// sender has ended.
func (j *journal) add(ctx context.Context, lines []cloud.LogLine) {
	for len(lines) > 0 && ctx.Err() == nil {
		wait := j.tryAdd(lines)
		if wait == 0 {
			notify(j.changed)
			return
		}
		timer := time.NewTimer(wait)
		select {
		case <-j.freed:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// tryAdd adds lines, or returns how long to wait before the next attempt.
func (j *journal) tryAdd(lines []cloud.LogLine) (wait time.Duration) {
	j.mu.Lock()
	defer j.mu.Unlock()
	now := time.Now()

	// Wait for the service, or drop the oldest lines.
	if j.bytes > maxJournal {
		if !j.stalled.IsZero() {
			wait = stallLimit - now.Sub(j.stalled)
		} else {
			wait = batchInterval // the sender waits between two batches
		}
		if wait > 0 {
			return wait
		}
		for j.bytes > maxJournal {
			j.drop()
		}
	}

	// Append the lines.
	if len(j.lines) == 0 {
		j.first = now
	}
	for _, line := range lines {
		j.bytes += lineSize(line)
	}
	j.lines = append(j.lines, lines...)
	return 0
}

// drop drops the oldest line. The caller must hold the lock.
func (j *journal) drop() {
	j.bytes -= lineSize(j.lines[0])
	j.lines[0] = cloud.LogLine{}
	j.lines = j.lines[1:]
	j.lost++
}

// lineSize returns the memory that a line takes, in bytes.
func lineSize(line cloud.LogLine) int { return len(line.Text) + lineOverhead }

// close ends the journal: no more lines are added.
func (j *journal) close() {
	j.mu.Lock()
	j.closed = true
	j.mu.Unlock()
	notify(j.changed)
}

// next blocks until the next batch is due, and returns it. The batch has at most limit
// bytes, unless it is a single line. The previous batch began at last. Next returns false
// when the journal is closed and empty, or when ctx ends.
func (j *journal) next(ctx context.Context, last time.Time, limit int) ([]cloud.LogLine, bool) {
	for {
		batch, wait, more := j.tryNext(time.Now(), last, limit)
		if len(batch) > 0 {
			notify(j.freed)
			return batch, true
		}
		if !more {
			return nil, false
		}
		timer := time.NewTimer(wait)
		select {
		case <-j.changed:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, false
		}
		timer.Stop()
	}
}

// tryNext returns a batch if one is due. Otherwise it returns how long to wait, and
// whether more lines may come.
func (j *journal) tryNext(now, last time.Time, limit int) (batch []cloud.LogLine, wait time.Duration, more bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	switch {
	case len(j.lines) == 0 && j.lost == 0 && j.closed:
		return nil, 0, false
	case len(j.lines) == 0 && (j.lost == 0 || !j.closed):
		return nil, time.Hour, true
	}

	// Wait until the batch is full or due.
	full := j.closed || len(j.lines) >= fullLines || j.bytes >= fullBytes
	if wait := max(j.first.Add(batchDelay).Sub(now), last.Add(batchInterval).Sub(now)); wait > 0 && !full {
		return nil, wait, true
	}

	// Take lines. If lines were dropped, begin with a line that reports their number.
	if j.lost > 0 {
		batch = append(batch, cloud.LogLine{Time: now.UTC(), Text: lossNote(j.lost)})
		j.lost = 0
	}
	size := 0
	for len(j.lines) > 0 && len(batch) < batchLines {
		size += lineSize(j.lines[0])
		if len(batch) > 0 && size > limit {
			break
		}
		batch = append(batch, j.lines[0])
		j.bytes -= lineSize(j.lines[0])
		j.lines[0] = cloud.LogLine{}
		j.lines = j.lines[1:]
	}
	j.first = now
	return batch, 0, true
}

// lossNote returns the line that replaces dropped lines.
func lossNote(lost int) string {
	return fmt.Sprintf("[lines missing here because the service did not accept them: %d]\n", lost)
}

// addLost counts lines that were taken and that the service did not accept.
func (j *journal) addLost(lines int) {
	j.mu.Lock()
	j.lost += lines
	j.mu.Unlock()
}

// busy records that a request begins, or that one was accepted and another follows.
func (j *journal) busy() {
	j.mu.Lock()
	j.stalled = time.Now()
	j.mu.Unlock()
}

// idle records that no request is in flight.
func (j *journal) idle() {
	j.mu.Lock()
	j.stalled = time.Time{}
	j.mu.Unlock()
	notify(j.freed)
}

// stalledFor returns for how long the service has accepted nothing.
func (j *journal) stalledFor() time.Duration {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.stalled.IsZero() {
		return 0
	}
	return time.Since(j.stalled)
}

// notify wakes the receiver of a channel of length one.
func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
