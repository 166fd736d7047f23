package pool_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/cloud"
	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/pool"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// asked returns the number of calls of a kind that the service got.
func (st *fixture) asked(call runtimetest.Call) int { return len(st.cloud.Calls(call)) }

// wantPaused checks that the pool is paused for a span from now.
func (st *fixture) wantPaused(span time.Duration) {
	st.t.Helper()
	state := st.pool.State()
	if state.Phase != runtime.PoolPaused || state.Reason == "" || time.Until(state.Until) != span {
		st.t.Errorf("the pool is %s (%q) for %s, want paused for %s with a reason", state.Phase, state.Reason,
			time.Until(state.Until), span)
	}
}

// wantNotOverdue checks that the next turn of the pool's loop is overdue by one second at most.
func (st *fixture) wantNotOverdue() {
	st.t.Helper()
	if still := st.pool.State().Overdue(time.Now()); still > time.Second {
		st.t.Errorf("the pool is overdue by %s", still)
	}
}

// lateCloud calls edit during the first poll, and then answers this poll with an error and a
// hold of an hour. The edit has ended this hold, so the pool must ignore it.
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

// startLate starts a pool with a [lateCloud]. The function edit makes an edit or a Retry while
// the first poll is under way.
func (st *fixture) startLate(edit func()) {
	st.pool = pool.New(edited(), pool.Parts{
		Cloud:    &lateCloud{Cloud: st.cloud, edit: edit},
		Executor: st.engine, Agent: "agent-1", Log: slog.New(slog.DiscardHandler),
	})
	st.start()
}

// edited returns the spec of a pool that polls once an hour, with these edits.
func edited(edits ...func(*runtime.Tuning)) runtime.PoolSpec {
	return spec(append([]func(*runtime.Tuning){func(t *runtime.Tuning) {
		t.Token, t.OIDCSum = secret.New("old"), "old"
		t.PollingInterval, t.BreakerTimeout = time.Hour, time.Hour
	}}, edits...)...)
}

func TestStatusInterval(t *testing.T) {
	t.Run("lowered interval applies to the next poll", func(t *testing.T) {
		every := func(span time.Duration) runtime.PoolSpec {
			return spec(func(t *runtime.Tuning) { t.StatusInterval = span })
		}
		for name, c := range map[string]struct {
			passed, lowered, left time.Duration // since the last status poll, and until the next one
		}{
			"which becomes due later":   {10 * time.Second, 30 * time.Second, 20 * time.Second},
			"which becomes due at once": {9 * time.Minute, 30 * time.Second, 0},
		} {
			t.Run(name, func(t *testing.T) {
				play(t, every(10*time.Minute), func(t *testing.T, st *fixture) {
					st.engine.SetDefaultScript(runtimetest.Script{Running: 2 * time.Hour})
					st.cloud.Queue("a")
					st.start()
					wait(10 * time.Minute)
					wait(c.passed)
					if st.asked(runtimetest.JobStatus) != 1 {
						t.Fatalf("got %d status polls before the edit, want 1", st.asked(runtimetest.JobStatus))
					}
					release := st.cloud.Hang(runtimetest.JobStatus)
					st.pool.Tune(every(c.lowered))
					wait(0)
					st.wantNotOverdue() // also before the service answers
					release()
					if c.left > 0 {
						wait(c.left - time.Millisecond)
						if asked := st.asked(runtimetest.JobStatus); asked != 1 {
							t.Errorf("%d status polls before the end of the new interval, want none", asked-1)
						}
						wait(time.Millisecond)
					}
					if asked := st.asked(runtimetest.JobStatus); asked != 2 {
						t.Errorf("%d status polls %s after the edit, want 1", asked-1, c.left)
					}
					wait(c.lowered)
					if asked := st.asked(runtimetest.JobStatus); asked != 3 {
						t.Errorf("%d status polls one new interval later, want 2", asked-1)
					}
				})
			})
		}
	})

	t.Run("edits neither delay nor multiply polls", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			st.engine.SetDefaultScript(runtimetest.Script{Running: 2 * time.Hour})
			st.cloud.Queue("a")
			st.start()
			for range 60 * 60 {
				wait(time.Second)
				st.pool.Tune(spec())
			}
			if asked := st.asked(runtimetest.JobStatus); asked < 118 || asked > 120 {
				t.Errorf("%d status polls in an hour with an edit each second, want one every 30 s", asked)
			}
		})
	})
}

