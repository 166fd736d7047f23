package cloud

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
)

// Reasons for a delayed poll, in a [runtime.NextPoll].
const (
	reasonBreaker    = "circuit breaker open"
	reasonRetryAfter = "Retry-After of the service"
)

// schedule computes when the service may be polled again, and logs the polls.
// It never waits.
//
//  1. After a response without a job, the next poll is due after the polling interval.
//     Jitter changes the interval by up to a tenth. After a job, the next poll is due at
//     once.
//  2. A Retry-After replaces the times of rule 1. polling_interval_override cancels a
//     Retry-After, unless it came with a failure.
//  3. A poll that failed is retried up to request_retry_count times, with a wait that
//     doubles, if its failure counts and is retryable: see outcome. The poll and its
//     retries count as one failed poll for the circuit breaker, as Pulumi documents
//     circuit_breaker_failures ("Customer-managed runners", configuration reference).
//  4. The breaker opens after circuit_breaker_failures failed polls in a row. While it is
//     open, the next poll waits for circuit_breaker_timeout, counted from the opening. If
//     that poll fails, the breaker opens again. A poll that succeeds closes the breaker.
//     So does a response that does not count as a failure, such as a 401: see
//     [Client.classify]. If no request was made, an open breaker waits for its timeout
//     again.
//  5. After a failure, new credentials or new CA certificates allow one attempt at once,
//     because they may remove its cause. A call of [Client.Retry] allows one, too. A
//     Retry-After still applies, except after new credentials. If this attempt fails and
//     the breaker was open, it is not retried.
//
// The next poll is computed from the settings in force and from these facts, so
// settings can change at any time, and no change discards a failure. Methods are safe
// for concurrent use.
type schedule struct {
	log *slog.Logger

	mu        sync.Mutex
	tuning    *runtime.Tuning
	attempted *runtime.Tuning // settings at the start of the attempt
	logged    bool            // the failure is logged, and no change since then allows an attempt at once

	// Facts about the last attempt.
	polled     time.Time // when it ended; zero before the first one
	jitter     float64   // factor of the interval after it
	job        bool      // the response was a job
	err        error     // nil if the service answered the poll
	retryAfter time.Time // requested by the service; zero if it requested nothing
	attempts   int       // failed attempts of the poll, if it is retried
	retry      runtime.NextPoll
	failures   int       // failed polls in a row since the breaker last opened or closed
	opened     time.Time // last opening of the breaker; zero while it is closed
	trial      bool      // rule 5 allows an attempt at once
}

// outcome is the result of one attempt of a poll.
type outcome struct {
	job        bool  // the response was a job
	err        error // nil if the service answered the poll
	counts     bool  // the failure counts for retries and breaker: see [Client.classify]
	unsent     bool  // no request was made, so nothing is known about the service
	retryable  bool  // a failure that counts may be retried
	retryAfter time.Duration
}

func newSchedule(tuning *runtime.Tuning, log *slog.Logger) *schedule {
	return &schedule{tuning: tuning, attempted: &runtime.Tuning{}, log: log}
}

// begin starts an attempt. While the next poll waits for the breaker, it returns an error
// instead, with the time of that poll.
func (s *schedule) begin() (runtime.NextPoll, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if next := s.next(); s.breakerHolds() && time.Now().Before(next.At) {
		return next, fmt.Errorf("%s: %w", reasonBreaker, s.err)
	}
	s.attempted = s.tuning
	return runtime.NextPoll{}, nil
}

// skip returns the time of the next poll when no attempt is made, because the poll would
// claim no kind of work that the pool runs. It does not change the facts about the last
// attempt.
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

	// 2. A Retry-After replaces the interval.
	if o.retryAfter > 0 && (o.err != nil || !s.tuning.PollingOverride) {
		s.retryAfter = s.polled.Add(o.retryAfter)
	}

	// 3. and 4. Retry a poll that failed, or count it.
	switch {
	case o.unsent && s.attempts == 0:
		if wasOpen { // the timeout of the breaker begins again
			s.opened = s.polled
		}
	case !o.counts && !o.unsent:
		s.attempts, s.failures, s.opened = 0, 0, time.Time{}
	case errors.Is(o.err, context.Canceled): // the service did not fail
		s.attempts = 0
	case o.counts && o.retryable && !(wasOpen && trial) && s.attempts < s.tuning.RetryCount:
		s.attempts++
		wait := backoff(s.tuning.RetryWait, s.tuning.RetryMaxWait, s.attempts-1)
		s.retry = runtime.NextPoll{
			At:     s.polled.Add(wait),
			Reason: fmt.Sprintf("try %d of %d", s.attempts, s.tuning.RetryCount+1),
		}
	default:
		s.attempts = 0
		s.failures++
		if wasOpen || s.failures >= s.tuning.BreakerFailures {
			s.failures, s.opened = 0, s.polled
		}
	}
	s.logOutcome(wasOpen, wasFailing)

	// 5. Allow an attempt at once if the settings changed during the failed one.
	if o.err != nil {
		s.allowTrial(s.attempted)
	}
	return s.next()
}

// tune replaces the settings and returns when the next attempt is allowed. If the settings
// are the same, it only returns this time.
func (s *schedule) tune(tuning *runtime.Tuning) runtime.NextPoll {
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

// peek returns when the next attempt is allowed.
func (s *schedule) peek() runtime.NextPoll {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.next()
}

// allowTrial allows an attempt at once if the credentials or the CA certificates differ
// from those of the settings before. The caller holds the lock.
func (s *schedule) allowTrial(before *runtime.Tuning) {
	sameCredentials := before.SameCredentials(*s.tuning)
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

	// 5. An attempt at once replaces everything except a Retry-After.
	if s.trial {
		next.At = time.Time{}
	}
	if next.At.Before(s.retryAfter) {
		next.At = s.retryAfter
	}
	return next
}

// breakerOpen reports whether the breaker has opened, and no poll has closed it since.
func (s *schedule) breakerOpen() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.isOpen()
}

// isOpen reports whether the breaker has opened, and no poll has closed it since: see rule 4.
// The caller holds the lock.
func (s *schedule) isOpen() bool { return !s.opened.IsZero() }

// breakerHolds reports whether the next poll waits for the breaker: the breaker is open, and
// its timeout started with the last attempt. The caller holds the lock.
func (s *schedule) breakerHolds() bool { return s.isOpen() && s.polled.Equal(s.opened) }

// logOutcome logs an attempt. The first failure of a series has the level warning, or error
// if the service rejects the token. The opening of the breaker has the level warning.
// Further failures, a breaker that stays open, and a response to credentials that have been
// replaced since the attempt started have the level debug. The caller holds the lock.
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

	// The poll failed. If the failure does not count, it may have closed the breaker.
	if closed {
		s.log.Info("circuit breaker closed")
		s.logged = false
	}
	level := slog.LevelWarn
	switch {
	case s.logged, !s.attempted.SameCredentials(*s.tuning):
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

// backoff returns the wait before retry n, counted from 0. The wait doubles from first up
// to limit. Then jitter changes it by up to a fifth.
func backoff(first, limit time.Duration, n int) time.Duration {
	wait := limit
	if n < 32 && first<<n > 0 && first<<n>>n == first {
		wait = min(limit, first<<n)
	}
	return wait - wait/5 + rand.N(2*(wait/5)+1)
}
