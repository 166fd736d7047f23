package runner

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/cmwa-project/cmwa/cloud"
	"github.com/cmwa-project/cmwa/runtime"
)

const (
	// maxLocalLog limits the part of a job's log that is also written to standard error, in bytes.
	maxLocalLog = 16 << 20
	// maxLocalQueue is the number of pieces that wait for a slow reader. A piece has the lines of one read.
	maxLocalQueue = 32
	// maxLocalWrite is how much a pipe takes without parts of other writes in between (PIPE_BUF of Linux), in bytes:
	// the runner logs to standard error too.
	maxLocalWrite = 4 << 10
)

// localLog writes the lines of all steps to standard error, in addition to the service. It is safe for concurrent use
// and never blocks its callers: a goroutine writes, and lines for which there is no room are dropped. A nil localLog
// writes nothing.
type localLog struct {
	out   io.Writer
	queue chan string
	done  chan struct{} // closed when the writer has ended

	mu        sync.Mutex
	remaining int // bytes
	lost      int // lines dropped since the last piece
	closed    bool
}

// newLocalLog starts the writer. The caller must close it.
func newLocalLog(out io.Writer) *localLog {
	l := &localLog{
		out: out, queue: make(chan string, maxLocalQueue), done: make(chan struct{}), remaining: maxLocalLog,
	}
	go l.write()
	return l
}

// write writes each piece until close or the first error.
func (l *localLog) write() {
	defer close(l.done)
	for piece := range l.queue {
		for len(piece) > 0 {
			end := len(piece)
			if end > maxLocalWrite {
				end = strings.LastIndexByte(piece[:maxLocalWrite], '\n') + 1 // a line is shorter
			}
			if _, err := io.WriteString(l.out, piece[:end]); err != nil {
				return
			}
			piece = piece[end:]
		}
	}
}

// add adds lines, whose secrets are redacted.
func (l *localLog) add(step int, lines []cloud.LogLine) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.remaining <= 0 {
		return
	}
	var piece strings.Builder
	if l.lost > 0 {
		piece.WriteString(runtime.LocalLine(step, fmt.Sprintf("[only the service has these lines: %d]", l.lost)))
	}
	for _, line := range lines {
		if piece.Len() >= l.remaining {
			piece.WriteString(runtime.LocalLine(step, "[only the service has the following lines of this job]"))
			break
		}
		for text := strings.TrimSuffix(line.Text, "\n"); ; {
			cut := runeCut(text, runtime.MaxLocalLine)
			piece.WriteString(runtime.LocalLine(step, text[:cut]))
			if text = text[cut:]; text == "" {
				break
			}
		}
	}
	select {
	case l.queue <- piece.String():
		l.remaining -= piece.Len()
		l.lost = 0
	default:
		l.lost += len(lines)
	}
}

// close blocks until everything is written, for at most progressFlush. A write that still blocks ends with the program.
func (l *localLog) close() {
	if l == nil {
		return
	}
	l.mu.Lock()
	l.closed = true
	close(l.queue)
	l.mu.Unlock()
	limit := time.NewTimer(progressFlush)
	defer limit.Stop()
	select {
	case <-l.done:
	case <-limit.C:
	}
}
