package runtime_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/cloud"
	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// asked counts the calls of a kind.
func (st *stage) asked(call runtimetest.Call) int { return len(st.cloud.Calls(call)) }

// wantPaused checks that the pool waits on purpose for a span from now.
func (st *stage) wantPaused(span time.Duration) {
	st.t.Helper()
	state := st.pool.State()
	if state.Phase != runtime.PoolPaused || state.Why == "" || time.Until(state.Until) != span {
		st.t.Errorf("the pool is %s (%q) for %s, want paused for %s with a reason", state.Phase, state.Why, time.Until(state.Until), span)
	}
}

// wantFresh checks that the pool's loop has turned when it should.
func (st *stage) wantFresh() {
	st.t.Helper()
	if still := st.pool.State().Overdue(time.Now()); still > time.Second {
		st.t.Errorf("the pool counts as standing still for %s", still)
	}
}

// lateCloud answers the first poll only after an edit has come, with a hold of an hour
// that the edit has ended.
type lateCloud struct {
	*runtimetest.Cloud
	edit func()
}

func (c *lateCloud) Claim(ctx context.Context) (runtime.Claim, error) {
	claim, err := c.Cloud.Claim(ctx)
	if c.edit != nil {
		claim.Next = runtime.NextPoll{At: time.Now().Add(time.Hour), Reason: "of older settings"}
		err = errors.New("500")
		c.edit()
		c.edit = nil
	}
	return claim, err
}

// Tune allows the next poll at once.
func (c *lateCloud) Tune(tuning runtime.Tuning) runtime.NextPoll {
	c.Cloud.Tune(tuning)
	return runtime.NextPoll{}
}

// Retry allows the next poll at once.
func (c *lateCloud) Retry() runtime.NextPoll { return runtime.NextPoll{} }

// startLate starts the pool with an edit, or a Retry, that comes while the service is
// about to answer the first poll.
func (st *stage) startLate(edit func()) {
	st.pool = runtime.NewPool(edited(), runtime.Parts{
		Cloud:    &lateCloud{Cloud: st.cloud, edit: edit},
		Executor: st.engine, Agent: "agent-1", Log: slog.New(slog.DiscardHandler),
	})
	st.start()
}

// edited is a pool with an interval of an hour, and with these edits.
func edited(edits ...func(*runtime.Tuning)) runtime.PoolSpec {
	return spec(append([]func(*runtime.Tuning){func(t *runtime.Tuning) {
		t.Token, t.OIDCSum = secret.New("old"), "old"
		t.PollingInterval, t.BreakerTimeout = time.Hour, time.Hour
	}}, edits...)...)
}

func TestAnIntervalThatIsLoweredHoldsForTheNextQuestionAboutARunningJob(t *testing.T) {
	every := func(span time.Duration) runtime.PoolSpec {
		return spec(func(t *runtime.Tuning) { t.StatusInterval = span })
	}
	for name, c := range map[string]struct {
		passed, lowered, left time.Duration // since the last question, and until the next one
	}{
		"that is not yet due": {10 * time.Second, 30 * time.Second, 20 * time.Second},
		"that is past":        {9 * time.Minute, 30 * time.Second, 0},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, every(10*time.Minute), func(t *testing.T, st *stage) {
				st.engine.Otherwise(runtimetest.Script{Running: 2 * time.Hour})
				st.cloud.Queue("a")
				st.start()
				wait(10 * time.Minute)
				wait(c.passed)
				if st.asked(runtimetest.Wanted) != 1 {
					t.Fatalf("the story needs one question, there were %d", st.asked(runtimetest.Wanted))
				}
				release := st.cloud.Hang(runtimetest.Wanted)
				st.pool.Tune(every(c.lowered))
				wait(0)
				st.wantFresh() // also before the service answers
				release()
				if c.left > 0 {
					wait(c.left - time.Millisecond)
					if asked := st.asked(runtimetest.Wanted); asked != 1 {
						t.Errorf("%d questions before the new interval was over", asked-1)
					}
					wait(time.Millisecond)
				}
				if asked := st.asked(runtimetest.Wanted); asked != 2 {
					t.Errorf("%d questions %s after the edit, want 1", asked-1, c.left)
				}
				wait(c.lowered)
				if asked := st.asked(runtimetest.Wanted); asked != 3 {
					t.Errorf("%d questions one new interval later, want 2", asked-1)
				}
			})
		})
	}
}

