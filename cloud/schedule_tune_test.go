package cloud

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// hourly returns settings with a polling interval and a breaker timeout of an hour, and with
// a breaker that one failed poll opens. The edits are applied to them.
func hourly(edits ...func(*runtime.Tuning)) *runtime.Tuning {
	tuning := &runtime.Tuning{
		Token: secret.New("old"), OIDCSum: "old",
		PollingInterval: time.Hour, BreakerTimeout: time.Hour, BreakerFailures: 1,
	}
	for _, edit := range edits {
		edit(tuning)
	}
	return tuning
}

// retried returns an edit that sets two retries, each after about this wait.
func retried(wait time.Duration) func(*runtime.Tuning) {
	return func(t *runtime.Tuning) { t.RetryCount, t.RetryWait, t.RetryMaxWait = 2, wait, wait }
}

// unrelated returns an edit of settings that do not end a delay requested by the service.
func unrelated(i int) func(*runtime.Tuning) {
	return func(t *runtime.Tuning) {
		t.MaxJobs, t.PollingInterval, t.StatusInterval = 1+i%3, time.Duration(1+i)*time.Second,
			time.Duration(1+i)*time.Second
		t.RetryCount, t.BreakerFailures, t.BreakerTimeout = i, 1+i, time.Duration(1+i)*time.Second
	}
}

// otherCredentials are edits that change the credentials.
var otherCredentials = map[string]func(*runtime.Tuning){
	"a new token":                   func(t *runtime.Tuning) { t.Token = secret.New("new") },
	"a new token file":              func(t *runtime.Tuning) { t.OIDCTokenFile = "/new" },
	"new content of the token file": func(t *runtime.Tuning) { t.OIDCSum = "new" },
}

// refusal returns the outcome of a poll that the service refuses. This outcome does not
// count as a failed poll. Like a success, it closes the breaker and sets the number of
// failed polls in a row to 0.
func refusal() outcome { return outcome{err: fmt.Errorf("%w: 401", runtime.ErrUnauthorized)} }

func TestScheduleInterval(t *testing.T) {
	for name, o := range map[string]outcome{"a response": {}, "a refusal": refusal()} {
		inBubble(t, "the interval, also a changed one, counts from "+name, func(t *testing.T) {
			s := newTestSchedule(hourly())
			wantLeft(t, s.tune(hourly()), 0) // before the first poll
			s.poll(t, o)
			time.Sleep(50 * time.Minute)
			next := s.tune(hourly())
			if got := left(next); got < 4*time.Minute || got > 16*time.Minute || next.Reason != "" {
				t.Errorf("the next poll is in %s (%q), want an hour after the last one, with a tenth of jitter",
					got, next.Reason)
			}
			wantLeft(t, s.tune(hourly(func(t *runtime.Tuning) { t.PollingInterval = time.Second })), 0)
			next = s.tune(hourly(func(t *runtime.Tuning) { t.PollingInterval = 100 * time.Minute }))
			if got := left(next); got < 40*time.Minute || got > time.Hour || next.Reason != "" {
				t.Errorf("the next poll is in %s (%q), want 100 minutes after the last one", got, next.Reason)
			}
		})
	}
	inBubble(t, "the interval has jitter, and an edit does not change the jitter", func(t *testing.T) {
		s := newTestSchedule(hourly())
		waits := map[time.Duration]bool{}
		for range 100 {
			wait := left(s.record(outcome{}))
			if waits[wait] = true; wait < 54*time.Minute || wait > 66*time.Minute {
				t.Fatalf("the wait is %s, want an hour with a tenth of jitter", wait)
			}
			if again := left(s.tune(hourly())); again != wait {
				t.Fatalf("the wait is %s, and %s after an edit that changes nothing", wait, again)
			}
		}
		if len(waits) < 10 {
			t.Errorf("100 waits have %d different lengths, want at least 10", len(waits))
		}
	})
	inBubble(t, "there is no interval after a claimed job", func(t *testing.T) {
		s := newTestSchedule(hourly())
		wantLeft(t, s.record(outcome{job: true}), 0)
		wantLeft(t, s.tune(hourly(unrelated(1))), 0)
		wantLeft(t, s.record(outcome{job: true, retryAfter: time.Minute}), time.Minute)
	})
}

