package runner

import (
	"errors"
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/cmwa-project/cmwa/cloud"
)

// maxLingerBytes is how much of the output of a step is read after its shell has ended, while other
// processes keep the pipe open. It is larger than a pipe, so that no output is lost.
const maxLingerBytes = 1 << 20

const readSize = 64 << 10 // the usual capacity of a pipe

// output is the read end of the pipe for the output of a step.
type output struct {
	pipe  *os.File
	ended atomic.Bool // whether the shell has ended
}

// shellEnded records that the shell has ended. A read that still blocks then waits at most
// quietTime for the output of background processes.
func (o *output) shellEnded() {
	o.ended.Store(true)
	_ = o.pipe.SetReadDeadline(time.Now().Add(quietTime))
}

// copyTo reads until all processes have closed the pipe, or until the shell has ended and
// a limit is reached. It reports whether a process may still have the pipe open.
func (o *output) copyTo(take func(piece []byte, now time.Time)) (held bool) {
	buffer := make([]byte, readSize)
	var waited time.Duration
	read := 0
	for waited < maxLingerTime && read < maxLingerBytes {
		ended := o.ended.Load()
		if ended {
			_ = o.pipe.SetReadDeadline(time.Now().Add(quietTime))
		}

		begin := time.Now()
		n, err := o.pipe.Read(buffer)
		now := time.Now()
		if n > 0 {
			take(buffer[:n], now)
		}
		if ended {
			waited += now.Sub(begin)
			read += n
		}
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded) && !ended:
			// the shell ended during this read: read the remaining output next
		case errors.Is(err, os.ErrDeadlineExceeded):
			return true
		case err != nil:
			return false
		}
	}
	return true
}

// drain discards all output until the pipe is closed from either side.
func (o *output) drain() {
	_ = o.pipe.SetReadDeadline(time.Time{})
	_, _ = io.Copy(io.Discard, o.pipe)
}

// outputFilter converts raw output to redacted lines.
type outputFilter struct {
	redactor redactor
	splitter splitter
	lines    []cloud.LogLine
}

// take returns the lines that end in a piece of output. The result is valid until the
// next call.
func (f *outputFilter) take(piece []byte, now time.Time) []cloud.LogLine {
	f.lines = f.splitter.write(f.lines[:0], f.redactor.write(piece), now.UTC())
	return f.lines
}

func (f *outputFilter) close(now time.Time) []cloud.LogLine {
	f.lines = f.splitter.write(f.lines[:0], f.redactor.close(), now.UTC())
	f.lines = f.splitter.close(f.lines, now.UTC())
	return f.lines
}
