package runner

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/cmwa-project/cmwa/cloud"
	"github.com/cmwa-project/cmwa/runtime"
)

// Limits of a local log, in bytes.
const (
	maxLocalLog   = 16 << 20 // of the steps of a job
	maxLocalQueue = 8 << 20  // that wait for a slow reader
	maxLocalNotes = 64 << 10 // further bytes that may wait: notes, and messages of the runner

	// maxLocalWrite is how much a pipe takes without parts of other writes in between (PIPE_BUF of Linux).
	maxLocalWrite = 4 << 10
)

// localLog writes the lines of all steps to standard error, in addition to the service, and the messages of the runner
// itself. It is safe for concurrent use and never blocks its callers: a goroutine writes, and lines for which there is
// no room are dropped and counted. A nil localLog drops the lines of steps.
type localLog struct {
	out  io.Writer
	wake chan struct{} // has a token after a change
	done chan struct{} // closed when the writer has ended

	mu        sync.Mutex
	text      []byte // whole lines that are not written yet
	remaining int    // bytes that steps may still write
	ended     bool   // remaining is used up, and the note of it is written
	lost      int    // lines that were dropped since the last note
	step      int    // of these lines
	closed    bool
}

// newLocalLog starts the writer. The caller must close it.
func newLocalLog(out io.Writer) *localLog {
	l := &localLog{out: out, wake: make(chan struct{}, 1), done: make(chan struct{}), remaining: maxLocalLog}
	go l.write()
	return l
}

// write writes lines until close or the first error.
func (l *localLog) write() {
	defer close(l.done)
	for {
		lines, closed := l.take()
		switch {
		case len(lines) > 0:
			if _, err := l.out.Write(lines); err != nil {
				l.mu.Lock()
				l.closed, l.text = true, nil
				l.mu.Unlock()
				return
			}
		case closed:
			return
		default:
			<-l.wake
		}
	}
}

// take removes and returns the next lines: as many as a pipe takes at once, and at least one.
func (l *localLog) take() (lines []byte, closed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	end := len(l.text)
	if end > maxLocalWrite {
		if end = bytes.LastIndexByte(l.text[:maxLocalWrite], '\n') + 1; end == 0 {
			end = bytes.IndexByte(l.text, '\n') + 1
		}
	}
	lines, l.text = l.text[:end:end], l.text[end:]
	if len(l.text) == 0 {
		l.text = nil
	}
	return lines, l.closed
}

// add adds lines of a step, whose secrets are redacted.
func (l *localLog) add(step int, lines []cloud.LogLine) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range lines {
		for text := strings.TrimSuffix(line.Text, "\n"); ; {
			cut := runeCut(text, runtime.MaxLocalLine)
			l.addLine(step, text[:cut])
			if text = text[cut:]; text == "" {
				break
			}
		}
	}
	notify(l.wake)
}

// addLine adds one line of a step. The caller must hold the lock.
func (l *localLog) addLine(step int, text string) {
	line := runtime.LocalLine(step, text)
	switch {
	case l.closed || l.ended:
	case l.remaining <= 0:
		l.ended = true
		l.noteLost()
		l.text = append(l.text, runtime.LocalLine(step, "[only the service has the following lines of this job]")...)
	case len(l.text)+len(line) > maxLocalQueue:
		l.lost++
		l.step = step
	default:
		l.noteLost()
		l.text = append(l.text, line...)
		l.remaining -= len(line)
	}
}

// noteLost adds a note of the lines that were dropped. The caller must hold the lock.
func (l *localLog) noteLost() {
	if l.lost > 0 {
		note := fmt.Sprintf("[only the service has these lines: %d]", l.lost)
		l.text = append(l.text, runtime.LocalLine(l.step, note)...)
		l.lost = 0
	}
}

// Write adds a message of the runner, which ends with a newline. It never fails.
func (l *localLog) Write(message []byte) (n int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed && len(l.text)+len(message) <= maxLocalQueue+maxLocalNotes {
		l.text = append(l.text, message...)
		notify(l.wake)
	}
	return len(message), nil
}

// close blocks until everything is written, for at most progressFlush. A write that still blocks ends with the program.
func (l *localLog) close() {
	if l == nil {
		return
	}
	l.mu.Lock()
	l.noteLost()
	l.closed = true
	l.mu.Unlock()
	notify(l.wake)
	limit := time.NewTimer(progressFlush)
	defer limit.Stop()
	select {
	case <-l.done:
	case <-limit.C:
	}
}
