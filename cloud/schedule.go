package cloud

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/cmwa-project/cmwa/runtime"
)

// Why a poll is held, in a [runtime.NextPoll].
const (
	reasonBreaker    = "circuit breaker open"
	reasonRetryAfter = "the service asked for a longer wait"
)

// schedule computes when the service may be polled again, and logs what it learns.
// It never waits.
//
//  1. After an answer the next poll is due when the polling interval has passed,
//     with a tenth of jitter to either side. After a job it is due at once.
//  2. A Retry-After takes the place of both. polling_interval_override ends it,
//     unless it came with a failure.
//  3. A poll that failed is retried request_retry_count times, with a wait that
//     doubles. It counts once for the circuit breaker, as upstream documents
//     circuit_breaker_failures (Pulumi documentation, "Customer-managed runners",
//     configuration reference).
//  4. The breaker opens after that many failed polls in a row, and again after the
//     first failed poll that follows. Its timeout counts from when it opened.
//  5. After a failure, other credentials or other CA certificates allow one attempt
//     at once, since they may be the cure. Retry allows one too. A Retry-After still
//     holds, except for other credentials. If that attempt fails and the breaker was
//     open, it is not retried.
//
// The next poll is computed from the settings in force and from these facts, so
// settings can change at any time, and no change forgets a failure. Methods are safe
// for concurrent use.
type schedule struct {
	log *slog.Logger

	mu      sync.Mutex
	tuning  runtime.Tuning
	breaker *gobreaker.CircuitBreaker[struct{}] // counts failed polls; replaced when it opens, as its own timeout is fixed
	asked   runtime.Tuning                      // settings at the start of the attempt
	logged  bool                                // the failure is logged, and nothing has changed since that may end it

	// Facts about the last attempt.
	polled     time.Time // its end; zero before the first one
	jitter     float64   // factor of the interval after it
	job        bool      // it brought a job
	err        error     // why it failed; nil if it did not
	retryAfter time.Time // requested by the service; zero if it requested nothing
	attempts   int       // failed attempts of the poll, if it is retried
	retry      runtime.NextPoll
	opened     time.Time // when the breaker last opened; zero while it is closed
	trial      bool      // rule 5 allows an attempt at once
}

// outcome is how one attempt of a poll ended.
type outcome struct {
	job        bool  // the answer was a job
	err        error // nil if the service answered the poll
	counts     bool  // the failure counts for retries and breaker: the service does not work
	retryable  bool  // a failure that counts may be retried
	retryAfter time.Duration
}

func newSchedule(tuning runtime.Tuning, log *slog.Logger) *schedule {
	s := &schedule{tuning: tuning, log: log}
	s.breaker = s.newBreaker()
	return s
}

// newBreaker makes a closed breaker. Its callbacks run under the lock.
func (s *schedule) newBreaker() *gobreaker.CircuitBreaker[struct{}] {
	return gobreaker.NewCircuitBreaker[struct{}](gobreaker.Settings{
		Name: "poll",
		ReadyToTrip: func(c gobreaker.Counts) bool {
			return s.isOpen() || c.ConsecutiveFailures >= uint32(s.tuning.BreakerFailures)
		},
		IsExcluded: func(err error) bool { return errors.Is(err, context.Canceled) },
	})
}

// begin starts an attempt. While the breaker is open it returns an error instead,
// with the time of the next poll.
func (s *schedule) begin() (runtime.NextPoll, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if next := s.next(); s.breakerHolds() && time.Now().Before(next.At) {
		return next, fmt.Errorf("%s: %w", reasonBreaker, s.err)
	}
	s.asked = s.tuning
	return runtime.NextPoll{}, nil
}

// skip returns the time of the next poll when no attempt is made, since the pool claims
// no deployments. It changes nothing that is known of the last attempt.
func (s *schedule) skip() runtime.NextPoll {
	s.mu.Lock()
	defer s.mu.Unlock()
	return runtime.NextPoll{At: time.Now().Add(s.tuning.PollingInterval)}
}

// record ends an attempt and returns when the next one is allowed.
func (s *schedule) record(o outcome) runtime.NextPoll {
	s.mu.Lock()
	defer s.mu.Unlock()
	wasOpen, wasFailing, trial := s.isOpen(), s.err != nil, s.trial
	s.polled, s.jitter, s.job, s.err = time.Now(), 0.9+rand.Float64()/5, o.job, o.err
	s.retry, s.retryAfter, s.trial = runtime.NextPoll{}, time.Time{}, false

	// 2. A Retry-After takes the place of the interval.
	if o.retryAfter > 0 && (o.err != nil || !s.tuning.PollingOverride) {
		s.retryAfter = s.polled.Add(o.retryAfter)
	}

	// 3. and 4. Retry a poll that failed, or count it.
	switch {
	case !o.counts:
		s.count(nil)
		s.attempts, s.opened = 0, time.Time{}
	case o.retryable && !(wasOpen && trial) && s.attempts < s.tuning.RetryCount && !errors.Is(o.err, context.Canceled):
		s.attempts++
		wait := backoff(s.tuning.RetryWait, s.tuning.RetryMaxWait, s.attempts-1)
		s.retry = runtime.NextPoll{
			At:     s.polled.Add(wait),
			Reason: fmt.Sprintf("try %d of %d", s.attempts, s.tuning.RetryCount+1),
		}
	default:
		s.attempts = 0
		s.count(o.err)
		if s.breaker.State() == gobreaker.StateOpen {
			s.opened, s.breaker = s.polled, s.newBreaker()
		}
	}
	s.logOutcome(wasOpen, wasFailing)

	// 5. The failure was that of older settings if they have changed meanwhile.
	if o.err != nil {
		s.allowTrial(s.asked)
	}
	return s.next()
}

