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

// documented returns the documented defaults of the settings for retries and the breaker.
func documented() runtime.Tuning {
	return runtime.Tuning{
		RetryCount: 2, RetryWait: 20 * time.Second, RetryMaxWait: 2 * time.Minute,
		BreakerFailures: 2, BreakerTimeout: 10 * time.Minute,
	}
}

// newTestSchedule returns a schedule that logs nothing.
func newTestSchedule(tuning runtime.Tuning) *schedule {
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

// around checks a wait that has a jitter of up to a fifth.
func around(t *testing.T, what string, got, want time.Duration) {
	t.Helper()
	if got < want-want/5 || got > want+want/5 {
		t.Errorf("%s: got %s, want about %s", what, got, want)
	}
}

func TestScheduleBreaker(t *testing.T) {
	t.Run("the breaker counts a poll once, after its retries, whose waits double", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := newTestSchedule(documented())
			for poll := range 2 {
				for try, want := range []time.Duration{20 * time.Second, 40 * time.Second} {
					if _, err := p.begin(); err != nil {
						t.Fatalf("poll %d, try %d: %v", poll, try, err)
					}
					wait := held(p.record(failure(errDown, true, 0)))
					around(t, "the wait before a retry", wait, want)
					time.Sleep(wait)
				}
				if _, err := p.begin(); err != nil {
					t.Fatal(err)
				}
				if wait := held(p.record(failure(errDown, true, 0))); poll == 0 && wait != 0 || poll == 1 &&
					wait != 10*time.Minute {
					t.Errorf("after poll %d the delay is %s", poll, wait)
				}
			}
			next, err := p.begin()
			if wait := denied(next, err); wait != 10*time.Minute {
				t.Errorf("the open breaker delays the poll by %s, want 10m", wait)
			}
			if !errors.Is(err, errDown) {
				t.Errorf("the error %v does not wrap its cause", err)
			}
			time.Sleep(10*time.Minute + time.Second)
			if _, err := p.begin(); err != nil {
				t.Fatalf("after its timeout the breaker refuses a trial: %v", err)
			}
			p.record(outcome{})
			if _, err := p.begin(); err != nil {
				t.Fatalf("after a success: %v", err)
			}
		})
	})

	t.Run("a failed trial opens the breaker again", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			tuning := documented()
			tuning.RetryCount = 0
			p := newTestSchedule(tuning)
			for range 2 {
				p.attempt(t)
				p.record(failure(errDown, true, 0))
			}
			time.Sleep(10*time.Minute + time.Second)
			if _, err := p.begin(); err != nil {
				t.Fatal(err)
			}
			if wait := held(p.record(failure(errDown, true, 0))); wait != 10*time.Minute {
				t.Errorf("after the failed trial the delay is %s, want 10m", wait)
			}
		})
	})

	t.Run("a poll without a request changes neither the count nor an open breaker", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			tuning := documented()
			tuning.RetryCount = 0
			p := newTestSchedule(tuning)
			unread := outcome{err: errDown, unsent: true, retryable: true}
			for i, o := range []outcome{failure(errDown, true, 0), unread, failure(errDown, true, 0), unread, unread} {
				p.attempt(t)
				wait := held(p.record(o))
				if open := i >= 2; p.breakerOpen() != open || open && wait != 10*time.Minute {
					t.Errorf("after poll %d the breaker holds for %s, want it open: %v", i, wait, open)
				}
				time.Sleep(10*time.Minute + time.Second)
			}
			p.attempt(t)
			if p.record(outcome{}); p.breakerOpen() {
				t.Error("a poll that succeeds does not close the breaker")
			}
		})
	})

	t.Run("a poll counts if its first attempt made a request and its last did not", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			tuning := documented()
			tuning.BreakerFailures = 1
			p := newTestSchedule(tuning)
			p.attempt(t)
			p.record(failure(errDown, true, 0))
			time.Sleep(20 * time.Second)
			p.attempt(t)
			if p.record(outcome{err: errDown, unsent: true, retryable: true}); !p.breakerOpen() {
				t.Error("the breaker is closed, although the first attempt of the poll failed at the service")
			}
		})
	})

	t.Run("a Retry-After is the minimum of the wait", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := newTestSchedule(documented())
			p.attempt(t)
			if wait := held(p.record(failure(errDown, true, time.Hour))); wait != time.Hour {
				t.Errorf("the wait is %s, want the Retry-After of 1h", wait)
			}
		})
	})

	t.Run("a shutdown does not count", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := newTestSchedule(documented())
			for range 20 {
				if _, err := p.begin(); err != nil {
					t.Fatalf("cancelled polls have opened the breaker: %v", err)
				}
				p.record(failure(context.Canceled, true, 0))
			}
		})
	})

	t.Run("a lost response is not retried", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := newTestSchedule(documented())
			p.attempt(t)
			if wait := held(p.record(failure(errDown, false, 0))); wait != 0 {
				t.Errorf("the poll is retried after %s, want no retry", wait)
			}
		})
	})

	t.Run("the breaker keeps its state when its settings change", func(t *testing.T) {
		retune := func(p *schedule, timeout time.Duration) {
			tuning := p.tuning
			tuning.BreakerTimeout = timeout
			p.tune(tuning)
		}
		t.Run("a closed breaker keeps its count of failures", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tuning := documented()
				tuning.RetryCount = 0
				p := newTestSchedule(tuning)
				p.attempt(t)
				p.record(failure(errDown, true, 0))
				retune(p, time.Minute)
				p.attempt(t)
				if wait := held(p.record(failure(errDown, true, 0))); wait != time.Minute {
					t.Errorf("after the second failure in a row the pause is %s, want 1m", wait)
				}
			})
		})
		t.Run("a new limit applies to the next failure", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tuning := documented()
				tuning.RetryCount = 0
				p := newTestSchedule(tuning)
				tuning.BreakerFailures = 1
				p.tune(tuning)
				p.attempt(t)
				if wait := held(p.record(failure(errDown, true, 0))); wait == 0 {
					t.Error("one failure does not open a breaker whose limit is one")
				}
			})
		})
	})
}