// The rules of when an edit ends a wait are tested in package cloud: see
// TestScheduleTune and TestScheduleRetryAfter there.
func TestTune(t *testing.T) {
	held := func(span time.Duration) runtime.NextPoll {
		return runtime.NextPoll{At: time.Now().Add(span), Reason: "a test"}
	}
	t.Run("a hold that the cloud ends is followed by a poll at once", func(t *testing.T) {
		play(t, edited(), func(t *testing.T, st *fixture) {
			st.cloud.Hold(held(time.Hour))
			st.start()
			wait(30 * time.Minute)
			st.wantPaused(30 * time.Minute)
			st.cloud.Hold(runtime.NextPoll{At: time.Now()})
			st.pool.Tune(edited(func(t *runtime.Tuning) { t.PollingInterval = time.Second }))
			st.wantNotOverdue()
			wait(0)
			if asked := st.asked(runtimetest.Claim); asked != 1 {
				t.Errorf("%d polls right after the edit, want 1", asked)
			}
		})
	})
	t.Run("a hold that the cloud makes longer is kept", func(t *testing.T) {
		play(t, edited(), func(t *testing.T, st *fixture) {
			st.start()
			wait(time.Minute)
			st.cloud.Hold(held(2*time.Hour - time.Minute))
			st.pool.Tune(edited())
			wait(0)
			st.wantPaused(2*time.Hour - time.Minute)
			wait(2*time.Hour - 2*time.Minute)
			if asked := st.asked(runtimetest.Claim); asked != 1 {
				t.Errorf("%d polls within the hold, want none", asked-1)
			}
			wait(time.Minute)
			if asked := st.asked(runtimetest.Claim); asked != 2 {
				t.Errorf("%d polls after the hold, want 1", asked-1)
			}
		})
	})
	t.Run("a poll that is under way does not bring back a hold that an edit has ended", func(t *testing.T) {
		play(t, edited(), func(t *testing.T, st *fixture) {
			st.startLate(func() { st.pool.Tune(edited()) })
			if asked := st.asked(runtimetest.Claim); asked != 2 {
				t.Errorf("%d polls, want 2: the edit has ended the hold", asked)
			}
		})
	})
}

func TestOverdue(t *testing.T) {
	t.Run("waiting pool is not overdue until an event ends the wait", func(t *testing.T) {
		play(t, edited(), func(t *testing.T, st *fixture) {
			st.start()
			wait(50 * time.Minute)
			release := st.cloud.Hang(runtimetest.Claim)
			st.pool.Tune(edited(func(t *runtime.Tuning) { t.PollingInterval = time.Second }))
			wait(0)
			st.wantNotOverdue() // also before the service answers
			release()
		})
		play(t, edited(), func(t *testing.T, st *fixture) {
			st.cloud.Fail(runtimetest.Claim, 1, errors.New("429"))
			st.cloud.Fail(runtimetest.Claim, 1, errors.New("500"))
			st.start()
			st.cloud.Hold(runtime.NextPoll{At: time.Now().Add(2 * time.Hour), Reason: "try 1 of 2"})
			st.pool.Tune(edited())
			wait(2 * time.Hour)
			st.wantNotOverdue()
			wait(time.Minute)
			st.wantNotOverdue() // a failed poll counts as progress
		})
	})
}

func TestRetryStart(t *testing.T) {
	t.Run("edit without effect on starts keeps the backoff", func(t *testing.T) {
		play(t, edited(), func(t *testing.T, st *fixture) {
			st.engine.SetDefaultScript(runtimetest.Script{Fail: errors.New("the engine is gone")})
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
				t.Errorf("the queue has %v, want c", queued)
			}
		})
	})

	t.Run("failing engine does not shorten a Retry-After", func(t *testing.T) {
		play(t, spec(most(2)), func(t *testing.T, st *fixture) {
			st.engine.SetDefaultScript(runtimetest.Script{Starting: time.Minute,
				Fail: errors.New("the engine is gone")})
			st.cloud.Queue("a")
			st.cloud.RetryAfter(time.Hour)
			st.start()
			wait(30 * time.Minute)
			if asked := st.asked(runtimetest.Claim); asked != 1 {
				t.Errorf("polls at %v, want none within the Retry-After of an hour", st.cloud.Calls(runtimetest.Claim))
			}
		})
	})
}

