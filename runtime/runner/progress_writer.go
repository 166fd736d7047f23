package runner

import (
	"encoding/json"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
)

// progressFlush is how long the agent may take to read the last line of progress
// when the job has ended. The agent waits as long for the end of the stream.
const progressFlush = 5 * time.Second

// progress reports to the agent what the service has accepted. It is safe for
// concurrent use and never blocks its callers: a goroutine writes the latest
// value, and values that a slow agent has not read are replaced by newer ones.
// Each value is complete in itself, so the agent loses nothing by that. An agent
// that does not read, or is gone, is no reason to stop the job.
type progress struct {
	out  io.Writer
	log  *slog.Logger
	news chan struct{} // holds a token while latest is not written; closed by close
	done chan struct{} // closed when the writer has ended

	mu     sync.Mutex
	latest runtime.Progress
	closed bool
}

// newProgress starts the writer. The caller closes it.
func newProgress(out io.Writer, log *slog.Logger) *progress {
	p := &progress{out: out, log: log, news: make(chan struct{}, 1), done: make(chan struct{})}
	go p.write()
	return p
}

// tell makes now the value to be written next.
func (p *progress) tell(now runtime.Progress) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	p.latest = now
	ring(p.news)
}

// write writes the latest value whenever there is a new one, until close or the
// first error.
func (p *progress) write() {
	defer close(p.done)
	encoder := json.NewEncoder(p.out)
	for range p.news {
		p.mu.Lock()
		now := p.latest
		p.mu.Unlock()
		if err := encoder.Encode(now); err != nil {
			p.log.Warn("progress write failed; the agent gets no more progress", "error", err)
			return
		}
	}
}

// close waits until the latest value is written, for at most progressFlush. A
// write that still blocks then is interrupted if the output has deadlines, as
// sockets and most pipes do; otherwise it ends with the program.
func (p *progress) close() {
	p.mu.Lock()
	p.closed = true
	close(p.news)
	p.mu.Unlock()
	limit := time.NewTimer(progressFlush)
	defer limit.Stop()
	select {
	case <-p.done:
		return
	case <-limit.C:
	}
	out, ok := p.out.(interface{ SetWriteDeadline(time.Time) error })
	if ok && out.SetWriteDeadline(time.Now()) == nil {
		<-p.done
		return
	}
	p.log.Warn("progress write timed out; the agent does not read it", "timeout", progressFlush)
}