// newOpenSchedule returns a schedule without retries whose breaker has just opened. The
// failures that opened it have a Retry-After if retryAfter is not 0.
func newOpenSchedule(t *testing.T, retryAfter time.Duration) *schedule {
	t.Helper()
	tuning := documented()
	tuning.RetryCount, tuning.Token, tuning.CA = 0, secret.New("old"), "old"
	p := newTestSchedule(tuning)
	for range tuning.BreakerFailures {
		if _, err := p.begin(); err != nil {
			t.Fatal(err)
		}
		p.record(failure(errDown, true, retryAfter))
	}
	return p
}

// edit applies a change to the settings of the schedule.
func (s *schedule) edit(change func(*runtime.Tuning)) {
	tuning := s.tuning
	change(&tuning)
	s.tune(tuning)
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

func TestScheduleOpenBreaker(t *testing.T) {
	t.Run("after several edits the last timeout counts from the opening", func(t *testing.T) {
		rapid.Check(t, func(rt *rapid.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newOpenSchedule(t, 0)
				passed := time.Duration(0)
				for _, timeout := range rapid.SliceOfN(rapid.Int64Range(1, int64(10*time.Hour)), 1, 6).Draw(rt,
					"timeouts") {
					timeout := time.Duration(timeout)
					time.Sleep(time.Minute)
					passed += time.Minute
					p.edit(func(t *runtime.Tuning) { t.BreakerTimeout = timeout })
					if p.wantDenied(t, timeout.String(), max(0, timeout-passed)); timeout <= passed || t.Failed() {
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
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					p := newOpenSchedule(t, c.requested)
					p.wantDenied(t, "at once", c.want)
					p.edit(func(t *runtime.Tuning) { t.BreakerTimeout = time.Second })
					p.wantDenied(t, "with a timeout of a second", c.requested)
					time.Sleep(c.requested)
					p.wantDenied(t, "after the Retry-After", 0)
				})
			})
		}
	})

	t.Run("new credentials or CA certificates allow one attempt", func(t *testing.T) {
		for name, change := range trialChanges {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					p := newOpenSchedule(t, 0)
					time.Sleep(time.Minute)
					p.edit(func(t *runtime.Tuning) { t.RetryCount = 5 })
					p.wantDenied(t, "before the change", 9*time.Minute)
					p.edit(change)
					p.wantDenied(t, "after the change", 0)
					if wait := held(p.record(failure(errDown, true, 0))); wait != 10*time.Minute {
						t.Errorf("after the failed trial the delay is %s, want the whole timeout of 10m", wait)
					}
					p.wantDenied(t, "after the failed trial", 10*time.Minute)
					p.edit(func(t *runtime.Tuning) { t.RetryCount, t.BreakerFailures = 0, 9 })
					p.wantDenied(t, "after an edit of other settings", 10*time.Minute)
				})
			})
		}
	})

	t.Run("a successful early trial closes the breaker", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := newOpenSchedule(t, 0)
			p.edit(trialChanges["a new token"])
			p.wantDenied(t, "the early trial", 0)
			p.record(outcome{})
			p.wantDenied(t, "the next attempt", 0)
			if next := p.record(failure(errDown, false, 0)); held(next) != 0 {
				t.Errorf("one failure opens the breaker again: %v", next)
			}
		})
	})

	t.Run("settings that change during a poll are tried at once after its failure", func(t *testing.T) {
		for name, change := range trialChanges {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					p := newOpenSchedule(t, 0)
					time.Sleep(10 * time.Minute)
					p.wantDenied(t, "after the timeout", 0)
					p.edit(change)
					if wait := held(p.record(failure(errDown, true, 0))); wait != 0 {
						t.Errorf("the new settings are tried after %s, want at once", wait)
					}
					p.wantDenied(t, "the trial", 0)
					if wait := held(p.record(failure(errDown, true, 0))); wait != 10*time.Minute {
						t.Errorf("after the failed trial the delay is %s, want 10m", wait)
					}
				})
			})
		}
	})

	t.Run("of the changes that allow a trial, only new credentials end a Retry-After", func(t *testing.T) {
		for name, change := range trialChanges {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
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
			})
		}
	})

	t.Run("other edits allow no attempt", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := newOpenSchedule(t, 0)
			for i := range 600 {
				p.edit(func(t *runtime.Tuning) {
					t.RetryCount, t.BreakerFailures, t.MaxJobs = i%3, 1+i%5, i
					t.RetryWait, t.PollingInterval, t.TokenExpiration = time.Duration(i), time.Duration(i),
						time.Duration(i)
				})
				p.wantDenied(t, "within the timeout", 10*time.Minute-time.Duration(i)*time.Second)
				time.Sleep(time.Second)
			}
			p.wantDenied(t, "after the timeout", 0)
		})
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

