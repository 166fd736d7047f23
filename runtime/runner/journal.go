package runner

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/cmwa-project/cmwa/cloud"
)

// The pace of batches. A line after a silence leaves almost at once; lines that
// keep coming are gathered.
const (
	linger     = 20 * time.Millisecond  // for what comes together with a line after a silence
	pause      = 250 * time.Millisecond // between the beginnings of two batches, unless one is full
	fullLines  = 500                    // lines that are sent without waiting for more
	fullBytes  = 256 << 10              // bytes that are; no batch is larger, but for a single line
	batchLines = 2500                   // lines of a batch, at most: a request in flight lets many gather
)

// The bounds of what waits to be sent.
const (
	maxWaiting = 8 << 20          // bytes
	lineCost   = 64               // bytes that a line takes beside its text
	stallLimit = 10 * time.Second // without progress, until the oldest lines are given up
)

// journal is what waits of one step's log. One goroutine writes, one sends.
type journal struct {
	mu      sync.Mutex
	lines   []cloud.LogLine
	bytes   int
	lost    int       // lines given up in front of lines
	first   time.Time // when the first of lines came
	stalled time.Time // when the request in flight began, or the last one that was accepted since; zero without one
	closed  bool

	news chan struct{} // for the sender: something has changed
	room chan struct{} // for the writer: something was taken
}

func newJournal() *journal {
	return &journal{news: make(chan struct{}, 1), room: make(chan struct{}, 1)}
}

// add adds lines. While the journal is full and the service makes progress, it
// waits; when it makes none, the oldest lines make room. The end of ctx means
// that nobody will read the journal any more.
func (j *journal) add(ctx context.Context, lines []cloud.LogLine) {
	for len(lines) > 0 && ctx.Err() == nil {
		wait := j.tryAdd(lines)
		if wait == 0 {
			ring(j.news)
			return
		}
		timer := time.NewTimer(wait)
		select {
		case <-j.room:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// tryAdd adds lines, or says how long to wait for room.
func (j *journal) tryAdd(lines []cloud.LogLine) (wait time.Duration) {
	j.mu.Lock()
	defer j.mu.Unlock()
	now := time.Now()
	if j.bytes > maxWaiting {
		if !j.stalled.IsZero() {
			wait = stallLimit - now.Sub(j.stalled)
		} else {
			wait = pause // the sender is between two batches
		}
		if wait > 0 {
			return wait
		}
		for j.bytes > maxWaiting {
			j.drop()
		}
	}
	if len(j.lines) == 0 {
		j.first = now
	}
	for _, line := range lines {
		j.bytes += cost(line)
	}
	j.lines = append(j.lines, lines...)
	return 0
}

// drop gives the oldest line up. The caller holds the lock.
func (j *journal) drop() {
	j.bytes -= cost(j.lines[0])
	j.lines[0] = cloud.LogLine{}
	j.lines = j.lines[1:]
	j.lost++
}

func cost(line cloud.LogLine) int { return len(line.Text) + lineCost }

// close says that no more lines come.
func (j *journal) close() {
	j.mu.Lock()
	j.closed = true
	j.mu.Unlock()
	ring(j.news)
}

// next waits for the next batch, of at most limit bytes unless it is a single
// line. The batch before it began at last. It reports false when there is none
// any more.
func (j *journal) next(ctx context.Context, last time.Time, limit int) ([]cloud.LogLine, bool) {
	for {
		batch, wait, more := j.tryNext(time.Now(), last, limit)
		if len(batch) > 0 {
			ring(j.room)
			return batch, true
		}
		if !more {
			return nil, false
		}
		timer := time.NewTimer(wait)
		select {
		case <-j.news:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, false
		}
		timer.Stop()
	}
}

// tryNext takes a batch if one is due, or says how long to wait, and whether
// there will be any more.
func (j *journal) tryNext(now, last time.Time, limit int) (batch []cloud.LogLine, wait time.Duration, more bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	switch {
	case len(j.lines) == 0 && j.lost == 0 && j.closed:
		return nil, 0, false
	case len(j.lines) == 0 && (j.lost == 0 || !j.closed):
		return nil, time.Hour, true
	}
	full := j.closed || len(j.lines) >= fullLines || j.bytes >= fullBytes
	if wait := max(j.first.Add(linger).Sub(now), last.Add(pause).Sub(now)); wait > 0 && !full {
		return nil, wait, true
	}
	if j.lost > 0 {
		batch = append(batch, cloud.LogLine{Time: now.UTC(), Text: lossNote(j.lost)})
		j.lost = 0
	}
	size := 0
	for len(j.lines) > 0 && len(batch) < batchLines {
		size += cost(j.lines[0])
		if len(batch) > 0 && size > limit {
			break
		}
		batch = append(batch, j.lines[0])
		j.bytes -= cost(j.lines[0])
		j.lines[0] = cloud.LogLine{}
		j.lines = j.lines[1:]
	}
	j.first = now
	return batch, 0, true
}

// lossNote is the one line that stands for the lines given up at its place.
func lossNote(lost int) string {
	return fmt.Sprintf("[lines of this log that are missing here, since the service did not take them: %d]\n", lost)
}

// giveUp notes lines that were taken and that the service will not have.
func (j *journal) giveUp(lines int) {
	j.mu.Lock()
	j.lost += lines
	j.mu.Unlock()
}

// busy notes that a request is in flight, or that one was just accepted and
// another follows; idle, that none is.
func (j *journal) busy() {
	j.mu.Lock()
	j.stalled = time.Now()
	j.mu.Unlock()
}

func (j *journal) idle() {
	j.mu.Lock()
	j.stalled = time.Time{}
	j.mu.Unlock()
	ring(j.room)
}

// stuck returns how long the service has accepted nothing.
func (j *journal) stuck() time.Duration {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.stalled.IsZero() {
		return 0
	}
	return time.Since(j.stalled)
}

// ring wakes whoever waits on a channel of length one.
func ring(bell chan struct{}) {
	select {
	case bell <- struct{}{}:
	default:
	}
}