// TestTuneRevives revives a pool that has no job left and still removes instances.
func TestTuneRevives(t *testing.T) {
	// wantRevived drains the pool, revives it, and checks that it runs a job within a time.
	wantRevived := func(st *fixture, s runtime.PoolSpec, within time.Duration) {
		st.t.Helper()
		st.start()
		st.pool.Drain()
		wait(time.Second)
		if phase := st.pool.State().Phase; phase != runtime.PoolDraining {
			st.t.Fatalf("the pool is %s, want it to drain", phase)
		}
		st.pool.Tune(s)
		st.cloud.Queue("a")
		wait(within)
		st.wantOperations("a", "start", "started", "remove", "removed")
	}

	t.Run("pool revived during the last sweep polls after it", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			st.engine.SetScript("old", runtimetest.Script{Running: time.Second, Hung: true})
			st.engine.Adopt(&runtime.Job{ID: "old", Pool: spec().Key(), Agent: "agent-1"}, time.Now().Add(-time.Hour))
			wantRevived(st, spec(), 3*time.Minute)
		})
	})
	t.Run("pool revived while leased work cannot be removed polls", func(t *testing.T) {
		playLeases(t, leasing(), func(t *testing.T, st *fixture) {
			st.engine.SetScript("old", runtimetest.Script{Running: runtimetest.Forever,
				RemoveErrors: slices.Repeat([]error{errors.New("engine down")}, 100)})
			old := runtime.Job{ID: "old", Pool: leasing().Key(), Agent: "agent-1", Kind: runtime.InsightsScan}
			st.engine.Adopt(&old, time.Now())
			wantRevived(st, leasing(), 65*time.Second)
		})
	})
}

func TestTuneSingleRun(t *testing.T) {
	t.Run("earlier jobs do not count", func(t *testing.T) {
		once := func(t *runtime.Tuning) { t.SingleRun = true }
		play(t, spec(), func(t *testing.T, st *fixture) {
			st.cloud.Queue("a")
			st.start()
			wait(time.Hour)
			st.pool.Tune(spec(once))
			wait(time.Hour)
			if state := st.pool.State(); state.Phase != runtime.PoolPolling || state.Completed {
				t.Fatalf("before the claim of a job the pool is %s, completed %v", state.Phase, state.Completed)
			}
			st.cloud.Queue("b", "c")
			wait(2 * time.Minute)
			state := st.pool.State()
			if left := st.cloud.Queued(); state.Phase != runtime.PoolStopped || !state.Completed ||
				strings.Join(left, " ") != "c" {
				t.Errorf("after one job the pool is %s, completed %v, and the queue has %v; "+
					"want the pool stopped and completed, and c in the queue", state.Phase, state.Completed, left)
			}
		})
	})

	t.Run("running job counts as the single run", func(t *testing.T) {
		once := func(t *runtime.Tuning) { t.SingleRun = true }
		play(t, spec(most(2)), func(t *testing.T, st *fixture) {
			st.engine.SetScript("a", runtimetest.Script{Running: time.Second})
			st.engine.SetScript("b", runtimetest.Script{Running: 2 * time.Hour})
			st.cloud.Queue("a", "b")
			st.start()
			wait(time.Hour)
			st.pool.Tune(spec(once))
			st.pool.Tune(spec(once, most(3))) // still a single run
			st.cloud.Queue("c")
			wait(59 * time.Minute)
			if state := st.pool.State(); state.Completed || len(state.Jobs) != 1 {
				t.Errorf("while the job runs the pool is %s, completed %v, with %d jobs", state.Phase, state.Completed,
					len(state.Jobs))
			}
			wait(2 * time.Minute)
			state := st.pool.State()
			if left := st.cloud.Queued(); !state.Completed || state.Phase != runtime.PoolStopped || len(left) != 1 {
				t.Errorf("after the job the pool is %s, completed %v, and the queue has %v",
					state.Phase, state.Completed, left)
			}
		})
	})
}

