package runner

import (
	"bytes"
	"io"
	"sync"

	"github.com/cmwa-project/cmwa/cloud"
	"github.com/cmwa-project/cmwa/runtime"
)

// maxLocalLog limits the part of a job's log that is also written to standard error, in bytes. A container engine
// may keep it until the job is removed.
const maxLocalLog = 16 << 20

// localLog writes the lines of all steps to standard error, in addition to the service. It is safe for concurrent use.
// A nil localLog writes nothing.
type localLog struct {
	mu        sync.Mutex
	w         io.Writer
	remaining int // bytes
}

// add writes lines, whose secrets are redacted. An error of the writer ends the local log only.
func (l *localLog) add(step int, lines []cloud.LogLine) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	var text bytes.Buffer
	for _, line := range lines {
		if l.remaining <= 0 {
			break
		}
		part := runtime.LocalLine(step, line.Text)
		if l.remaining -= len(part); l.remaining <= 0 {
			part = runtime.LocalLine(step, "[only the service has the following lines of this job]")
		}
		text.WriteString(part)
	}
	if _, err := l.w.Write(text.Bytes()); err != nil {
		l.remaining = 0
	}
}
