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

// documented are the documented defaults of the settings that a schedule follows.
func documented() runtime.Tuning {
	return runtime.Tuning{
		RetryCount: 2, RetryWait: 20 * time.Second, RetryMaxWait: 2 * time.Minute,
		BreakerFailures: 2, BreakerTimeout: 10 * time.Minute,
	}
}

// newTestSchedule is a schedule that logs nothing.
func newTestSchedule(tuning runtime.Tuning) *schedule {
	return newSchedule(tuning, slog.New(slog.DiscardHandler))
}

// failure is an attempt that counts for the breaker.
func failure(err error, retryable bool, retryAfter time.Duration) outcome {
	return outcome{err: err, counts: true, retryable: retryable, retryAfter: retryAfter}
}

// held is for how long the next poll is held, or 0.
func held(next runtime.NextPoll) time.Duration {
	if next.Reason == "" {
		return 0
	}
	return left(next)
}

// left is the time until the next poll.
func left(next runtime.NextPoll) time.Duration { return max(0, time.Until(next.At)) }

// denied is for how long an attempt is refused, or 0.
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

// around checks a wait that has a fifth of jitter.
func around(t *testing.T, what string, got, want time.Duration) {
	t.Helper()
	if got < want-want/5 || got > want+want/5 {
		t.Errorf("%s: %s, want about %s", what, got, want)
	}
}

func TestAQuestionIsRepeatedWithDoublingWaitsAndThenTheBreakerCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newTestSchedule(documented())
		for question := range 2 {
			for try, want := range []time.Duration{20 * time.Second, 40 * time.Second} {
				if _, err := p.begin(); err != nil {
					t.Fatalf("question %d, try %d: %v", question, try, err)
				}
				wait := held(p.record(failure(errDown, true, 0)))
				around(t, "the wait before a repetition", wait, want)
				time.Sleep(wait)
			}
			if _, err := p.begin(); err != nil {
				t.Fatal(err)
			}
			if wait := held(p.record(failure(errDown, true, 0))); question == 0 && wait != 0 || question == 1 && wait != 10*time.Minute {
				t.Errorf("after question %d the pause is %s", question, wait)
			}
		}
		next, err := p.begin()
		if wait := denied(next, err); wait != 10*time.Minute {
			t.Errorf("the open breaker asks for %s, want 10m", wait)
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
}

func TestAFailedTrialOpensTheBreakerAgain(t *testing.T) {
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
			t.Errorf("after the failed trial the pause is %s, want 10m", wait)
		}
	})
}

func TestAServicesWishIsALowerLimitOfTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newTestSchedule(documented())
		p.attempt(t)
		if wait := held(p.record(failure(errDown, true, time.Hour))); wait != time.Hour {
			t.Errorf("the wait is %s, want the hour that the service asks for", wait)
		}
	})
}

func TestAShutdownDoesNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newTestSchedule(documented())
		for range 20 {
			if _, err := p.begin(); err != nil {
				t.Fatalf("cancelled questions have opened the breaker: %v", err)
			}
			p.record(failure(context.Canceled, true, 0))
		}
	})
}

func TestALostAnswerIsNotRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newTestSchedule(documented())
		p.attempt(t)
		if wait := held(p.record(failure(errDown, false, 0))); wait != 0 {
			t.Errorf("the question is repeated after %s", wait)
		}
	})
}

