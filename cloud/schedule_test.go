package cloud

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/schema/secret"
)

var errDown = errors.New("connection refused")

// documented returns the documented defaults of the settings for retries and the breaker. The
// edits are applied to them.
func documented(edits ...func(*runtime.Tuning)) *runtime.Tuning {
	tuning := &runtime.Tuning{
		RetryCount: 2, RetryWait: 20 * time.Second, RetryMaxWait: 2 * time.Minute,
		BreakerFailures: 2, BreakerTimeout: 10 * time.Minute,
	}
	for _, edit := range edits {
		edit(tuning)
	}
	return tuning
}

// withoutRetries is an edit after which a poll is not retried.
func withoutRetries(t *runtime.Tuning) { t.RetryCount = 0 }

// newTestSchedule returns a schedule that logs nothing.
func newTestSchedule(tuning *runtime.Tuning) *schedule {
	return newSchedule(tuning, slog.New(slog.DiscardHandler))
}

// failure returns the outcome of a failed attempt. It counts for the breaker, unless err is
// a cancellation.
func failure(err error, retryable bool, retryAfter time.Duration) outcome {
	return outcome{err: err, counts: true, retryable: retryable, retryAfter: retryAfter}
}

// held returns the delay of the next poll if the delay has a reason, or 0.
func held(next runtime.NextPoll) time.Duration {
	if next.Reason == "" {
		return 0
	}
	return left(next)
}

// left returns the time until the next poll.
func left(next runtime.NextPoll) time.Duration { return max(0, time.Until(next.At)) }

// denied returns how long attempts are refused, or 0.
func denied(next runtime.NextPoll, err error) time.Duration {
	if err == nil {
		return 0
	}
	return left(next)
}

// attempt begins an attempt, which must be allowed.
func (s *schedule) attempt(t testing.TB) {
	t.Helper()
	if _, err := s.begin(); err != nil {
		t.Fatalf("an attempt is refused: %v", err)
	}
}

// poll makes an attempt with an outcome, and returns when the next one is allowed.
func (s *schedule) poll(t testing.TB, o outcome) runtime.NextPoll {
	t.Helper()
	s.attempt(t)
	return s.record(o)
}

// edit applies a change to the settings of the schedule, and returns when the next attempt is
// allowed.
func (s *schedule) edit(change func(*runtime.Tuning)) runtime.NextPoll {
	tuning := *s.tuning
	change(&tuning)
	return s.tune(&tuning)
}

// wantDenied checks how long the schedule refuses an attempt. If the attempt is allowed,
// wantDenied begins it, and does not end it.
func (s *schedule) wantDenied(t *testing.T, what string, want time.Duration) {
	t.Helper()
	next, err := s.begin()
	switch {
	case denied(next, err) != want, want == 0 && err != nil:
		t.Errorf("%s: got %v and a delay of %s, want a delay of %s", what, err, denied(next, err), want)
	case err != nil && (next.Reason != reasonBreaker || !errors.Is(err, errDown)):
		t.Errorf("%s: the refusal %v (%v) does not name the breaker and the failure that opened it", what, next, err)
	}
}

// wantLeft checks the time until the next poll, and that a delay has a reason.
func wantLeft(t *testing.T, next runtime.NextPoll, want time.Duration) {
	t.Helper()
	if got := left(next); got != want || want > 0 && next.Reason == "" {
		t.Errorf("the next poll is allowed in %s (%q), want %s with a reason", got, next.Reason, want)
	}
}

// around checks a wait that has a jitter of up to a fifth.
func around(t *testing.T, what string, got, want time.Duration) {
	t.Helper()
	if got < want-want/5 || got > want+want/5 {
		t.Errorf("%s: got %s, want about %s", what, got, want)
	}
}