func TestScheduleRetryNowBreaker(t *testing.T) {
	// open returns a schedule whose breaker has just opened, for an hour, with a Retry-After
	// if requested is not 0.
	open := func(requested time.Duration) *schedule {
		tuning := documented()
		tuning.BreakerFailures, tuning.BreakerTimeout = 1, time.Hour
		p := newTestSchedule(tuning)
		for range 3 { // one poll with its two retries
			p.attempt(t)
			p.record(failure(errDown, true, 0))
		}
		if requested > 0 {
			p.retryAfter = time.Now().Add(requested)
		}
		return p
	}

	t.Run("retryNow allows one attempt while the breaker is open, without retries", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := open(0)
			time.Sleep(time.Minute)
			if wait := denied(p.begin()); wait != 59*time.Minute {
				t.Fatalf("the breaker is open for %s, want 59m", wait)
			}
			p.retryNow()
			p.retryNow() // has no further effect
			if _, err := p.begin(); err != nil {
				t.Fatalf("the breaker refuses the trial: %v", err)
			}
			if wait := held(p.record(failure(errDown, true, 0))); wait != time.Hour {
				t.Errorf("after the failed trial the breaker is open for %s, want 1h", wait)
			}
			if wait := denied(p.begin()); wait != time.Hour {
				t.Errorf("a second trial is delayed by %s, want 1h", wait)
			}
			p.retryNow()
			if _, err := p.begin(); err != nil {
				t.Fatal(err)
			}
			p.record(outcome{})
			if _, err := p.begin(); err != nil || p.isOpen() {
				t.Errorf("after a trial that succeeded the breaker is open: %v", err)
			}
		})
	})

	t.Run("retryNow does not end a Retry-After", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := open(20 * time.Minute)
			p.retryNow()
			if wait := denied(p.begin()); wait != 20*time.Minute {
				t.Errorf("the wait is %s, want the Retry-After of 20m", wait)
			}
		})
	})

	t.Run("retryNow does not change a closed breaker", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := newTestSchedule(documented())
			p.retryNow()
			p.attempt(t)
			around(t, "the wait before a retry", held(p.record(failure(errDown, true, 0))), 20*time.Second)
		})
	})
}
