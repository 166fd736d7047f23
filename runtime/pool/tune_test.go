package pool_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
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

// wantBackoff checks that the pool does not poll for a span from now.
func (st *fixture) wantBackoff(span time.Duration) {
	st.Helper()
	state := st.pool.State()
	if state.Phase != runtime.PoolBackoff || state.Reason == "" || time.Until(state.Until) != span {
		st.Errorf("the pool is %s (%q) for %s, want paused for %s with a reason", state.Phase, state.Reason,
			time.Until(state.Until), span)
	}
}

// wantNotOverdue checks that the next turn of the pool's loop is overdue by one second at most.
func (st *fixture) wantNotOverdue() {
	st.Helper()
	if still := st.pool.State().Overdue(time.Now()); still > time.Second {
		st.Errorf("the pool is overdue by %s", still)
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

// startLate starts the pool with a [lateCloud]. The function edit makes an edit or a Retry while
// the first poll is under way.
func (st *fixture) startLate(edit func()) {
	st.use(&lateCloud{Cloud: st.cloud, edit: edit})
	st.start()
}

// held returns a hold of the next poll for a span from now.
func held(span time.Duration) runtime.NextPoll {
	return runtime.NextPoll{At: time.Now().Add(span), Reason: "a test"}
}

// edited returns the spec of a pool that polls once an hour, with these edits.
func edited(edits ...func(*runtime.Tuning)) runtime.PoolSpec {
	return spec(append([]func(*runtime.Tuning){func(t *runtime.Tuning) {
		t.Token, t.OIDCSum = secret.New("old"), "old"
		t.PollingInterval, t.BreakerTimeout = time.Hour, time.Hour
	}}, edits...)...)
}

func TestStatusInterval(t *testing.T) {
	every := func(span time.Duration) runtime.PoolSpec {
		return spec(func(t *runtime.Tuning) { t.StatusInterval = span })
	}
	for name, c := range map[string]struct {
		passed, lowered, left time.Duration // since the last status poll, and until the next one
	}{
		"becomes due later":   {10 * time.Second, 30 * time.Second, 20 * time.Second},
		"becomes due at once": {9 * time.Minute, 30 * time.Second, 0},
	} {
		play(t, "lowered interval applies to the next poll, which "+name, every(10*time.Minute), func(st *fixture) {
			st.startJobs(runtimetest.Script{Running: 2 * time.Hour}, "a")
			wait(10 * time.Minute)
			wait(c.passed)
			st.wantAsked(runtimetest.JobStatus, 1)
			release := st.cloud.Hang(runtimetest.JobStatus)
			st.pool.Tune(every(c.lowered))
			wait(0)
			st.wantNotOverdue() // also before the service answers
			release()
			if c.left > 0 {
				wait(c.left - time.Millisecond)
				st.wantAsked(runtimetest.JobStatus, 1)
				wait(time.Millisecond)
			}
			st.wantAsked(runtimetest.JobStatus, 2)
			wait(c.lowered)
			st.wantAsked(runtimetest.JobStatus, 3)
		})
	}

	play(t, "edits neither delay nor multiply polls", spec(), func(st *fixture) {
		st.startJobs(runtimetest.Script{Running: 2 * time.Hour}, "a")
		for range 60 * 60 {
			wait(time.Second)
			st.pool.Tune(spec())
		}
		if asked := st.asked(runtimetest.JobStatus); asked < 118 || asked > 120 {
			st.Errorf("%d status polls in an hour with an edit each second, want one every 30 s", asked)
		}
	})
}

// The rules of when an edit ends a wait are tested in package cloud: see
// TestScheduleTune and TestScheduleRetryAfter there.
func TestTune(t *testing.T) {
	play(t, "a hold that the cloud ends is followed by a poll at once", edited(), func(st *fixture) {
		st.cloud.Hold(held(time.Hour))
		st.start()
		wait(30 * time.Minute)
		st.wantBackoff(30 * time.Minute)
		st.cloud.Hold(runtime.NextPoll{At: time.Now()})
		st.pool.Tune(edited(func(t *runtime.Tuning) { t.PollingInterval = time.Second }))
		st.wantNotOverdue()
		wait(0)
		st.wantAsked(runtimetest.Claim, 1)
	})
	play(t, "a hold that the cloud makes longer is kept", edited(), func(st *fixture) {
		st.start()
		wait(time.Minute)
		st.cloud.Hold(held(2*time.Hour - time.Minute))
		st.pool.Tune(edited())
		wait(0)
		st.wantBackoff(2*time.Hour - time.Minute)
		wait(2*time.Hour - 2*time.Minute)
		st.wantAsked(runtimetest.Claim, 1)
		wait(time.Minute)
		st.wantAsked(runtimetest.Claim, 2)
	})
	play(t, "a poll that is under way does not bring back a hold that an edit has ended", edited(), func(st *fixture) {
		st.startLate(func() { st.pool.Tune(edited()) })
		st.wantAsked(runtimetest.Claim, 2)
	})
}

func TestOverdue(t *testing.T) {
	play(t, "pool whose wait an edit ends is not overdue", edited(), func(st *fixture) {
		st.start()
		wait(50 * time.Minute)
		release := st.cloud.Hang(runtimetest.Claim)
		st.pool.Tune(edited(func(t *runtime.Tuning) { t.PollingInterval = time.Second }))
		wait(0)
		st.wantNotOverdue() // also before the service answers
		release()
	})
	play(t, "pool that waits for the end of a hold is not overdue", edited(), func(st *fixture) {
		st.cloud.Fail(runtimetest.Claim, 1, errors.New("429"))
		st.cloud.Fail(runtimetest.Claim, 1, errors.New("500"))
		st.start()
		st.cloud.Hold(held(2 * time.Hour))
		st.pool.Tune(edited())
		wait(2 * time.Hour)
		st.wantNotOverdue()
		wait(time.Minute)
		st.wantNotOverdue() // a failed poll counts as progress
	})
}

func TestRetryStart(t *testing.T) {
	play(t, "failing engine does not shorten a Retry-After", spec(most(2)), func(st *fixture) {
		st.cloud.RetryAfter(time.Hour)
		st.startJobs(runtimetest.Script{Starting: time.Minute, Fail: errors.New("the engine is gone")}, "a")
		wait(30 * time.Minute)
		st.wantAsked(runtimetest.Claim, 1)
	})
}

// TestTuneRevives revives a pool that drains: a job still runs, or instances are still removed.
func TestTuneRevives(t *testing.T) {
	// wantRevived drains the pool, revives it, and checks that it runs a job within a time.
	wantRevived := func(st *fixture, within time.Duration) {
		st.Helper()
		st.start()
		st.pool.Drain()
		wait(time.Second)
		st.wantPhase(runtime.PoolDraining, false)
		st.pool.Tune(st.spec)
		st.cloud.Queue("a")
		wait(within)
		st.wantOperations("a", "start", "started", "remove", "removed")
	}

	play(t, "pool revived while a job runs polls after its end", spec(), func(st *fixture) {
		st.leaveInstance("old", runtimetest.Script{Running: time.Hour}, 0)
		wantRevived(st, 2*time.Hour)
	})
	play(t, "pool revived during the last sweep polls after it", spec(), func(st *fixture) {
		st.leaveInstance("old", runtimetest.Script{Running: time.Second, Hung: true}, time.Hour)
		wantRevived(st, 3*time.Minute)
	})
	playLeases(t, "pool revived while leased work cannot be removed polls", leasing(), func(st *fixture) {
		st.leaveLeased(runtime.InsightsScan, runtimetest.Script{Running: runtimetest.Forever,
			RemoveErrors: slices.Repeat([]error{errors.New("engine down")}, 100)})
		wantRevived(st, 65*time.Second)
	})
}

func TestTuneSingleRun(t *testing.T) {
	once := func(t *runtime.Tuning) { t.SingleRun = true }
	play(t, "single run is one job, and earlier jobs do not count", spec(most(3)), func(st *fixture) {
		st.cloud.Queue("a")
		st.start()
		wait(time.Hour)
		st.pool.Tune(spec(most(3), once))
		wait(time.Hour)
		st.wantPhase(runtime.PoolPolling, false)
		st.cloud.Queue("b", "c")
		wait(2 * time.Minute)
		st.wantPhase(runtime.PoolStopped, true)
		st.wantQueued("c")
	})

	play(t, "running job counts as the single run", spec(most(2)), func(st *fixture) {
		st.engine.SetScript("b", runtimetest.Script{Running: 2 * time.Hour})
		st.startJobs(runtimetest.Script{Running: time.Second}, "a", "b")
		wait(time.Hour)
		st.pool.Tune(spec(once))
		st.pool.Tune(spec(once, most(3))) // still a single run
		st.cloud.Queue("c")
		wait(59 * time.Minute)
		st.wantJobs(1)
		if st.pool.State().Completed {
			st.Error("the pool has completed while its job runs")
		}
		wait(2 * time.Minute)
		st.wantPhase(runtime.PoolStopped, true)
		st.wantQueued("c")
	})
}

// TestTunePaused pauses a pool and resumes it, as cmwa pause and resume do.
func TestTunePaused(t *testing.T) {
	paused := func(t *runtime.Tuning) { t.Paused = true }
	wantPaused := func(st *fixture) {
		st.Helper()
		if state := st.pool.State(); state.Phase != runtime.PoolPaused || state.Reason != "paused by cmwa pause" ||
			!state.Until.IsZero() || state.Overdue(time.Now()) > 0 {
			st.Errorf("the pool is %s, reason %q, until %s", state.Phase, state.Reason, state.Until)
		}
	}

	play(t, "paused pool claims nothing, and its running jobs continue", spec(most(3)), func(st *fixture) {
		st.startJobs(runtimetest.Script{Running: 30 * time.Minute}, "a")
		wait(time.Minute)
		st.pool.Tune(spec(most(3), paused))
		wait(0)
		polls := st.asked(runtimetest.Claim)
		st.cloud.Queue("b")
		wait(20 * time.Minute)
		wantPaused(st)
		st.wantJobs(1)
		wait(time.Hour) // the end of a job causes no poll
		st.wantAsked(runtimetest.Claim, polls)
		st.wantQueued("b")
		st.pool.Tune(spec(most(3)))
		wait(2 * time.Minute)
		st.wantQueued()
	})

	play(t, "job of the poll that is under way runs", spec(), func(st *fixture) {
		release := st.cloud.Hang(runtimetest.Claim)
		st.startJobs(runtimetest.Script{Running: time.Hour}, "a")
		wait(time.Second)
		st.pool.Tune(spec(paused))
		wait(time.Minute)
		release()
		wait(time.Second)
		st.wantNoneLost()
		st.wantJobs(1)
		wantPaused(st)
	})

	once := func(t *runtime.Tuning) { t.SingleRun, t.IdleTimeout = true, 10*time.Minute }
	play(t, "the time of a pause does not count towards the idle timeout", spec(once), func(st *fixture) {
		st.start()
		wait(5 * time.Minute)
		st.pool.Tune(spec(once, paused))
		wait(time.Hour)
		wantPaused(st)
		st.pool.Tune(spec(once))
		wait(9 * time.Minute)
		st.wantPhase(runtime.PoolPolling, false)
		wait(time.Minute)
		st.wantPhase(runtime.PoolStopped, true)
	})

	play(t, "a problem of the executor does not hide the pause", spec(), func(st *fixture) {
		st.engine.FailWhen(failsWith(errors.New("engine down")))
		st.start()
		wait(time.Minute)
		st.pool.Tune(spec(paused))
		wait(time.Minute)
		wantPaused(st)
		if state := st.pool.State(); state.ExecutorProblem != "" {
			st.Errorf("the problem of the paused pool is %q, want no problem", state.ExecutorProblem)
		}
		st.pool.Tune(spec())
		wait(time.Minute)
		if state := st.pool.State(); state.ExecutorProblem == "" {
			st.Error("after resume the state has no problem of the executor")
		}
	})
}

// TestIdleTimeout checks when a single run ends because it got no job.
func TestIdleTimeout(t *testing.T) {
	within := func(limit time.Duration) runtime.PoolSpec {
		return spec(func(t *runtime.Tuning) { t.SingleRun, t.IdleTimeout = true, limit })
	}
	wantOver := func(st *fixture, over bool) {
		st.Helper()
		if state := st.pool.State(); (state.Phase == runtime.PoolStopped) != over || state.Completed != over {
			st.Errorf("the pool is %s, completed %v; want it stopped and completed: %v",
				state.Phase, state.Completed, over)
		}
	}

	play(t, "the timeout counts from the start of the pool", within(10*time.Minute), func(st *fixture) {
		st.start()
		wait(10*time.Minute - time.Second)
		wantOver(st, false)
		wait(time.Second)
		wantOver(st, true)
		st.wantEnd()
	})

	ignored := spec(func(t *runtime.Tuning) { t.IdleTimeout = time.Minute })
	play(t, "without single_run the timeout is ignored", ignored, func(st *fixture) {
		st.start()
		wait(time.Hour)
		wantOver(st, false)
	})

	play(t, "a longer or shorter timeout applies at once", within(10*time.Minute), func(st *fixture) {
		st.start()
		wait(9 * time.Minute)
		st.pool.Tune(within(time.Hour))
		wait(50 * time.Minute)
		wantOver(st, false)
		st.pool.Tune(within(5 * time.Minute))
		wait(0)
		wantOver(st, true)
	})

	play(t, "the timeout counts from when single_run is switched on", spec(), func(st *fixture) {
		st.start()
		wait(time.Hour)
		st.pool.Tune(within(5 * time.Minute))
		wait(5*time.Minute - time.Second)
		wantOver(st, false)
		wait(time.Second)
		wantOver(st, true)
	})

	play(t, "a job that is claimed before the timeout is the single run", within(10*time.Minute), func(st *fixture) {
		st.engine.SetScript("a", runtimetest.Script{Running: time.Hour})
		st.start()
		wait(8 * time.Minute)
		st.cloud.Queue("a")
		wait(50 * time.Minute)
		wantOver(st, false)
		wait(time.Hour)
		wantOver(st, true)
		st.wantQueued()
	})

	play(t, "the timeout counts from the end of an adopted job", within(10*time.Minute), func(st *fixture) {
		st.leaveInstance("old", runtimetest.Script{Running: time.Hour}, 0)
		st.start()
		wait(time.Hour + 9*time.Minute)
		wantOver(st, false)
		wait(2 * time.Minute)
		wantOver(st, true)
	})

	play(t, "a poll that is under way is not aborted, and its job runs", within(5*time.Minute), func(st *fixture) {
		st.engine.SetScript("a", runtimetest.Script{Running: time.Minute})
		st.start()
		wait(time.Minute)
		release := st.cloud.Hang(runtimetest.Claim)
		st.cloud.Queue("a")
		wait(5 * time.Minute)
		wantOver(st, false)
		release()
		wait(2 * time.Minute)
		wantOver(st, true)
		st.wantQueued()
		st.wantNoneLost()
	})

	play(t, "an executor that cannot start jobs does not extend it", within(10*time.Minute), func(st *fixture) {
		st.engine.FailWhen(failsWith(errors.New("engine down")))
		st.start()
		wait(10 * time.Minute)
		wantOver(st, true)
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

// wantDials checks the number of connections. Each poll needs one.
func (s *service) wantDials(t testing.TB, want int32) {
	t.Helper()
	if dials := s.dials.Load(); dials != want {
		t.Errorf("%d polls, want %d", dials, want)
	}
}

// broken returns the spec of a pool that polls once a minute, and whose circuit breaker opens
// for an hour at the first failure.
func broken(edits ...func(*runtime.Tuning)) runtime.PoolSpec {
	return edited(append([]func(*runtime.Tuning){func(t *runtime.Tuning) {
		t.PollingInterval, t.BreakerFailures, t.OIDCSum = time.Minute, 1, ""
	}}, edits...)...)
}

// reach starts the pool. Its polls reach the service through a real client.
func (st *fixture) reach(with *service) {
	st.rebuild(func(p *pool.Parts) {
		client := cloud.New(cloud.Options{
			Identity: st.spec.Identity, Tuning: st.spec.Tuning, UserAgent: "test",
			Log:        p.Log.With("component", "cloud", "pool", st.spec.Name),
			Transports: cloud.NewTransports(&http.Transport{DialContext: with.dial}),
		})
		p.Cloud, p.Close = client, client.Close
	})
	st.start()
}

func TestTuneBreaker(t *testing.T) {
	token := func(t *runtime.Tuning) { t.Token = secret.New("new") }
	certificates := func(t *runtime.Tuning) { t.CA = "new" }

	play(t, "last edit applies", broken(), func(st *fixture) {
		within := func(timeout time.Duration) runtime.PoolSpec {
			return broken(func(t *runtime.Tuning) { t.BreakerTimeout = timeout })
		}
		dead := answering("")
		st.reach(dead)
		wait(time.Minute)
		st.wantBackoff(59 * time.Minute)
		st.pool.Tune(within(2 * time.Hour))
		wait(time.Minute)
		st.wantBackoff(118 * time.Minute)
		dead.wantDials(st, 1)
		st.pool.Tune(within(3 * time.Minute))
		wait(0)
		st.wantBackoff(time.Minute)
		st.pool.Tune(within(10 * time.Second))
		wait(0)
		dead.wantDials(st, 2)
		st.wantBackoff(10 * time.Second)
		if why := st.pool.State().PollError; !strings.Contains(why, "connection refused") {
			st.Errorf("the poll error is %q", why)
		}
	})

	// An edit that may fix the failure allows one poll at once, or when the Retry-After is over.
	const limited = "429 Too Many Requests\r\nRetry-After: "
	for name, c := range map[string]struct {
		answer string
		edit   func(*runtime.Tuning)
		left   time.Duration
	}{
		"a token for a dead service":                  {"", token, 0},
		"certificates for a dead service":             {"", certificates, 0},
		"a token for a limited rate":                  {limited + "14400", token, 0},
		"certificates for a limited rate":             {limited + "14400", certificates, 4*time.Hour - time.Minute},
		"certificates for a shorter Retry-After":      {limited + "1200", certificates, 19 * time.Minute},
		"certificates for a Retry-After that is past": {limited + "30", certificates, 0},
	} {
		play(t, "edit with "+name+" allows one poll", broken(), func(st *fixture) {
			with := answering(c.answer)
			st.reach(with)
			wait(time.Minute)
			st.pool.Tune(broken(c.edit))
			wait(0)
			if c.left > 0 {
				st.wantBackoff(c.left)
				wait(c.left - time.Second)
				with.wantDials(st, 1)
				wait(time.Second)
			}
			with.wantDials(st, 2)
			for i := range 600 {
				st.pool.Tune(broken(c.edit, func(t *runtime.Tuning) { t.MaxJobs, t.RetryCount = 1+i%3, i }))
				wait(time.Second)
			}
			with.wantDials(st, 2)
		})
	}

	play(t, "open and closed breaker are logged once", broken(), func(st *fixture) {
		with := answering("")
		st.reach(with)
		end := time.Now().Add(time.Hour).Format("until=2006-01-02T15:04:05")
		st.wantLogged("WARN", 1, "circuit breaker opened\" component=cloud pool=default "+end)
		st.wantLogged("WARN", 1, "connection refused")
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

	threeFailures := func(t *runtime.Tuning) { t.BreakerFailures = 3 }
	play(t, "a failed poll is logged, and later the open breaker", broken(threeFailures), func(st *fixture) {
		st.reach(answering(""))
		st.wantLogged("WARN", 1, "poll failed")
		wait(5 * time.Minute)
		st.wantLogged("WARN", 2, "circuit breaker")
	})

	play(t, "a breaker that opens after an edit of the token is logged again", broken(), func(st *fixture) {
		st.reach(answering(""))
		st.pool.Tune(broken(token))
		wait(time.Second)
		st.wantLogged("WARN", 2, "circuit breaker")
	})
	play(t, "a rejection of an edited token is logged again", broken(), func(st *fixture) {
		st.reach(answering("401 Unauthorized"))
		wait(10 * time.Minute)
		st.wantLogged("ERROR", 1, "rejected the token")
		st.pool.Tune(broken(token))
		wait(10 * time.Minute)
		st.wantLogged("ERROR", 2, "rejected the token")
	})

	play(t, "a rejected poll that closes the breaker logs the rejection and the closing", broken(), func(st *fixture) {
		with := answering("")
		st.reach(with)
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
			st.Errorf("the closed breaker is logged twice:\n%s", st.log)
		}
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
	st.Helper()
	if all, some := st.countLogged(level, text); all != lines || lines > 0 && some == 0 {
		st.Errorf("%d lines at %s, %d with %q; want %d lines, one or more with this text:\n%s",
			all, level, some, text, lines, st.log)
	}
}