// TestTunePaused pauses a pool and resumes it, as cmwa pause and resume do.
func TestTunePaused(t *testing.T) {
	paused := func(t *runtime.Tuning) { t.Paused = true }
	wantPaused := func(t *testing.T, st *fixture) {
		t.Helper()
		if state := st.pool.State(); state.Phase != runtime.PoolPaused || state.Reason != "paused by cmwa pause" ||
			!state.Until.IsZero() || state.Overdue(time.Now()) > 0 {
			t.Errorf("the pool is %s, reason %q, until %s", state.Phase, state.Reason, state.Until)
		}
	}

	t.Run("paused pool claims nothing, and its running jobs continue", func(t *testing.T) {
		play(t, spec(most(3)), func(t *testing.T, st *fixture) {
			st.engine.SetScript("a", runtimetest.Script{Running: 30 * time.Minute})
			st.cloud.Queue("a")
			st.start()
			wait(time.Minute)
			st.pool.Tune(spec(most(3), paused))
			wait(0)
			polls := len(st.cloud.Calls(runtimetest.Claim))
			st.cloud.Queue("b")
			wait(20 * time.Minute)
			wantPaused(t, st)
			if jobs := len(st.pool.State().Jobs); jobs != 1 {
				t.Errorf("%d jobs run, want the one that ran before", jobs)
			}
			wait(time.Hour) // the end of a job causes no poll
			if more := len(st.cloud.Calls(runtimetest.Claim)) - polls; more != 0 || len(st.cloud.Queued()) != 1 {
				t.Errorf("the paused pool has polled %d times", more)
			}
			st.pool.Tune(spec(most(3)))
			wait(2 * time.Minute)
			if left := st.cloud.Queued(); len(left) != 0 {
				t.Errorf("after resume the queue has %v, want no jobs", left)
			}
		})
	})

	t.Run("job of the poll that is under way runs", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			st.engine.SetScript("a", runtimetest.Script{Running: time.Hour})
			release := st.cloud.Hang(runtimetest.Claim)
			st.cloud.Queue("a")
			st.start()
			wait(time.Second)
			st.pool.Tune(spec(paused))
			wait(time.Minute)
			release()
			wait(time.Second)
			if lost := st.cloud.Lost(); len(lost) > 0 || len(st.pool.State().Jobs) != 1 {
				t.Errorf("the jobs %v are lost and %d jobs run, want no lost job and one that runs", lost,
					len(st.pool.State().Jobs))
			}
			wantPaused(t, st)
		})
	})

	t.Run("the time of a pause does not count towards the idle timeout", func(t *testing.T) {
		once := func(t *runtime.Tuning) { t.SingleRun, t.IdleTimeout = true, 10*time.Minute }
		play(t, spec(once), func(t *testing.T, st *fixture) {
			st.start()
			wait(5 * time.Minute)
			st.pool.Tune(spec(once, paused))
			wait(time.Hour)
			wantPaused(t, st)
			st.pool.Tune(spec(once))
			wait(9 * time.Minute)
			if state := st.pool.State(); state.Completed {
				t.Error("the time of the pause has counted towards the idle timeout")
			}
			wait(time.Minute)
			if state := st.pool.State(); !state.Completed {
				t.Errorf("after the idle timeout the pool is %s", state.Phase)
			}
		})
	})

	t.Run("a problem of the executor does not hide the pause", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			st.engine.FailWhen(func(context.Context, runtime.Tuning) error { return errors.New("engine down") })
			st.start()
			wait(time.Minute)
			st.pool.Tune(spec(paused))
			wait(time.Minute)
			wantPaused(t, st)
			if state := st.pool.State(); state.ExecutorProblem != "" {
				t.Errorf("the problem of the paused pool is %q, want no problem", state.ExecutorProblem)
			}
			st.pool.Tune(spec())
			wait(time.Minute)
			if state := st.pool.State(); state.ExecutorProblem == "" {
				t.Error("after resume the state has no problem of the executor")
			}
		})
	})
}