func TestScheduleRetryAfter(t *testing.T) {
	quick := func(t *runtime.Tuning) { t.PollingInterval = time.Second }
	override := func(t *runtime.Tuning) { t.PollingOverride = true }
	inBubble(t, "only polling_interval_override ends the Retry-After of a success", func(t *testing.T) {
		s := newTestSchedule(hourly(quick))
		wantLeft(t, s.record(outcome{retryAfter: 24 * time.Hour}), 24*time.Hour)
		for i := range 600 {
			s.tune(hourly(unrelated(i)))
			time.Sleep(time.Second)
		}
		for _, change := range trialChanges {
			wantLeft(t, s.tune(hourly(quick, change)), 24*time.Hour-10*time.Minute)
		}
		wantLeft(t, s.tune(hourly(quick)), 24*time.Hour-10*time.Minute)
		wantLeft(t, s.tune(hourly(quick, override)), 0)
		wantLeft(t, s.tune(hourly(quick)), 0) // the Retry-After stays cancelled
	})
	inBubble(t, "with polling_interval_override the Retry-After of a success is ignored", func(t *testing.T) {
		s := newTestSchedule(hourly(override, quick))
		if next := s.record(outcome{retryAfter: 10 * time.Minute}); held(next) != 0 || left(next) > 2*time.Second {
			t.Errorf("the next poll is %v, want one after the interval of a second", next)
		}
		s.tune(hourly(quick))
		if next := s.tune(hourly(quick)); held(next) != 0 {
			t.Errorf("the ignored Retry-After delays a later poll: %v", next)
		}
	})
	inBubble(t, "with polling_interval_override the Retry-After of a failure still applies", func(t *testing.T) {
		s := newTestSchedule(hourly(override, retried(time.Minute)))
		wantLeft(t, s.poll(t, failure(errDown, true, 10*time.Minute)), 10*time.Minute)
		wantLeft(t, s.tune(hourly(override, quick)), 10*time.Minute)
	})
	inBubble(t, "a Retry-After replaces a longer interval", func(t *testing.T) {
		wantLeft(t, newTestSchedule(hourly()).record(outcome{retryAfter: time.Minute}), time.Minute)
	})
}

func TestScheduleTune(t *testing.T) {
	const minute = time.Minute
	inBubble(t, "a breaker timeout that was edited during the poll applies to its failure", func(t *testing.T) {
		s := newTestSchedule(hourly())
		s.attempt(t)
		s.edit(func(t *runtime.Tuning) { t.BreakerTimeout = 0 })
		wantLeft(t, s.record(failure(errDown, true, 0)), 0)
	})

	// Other CA certificates end a back-off, but not a Retry-After.
	trusting := func(t *runtime.Tuning) { t.CA = "new" }
	for name, c := range map[string]struct{ wait, retryAfter, left time.Duration }{
		"a back-off without a Retry-After":        {30 * minute, 0, 0},
		"a back-off whose Retry-After has passed": {30 * minute, 5 * minute, 0},
		"a back-off and a shorter Retry-After":    {30 * minute, 20 * minute, 10 * minute},
		"a Retry-After whose back-off has passed": {time.Second, 30 * minute, 20 * minute},
	} {
		inBubble(t, "a new CA during "+name, func(t *testing.T) {
			s := newTestSchedule(hourly(retried(c.wait)))
			s.poll(t, failure(errDown, true, c.retryAfter))
			time.Sleep(10 * minute)
			wantLeft(t, s.tune(hourly(retried(c.wait), trusting)), c.left)
			time.Sleep(c.left)
			wantLeft(t, s.tune(hourly(retried(c.wait), trusting)), 0)
		})
	}
	inBubble(t, "a new CA during the poll is tried at once", func(t *testing.T) {
		s := newTestSchedule(hourly(retried(time.Hour)))
		s.attempt(t)
		s.tune(hourly(retried(time.Hour), trusting))
		wantLeft(t, s.record(failure(errDown, true, 0)), 0)
	})

	// Other credentials end the wait after each of these outcomes. Edits of other settings do
	// not.
	persistent := func(t *runtime.Tuning) { t.BreakerFailures = 1000 }
	for failed, c := range map[string]struct {
		tuning func(*runtime.Tuning)
		o      outcome
	}{
		"a rate limit":                    {retried(time.Second), failure(errDown, true, time.Hour)},
		"a rate limit without retries":    {persistent, failure(errDown, true, time.Hour)},
		"a refusal":                       {func(*runtime.Tuning) {}, refusal()},
		"a failure that is never retried": {persistent, failure(errDown, false, 0)},
	} {
		for changed, other := range otherCredentials {
			inBubble(t, changed+" after "+failed, func(t *testing.T) {
				s := newTestSchedule(hourly(c.tuning))
				s.poll(t, c.o)
				for i := range 600 {
					next := s.tune(hourly(unrelated(i), func(t *runtime.Tuning) { t.PollingInterval = time.Hour }))
					if left(next) == 0 {
						t.Fatalf("a poll is allowed after %d s of edits of other settings: %v", i, next)
					}
					time.Sleep(time.Second)
				}
				wantLeft(t, s.tune(hourly(other)), 0)
			})
			inBubble(t, changed+" during the poll, before "+failed, func(t *testing.T) {
				s := newTestSchedule(hourly(c.tuning))
				s.attempt(t)
				s.tune(hourly(c.tuning, other))
				wantLeft(t, s.record(c.o), 0)
			})
		}
	}
	inBubble(t, "an edit does not delay a retry", func(t *testing.T) {
		s := newTestSchedule(hourly(retried(20 * time.Second)))
		wait := held(s.poll(t, failure(errDown, true, 0)))
		around(t, "the wait before a retry", wait, 20*time.Second)
		time.Sleep(10 * time.Second)
		wantLeft(t, s.tune(hourly(retried(time.Hour), unrelated(2))), wait-10*time.Second)
	})
}

