package cloud

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/cmwa-project/cmwa/runtime"
)

var errDown = errors.New("connection refused")

// documented are the documented defaults of the settings that a pace follows.
func documented() runtime.Tuning {
	return runtime.Tuning{
		RetryCount: 2, RetryWait: 20 * time.Second, RetryMaxWait: 2 * time.Minute,
		BreakerFailures: 2, BreakerTimeout: 10 * time.Minute,
	}
}

// paused is how long the error says to wait, or 0.
func paused(err error) time.Duration {
	var pause *runtime.Pause
	if !errors.As(err, &pause) {
		return 0
	}
	return time.Until(pause.Until)
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
		p := newPace(documented())
		for question := range 2 {
			for try, want := range []time.Duration{20 * time.Second, 40 * time.Second} {
				if err := p.begin(); err != nil {
					t.Fatalf("question %d, try %d: %v", question, try, err)
				}
				wait := paused(p.failed(errDown, true, 0))
				around(t, "the wait before a repetition", wait, want)
				time.Sleep(wait)
			}
			if err := p.begin(); err != nil {
				t.Fatal(err)
			}
			err := p.failed(errDown, true, 0)
			if !errors.Is(err, errDown) {
				t.Errorf("the error %v does not wrap its cause", err)
			}
			if wait := paused(err); question == 0 && wait != 0 || question == 1 && wait != 10*time.Minute {
				t.Errorf("after question %d the pause is %s", question, wait)
			}
		}
		if wait := paused(p.begin()); wait != 10*time.Minute {
			t.Errorf("the open breaker asks for %s, want 10m", wait)
		}
		time.Sleep(10*time.Minute + time.Second)
		if err := p.begin(); err != nil {
			t.Fatalf("after its timeout the breaker refuses a trial: %v", err)
		}
		p.succeeded()
		if err := p.begin(); err != nil {
			t.Fatalf("after a success: %v", err)
		}
	})
}

func TestAFailedTrialOpensTheBreakerAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tuning := documented()
		tuning.RetryCount = 0
		p := newPace(tuning)
		for range 2 {
			_ = p.begin()
			_ = p.failed(errDown, true, 0)
		}
		time.Sleep(10*time.Minute + time.Second)
		if err := p.begin(); err != nil {
			t.Fatal(err)
		}
		if wait := paused(p.failed(errDown, true, 0)); wait != 10*time.Minute {
			t.Errorf("after the failed trial the pause is %s, want 10m", wait)
		}
	})
}

func TestAServicesWishIsALowerLimitOfTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPace(documented())
		_ = p.begin()
		if wait := paused(p.failed(errDown, true, time.Hour)); wait != time.Hour {
			t.Errorf("the wait is %s, want the hour that the service asks for", wait)
		}
	})
}

func TestAShutdownDoesNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPace(documented())
		for range 20 {
			if err := p.begin(); err != nil {
				t.Fatalf("cancelled questions have opened the breaker: %v", err)
			}
			_ = p.failed(context.Canceled, true, 0)
		}
	})
}

func TestALostAnswerIsNotRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPace(documented())
		_ = p.begin()
		if wait := paused(p.failed(errDown, false, 0)); wait != 0 {
			t.Errorf("the question is repeated after %s", wait)
		}
	})
}

func TestANewTimeoutKeepsWhatTheBreakerKnows(t *testing.T) {
	open := func(t *testing.T) *pace {
		tuning := documented()
		tuning.RetryCount = 0
		p := newPace(tuning)
		for range 2 {
			_ = p.begin()
			_ = p.failed(errDown, true, 0)
		}
		time.Sleep(4 * time.Minute)
		return p
	}
	retune := func(p *pace, timeout time.Duration) {
		tuning := p.tuning
		tuning.BreakerTimeout = timeout
		p.tune(tuning)
	}
	t.Run("a longer one counts from when it opened", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := open(t)
			retune(p, 30*time.Minute)
			if wait := paused(p.begin()); wait != 26*time.Minute {
				t.Errorf("the pause is %s, want 26m", wait)
			}
		})
	})
	t.Run("one that has passed gives way to a question on probation", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := open(t)
			retune(p, 3*time.Minute)
			if err := p.begin(); err != nil {
				t.Fatalf("no question is let through: %v", err)
			}
			if wait := paused(p.failed(errDown, true, 0)); wait != 3*time.Minute {
				t.Errorf("its failure pauses for %s, want 3m at once", wait)
			}
		})
	})
	t.Run("a closed one keeps its row", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			tuning := documented()
			tuning.RetryCount = 0
			p := newPace(tuning)
			_ = p.begin()
			_ = p.failed(errDown, true, 0)
			retune(p, time.Minute)
			_ = p.begin()
			if wait := paused(p.failed(errDown, true, 0)); wait != time.Minute {
				t.Errorf("the second failure of the row pauses for %s, want 1m", wait)
			}
		})
	})
	t.Run("a new limit is read at the next failure", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			tuning := documented()
			tuning.RetryCount = 0
			p := newPace(tuning)
			tuning.BreakerFailures = 1
			p.tune(tuning)
			_ = p.begin()
			if wait := paused(p.failed(errDown, true, 0)); wait == 0 {
				t.Error("one failure does not open a breaker whose limit is one")
			}
		})
	})
}

// TestAPaceNeverLetsMoreThroughThanItsLimit: whatever happens, between two
// successes no more than the limit of questions fail without a pause of the
// breaker's length in between.
func TestAPaceNeverLetsMoreThroughThanItsLimit(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		synctest.Test(t, func(*testing.T) {
			tuning := documented()
			tuning.RetryCount = rapid.IntRange(0, 2).Draw(rt, "retries")
			tuning.BreakerFailures = rapid.IntRange(1, 4).Draw(rt, "limit")
			p := newPace(tuning)
			row, trial := 0, false
			for range rapid.IntRange(1, 60).Draw(rt, "questions") {
				if err := p.begin(); err != nil {
					wait := paused(err)
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
					p.succeeded()
					row, trial = 0, false
					continue
				}
				again := rapid.Bool().Draw(rt, "again")
				err := p.failed(errDown, again, 0)
				if p.done == nil {
					row++
					trial = false
				} else {
					time.Sleep(paused(err))
				}
			}
		})
	})
}