func TestNoRowOfEditsPutsOffOrMultipliesTheQuestionsAboutARunningJob(t *testing.T) {
	play(t, spec(), func(t *testing.T, st *stage) {
		st.engine.Otherwise(runtimetest.Script{Running: 2 * time.Hour})
		st.cloud.Queue("a")
		st.start()
		for range 60 * 60 {
			wait(time.Second)
			st.pool.Tune(spec())
		}
		if asked := st.asked(runtimetest.Wanted); asked < 118 || asked > 120 {
			t.Errorf("%d questions in an hour with an edit each second, want one every 30 s", asked)
		}
	})
}

// The rules of when an edit ends a wait are tested in package cloud: see
// TestScheduleTune and TestScheduleRetryAfter there.
func TestTune(t *testing.T) {
	held := func(span time.Duration) runtime.NextPoll {
		return runtime.NextPoll{At: time.Now().Add(span), Reason: "a test"}
	}
	t.Run("a hold that the cloud ends is followed by a poll at once", func(t *testing.T) {
		play(t, edited(), func(t *testing.T, st *stage) {
			st.cloud.Hold(held(time.Hour))
			st.start()
			wait(30 * time.Minute)
			st.wantPaused(30 * time.Minute)
			st.cloud.Hold(runtime.NextPoll{At: time.Now()})
			st.pool.Tune(edited(func(t *runtime.Tuning) { t.PollingInterval = time.Second }))
			st.wantFresh()
			wait(0)
			if asked := st.asked(runtimetest.Claim); asked != 1 {
				t.Errorf("%d polls right after the edit, want 1", asked)
			}
		})
	})
	t.Run("a hold that the cloud makes longer is kept", func(t *testing.T) {
		play(t, edited(), func(t *testing.T, st *stage) {
			st.start()
			wait(time.Minute)
			st.cloud.Hold(held(2*time.Hour - time.Minute))
			st.pool.Tune(edited())
			wait(0)
			st.wantPaused(2*time.Hour - time.Minute)
			wait(2*time.Hour - 2*time.Minute)
			if asked := st.asked(runtimetest.Claim); asked != 1 {
				t.Errorf("%d polls within the hold", asked-1)
			}
			wait(time.Minute)
			if asked := st.asked(runtimetest.Claim); asked != 2 {
				t.Errorf("%d polls after the hold, want 1", asked-1)
			}
		})
	})
	t.Run("a poll that is under way does not bring back a hold that an edit has ended", func(t *testing.T) {
		play(t, edited(), func(t *testing.T, st *stage) {
			st.startLate(func() { st.pool.Tune(edited()) })
			if asked := st.asked(runtimetest.Claim); asked != 2 {
				t.Errorf("%d polls, want another one at once, as the hold was of the old settings", asked)
			}
		})
	})
}

func TestAWaitOnPurposeIsNoStandstillWhateverEndsIt(t *testing.T) {
	play(t, edited(), func(t *testing.T, st *stage) {
		st.start()
		wait(50 * time.Minute)
		release := st.cloud.Hang(runtimetest.Claim)
		st.pool.Tune(edited(func(t *runtime.Tuning) { t.PollingInterval = time.Second }))
		wait(0)
		st.wantFresh() // also before the service answers
		release()
	})
	play(t, edited(), func(t *testing.T, st *stage) {
		st.cloud.Fail(runtimetest.Claim, 1, errors.New("429"))
		st.cloud.Fail(runtimetest.Claim, 1, errors.New("500"))
		st.start()
		st.cloud.Hold(runtime.NextPoll{At: time.Now().Add(2 * time.Hour), Reason: "try 1 of 2"})
		st.pool.Tune(edited())
		wait(2 * time.Hour)
		st.wantFresh()
		wait(time.Minute)
		st.wantFresh() // a failure is activity too
	})
}