func TestANewTimeoutKeepsWhatTheBreakerKnows(t *testing.T) {
	open := func(t *testing.T) *schedule {
		tuning := documented()
		tuning.RetryCount = 0
		p := newTestSchedule(tuning)
		for range 2 {
			p.attempt(t)
			p.record(failure(errDown, true, 0))
		}
		time.Sleep(4 * time.Minute)
		return p
	}
	retune := func(p *schedule, timeout time.Duration) {
		tuning := p.tuning
		tuning.BreakerTimeout = timeout
		p.tune(tuning)
	}
	t.Run("a longer one counts from when it opened", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := open(t)
			retune(p, 30*time.Minute)
			if wait := denied(p.begin()); wait != 26*time.Minute {
				t.Errorf("the pause is %s, want 26m", wait)
			}
		})
	})
	t.Run("one that has passed gives way to a question on probation", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := open(t)
			retune(p, 3*time.Minute)
			if _, err := p.begin(); err != nil {
				t.Fatalf("no question is let through: %v", err)
			}
			if wait := held(p.record(failure(errDown, true, 0))); wait != 3*time.Minute {
				t.Errorf("its failure pauses for %s, want 3m at once", wait)
			}
		})
	})
	t.Run("a closed one keeps its row", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			tuning := documented()
			tuning.RetryCount = 0
			p := newTestSchedule(tuning)
			p.attempt(t)
			p.record(failure(errDown, true, 0))
			retune(p, time.Minute)
			p.attempt(t)
			if wait := held(p.record(failure(errDown, true, 0))); wait != time.Minute {
				t.Errorf("the second failure of the row pauses for %s, want 1m", wait)
			}
		})
	})
	t.Run("a new limit is read at the next failure", func(t *testing.T) {
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
}

// broken is a schedule without repetitions whose breaker has just opened, with a wish
// of the service if least is not 0.
func broken(t *testing.T, least time.Duration) *schedule {
	t.Helper()
	tuning := documented()
	tuning.RetryCount, tuning.Token, tuning.CA = 0, secret.New("old"), "old"
	p := newTestSchedule(tuning)
	for range tuning.BreakerFailures {
		if _, err := p.begin(); err != nil {
			t.Fatal(err)
		}
		p.record(failure(errDown, true, least))
	}
	return p
}

// edit gives a schedule its settings with a change.
func (s *schedule) edit(change func(*runtime.Tuning)) {
	tuning := s.tuning
	change(&tuning)
	s.tune(tuning)
}

// asks checks how long the schedule refuses an attempt. One that it allows is left
// open.
func (s *schedule) asks(t *testing.T, what string, want time.Duration) {
	t.Helper()
	next, err := s.begin()
	switch {
	case denied(next, err) != want, want == 0 && err != nil:
		t.Errorf("%s: %v (held for %s), want it held for %s", what, err, denied(next, err), want)
	case err != nil && (next.Reason != reasonBreaker || !errors.Is(err, errDown)):
		t.Errorf("%s: the hold %v (%v) is not said to be the breaker's, for what opened it", what, next, err)
	}
}

func TestTheLastOfManyEditsOfTheTimeoutCountsFromWhenTheBreakerOpened(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		synctest.Test(t, func(t *testing.T) {
			p := broken(t, 0)
			passed := time.Duration(0)
			for _, timeout := range rapid.SliceOfN(rapid.Int64Range(1, int64(10*time.Hour)), 1, 6).Draw(rt, "timeouts") {
				timeout := time.Duration(timeout)
				time.Sleep(time.Minute)
				passed += time.Minute
				p.edit(func(t *runtime.Tuning) { t.BreakerTimeout = timeout })
				if p.asks(t, timeout.String(), max(0, timeout-passed)); timeout <= passed || t.Failed() {
					break
				}
			}
		})
	})
}

func TestAnOpenBreakerWaitsForTheTimeoutAndForTheServicesWish(t *testing.T) {
	for name, c := range map[string]struct{ wish, want time.Duration }{
		"a wish beyond the timeout": {time.Hour, time.Hour},
		"a wish within the timeout": {time.Minute, 10 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := broken(t, c.wish)
				p.asks(t, "at once", c.want)
				p.edit(func(t *runtime.Tuning) { t.BreakerTimeout = time.Second })
				p.asks(t, "with a timeout of a second", c.wish)
				time.Sleep(c.wish)
				p.asks(t, "after it", 0)
			})
		})
	}
}

// dependences are changes of what a call depends on.
var dependences = map[string]func(*runtime.Tuning){
	"a token":                  func(t *runtime.Tuning) { t.Token = secret.New("new") },
	"a file of a token":        func(t *runtime.Tuning) { t.OIDCTokenFile = "/new" },
	"the content of that file": func(t *runtime.Tuning) { t.OIDCSum = "new" },
	"certificates":             func(t *runtime.Tuning) { t.CA = "new" },
}

func TestAnOpenBreakerLetsOneTryThroughWhenWhatItDependsOnHasChanged(t *testing.T) {
	for name, change := range dependences {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := broken(t, 0)
				time.Sleep(time.Minute)
				p.edit(func(t *runtime.Tuning) { t.RetryCount = 5 })
				p.asks(t, "before", 9*time.Minute)
				p.edit(change)
				p.asks(t, "after", 0)
				if wait := held(p.record(failure(errDown, true, 0))); wait != 10*time.Minute {
					t.Errorf("the failed try is followed by %s, want the whole timeout", wait)
				}
				p.asks(t, "after that", 10*time.Minute)
				p.edit(func(t *runtime.Tuning) { t.RetryCount, t.BreakerFailures = 0, 9 })
				p.asks(t, "after an edit that changes nothing of it", 10*time.Minute)
			})
		})
	}
}

func TestATryThatSucceedsEarlyClosesTheBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := broken(t, 0)
		p.edit(dependences["a token"])
		p.asks(t, "the early try", 0)
		p.record(outcome{})
		p.asks(t, "the next", 0)
		if next := p.record(failure(errDown, false, 0)); held(next) != 0 {
			t.Errorf("one failure opens it again: %v", next)
		}
	})
}

