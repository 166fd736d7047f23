package runtime_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
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

// wantFresh checks that the pool has gone forward, or has waited on purpose,
// within the last second.
func (st *stage) wantFresh() {
	st.t.Helper()
	if still := time.Since(st.pool.State().Progress); still > time.Second {
		st.t.Errorf("the pool counts as standing still for %s", still)
	}
}

// lateCloud answers the first question only after an edit has come, and with err.
type lateCloud struct {
	*runtimetest.Cloud
	edit func()
	err  error
}

func (c *lateCloud) Claim(ctx context.Context) (runtime.Claim, error) {
	claim, err := c.Cloud.Claim(ctx)
	if c.edit == nil {
		return claim, err
	}
	c.edit()
	c.edit = nil
	return claim, c.err
}

// startLate starts the pool with an edit that comes while the service is about
// to answer the first question with err.
func (st *stage) startLate(s runtime.PoolSpec, next runtime.PoolSpec, err error) {
	st.pool = runtime.NewPool(s, runtime.Parts{
		Cloud:    &lateCloud{Cloud: st.cloud, edit: func() { st.pool.Tune(next) }, err: err},
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

// unrelated are edits that change nothing for which a service may have asked for
// a longer wait.
func unrelated(i int) func(*runtime.Tuning) {
	return func(t *runtime.Tuning) {
		t.MaxJobs, t.PollingInterval, t.StatusInterval = 1+i%3, time.Duration(1+i)*time.Second, time.Duration(1+i)*time.Second
		t.RetryCount, t.BreakerFailures, t.BreakerTimeout = i, 1+i, time.Duration(1+i)*time.Second
	}
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

func TestAnEditEndsThePauseOfABreakerThatNoLongerHolds(t *testing.T) {
	play(t, edited(), func(t *testing.T, st *stage) {
		st.cloud.Fail(runtimetest.Claim, 1, &runtime.Pause{Until: time.Now().Add(time.Hour), Reason: runtime.BreakerOpen, Err: errors.New("500")})
		st.start()
		wait(30 * time.Minute)
		st.wantPaused(30 * time.Minute)
		st.pool.Tune(edited(func(t *runtime.Tuning) { t.BreakerTimeout = 10 * time.Second }))
		st.wantFresh()
		wait(0)
		if asked := st.asked(runtimetest.Claim); asked != 2 {
			t.Errorf("%d questions right after the edit, want 1", asked-1)
		}
	})
}

func TestAnEditLeavesThePauseOfABreakerThatStillHolds(t *testing.T) {
	play(t, edited(), func(t *testing.T, st *stage) {
		open := func(span time.Duration) *runtime.Pause {
			return &runtime.Pause{Until: time.Now().Add(span), Reason: runtime.BreakerOpen}
		}
		st.cloud.Fail(runtimetest.Claim, 1, open(time.Hour))
		st.cloud.Fail(runtimetest.Claim, 1, open(2*time.Hour)) // the edit made it longer
		st.start()
		wait(time.Minute)
		st.pool.Tune(edited(func(t *runtime.Tuning) { t.BreakerTimeout = 2 * time.Hour }))
		wait(0)
		st.wantPaused(2*time.Hour - time.Minute)
		wait(2*time.Hour - 2*time.Minute)
		if asked := st.asked(runtimetest.Claim); asked != 2 {
			t.Errorf("%d questions within the pause", asked-2)
		}
		wait(time.Minute)
		if asked := st.asked(runtimetest.Claim); asked != 3 {
			t.Errorf("%d questions after the pause, want 1", asked-2)
		}
	})
}

func TestAnEditThatArrivesBeforeTheBreakersPauseIsHeeded(t *testing.T) {
	play(t, edited(), func(t *testing.T, st *stage) {
		st.startLate(edited(), edited(func(t *runtime.Tuning) { t.BreakerTimeout = 10 * time.Second }),
			&runtime.Pause{Until: time.Now().Add(time.Hour), Reason: runtime.BreakerOpen})
		if asked := st.asked(runtimetest.Claim); asked != 2 {
			t.Errorf("asked %d times, want a question anew at once, as the pause was of the old settings", asked)
		}
	})
}

func TestOverridingThePollingIntervalEndsTheServicesLongerWait(t *testing.T) {
	quick := func(t *runtime.Tuning) { t.PollingInterval = time.Second }
	play(t, edited(quick), func(t *testing.T, st *stage) {
		st.cloud.RetryAfter(24 * time.Hour)
		st.start()
		for i := range 600 {
			st.pool.Tune(edited(unrelated(i)))
			wait(time.Second)
		}
		st.wantPaused(24*time.Hour - 10*time.Minute)
		if asked := st.asked(runtimetest.Claim); asked != 1 {
			t.Errorf("%d questions in spite of the service's wish", asked-1)
		}
		st.pool.Tune(edited(quick, func(t *runtime.Tuning) { t.PollingOverride = true }))
		st.wantFresh()
		wait(0)
		if asked := st.asked(runtimetest.Claim); asked != 2 {
			t.Errorf("%d questions right after the edit, want 1", asked-1)
		}
	})
}

func TestOtherCertificatesEndARepetitionsWaitButNotTheServices(t *testing.T) {
	other := edited(func(t *runtime.Tuning) { t.CA = "new" })
	const minute = time.Minute
	for name, c := range map[string]struct{ until, wish, left time.Duration }{
		"a back-off alone":           {30 * minute, 0, 0},
		"a wish that has passed":     {30 * minute, 5 * minute, 0},
		"a wish within the back-off": {30 * minute, 20 * minute, 10 * minute},
		"a wish alone":               {30 * minute, 30 * minute, 20 * minute},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, edited(), func(t *testing.T, st *stage) {
				pause := &runtime.Pause{Until: time.Now().Add(c.until), Reason: "try 1 of 3", Err: errors.New("500")}
				if c.wish > 0 {
					pause.Wish = time.Now().Add(c.wish)
				}
				st.cloud.Fail(runtimetest.Claim, 1, pause)
				st.start()
				wait(10 * minute)
				st.pool.Tune(other)
				st.wantFresh()
				wait(0)
				if c.left > 0 {
					st.wantPaused(c.left)
					wait(c.left - time.Millisecond)
					if asked := st.asked(runtimetest.Claim); asked != 1 {
						t.Errorf("%d questions within the service's wish", asked-1)
					}
					wait(time.Millisecond)
				}
				if asked := st.asked(runtimetest.Claim); asked != 2 {
					t.Errorf("%d questions %s after the edit, want 1", asked-1, c.left)
				}
			})
		})
	}
	t.Run("a failure that comes after the edit", func(t *testing.T) {
		play(t, edited(), func(t *testing.T, st *stage) {
			st.startLate(edited(), other, &runtime.Pause{Until: time.Now().Add(time.Hour), Reason: "try 1 of 3", Err: errors.New("not trusted")})
			if asked := st.asked(runtimetest.Claim); asked != 2 {
				t.Errorf("asked %d times, want a question with the new certificates at once", asked)
			}
		})
	})
}

func TestOnlyOtherCredentialsEndTheWaitAfterARefusal(t *testing.T) {
	failures := map[string]func() error{
		"a rate limit": func() error {
			return &runtime.Pause{Until: time.Now().Add(time.Hour), Reason: "try 1 of 3", Err: errors.New("429 Too Many Requests")}
		},
		"a refusal": func() error { return fmt.Errorf("%w: 401", runtime.ErrUnauthorized) },
	}
	others := map[string]func(*runtime.Tuning){
		"a token":                  func(t *runtime.Tuning) { t.Token = secret.New("new") },
		"a file of a token":        func(t *runtime.Tuning) { t.OIDCTokenFile = "/new" },
		"the content of that file": func(t *runtime.Tuning) { t.OIDCSum = "new" },
	}
	for failed, failure := range failures {
		for changed, other := range others {
			t.Run(failed+" and "+changed, func(t *testing.T) {
				play(t, edited(), func(t *testing.T, st *stage) {
					st.cloud.Fail(runtimetest.Claim, 1, failure())
					st.start()
					for i := range 600 {
						st.pool.Tune(edited(unrelated(i), func(t *runtime.Tuning) { t.PollingInterval = time.Hour }))
						wait(time.Second)
					}
					if asked := st.asked(runtimetest.Claim); asked != 1 {
						t.Errorf("%d questions after edits that change nothing of it", asked-1)
					}
					st.pool.Tune(edited(other))
					wait(0)
					if asked := st.asked(runtimetest.Claim); asked != 2 {
						t.Errorf("%d questions right after the edit, want 1", asked-1)
					}
				})
			})
			t.Run(failed+" that comes after "+changed, func(t *testing.T) {
				play(t, edited(), func(t *testing.T, st *stage) {
					st.startLate(edited(), edited(other), failure())
					if asked := st.asked(runtimetest.Claim); asked != 2 {
						t.Errorf("asked %d times, want a question with the new token at once", asked)
					}
				})
			})
		}
	}
}

func TestAnEditDoesNotPutOffARepetition(t *testing.T) {
	play(t, edited(), func(t *testing.T, st *stage) {
		st.cloud.Fail(runtimetest.Claim, 1, &runtime.Pause{Until: time.Now().Add(20 * time.Second), Reason: "try 1 of 3", Err: errors.New("500")})
		st.start()
		wait(10 * time.Second)
		st.pool.Tune(edited(most(2)))
		wait(10 * time.Second)
		if asked := st.asked(runtimetest.Claim); asked != 2 {
			t.Errorf("%d questions when the repetition was due, want 1", asked-1)
		}
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
		st.cloud.Fail(runtimetest.Claim, 1, &runtime.Pause{Until: time.Now().Add(2 * time.Hour), Reason: "try 1 of 2", Err: errors.New("429")})
		st.cloud.Fail(runtimetest.Claim, 1, errors.New("500"))
		st.start()
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

// The pool ends a breaker's pause with any edit, so the client must keep it; and
// no other, as the client forgets all others at once.
func TestTheClientKeepsThePauseThatIsSaidToBeABreakersAndNoOther(t *testing.T) {
	for name, c := range map[string]struct {
		retries int
		breaker bool
	}{"breaker": {0, true}, "repetition": {2, false}} {
		t.Run(name, func(t *testing.T) {
			var questions atomic.Int32
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				questions.Add(1)
				w.Header().Set("Retry-After", "3600")
				w.WriteHeader(http.StatusTooManyRequests)
			}))
			defer server.Close()
			s := edited(func(t *runtime.Tuning) {
				t.RetryCount, t.RetryWait, t.RetryMaxWait, t.BreakerFailures = c.retries, time.Minute, time.Minute, 1
			})
			client := cloud.New(cloud.Options{
				Identity: runtime.Identity{Service: server.URL}, Tuning: s.Tuning, UserAgent: "test", Log: slog.New(slog.DiscardHandler),
			})
			defer client.Close()
			for range 2 {
				_, err := client.Claim(t.Context())
				var pause *runtime.Pause
				if !errors.As(err, &pause) || (pause.Reason == runtime.BreakerOpen) != c.breaker {
					t.Errorf("the client answers %v; want a pause, of a breaker %v", err, c.breaker)
				}
			}
			if kept := questions.Load() == 1; kept != c.breaker {
				t.Errorf("two claims were %d questions", questions.Load())
			}
		})
	}
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
	client := cloud.New(cloud.Options{
		Identity: s.Identity, Tuning: s.Tuning, UserAgent: "test", Log: slog.New(slog.DiscardHandler),
		Transport: &http.Transport{DialContext: with.dial},
	})
	st.pool = runtime.NewPool(s, runtime.Parts{
		Cloud: client, Executor: st.engine, Close: client.Close, Agent: "agent-1", Log: slog.New(slog.NewTextHandler(st.log, nil)),
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
		st.wantSaid("WARN", 1, "the circuit breaker is open: not asking for work\" component=pool pool=default "+end)
		if _, why := st.said("WARN", "connection refused"); why != 1 {
			t.Errorf("it is not said why:\n%s", st.log)
		}
		wait(30 * time.Minute)
		st.pool.Tune(broken(most(2))) // and the pool asks the client whether it still holds
		wait(3 * time.Hour)
		st.wantSaid("WARN", 1, "")
		st.wantSaid("INFO", 0, "")
		with.answer.Store("204 No Content")
		wait(time.Hour)
		st.wantSaid("INFO", 1, "\"the service answers again\" component=pool pool=default circuit_breaker=closed")
		st.wantSaid("WARN", 1, "")
		with.answer.Store("")
		wait(time.Minute + 10*time.Second)
		st.wantSaid("WARN", 2, "circuit breaker")
	})
}

func TestABreakerThatOpensAfterFailuresIsSaidAfterThem(t *testing.T) {
	play(t, broken(), func(t *testing.T, st *stage) {
		st.reach(broken(func(t *runtime.Tuning) { t.BreakerFailures = 3 }), answering(""))
		st.wantSaid("WARN", 1, "ask for work")
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
		st.wantSaid("INFO", 1, "the circuit breaker is closed")
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