func TestNoEditSendsJobsToAnEngineThatHasJustFailed(t *testing.T) {
	play(t, edited(), func(t *testing.T, st *stage) {
		st.engine.Otherwise(runtimetest.Script{Fail: errors.New("the engine is gone")})
		st.cloud.Queue("a", "b", "c")
		st.start()
		st.wantPaused(5 * time.Second)
		for range 4 {
			st.pool.Tune(edited(func(t *runtime.Tuning) {
				t.PollingInterval, t.PollingOverride, t.Token = time.Second, true, secret.New("new")
			}))
			wait(time.Second)
		}
		st.wantPaused(time.Second)
		if queued := st.cloud.Queued(); len(queued) != 1 {
			t.Errorf("queued are %v, want c", queued)
		}
	})
}

func TestAnEngineThatFailsDoesNotShortenWhatTheServiceAskedFor(t *testing.T) {
	play(t, spec(most(2)), func(t *testing.T, st *stage) {
		st.engine.Otherwise(runtimetest.Script{Starting: time.Minute, Fail: errors.New("the engine is gone")})
		st.cloud.Queue("a")
		st.cloud.RetryAfter(time.Hour)
		st.start()
		wait(30 * time.Minute)
		if asked := st.asked(runtimetest.Claim); asked != 1 {
			t.Errorf("asked at %v, in spite of the service's wish for an hour", st.cloud.Calls(runtimetest.Claim))
		}
	})
}

func TestJobsOfBeforeDoNotCountForASingleRunThatIsSwitchedOn(t *testing.T) {
	once := func(t *runtime.Tuning) { t.SingleRun = true }
	play(t, spec(), func(t *testing.T, st *stage) {
		st.cloud.Queue("a")
		st.start()
		wait(time.Hour)
		st.pool.Tune(spec(once))
		wait(time.Hour)
		if state := st.pool.State(); state.Phase != runtime.PoolPolling || state.Finished {
			t.Fatalf("before a job has come the pool is %s, finished %v", state.Phase, state.Finished)
		}
		st.cloud.Queue("b", "c")
		wait(2 * time.Minute)
		state := st.pool.State()
		if left := st.cloud.Queued(); state.Phase != runtime.PoolStopped || !state.Finished || strings.Join(left, " ") != "c" {
			t.Errorf("after one job the pool is %s, finished %v, and queued are %v; want it over, with c left", state.Phase, state.Finished, left)
		}
	})
}

func TestAJobThatRunsWhenASingleRunIsSwitchedOnIsTheOne(t *testing.T) {
	once := func(t *runtime.Tuning) { t.SingleRun = true }
	play(t, spec(most(2)), func(t *testing.T, st *stage) {
		st.engine.Script("a", runtimetest.Script{Running: time.Second})
		st.engine.Script("b", runtimetest.Script{Running: 2 * time.Hour})
		st.cloud.Queue("a", "b")
		st.start()
		wait(time.Hour)
		st.pool.Tune(spec(once))
		st.pool.Tune(spec(once, most(3))) // it stays one
		st.cloud.Queue("c")
		wait(59 * time.Minute)
		if state := st.pool.State(); state.Finished || len(state.Jobs) != 1 {
			t.Errorf("while the job runs the pool is %s, finished %v, with %d jobs", state.Phase, state.Finished, len(state.Jobs))
		}
		wait(2 * time.Minute)
		state := st.pool.State()
		if left := st.cloud.Queued(); !state.Finished || state.Phase != runtime.PoolStopped || len(left) != 1 {
			t.Errorf("after it the pool is %s, finished %v, and queued are %v", state.Phase, state.Finished, left)
		}
	})
}

// service is one that a pool's client reaches within a bubble, over connections
// of its own. An empty answer is a connection that is refused.
type service struct {
	answer atomic.Value // a string in the words of HTTP
	dials  atomic.Int32
}

func answering(answer string) *service {
	s := &service{}
	s.answer.Store(answer)
	return s
}

func (s *service) dial(context.Context, string, string) (net.Conn, error) {
	s.dials.Add(1)
	answer := s.answer.Load()
	if answer == "" {
		return nil, errors.New("connection refused")
	}
	near, far := net.Pipe()
	go func() {
		defer far.Close()
		if _, err := http.ReadRequest(bufio.NewReader(far)); err == nil {
			fmt.Fprintf(far, "HTTP/1.1 %s\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", answer)
		}
	}()
	return near, nil
}