// TestIdleTimeout checks when a single run ends because it got no job.
func TestIdleTimeout(t *testing.T) {
	within := func(limit time.Duration) func(*runtime.Tuning) {
		return func(t *runtime.Tuning) { t.SingleRun, t.IdleTimeout = true, limit }
	}
	wantOver := func(t *testing.T, st *fixture, over bool) {
		t.Helper()
		if state := st.pool.State(); (state.Phase == runtime.PoolStopped) != over || state.Completed != over {
			t.Errorf("the pool is %s, completed %v; want it stopped and completed: %v",
				state.Phase, state.Completed, over)
		}
	}

	t.Run("the timeout counts from the start of the pool", func(t *testing.T) {
		play(t, spec(within(10*time.Minute)), func(t *testing.T, st *fixture) {
			st.start()
			wait(10*time.Minute - time.Second)
			wantOver(t, st, false)
			wait(time.Second)
			wantOver(t, st, true)
			if err := st.end(); err != nil {
				t.Error(err)
			}
		})
	})

	t.Run("without single_run the timeout is ignored", func(t *testing.T) {
		play(t, spec(func(t *runtime.Tuning) { t.IdleTimeout = time.Minute }), func(t *testing.T, st *fixture) {
			st.start()
			wait(time.Hour)
			wantOver(t, st, false)
		})
	})

	t.Run("a longer or shorter timeout applies at once", func(t *testing.T) {
		play(t, spec(within(10*time.Minute)), func(t *testing.T, st *fixture) {
			st.start()
			wait(9 * time.Minute)
			st.pool.Tune(spec(within(time.Hour)))
			wait(50 * time.Minute)
			wantOver(t, st, false)
			st.pool.Tune(spec(within(5 * time.Minute)))
			wait(0)
			wantOver(t, st, true)
		})
	})

	t.Run("the timeout counts from when single_run is switched on", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			st.start()
			wait(time.Hour)
			st.pool.Tune(spec(within(5 * time.Minute)))
			wait(5*time.Minute - time.Second)
			wantOver(t, st, false)
			wait(time.Second)
			wantOver(t, st, true)
		})
	})

	t.Run("a job that is claimed before the timeout is the single run", func(t *testing.T) {
		play(t, spec(within(10*time.Minute)), func(t *testing.T, st *fixture) {
			st.engine.SetScript("a", runtimetest.Script{Running: time.Hour})
			st.start()
			wait(8 * time.Minute)
			st.cloud.Queue("a")
			wait(50 * time.Minute)
			wantOver(t, st, false)
			wait(time.Hour)
			wantOver(t, st, true)
			if left := st.cloud.Queued(); len(left) != 0 {
				t.Errorf("still queued: %v", left)
			}
		})
	})

	t.Run("the timeout counts from the end of an adopted job", func(t *testing.T) {
		play(t, spec(within(10*time.Minute)), func(t *testing.T, st *fixture) {
			job := runtime.Job{ID: "old", Pool: spec().Key(), Agent: "agent-1"}
			st.cloud.AddClaimed(job, runtimetest.Definition("sleep 60"))
			st.engine.SetScript("old", runtimetest.Script{Running: time.Hour})
			st.engine.Adopt(&job, time.Now())
			st.start()
			wait(time.Hour + 9*time.Minute)
			wantOver(t, st, false)
			wait(2 * time.Minute)
			wantOver(t, st, true)
		})
	})

	t.Run("a poll that is under way is not aborted, and its job runs", func(t *testing.T) {
		play(t, spec(within(5*time.Minute)), func(t *testing.T, st *fixture) {
			st.engine.SetScript("a", runtimetest.Script{Running: time.Minute})
			st.start()
			wait(time.Minute)
			release := st.cloud.Hang(runtimetest.Claim)
			st.cloud.Queue("a")
			wait(5 * time.Minute)
			wantOver(t, st, false)
			release()
			wait(2 * time.Minute)
			wantOver(t, st, true)
			if left, lost := st.cloud.Queued(), st.cloud.Lost(); len(left) != 0 || len(lost) != 0 {
				t.Errorf("still queued: %v, lost: %v", left, lost)
			}
		})
	})
	t.Run("an executor that cannot start jobs does not extend the timeout", func(t *testing.T) {
		play(t, spec(within(10*time.Minute)), func(t *testing.T, st *fixture) {
			st.engine.FailWhen(func(context.Context, runtime.Tuning) error { return errors.New("engine down") })
			st.start()
			wait(10 * time.Minute)
			wantOver(t, st, true)
		})
	})
}

