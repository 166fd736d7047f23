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
// Settings change in use, and no change forgets a failure. While the breaker is
// open, its timeout counts from when it opened, and is the one of the last edit.
// A change of what a call depends on, the credentials and the certificates that
// are trusted, lets one try through at once: it may be the cure. What the service
// itself has asked for holds all the same, but for other credentials.
type pace struct {
	mu      sync.Mutex
	tuning  runtime.Tuning
	breaker *gobreaker.TwoStepCircuitBreaker[struct{}] // counts; made anew when it opens, as its own timeout is fixed
	done    func(error)                                // of the question that is being tried
	tries   int                                        // failed tries of that question
	asked   runtime.Tuning                             // when the last try began

	opened time.Time // when the breaker last opened; zero once a question has succeeded
	wish   time.Time // the end of the wait that the service asked for then; zero is none
	cause  error     // why it opened
	early  bool      // one try may be made before the timeout is over
}

func newPace(tuning runtime.Tuning) *pace {
	p := &pace{tuning: tuning}
	p.breaker = p.make()
	return p
}

// make makes a closed breaker. Its callbacks run under the lock. After it has
// opened, the next failure opens it again.
func (p *pace) make() *gobreaker.TwoStepCircuitBreaker[struct{}] {
	return gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		Name: "poll",
		ReadyToTrip: func(c gobreaker.Counts) bool {
			return p.isOpen() || c.ConsecutiveFailures >= uint32(p.tuning.BreakerFailures)
		},
		IsExcluded: func(err error) bool { return errors.Is(err, context.Canceled) },
	})
}

// begin opens a question, or goes on with one. It returns a *runtime.Pause when
// it is too early.
func (p *pace) begin() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.done == nil {
		if p.isOpen() && time.Now().Before(p.end()) {
			return p.open()
		}
		done, err := p.breaker.Allow()
		if err != nil {
			return err
		}
		p.done = done
	}
	p.asked = p.tuning
	return nil
}

// succeeded closes the question: the service works, whatever it answered.
func (p *pace) succeeded() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.opened, p.wish, p.cause, p.early = time.Time{}, time.Time{}, nil, false
	p.finish(nil)
}

// failed notes a try that failed, and returns the error for the pool. Again
// says that the question may be repeated; least is the shortest wait that the
// service asks for.
func (p *pace) failed(err error, again bool, least time.Duration) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tries++
	now := time.Now()
	var wish time.Time
	if least > 0 {
		wish = now.Add(least)
	}
	if again && !p.early && p.tries <= p.tuning.RetryCount && !errors.Is(err, context.Canceled) {
		wait := max(least, backoff(p.tuning.RetryWait, p.tuning.RetryMaxWait, p.tries-1))
		return &runtime.Pause{
			Until:  now.Add(wait),
			Wish:   wish,
			Reason: fmt.Sprintf("try %d of %d", p.tries, p.tuning.RetryCount+1),
			Err:    err,
		}
	}
	p.finish(err)
	if p.breaker.State() == gobreaker.StateOpen {
		p.opened, p.wish, p.cause, p.early = now, wish, err, false
		p.breaker = p.make()
		p.heed(p.asked)
		return p.open()
	}
	if least > 0 {
		return &runtime.Pause{Until: wish, Wish: wish, Reason: "the service asked for a longer wait", Err: err}
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

// isOpen reports whether the breaker is open or on probation. The caller holds
// the lock.
func (p *pace) isOpen() bool { return !p.opened.IsZero() }

// end is until when an open breaker lets no question through. The caller holds
// the lock.
func (p *pace) end() time.Time {
	end := p.opened
	if !p.early {
		end = end.Add(p.tuning.BreakerTimeout)
	}
	if p.wish.After(end) {
		return p.wish
	}
	return end
}

// open is the pause of an open breaker. The caller holds the lock.
func (p *pace) open() error {
	return &runtime.Pause{Until: p.end(), Wish: p.wish, Reason: runtime.BreakerOpen, Err: p.cause}
}

// tune takes new settings over.
func (p *pace) tune(tuning runtime.Tuning) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.tuning
	p.tuning = tuning
	if p.isOpen() {
		p.heed(before)
	}
}

// heed lets an open breaker make an early try if what calls depend on has
// changed from before. The caller holds the lock.
func (p *pace) heed(before runtime.Tuning) {
	if !before.SameCredentials(p.tuning) {
		p.early, p.wish = true, time.Time{}
	}
	if before.CA != p.tuning.CA {
		p.early = true
	}
}

// retry lets an open breaker make one try before its timeout is over. What the
// service has asked for holds.
func (p *pace) retry() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.early = p.isOpen()
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