func TestScheduleRetryNow(t *testing.T) {
	const minute = time.Minute
	ten := func(t *runtime.Tuning) { t.BreakerTimeout = 10 * minute }
	for name, c := range map[string]struct {
		edit  func(*runtime.Tuning)
		o     outcome
		after time.Duration // from retryNow to the next poll
	}{
		"an open breaker polls at once":    {ten, failure(errDown, true, 0), 0},
		"a retry is made at once":          {retried(10 * minute), failure(errDown, true, 0), 0},
		"a refused token is tried at once": {ten, refusal(), 0},
		"a Retry-After shorter than the back-off stays": {retried(10 * minute), failure(errDown, true, 3*minute),
			2 * minute},
		"a Retry-After longer than the back-off stays": {retried(time.Second), failure(errDown, true, 10*minute),
			9 * minute},
		"a Retry-After stays while the breaker is open": {ten, failure(errDown, true, 5*minute), 4 * minute},
	} {
		inBubble(t, name, func(t *testing.T) {
			s := newTestSchedule(hourly(c.edit))
			s.poll(t, c.o)
			time.Sleep(minute)
			wantLeft(t, s.retryNow(), c.after)
			if s.breakerOpen() {
				s.wantDenied(t, "after retryNow", c.after)
			}
			time.Sleep(c.after)
			s.attempt(t)
		})
	}
	inBubble(t, "retryNow does not change the interval after a response", func(t *testing.T) {
		s := newTestSchedule(hourly())
		s.record(outcome{})
		time.Sleep(minute)
		if wait := left(s.retryNow()); wait < 53*minute || wait > 65*minute {
			t.Errorf("the next poll is allowed %s after retryNow, want about 59m", wait)
		}
	})
	inBubble(t, "retryNow does not change a closed breaker", func(t *testing.T) {
		s := newTestSchedule(documented())
		s.retryNow()
		around(t, "the wait before a retry", held(s.poll(t, failure(errDown, true, 0))), 20*time.Second)
	})
	inBubble(t, "a trial is not retried, and its failure is logged and opens the breaker again", func(t *testing.T) {
		var log bytes.Buffer
		s := newSchedule(hourly(ten, retried(minute)), slog.New(slog.NewTextHandler(&log, nil)))
		for range 3 { // one poll with its two retries
			s.poll(t, failure(errDown, true, 0))
		}
		time.Sleep(minute)
		s.wantDenied(t, "before retryNow", 9*minute)
		s.retryNow()
		s.retryNow() // has no further effect
		wantLeft(t, s.poll(t, failure(errDown, true, 0)), 10*minute)
		s.wantDenied(t, "after the failed trial", 10*minute)
		time.Sleep(9 * minute)
		s.wantDenied(t, "within the timeout", minute)
		if opened := strings.Count(log.String(), "circuit breaker opened"); opened != 2 {
			t.Errorf("the opening of the breaker is logged %d times, want 2:\n%s", opened, &log)
		}
		s.retryNow()
		s.poll(t, outcome{})
		if s.attempt(t); s.breakerOpen() {
			t.Error("after a trial that succeeded the breaker is open")
		}
	})
}

func TestScheduleLog(t *testing.T) {
	inBubble(t, "a series of failures is one warning", func(t *testing.T) {
		var log bytes.Buffer
		tuning := hourly(func(t *runtime.Tuning) { t.BreakerFailures = 100 })
		s := newSchedule(tuning, slog.New(slog.NewTextHandler(&log, nil)))
		for range 5 {
			s.poll(t, failure(errDown, true, 0))
		}
		if loud := strings.Count(log.String(), "level=WARN"); loud != 1 ||
			!strings.Contains(log.String(), errDown.Error()) {
			t.Errorf("%d warnings for one series of failures, want 1 with the error:\n%s", loud, &log)
		}
		s.record(outcome{})
		s.record(outcome{})
		if strings.Count(log.String(), "polling resumed") != 1 {
			t.Errorf("the log does not report exactly once that polling resumed:\n%s", &log)
		}
	})
	for name, change := range otherCredentials {
		inBubble(t, "a refusal of the old credentials is no error after "+name, func(t *testing.T) {
			var log bytes.Buffer
			s := newSchedule(hourly(), slog.New(slog.NewTextHandler(&log, nil)))
			s.attempt(t)
			s.tune(hourly(change))
			s.record(refusal())
			if log.Len() != 0 {
				t.Errorf("a response to the old credentials is logged:\n%s", &log)
			}
			s.poll(t, refusal())
			if strings.Count(log.String(), "level=ERROR") != 1 {
				t.Errorf("a refusal of the new credentials is not logged as one error:\n%s", &log)
			}
		})
	}
}