// service is an HTTP service for a real client in a bubble of testing/synctest. Its
// connections are pipes. If its response is empty, it refuses connections.
type service struct {
	answer atomic.Value // status line and headers of an HTTP response
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

// broken returns the spec of a pool that polls once a minute, and whose circuit breaker opens
// for an hour at the first failure.
func broken(edits ...func(*runtime.Tuning)) runtime.PoolSpec {
	return edited(append([]func(*runtime.Tuning){func(t *runtime.Tuning) {
		t.PollingInterval, t.BreakerFailures, t.OIDCSum = time.Minute, 1, ""
	}}, edits...)...)
}

// reach starts the pool of a spec. Its polls reach the service through a real client.
func (st *fixture) reach(s runtime.PoolSpec, with *service) {
	log := slog.New(slog.NewTextHandler(st.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	client := cloud.New(cloud.Options{
		Identity: s.Identity, Tuning: s.Tuning, UserAgent: "test", Log: log.With("component", "cloud", "pool", s.Name),
		Transport: &http.Transport{DialContext: with.dial},
	})
	st.pool = pool.New(s, pool.Parts{
		Cloud: client, Executor: st.engine, Close: client.Close, Agent: "agent-1", Log: log,
	})
	st.start()
}

func TestTuneBreaker(t *testing.T) {
	t.Run("last edit applies", func(t *testing.T) {
		play(t, broken(), func(t *testing.T, st *fixture) {
			dead := answering("")
			st.reach(broken(), dead)
			wait(time.Minute)
			st.wantPaused(59 * time.Minute)
			st.pool.Tune(broken(func(t *runtime.Tuning) { t.BreakerTimeout = 2 * time.Hour }))
			wait(time.Minute)
			st.wantPaused(118 * time.Minute)
			if dead.dials.Load() != 1 {
				t.Errorf("%d polls while the breaker is open, want none", dead.dials.Load()-1)
			}
			st.pool.Tune(broken(func(t *runtime.Tuning) { t.BreakerTimeout = 3 * time.Minute }))
			wait(0)
			st.wantPaused(time.Minute)
			st.pool.Tune(broken(func(t *runtime.Tuning) { t.BreakerTimeout = 10 * time.Second }))
			wait(0)
			if dead.dials.Load() != 2 {
				t.Errorf("%d polls after the timeout, want 1", dead.dials.Load()-1)
			}
			st.wantPaused(10 * time.Second)
			if why := st.pool.State().PollError; !strings.Contains(why, "connection refused") {
				t.Errorf("the poll error is %q", why)
			}
		})
	})

	t.Run("edit that may fix the failure allows one poll at once", func(t *testing.T) {
		for name, c := range map[string]struct {
			answer string
			hint   func(*runtime.Tuning)
			left   time.Duration
		}{
			"a token for a dead service":      {"", func(t *runtime.Tuning) { t.Token = secret.New("new") }, 0},
			"certificates for a dead service": {"", func(t *runtime.Tuning) { t.CA = "new" }, 0},
			"a token for a limited rate": {"429 Too Many Requests\r\nRetry-After: 14400",
				func(t *runtime.Tuning) { t.Token = secret.New("new") }, 0},
			"certificates for a limited rate": {"429 Too Many Requests\r\nRetry-After: 14400",
				func(t *runtime.Tuning) { t.CA = "new" }, 4*time.Hour - time.Minute},
			"certificates for a shorter Retry-After": {"429 Too Many Requests\r\nRetry-After: 1200",
				func(t *runtime.Tuning) { t.CA = "new" }, 19 * time.Minute},
			"certificates for a Retry-After that is past": {"429 Too Many Requests\r\nRetry-After: 30",
				func(t *runtime.Tuning) { t.CA = "new" }, 0},
		} {
			t.Run(name, func(t *testing.T) {
				play(t, broken(), func(t *testing.T, st *fixture) {
					with := answering(c.answer)
					st.reach(broken(), with)
					wait(time.Minute)
					st.pool.Tune(broken(c.hint))
					wait(0)
					if c.left > 0 {
						st.wantPaused(c.left)
						wait(c.left - time.Second)
						if with.dials.Load() != 1 {
							t.Errorf("%d polls within the Retry-After, want none", with.dials.Load()-1)
						}
						wait(time.Second)
					}
					if with.dials.Load() != 2 {
						t.Errorf("%d polls %s after the edit, want 1", with.dials.Load()-1, c.left)
					}
					for i := range 600 {
						st.pool.Tune(broken(c.hint, func(t *runtime.Tuning) { t.MaxJobs, t.RetryCount = 1+i%3, i }))
						wait(time.Second)
					}
					if with.dials.Load() != 2 {
						t.Errorf("%d polls after other edits, want none", with.dials.Load()-2)
					}
				})
			})
		}
	})

	t.Run("open and closed breaker are logged once", func(t *testing.T) {
		play(t, broken(), func(t *testing.T, st *fixture) {
			with := answering("")
			st.reach(broken(), with)
			end := time.Now().Add(time.Hour).Format("until=2006-01-02T15:04:05")
			st.wantLogged("WARN", 1, "circuit breaker opened\" component=cloud pool=default "+end)
			if _, why := st.countLogged("WARN", "connection refused"); why != 1 {
				t.Errorf("the log lacks the reason:\n%s", st.log)
			}
			wait(30 * time.Minute)
			st.pool.Tune(broken(most(2))) // the client returns the same hold
			wait(3 * time.Hour)
			st.wantLogged("WARN", 1, "")
			st.wantLogged("INFO", 0, "")
			with.answer.Store("204 No Content")
			wait(time.Hour)
			st.wantLogged("INFO", 1, "\"polling resumed\" component=cloud pool=default circuit_breaker=closed")
			st.wantLogged("WARN", 1, "")
			with.answer.Store("")
			wait(time.Minute + 10*time.Second)
			st.wantLogged("WARN", 2, "circuit breaker")
		})
	})

	t.Run("a failed poll is logged, and later the open breaker", func(t *testing.T) {
		play(t, broken(), func(t *testing.T, st *fixture) {
			st.reach(broken(func(t *runtime.Tuning) { t.BreakerFailures = 3 }), answering(""))
			st.wantLogged("WARN", 1, "poll failed")
			wait(5 * time.Minute)
			st.wantLogged("WARN", 2, "circuit breaker")
		})
	})

	t.Run("a failure after an edit of the token is logged again", func(t *testing.T) {
		other := func(t *runtime.Tuning) { t.Token = secret.New("new") }
		play(t, broken(), func(t *testing.T, st *fixture) {
			st.reach(broken(), answering(""))
			st.pool.Tune(broken(other))
			wait(time.Second)
			st.wantLogged("WARN", 2, "circuit breaker")
		})
		play(t, broken(), func(t *testing.T, st *fixture) {
			st.reach(broken(), answering("401 Unauthorized"))
			wait(10 * time.Minute)
			st.wantLogged("ERROR", 1, "rejected the token")
			st.pool.Tune(broken(other))
			wait(10 * time.Minute)
			st.wantLogged("ERROR", 2, "rejected the token")
		})
	})

	t.Run("a rejected poll that closes the breaker logs the rejection and the closing", func(t *testing.T) {
		play(t, broken(), func(t *testing.T, st *fixture) {
			with := answering("")
			st.reach(broken(), with)
			with.answer.Store("401 Unauthorized")
			wait(time.Hour)
			st.wantLogged("INFO", 1, "circuit breaker closed")
			st.wantLogged("ERROR", 1, "rejected the token")
			wait(time.Hour)
			st.wantLogged("INFO", 1, "")
			st.wantLogged("ERROR", 1, "")
			with.answer.Store("204 No Content")
			wait(2 * time.Minute)
			if _, again := st.countLogged("INFO", "circuit_breaker"); again != 0 {
				t.Errorf("the closed breaker is logged twice:\n%s", st.log)
			}
		})
	})
}

// countLogged counts the lines of the log at a level, and those that contain the text.
func (st *fixture) countLogged(level, text string) (all, some int) {
	for line := range strings.Lines(st.log.String()) {
		if strings.Contains(line, "level="+level) {
			all++
			if strings.Contains(line, text) {
				some++
			}
		}
	}
	return all, some
}

func (st *fixture) wantLogged(level string, lines int, text string) {
	st.t.Helper()
	if all, some := st.countLogged(level, text); all != lines || lines > 0 && some == 0 {
		st.t.Errorf("%d lines at %s, %d with %q; want %d lines, one or more with this text:\n%s",
			all, level, some, text, lines, st.log)
	}
}
