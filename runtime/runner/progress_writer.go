package runner

import (
	"encoding/json"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
)

// progress reports to the agent which lines and statuses the service has accepted. It is
// safe for concurrent use and never blocks its callers: a goroutine writes the latest
// value, and newer values replace those that a slow agent has not read. The agent needs
// only the latest value. A job continues if the agent does not read its progress.
type progress struct {
	out  io.Writer
	log  *slog.Logger
	wake chan struct{} // has a token while latest is not written; closed by close
	done chan struct{} // closed when the writer has ended

	mu     sync.Mutex
	latest runtime.Progress
	pulumi runtime.Pulumi // in each value from now on
	stack  string
	closed bool
}

// newProgress starts the writer. The caller must close it.
func newProgress(out io.Writer, log *slog.Logger) *progress {
	p := &progress{out: out, log: log, wake: make(chan struct{}, 1), done: make(chan struct{})}
	go p.write()
	return p
}

// report sets the next value to write.
func (p *progress) report(now runtime.Progress) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.set(now)
}

// set is report for a caller that holds the lock.
func (p *progress) set(now runtime.Progress) {
	if p.closed {
		return
	}
	now.Pulumi, now.Stack = p.pulumi, p.stack
	p.latest = now
	notify(p.wake)
}

// setPulumi adds how pulumi ended to the latest value, and to all later ones.
func (p *progress) setPulumi(end runtime.Pulumi, stack string) {
	if len(stack) > runtime.MaxStackName {
		stack = ""
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pulumi, p.stack = end, stack
	if p.latest.Status != "" { // otherwise nothing was reported yet: latest is empty, and the agent knows more
		p.set(p.latest)
	}
}

// write writes each new value until close or the first error.
func (p *progress) write() {
	defer close(p.done)
	encoder := json.NewEncoder(p.out)
	for range p.wake {
		p.mu.Lock()
		now := p.latest
		p.mu.Unlock()
		if err := encoder.Encode(now); err != nil {
			p.log.Warn("progress write failed; the agent gets no more progress", "error", err)
			return
		}
	}
}

// close blocks until the latest value is written, for at most progressFlush. It then
// interrupts a blocked write if the output supports deadlines, as sockets and most pipes
// do; otherwise the write ends with the program.
func (p *progress) close() {
	p.mu.Lock()
	p.closed = true
	close(p.wake)
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
