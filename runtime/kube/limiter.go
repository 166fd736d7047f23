package kube

import (
	"cmp"
	"context"
	"errors"
	"sync"

	"k8s.io/client-go/util/flowcontrol"
)

// DefaultQPS is the default of kubernetes.qps. With client-go's default, 5 requests a second, 40
// concurrent starts would take 6 seconds.
const DefaultQPS = 50

const burstFactor = 4 // requests that may be sent at once after a pause, as a multiple of the rate

// errThrottled is returned for a request that would have to wait for longer than its timeout. It was
// not sent.
var errThrottled = errors.New("too many requests of this agent wait to be sent")

// limiter limits the requests per second of a client. Creates have a limit of their own, so that a
// deletion or a handoff does not wait for the creates of many jobs. It is safe for concurrent use.
type limiter struct {
	flowcontrol.RateLimiter // for all requests but creates

	mu      sync.Mutex
	rates   map[*Executor]int // kubernetes.qps of each pool
	rate    int               // the largest of them
	creates flowcontrol.RateLimiter
}

func newLimiter() *limiter {
	l := &limiter{rates: map[*Executor]int{}}
	l.apply(DefaultQPS)
	return l
}

// set sets the rate of a pool; zero is the default. The client uses the largest rate of its pools.
func (l *limiter) set(pool *Executor, rate int) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rates[pool] = cmp.Or(rate, DefaultQPS)
	l.update()
}

// remove removes the rate of a pool.
func (l *limiter) remove(pool *Executor) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.rates, pool)
	l.update()
}

// update applies the largest rate. The caller holds the lock.
func (l *limiter) update() {
	largest := 0
	for _, rate := range l.rates {
		largest = max(largest, rate)
	}
	if largest = cmp.Or(largest, DefaultQPS); largest != l.rate {
		l.apply(largest)
	}
}

// current returns the rate in force.
func (l *limiter) current() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.rate
}

// apply sets a new rate. Requests that wait already keep their place. The caller holds the lock.
func (l *limiter) apply(rate int) {
	l.rate = rate
	l.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(float32(rate), burstFactor*rate)
	l.creates = flowcontrol.NewTokenBucketRateLimiter(float32(rate), burstFactor*rate)
}

type createKey struct{}

// asCreate returns the context of a request that creates an object.
func asCreate(ctx context.Context) context.Context { return context.WithValue(ctx, createKey{}, true) }

// Wait blocks until a request may be sent. If ctx would end before, it returns errThrottled at once.
func (l *limiter) Wait(ctx context.Context) error {
	l.mu.Lock()
	limit := l.RateLimiter
	if ctx.Value(createKey{}) != nil {
		limit = l.creates
	}
	l.mu.Unlock()
	if err := limit.Wait(ctx); err != nil {
		return cmp.Or(ctx.Err(), errThrottled)
	}
	return nil
}