func TestScheduleBreaker(t *testing.T) {
	inBubble(t, "the breaker counts a poll once, after its retries, whose waits double", func(t *testing.T) {
		p := newTestSchedule(documented())
		for poll, pause := range []time.Duration{0, 10 * time.Minute} {
			for _, want := range []time.Duration{20 * time.Second, 40 * time.Second} {
				wait := held(p.poll(t, failure(errDown, true, 0)))
				around(t, "the wait before a retry", wait, want)
				time.Sleep(wait)
			}
			if wait := held(p.poll(t, failure(errDown, true, 0))); wait != pause {
				t.Errorf("after poll %d the delay is %s, want %s", poll, wait, pause)
			}
		}
		p.wantDenied(t, "the open breaker", 10*time.Minute)
		time.Sleep(10*time.Minute + time.Second)
		p.poll(t, outcome{})
		p.attempt(t)
	})

	inBubble(t, "a failed trial opens the breaker again", func(t *testing.T) {
		p := newOpenSchedule(t, 0)
		time.Sleep(10*time.Minute + time.Second)
		wantLeft(t, p.poll(t, failure(errDown, true, 0)), 10*time.Minute)
	})

	inBubble(t, "a poll without a request changes neither the count nor an open breaker", func(t *testing.T) {
		p := newTestSchedule(documented(withoutRetries))
		unread := outcome{err: errDown, unsent: true, retryable: true}
		for i, o := range []outcome{failure(errDown, true, 0), unread, failure(errDown, true, 0), unread, unread} {
			wait := held(p.poll(t, o))
			if open := i >= 2; p.breakerOpen() != open || open && wait != 10*time.Minute {
				t.Errorf("after poll %d the breaker holds for %s, want it open: %v", i, wait, open)
			}
			time.Sleep(10*time.Minute + time.Second)
		}
		if p.poll(t, outcome{}); p.breakerOpen() {
			t.Error("a poll that succeeds does not close the breaker")
		}
	})

	inBubble(t, "a poll counts if its first attempt made a request and its last did not", func(t *testing.T) {
		p := newTestSchedule(documented(func(t *runtime.Tuning) { t.BreakerFailures = 1 }))
		p.poll(t, failure(errDown, true, 0))
		time.Sleep(20 * time.Second)
		if p.poll(t, outcome{err: errDown, unsent: true, retryable: true}); !p.breakerOpen() {
			t.Error("the breaker is closed, although the first attempt of the poll failed at the service")
		}
	})

	inBubble(t, "a shutdown does not count", func(t *testing.T) {
		p := newTestSchedule(documented())
		for range 20 {
			p.poll(t, failure(context.Canceled, true, 0))
		}
	})

	inBubble(t, "a closed breaker keeps its count of failures when its timeout changes", func(t *testing.T) {
		p := newTestSchedule(documented(withoutRetries))
		p.poll(t, failure(errDown, true, 0))
		p.edit(func(t *runtime.Tuning) { t.BreakerTimeout = time.Minute })
		wantLeft(t, p.poll(t, failure(errDown, true, 0)), time.Minute)
	})

	inBubble(t, "a new limit applies to the next failure", func(t *testing.T) {
		p := newTestSchedule(documented(withoutRetries))
		p.edit(func(t *runtime.Tuning) { t.BreakerFailures = 1 })
		wantLeft(t, p.poll(t, failure(errDown, true, 0)), 10*time.Minute)
	})
}

// newOpenSchedule returns a schedule without retries whose breaker has just opened. The
// failures that opened it have a Retry-After if retryAfter is not 0.
func newOpenSchedule(t *testing.T, retryAfter time.Duration) *schedule {
	t.Helper()
	tuning := documented(withoutRetries)
	tuning.Token, tuning.CA = secret.New("old"), "old"
	p := newTestSchedule(tuning)
	for range tuning.BreakerFailures {
		p.poll(t, failure(errDown, true, retryAfter))
	}
	return p
}