// broken is a pool that asks once a minute, whose breaker opens for an hour at the
// first failure.
func broken(edits ...func(*runtime.Tuning)) runtime.PoolSpec {
	return edited(append([]func(*runtime.Tuning){func(t *runtime.Tuning) {
		t.PollingInterval, t.BreakerFailures, t.OIDCSum = time.Minute, 1, ""
	}}, edits...)...)
}

// reach starts the pool of a spec with a real client of a service.
func (st *stage) reach(s runtime.PoolSpec, with *service) {
	log := slog.New(slog.NewTextHandler(st.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	client := cloud.New(cloud.Options{
		Identity: s.Identity, Tuning: s.Tuning, UserAgent: "test", Log: log.With("component", "cloud", "pool", s.Name),
		Transport: &http.Transport{DialContext: with.dial},
	})
	st.pool = runtime.NewPool(s, runtime.Parts{
		Cloud: client, Executor: st.engine, Close: client.Close, Agent: "agent-1", Log: log,
	})
	st.start()
}

func TestThePoolFollowsTheLastEditOfTheBreakersTimeout(t *testing.T) {
	play(t, broken(), func(t *testing.T, st *stage) {
		dead := answering("")
		st.reach(broken(), dead)
		wait(time.Minute)
		st.wantPaused(59 * time.Minute)
		st.pool.Tune(broken(func(t *runtime.Tuning) { t.BreakerTimeout = 2 * time.Hour }))
		wait(time.Minute)
		st.wantPaused(118 * time.Minute)
		if dead.dials.Load() != 1 {
			t.Errorf("asked %d times while the breaker is open", dead.dials.Load()-1)
		}
		st.pool.Tune(broken(func(t *runtime.Tuning) { t.BreakerTimeout = 3 * time.Minute }))
		wait(0)
		st.wantPaused(time.Minute)
		st.pool.Tune(broken(func(t *runtime.Tuning) { t.BreakerTimeout = 10 * time.Second }))
		wait(0)
		if dead.dials.Load() != 2 {
			t.Errorf("asked %d times after a timeout that has passed, want 1", dead.dials.Load()-1)
		}
		st.wantPaused(10 * time.Second)
		if why := st.pool.State().Failing; !strings.Contains(why, "connection refused") {
			t.Errorf("what is failing is %q", why)
		}
	})
}

func TestThePoolTriesTheCureOfAnOpenBreakerOnceAndAtOnce(t *testing.T) {
	for name, c := range map[string]struct {
		answer string
		cure   func(*runtime.Tuning)
		left   time.Duration
	}{
		"a token for a dead service":        {"", func(t *runtime.Tuning) { t.Token = secret.New("new") }, 0},
		"certificates for a dead service":   {"", func(t *runtime.Tuning) { t.CA = "new" }, 0},
		"a token for a limited rate":        {"429 Too Many Requests\r\nRetry-After: 14400", func(t *runtime.Tuning) { t.Token = secret.New("new") }, 0},
		"certificates for a limited rate":   {"429 Too Many Requests\r\nRetry-After: 14400", func(t *runtime.Tuning) { t.CA = "new" }, 4*time.Hour - time.Minute},
		"certificates for a shorter wish":   {"429 Too Many Requests\r\nRetry-After: 1200", func(t *runtime.Tuning) { t.CA = "new" }, 19 * time.Minute},
		"certificates for a wish long past": {"429 Too Many Requests\r\nRetry-After: 30", func(t *runtime.Tuning) { t.CA = "new" }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, broken(), func(t *testing.T, st *stage) {
				with := answering(c.answer)
				st.reach(broken(), with)
				wait(time.Minute)
				st.pool.Tune(broken(c.cure))
				wait(0)
				if c.left > 0 {
					st.wantPaused(c.left)
					wait(c.left - time.Second)
					if with.dials.Load() != 1 {
						t.Errorf("asked %d times within the service's wish", with.dials.Load()-1)
					}
					wait(time.Second)
				}
				if with.dials.Load() != 2 {
					t.Errorf("asked %d times %s after the edit, want 1", with.dials.Load()-1, c.left)
				}
				for i := range 600 {
					st.pool.Tune(broken(c.cure, func(t *runtime.Tuning) { t.MaxJobs, t.RetryCount = 1+i%3, i }))
					wait(time.Second)
				}
				if with.dials.Load() != 2 {
					t.Errorf("other edits made it ask %d times", with.dials.Load()-2)
				}
			})
		})
	}
}

