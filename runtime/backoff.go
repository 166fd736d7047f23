package runtime

import (
	"context"
	"iter"
	"time"
)

// Backoff is the delay between two attempts: First, and twice as long after each attempt, up to
// Max.
type Backoff struct{ First, Max time.Duration }

// Attempts yields once for each attempt, until the caller breaks or ctx ends. The value is the
// delay after the attempt. It is waited for until wake, which may be nil, or ctx ends it early. The
// first attempt is made even if ctx has ended.
func (b Backoff) Attempts(ctx context.Context, wake <-chan struct{}) iter.Seq[time.Duration] {
	return func(attempt func(time.Duration) bool) {
		for delay := b.First; attempt(delay); delay = min(2*delay, b.Max) {
			timer := time.NewTimer(delay)
			select {
			case <-wake:
			case <-ctx.Done():
			case <-timer.C:
			}
			timer.Stop()
			if ctx.Err() != nil {
				return
			}
		}
	}
}