func TestAChangeWhileAQuestionIsAskedIsTriedWhenItHasFailed(t *testing.T) {
	for name, change := range dependences {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := broken(t, 0)
				time.Sleep(10 * time.Minute)
				p.asks(t, "after the timeout", 0)
				p.edit(change)
				if wait := held(p.record(failure(errDown, true, 0))); wait != 0 {
					t.Errorf("what has changed is tried after %s, want at once", wait)
				}
				p.asks(t, "the try", 0)
				if wait := held(p.record(failure(errDown, true, 0))); wait != 10*time.Minute {
					t.Errorf("its failure is followed by %s, want 10m", wait)
				}
			})
		})
	}
}

func TestOnlyOtherCredentialsDropWhatTheServiceAskedFor(t *testing.T) {
	for name, change := range dependences {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				for _, wish := range []time.Duration{5 * time.Minute, time.Hour} {
					p := broken(t, wish)
					want := time.Duration(0)
					if name == "certificates" {
						want = wish
					}
					p.edit(change)
					p.asks(t, "the try", want)
				}
			})
		})
	}
}

func TestNoRowOfOtherEditsOpensTheWayThroughABreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := broken(t, 0)
		for i := range 600 {
			p.edit(func(t *runtime.Tuning) {
				t.RetryCount, t.BreakerFailures, t.MaxJobs = i%3, 1+i%5, i
				t.RetryWait, t.PollingInterval, t.TokenExpiration = time.Duration(i), time.Duration(i), time.Duration(i)
			})
			p.asks(t, "within the timeout", 10*time.Minute-time.Duration(i)*time.Second)
			time.Sleep(time.Second)
		}
		p.asks(t, "after it", 0)
	})
}

// TestAScheduleNeverLetsMoreThroughThanItsLimit: whatever happens, between two
// successes no more than the limit of questions fail without a pause of the
// breaker's length in between.
func TestAScheduleNeverLetsMoreThroughThanItsLimit(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		synctest.Test(t, func(*testing.T) {
			tuning := documented()
			tuning.RetryCount = rapid.IntRange(0, 2).Draw(rt, "retries")
			tuning.BreakerFailures = rapid.IntRange(1, 4).Draw(rt, "limit")
			p := newTestSchedule(tuning)
			row, trial := 0, false
			for range rapid.IntRange(1, 60).Draw(rt, "questions") {
				if next, err := p.begin(); err != nil {
					wait := left(next)
					if wait <= 0 || wait > tuning.BreakerTimeout {
						rt.Fatalf("a pause of %s", wait)
					}
					if row < tuning.BreakerFailures && !trial {
						rt.Fatalf("the breaker is open after %d failures in a row, its limit is %d", row, tuning.BreakerFailures)
					}
					time.Sleep(wait + time.Millisecond)
					trial = true
					continue
				}
				if row >= tuning.BreakerFailures && !trial {
					rt.Fatalf("a question is let through after %d failures in a row, the limit is %d", row, tuning.BreakerFailures)
				}
				if rapid.IntRange(0, 2).Draw(rt, "outcome") == 0 {
					p.record(outcome{})
					row, trial = 0, false
					continue
				}
				again := rapid.Bool().Draw(rt, "again")
				next := p.record(failure(errDown, again, 0))
				if p.attempts == 0 {
					row++
					trial = false
				} else {
					time.Sleep(left(next))
				}
			}
		})
	})
}

func TestSchedule(t *testing.T) {
	// open is a schedule whose breaker has just opened, for an hour, with a wish of the
	// service if it is not 0.
	open := func(wish time.Duration) *schedule {
		tuning := documented()
		tuning.BreakerFailures, tuning.BreakerTimeout = 1, time.Hour
		p := newTestSchedule(tuning)
		for range 3 { // with the repetitions
			p.attempt(t)
			p.record(failure(errDown, true, 0))
		}
		if wish > 0 {
			p.retryAfter = time.Now().Add(wish)
		}
		return p
	}

	t.Run("retry lets one try through an open breaker, without repetitions", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := open(0)
			time.Sleep(time.Minute)
			if wait := denied(p.begin()); wait != 59*time.Minute {
				t.Fatalf("the breaker is open for %s, want 59m", wait)
			}
			p.retryNow()
			p.retryNow() // which is still one
			if _, err := p.begin(); err != nil {
				t.Fatalf("the breaker refuses the trial: %v", err)
			}
			if wait := held(p.record(failure(errDown, true, 0))); wait != time.Hour {
				t.Errorf("after the failed trial the breaker is open for %s, want 1h", wait)
			}
			if wait := denied(p.begin()); wait != time.Hour {
				t.Errorf("a second trial is let through, or waits %s", wait)
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

	t.Run("retry leaves what the service asked for", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := open(20 * time.Minute)
			p.retryNow()
			if wait := denied(p.begin()); wait != 20*time.Minute {
				t.Errorf("the wait is %s, want the 20m that the service asked for", wait)
			}
		})
	})

	t.Run("retry does not change a closed breaker", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := newTestSchedule(documented())
			p.retryNow()
			p.attempt(t)
			around(t, "the wait before a repetition", held(p.record(failure(errDown, true, 0))), 20*time.Second)
		})
	})
}