// said counts the lines of the log from a level on, and those of them that hold
// the words.
func (st *stage) said(level, words string) (all, some int) {
	for line := range strings.Lines(st.log.String()) {
		if strings.Contains(line, "level="+level) {
			all++
			if strings.Contains(line, words) {
				some++
			}
		}
	}
	return all, some
}

func (st *stage) wantSaid(level string, lines int, words string) {
	st.t.Helper()
	if all, some := st.said(level, words); all != lines || lines > 0 && some == 0 {
		st.t.Errorf("%d lines at %s, %d with %q; want %d lines, and one with it:\n%s", all, level, some, words, lines, st.log)
	}
}

func TestABreakerThatOpensIsSaidOnceWithItsEndAndItsReasonAndOnceWhenItCloses(t *testing.T) {
	play(t, broken(), func(t *testing.T, st *stage) {
		with := answering("")
		st.reach(broken(), with)
		end := time.Now().Add(time.Hour).Format("until=2006-01-02T15:04:05")
		st.wantSaid("WARN", 1, "circuit breaker opened\" component=cloud pool=default "+end)
		if _, why := st.said("WARN", "connection refused"); why != 1 {
			t.Errorf("it is not said why:\n%s", st.log)
		}
		wait(30 * time.Minute)
		st.pool.Tune(broken(most(2))) // and the client tells whether it still holds
		wait(3 * time.Hour)
		st.wantSaid("WARN", 1, "")
		st.wantSaid("INFO", 0, "")
		with.answer.Store("204 No Content")
		wait(time.Hour)
		st.wantSaid("INFO", 1, "\"polling resumed\" component=cloud pool=default circuit_breaker=closed")
		st.wantSaid("WARN", 1, "")
		with.answer.Store("")
		wait(time.Minute + 10*time.Second)
		st.wantSaid("WARN", 2, "circuit breaker")
	})
}

func TestABreakerThatOpensAfterFailuresIsSaidAfterThem(t *testing.T) {
	play(t, broken(), func(t *testing.T, st *stage) {
		st.reach(broken(func(t *runtime.Tuning) { t.BreakerFailures = 3 }), answering(""))
		st.wantSaid("WARN", 1, "poll failed")
		wait(5 * time.Minute)
		st.wantSaid("WARN", 2, "circuit breaker")
	})
}

func TestACureThatFailsIsSaid(t *testing.T) {
	other := func(t *runtime.Tuning) { t.Token = secret.New("new") }
	play(t, broken(), func(t *testing.T, st *stage) {
		st.reach(broken(), answering(""))
		st.pool.Tune(broken(other))
		wait(time.Second)
		st.wantSaid("WARN", 2, "circuit breaker")
	})
	play(t, broken(), func(t *testing.T, st *stage) {
		st.reach(broken(), answering("401 Unauthorized"))
		wait(10 * time.Minute)
		st.wantSaid("ERROR", 1, "refuses the token")
		st.pool.Tune(broken(other))
		wait(10 * time.Minute)
		st.wantSaid("ERROR", 2, "refuses the token")
	})
}

func TestABreakerThatClosesWithARefusalIsSaidAndSoIsTheRefusal(t *testing.T) {
	play(t, broken(), func(t *testing.T, st *stage) {
		with := answering("")
		st.reach(broken(), with)
		with.answer.Store("401 Unauthorized")
		wait(time.Hour)
		st.wantSaid("INFO", 1, "circuit breaker closed")
		st.wantSaid("ERROR", 1, "refuses the token")
		wait(time.Hour)
		st.wantSaid("INFO", 1, "")
		st.wantSaid("ERROR", 1, "")
		with.answer.Store("204 No Content")
		wait(2 * time.Minute)
		if _, again := st.said("INFO", "circuit_breaker"); again != 0 {
			t.Errorf("that the breaker is closed is said twice:\n%s", st.log)
		}
	})
}