func TestScheduleOpenBreaker(t *testing.T) {
	t.Run("after several edits the last timeout counts from the opening", func(t *testing.T) {
		rapid.Check(t, func(rt *rapid.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newOpenSchedule(t, 0)
				opened := time.Now()
				timeouts := rapid.SliceOfN(rapid.Int64Range(1, int64(10*time.Hour)), 1, 6).Draw(rt, "timeouts")
				for _, span := range timeouts {
					timeout := time.Duration(span)
					time.Sleep(time.Minute)
					want := max(0, timeout-time.Since(opened))
					wantLeft(t, p.edit(func(t *runtime.Tuning) { t.BreakerTimeout = timeout }), want)
					if p.wantDenied(t, timeout.String(), want); t.Failed() {
						break
					}
					if want == 0 { // the trial fails
						wantLeft(t, p.record(failure(errDown, true, 0)), timeout)
						break
					}
				}
			})
		})
	})

	t.Run("an open breaker waits for its timeout and for a Retry-After", func(t *testing.T) {
		for name, c := range map[string]struct{ requested, want time.Duration }{
			"a Retry-After beyond the timeout": {time.Hour, time.Hour},
			"a Retry-After within the timeout": {time.Minute, 10 * time.Minute},
		} {
			inBubble(t, name, func(t *testing.T) {
				p := newOpenSchedule(t, c.requested)
				p.wantDenied(t, "at once", c.want)
				p.edit(func(t *runtime.Tuning) { t.BreakerTimeout = time.Second })
				p.wantDenied(t, "with a timeout of a second", c.requested)
				time.Sleep(c.requested)
				p.wantDenied(t, "after the Retry-After", 0)
			})
		}
	})

	t.Run("new credentials or CA certificates allow one attempt", func(t *testing.T) {
		for name, change := range trialChanges {
			inBubble(t, name, func(t *testing.T) {
				p := newOpenSchedule(t, 0)
				time.Sleep(time.Minute)
				p.edit(func(t *runtime.Tuning) { t.RetryCount = 5 })
				p.wantDenied(t, "before the change", 9*time.Minute)
				p.edit(change)
				p.wantDenied(t, "after the change", 0)
				wantLeft(t, p.record(failure(errDown, true, 0)), 10*time.Minute)
				p.wantDenied(t, "after the failed trial", 10*time.Minute)
				p.edit(func(t *runtime.Tuning) { t.RetryCount, t.BreakerFailures = 0, 9 })
				p.wantDenied(t, "after an edit of other settings", 10*time.Minute)
			})
		}
	})

	inBubble(t, "a successful early trial closes the breaker", func(t *testing.T) {
		p := newOpenSchedule(t, 0)
		p.edit(trialChanges["a new token"])
		p.wantDenied(t, "the early trial", 0)
		p.record(outcome{})
		wantLeft(t, p.poll(t, failure(errDown, false, 0)), 0) // one failure does not open the breaker again
	})

	t.Run("settings that change during a poll are tried at once after its failure", func(t *testing.T) {
		for name, change := range trialChanges {
			inBubble(t, name, func(t *testing.T) {
				p := newOpenSchedule(t, 0)
				time.Sleep(10 * time.Minute)
				p.wantDenied(t, "after the timeout", 0)
				p.edit(change)
				wantLeft(t, p.record(failure(errDown, true, 0)), 0)
				wantLeft(t, p.poll(t, failure(errDown, true, 0)), 10*time.Minute) // the trial fails
			})
		}
	})

	t.Run("of the changes that allow a trial, only new credentials end a Retry-After", func(t *testing.T) {
		for name, change := range trialChanges {
			inBubble(t, name, func(t *testing.T) {
				for _, requested := range []time.Duration{5 * time.Minute, time.Hour} {
					p := newOpenSchedule(t, requested)
					want := time.Duration(0)
					if name == "new CA certificates" {
						want = requested
					}
					p.edit(change)
					p.wantDenied(t, "the trial", want)
				}
			})
		}
	})

	inBubble(t, "other edits allow no attempt", func(t *testing.T) {
		p := newOpenSchedule(t, 0)
		for i := range 600 {
			p.edit(func(t *runtime.Tuning) {
				t.RetryCount, t.BreakerFailures, t.MaxJobs = i%3, 1+i%5, i
				t.RetryWait, t.PollingInterval, t.TokenExpiration = time.Duration(i), time.Duration(i), time.Duration(i)
			})
			p.wantDenied(t, "within the timeout", 10*time.Minute-time.Duration(i)*time.Second)
			time.Sleep(time.Second)
		}
		p.wantDenied(t, "after the timeout", 0)
	})
}

// trialChanges are changes of credentials and CA certificates, which allow an attempt.
var trialChanges = map[string]func(*runtime.Tuning){
	"a new token":                   func(t *runtime.Tuning) { t.Token = secret.New("new") },
	"a new token file":              func(t *runtime.Tuning) { t.OIDCTokenFile = "/new" },
	"new content of the token file": func(t *runtime.Tuning) { t.OIDCSum = "new" },
	"new CA certificates":           func(t *runtime.Tuning) { t.CA = "new" },
}

// TestScheduleProperty checks any sequence of polls that succeed or fail. A poll waits for the
// breaker's timeout if at least BreakerFailures polls in a row have failed before it, and
// only then.
func TestScheduleProperty(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		synctest.Test(t, func(*testing.T) {
			tuning := documented()
			tuning.RetryCount = rapid.IntRange(0, 2).Draw(rt, "retries")
			tuning.BreakerFailures = rapid.IntRange(1, 4).Draw(rt, "limit")
			p := newTestSchedule(tuning)
			failures, trial := 0, false
			for range rapid.IntRange(1, 60).Draw(rt, "polls") {
				if next, err := p.begin(); err != nil {
					wait := left(next)
					if wait != tuning.BreakerTimeout {
						rt.Fatalf("the delay is %s, want the breaker's timeout of %s", wait, tuning.BreakerTimeout)
					}
					if failures < tuning.BreakerFailures {
						rt.Fatalf("the breaker is open after %d failures in a row, its limit is %d", failures,
							tuning.BreakerFailures)
					}
					if trial {
						rt.Fatal("the breaker refuses a poll after its timeout")
					}
					time.Sleep(wait + time.Millisecond)
					trial = true
					continue
				}
				if failures >= tuning.BreakerFailures && !trial {
					rt.Fatalf("a poll is allowed after %d failures in a row, the limit is %d", failures,
						tuning.BreakerFailures)
				}
				if rapid.IntRange(0, 2).Draw(rt, "outcome") == 0 {
					p.record(outcome{})
					failures, trial = 0, false
					continue
				}
				again := rapid.Bool().Draw(rt, "again")
				next := p.record(failure(errDown, again, 0))
				if p.attempts == 0 {
					failures++
					trial = false
				} else {
					time.Sleep(left(next))
				}
			}
		})
	})
}
