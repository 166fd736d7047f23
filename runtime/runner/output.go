package runner

import (
	"errors"
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/cmwa-project/cmwa/cloud"
)

// How long a step's output is listened to when its shell has ended and something
// else still holds the pipe.
const (
	quiet       = 100 * time.Millisecond // of silence end it
	lingerTime  = 2 * time.Second        // of waiting end it
	lingerBytes = 1 << 20                // end it; more than a pipe holds, so that nothing written before the end is missed
)

// readSize is as much as a pipe commonly holds.
const readSize = 64 << 10

// output is the reading end of the pipe that a step's processes write to.
type output struct {
	pipe  *os.File
	ended atomic.Bool // the shell has
}

// shellEnded wakes a read that would wait for processes in the background.
func (o *output) shellEnded() {
	o.ended.Store(true)
	_ = o.pipe.SetReadDeadline(time.Now().Add(quiet))
}

// copyTo reads until everybody has closed the pipe, or the shell has ended and
// the rest is silent or too much. It reports whether somebody holds it yet.
func (o *output) copyTo(take func(piece []byte, now time.Time)) (held bool) {
	buffer := make([]byte, readSize)
	var waited time.Duration
	read := 0
	for waited < lingerTime && read < lingerBytes {
		ended := o.ended.Load()
		if ended {
			_ = o.pipe.SetReadDeadline(time.Now().Add(quiet))
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
			// the shell ended during this read: what is in the pipe comes next
		case errors.Is(err, os.ErrDeadlineExceeded):
			return true
		case err != nil:
			return false
		}
	}
	return true
}

// drain throws away what comes, until the pipe is closed from either side.
func (o *output) drain() {
	_ = o.pipe.SetReadDeadline(time.Time{})
	_, _ = io.Copy(io.Discard, o.pipe)
}

// cooker makes lines of raw output.
type cooker struct {
	redactor redactor
	splitter splitter
	lines    []cloud.LogLine
}

// take returns the lines that end in a piece of output. The result is good
// until the next call.
func (c *cooker) take(piece []byte, now time.Time) []cloud.LogLine {
	c.lines = c.splitter.write(c.lines[:0], c.redactor.write(piece), now.UTC())
	return c.lines
}

// close returns what is left.
func (c *cooker) close(now time.Time) []cloud.LogLine {
	c.lines = c.splitter.write(c.lines[:0], c.redactor.close(), now.UTC())
	c.lines = c.splitter.close(c.lines, now.UTC())
	return c.lines
}
