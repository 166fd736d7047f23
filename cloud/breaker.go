package cloud

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/cmwa-project/cmwa/runtime"
)

// pace decides when the service may be asked for work again: it counts the
// repetitions of one question and, through a circuit breaker, the questions
// that failed in a row. It never waits; it says until when to.
//
// One question is up to request_retry_count+1 tries. A question that failed
// counts once for the breaker, as upstream documents circuit_breaker_failures
// (Pulumi documentation, "Customer-managed runners", configuration reference).
//
// Settings change in use. The breaker's row of failures is kept; while it is
// open, a new timeout counts from when it opened, and a timeout that has passed
// already gives way to one question on probation.
type pace struct {
	mu        sync.Mutex
	tuning    runtime.Tuning
	breaker   *gobreaker.TwoStepCircuitBreaker[struct{}]
	done      func(error) // of the question that is being tried
	tries     int         // failed tries of that question
	row       uint32      // failures carried over from an earlier breaker
	probation bool        // the next failure opens the breaker, whatever the row
	opened    time.Time   // when the breaker last opened
	notBefore time.Time   // the end of a pause carried over from an earlier breaker
}

func newPace(tuning runtime.Tuning) *pace {
	p := &pace{tuning: tuning}
	p.breaker = p.make()
	return p
}

// make makes a closed breaker. Its callbacks run under the lock.
func (p *pace) make() *gobreaker.TwoStepCircuitBreaker[struct{}] {
	return gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		Name:        "poll",
		MaxRequests: 1,
		Timeout:     p.tuning.BreakerTimeout,
		ReadyToTrip: func(c gobreaker.Counts) bool {
			return p.probation || c.ConsecutiveFailures+p.row >= uint32(p.tuning.BreakerFailures)
		},
		IsExcluded: func(err error) bool { return errors.Is(err, context.Canceled) },
		OnStateChange: func(_ string, _, to gobreaker.State) {
			if to == gobreaker.StateOpen {
				p.opened = time.Now()
			}
		},
	})
}

// begin opens a question, or goes on with one. It returns a *runtime.Pause when
// it is too early.
func (p *pace) begin() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.done != nil {
		return nil
	}
	if time.Now().Before(p.notBefore) {
		return p.open(p.notBefore, nil)
	}
	done, err := p.breaker.Allow()
	if err != nil {
		return p.open(p.opened.Add(p.tuning.BreakerTimeout), nil)
	}
	p.done = done
	return nil
}

// succeeded closes the question: the service works, whatever it answered.
func (p *pace) succeeded() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.row, p.probation = 0, false
	p.finish(nil)
}

// failed notes a try that failed, and returns the error for the pool. Again
// says that the question may be repeated; least is the shortest wait that the
// service asks for.
func (p *pace) failed(err error, again bool, least time.Duration) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tries++
	if again && p.tries <= p.tuning.RetryCount && !errors.Is(err, context.Canceled) {
		wait := max(least, backoff(p.tuning.RetryWait, p.tuning.RetryMaxWait, p.tries-1))
		return &runtime.Pause{
			Until:  time.Now().Add(wait),
			Reason: fmt.Sprintf("try %d of %d", p.tries, p.tuning.RetryCount+1),
			Err:    err,
		}
	}
	p.finish(err)
	if p.breaker.State() == gobreaker.StateOpen {
		return p.open(p.opened.Add(p.tuning.BreakerTimeout), err)
	}
	if least > 0 {
		return &runtime.Pause{Until: time.Now().Add(least), Reason: "the service asked for a longer wait", Err: err}
	}
	return err
}

// finish tells the breaker how the question ended. The caller holds the lock.
func (p *pace) finish(err error) {
	if p.done != nil {
		p.done(err)
	}
	p.done, p.tries = nil, 0
}

// open is the pause of an open breaker.
func (p *pace) open(until time.Time, err error) error {
	return &runtime.Pause{Until: until, Reason: "circuit breaker open", Err: err}
}

// tune takes new settings over.
func (p *pace) tune(tuning runtime.Tuning) {
	p.mu.Lock()
	defer p.mu.Unlock()
	old := p.tuning
	p.tuning = tuning
	if old.BreakerTimeout == tuning.BreakerTimeout {
		return
	}
	switch p.breaker.State() {
	case gobreaker.StateClosed:
		p.row += p.breaker.Counts().ConsecutiveFailures
	case gobreaker.StateOpen:
		p.notBefore, p.probation = p.opened.Add(tuning.BreakerTimeout), true
	case gobreaker.StateHalfOpen:
		p.probation = true
	}
	p.breaker = p.make()
	if p.done != nil { // the question goes on, and counts for the new one
		p.done, _ = p.breaker.Allow()
	}
}

// backoff is the wait before repetition n (from 0): it doubles from first up to
// most, with a fifth of jitter to either side.
func backoff(first, most time.Duration, n int) time.Duration {
	wait := most
	if n < 32 && first<<n > 0 && first<<n>>n == first {
		wait = min(most, first<<n)
	}
	return wait - wait/5 + rand.N(2*(wait/5)+1)
}
