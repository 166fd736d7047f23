package runtime

import (
	"context"
	"math/rand/v2"
	"time"
)

// Backoff is the delay before the next attempt of a call: First, and twice as long after each
// attempt, up to Max.
//
//	for delay := backoff.First; ; delay = backoff.Next(delay) {
//		if err := call(); err == nil {
//			return nil
//		}
//		if !runtime.Sleep(ctx, nil, delay) {
//			return ctx.Err()
//		}
//	}
type Backoff struct{ First, Max time.Duration }

// Next returns the delay after a delay. After 0 it is First.
func (b Backoff) Next(delay time.Duration) time.Duration { return min(max(2*delay, b.First), b.Max) }

// Jitter returns a random time between three and five quarters of a delay, so that agents that have
// lost the same server do not retry at the same time.
func Jitter(delay time.Duration) time.Duration { return delay*3/4 + rand.N(delay/2+1) }

// Sleep blocks for a delay, or until wake or ctx ends it. Wake may be nil. Sleep reports whether
// ctx has not ended.
func Sleep(ctx context.Context, wake <-chan struct{}, delay time.Duration) bool {
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-wake:
	case <-ctx.Done():
	case <-timer.C:
	}
	return ctx.Err() == nil
}