// count counts a poll for the breaker. The caller holds the lock.
func (s *schedule) count(err error) {
	_, _ = s.breaker.Execute(func() (struct{}, error) { return struct{}{}, err })
}

// tune replaces the settings and returns when the next attempt is allowed. Without a
// change it only returns that.
func (s *schedule) tune(tuning runtime.Tuning) runtime.NextPoll {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.tuning
	s.tuning = tuning
	if s.err != nil {
		s.allowTrial(before)
	} else if tuning.PollingOverride {
		s.retryAfter = time.Time{}
	}
	return s.next()
}

// allowTrial allows an attempt at once if what a poll depends on has changed from
// before. The caller holds the lock.
func (s *schedule) allowTrial(before runtime.Tuning) {
	sameCredentials := before.SameCredentials(s.tuning)
	if sameCredentials && before.CA == s.tuning.CA {
		return
	}
	s.trial, s.logged = true, false
	if !sameCredentials {
		s.retryAfter = time.Time{}
	}
}

// retryNow allows an attempt at once after a failure, and returns when the next one is
// allowed.
func (s *schedule) retryNow() runtime.NextPoll {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		s.trial, s.logged = true, false
	}
	return s.next()
}

// next computes when the next attempt is allowed. The caller holds the lock.
func (s *schedule) next() (next runtime.NextPoll) {
	switch {
	case s.attempts > 0: // 3.
		next = s.retry
	case s.breakerHolds(): // 4.
		next = runtime.NextPoll{At: s.opened.Add(s.tuning.BreakerTimeout), Reason: reasonBreaker}
	case !s.retryAfter.IsZero(): // 2.
		return runtime.NextPoll{At: s.retryAfter, Reason: reasonRetryAfter}
	case !s.polled.IsZero() && !s.job: // 1.
		next.At = s.polled.Add(time.Duration(float64(s.tuning.PollingInterval) * s.jitter))
	}

	// 5. An attempt at once takes the place of all but a Retry-After.
	if s.trial {
		next.At = time.Time{}
	}
	if next.At.Before(s.retryAfter) {
		next.At = s.retryAfter
	}
	return next
}

// isOpen reports whether the breaker has opened and no poll has succeeded since. The
// caller holds the lock.
func (s *schedule) isOpen() bool { return !s.opened.IsZero() }

// breakerHolds reports whether the next poll waits for the breaker: it is open, and the
// last attempt is the one that opened it. The caller holds the lock.
func (s *schedule) breakerHolds() bool { return s.isOpen() && s.polled.Equal(s.opened) }

// logOutcome logs an attempt: the first failure of a series is a warning, each further
// one is debug, and so is a breaker that stays open. The caller holds the lock.
func (s *schedule) logOutcome(wasOpen, wasFailing bool) {
	// The service has answered the poll.
	closed := wasOpen && !s.isOpen()
	if s.err == nil {
		var attributes []any
		if closed {
			attributes = []any{"circuit_breaker", "closed"}
		}
		if wasFailing {
			s.log.Info("polling resumed", attributes...)
		}
		s.logged = false
		return
	}

	// The poll failed. A breaker that closes all the same shows that the service works,
	// and refuses the poll.
	if closed {
		s.log.Info("circuit breaker closed")
		s.logged = false
	}
	level := slog.LevelWarn
	switch {
	case s.logged:
		level = slog.LevelDebug
	case errors.Is(s.err, runtime.ErrUnauthorized):
		level = slog.LevelError
	}
	next := s.next()
	if s.breakerHolds() && !(wasOpen && s.logged) {
		s.log.Warn("circuit breaker opened", "until", next.At, "error", s.err)
	} else {
		attributes := []any{"error", s.err, "retry_in", time.Until(next.At).Round(time.Millisecond)}
		if next.Reason != "" {
			attributes = append(attributes, "reason", next.Reason)
		}
		s.log.Log(context.Background(), level, "poll failed", attributes...)
	}
	s.logged = true
}

// backoff is the wait before retry n (from 0): it doubles from first up to most,
// with a fifth of jitter to either side.
func backoff(first, most time.Duration, n int) time.Duration {
	wait := most
	if n < 32 && first<<n > 0 && first<<n>>n == first {
		wait = min(most, first<<n)
	}
	return wait - wait/5 + rand.N(2*(wait/5)+1)
}
