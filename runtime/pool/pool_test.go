package pool_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/pool"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// fixture is one pool with a fake service and a fake engine, in a synctest bubble.
type fixture struct {
	t      testing.TB
	cloud  *runtimetest.Cloud
	leases *runtimetest.Leases // nil for a service without leased work
	engine *runtimetest.Executor
	slots  *pool.Slots
	closed int // calls of Close

	records *runtimetest.Journal
	parts   pool.Parts // of pool

	metrics *runtimetest.Metrics

	pool  *pool.Pool
	log   *logBuffer
	stop  context.CancelCauseFunc
	ended chan error
}

// logBuffer is a log that may be read while a pool writes it.
type logBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *logBuffer) Write(line []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(line)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// spec is a pool with the documented defaults.
func spec(edits ...func(*runtime.Tuning)) runtime.PoolSpec {
	s := runtime.PoolSpec{
		Name:       "default",
		Identity:   runtime.Identity{Service: "http://service", Target: "pretended"},
		Generation: 7,
		Tuning: runtime.Tuning{
			Kinds: []runtime.Kind{runtime.Deployment}, MaxJobs: 1,
			PollingInterval: time.Minute, StatusInterval: 30 * time.Second,
			RequestTimeout: 30 * time.Second,
		},
	}
	for _, edit := range edits {
		edit(&s.Tuning)
	}
	return s
}

// job is a deployment as the service hands it out.
func job(id string) runtime.Job {
	return runtime.Job{ID: id, Kind: runtime.Deployment, WorkflowID: "deployment-of-" + id,
		Token: secret.New("token-of-" + id)}
}

func most(n int) func(*runtime.Tuning) { return func(t *runtime.Tuning) { t.MaxJobs = n } }

// play runs story in a synctest bubble. Story starts the pool. Afterwards play stops the
// pool, and checks that Run returns and that all jobs have ended.
func play(t *testing.T, s runtime.PoolSpec, story func(t *testing.T, st *fixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		st := newFixture(t, s)
		story(t, st)
		st.stop(errors.New("the test is over"))
		st.end()
		st.wantAllEnded()
	})
}

func newFixture(t testing.TB, s runtime.PoolSpec) *fixture { return newFixtureWith(t, s, nil) }

// newFixtureWith returns a fixture whose pool shares slots with others.
func newFixtureWith(t testing.TB, s runtime.PoolSpec, slots *pool.Slots) *fixture {
	return newFixtureOf(t, s, slots, nil)
}

// newFixtureOf returns a fixture whose service leases work, unless leases is nil.
func newFixtureOf(t testing.TB, s runtime.PoolSpec, slots *pool.Slots, leases *runtimetest.Leases) *fixture {
	service := runtimetest.NewCloud()
	if leases != nil {
		service = leases.Cloud
	}
	st := &fixture{
		t: t, cloud: service, leases: leases, engine: runtimetest.NewExecutor(), slots: slots, log: &logBuffer{},
		metrics: &runtimetest.Metrics{}, ended: make(chan error, 1), records: runtimetest.NewJournal(),
	}
	var cloud runtime.Cloud = st.cloud
	if leases != nil {
		cloud = leases
	}
	st.parts = pool.Parts{
		Cloud: cloud, Executor: st.engine, Slots: slots, Close: func() { st.closed++ }, Agent: "agent-1",
		UserAgent: "test", Journal: st.records,
		Environ: func(name string) (string, bool) {
			value, ok := map[string]string{"DOCKER_HOST": "unix:///engine", "AWS_REGION": "mars", "HIDDEN": "x"}[name]
			return value, ok
		},
		Log:     slog.New(slog.NewTextHandler(st.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Metrics: st.metrics,
	}
	st.pool = pool.New(s, st.parts)
	return st
}

// wantAllEnded checks the metrics after the end of the pool: there is one end for each job
// that was claimed or adopted and not left running, and one claim for each job that was not
// adopted.
func (st *fixture) wantAllEnded() {
	st.t.Helper()
	log := st.log.String()
	left := strings.Count(log, "left running for ") + strings.Count(log, "job left to the next agent")
	adopted := st.takenOver(log)
	started := adopted + strings.Count(log, `msg="job claimed"`) + strings.Count(log, `msg="lease acquired"`)
	claimed, ended := st.metrics.Claimed(), st.metrics.Ended()
	if runtimetest.Total(ended) != started-left || runtimetest.Total(claimed) != started-adopted {
		st.t.Errorf("recorded claims %v and ends %v; want %d of %d jobs, %d of them adopted, ended", claimed, ended,
			started-left, started, adopted)
	}
	if polls := st.metrics.Polls(); st.leases == nil && polls["default job"] < runtimetest.Total(claimed) {
		st.t.Errorf("recorded polls %v and claims %v, want a poll for each claim", polls, claimed)
	}
}

// takenOver returns the number of jobs that the pool has not claimed itself.
func (st *fixture) takenOver(log string) int {
	messages := regexp.MustCompile(`msg="job ` +
		`(resumed|adopted|started again|reported failed|has already ended at|left to).* job=(\S+)`)
	jobs := map[string]bool{}
	for _, match := range messages.FindAllStringSubmatch(log, -1) {
		jobs[match[2]] = true
	}
	return len(jobs)
}

func (st *fixture) start() {
	ctx, stop := context.WithCancelCause(context.Background())
	st.stop = stop
	go func() { st.ended <- st.pool.Run(ctx) }()
	synctest.Wait()
}

// wait lets virtual time pass, and waits until all goroutines block.
func wait(span time.Duration) {
	time.Sleep(span) // in a bubble: virtual
	synctest.Wait()
}

// end waits for Run to return, with a timeout far above all timeouts of the pool.
func (st *fixture) end() error {
	st.t.Helper()
	select {
	case err := <-st.ended:
		st.ended <- err
		return err
	case <-time.After(24 * time.Hour):
		st.t.Fatal("the pool does not end")
		return nil
	}
}

func (st *fixture) wantOperations(job string, want ...runtimetest.Operation) {
	st.t.Helper()
	if got := st.engine.Operations(job); !slices.Equal(got, want) {
		st.t.Errorf("operations on job %s: got %v, want %v", job, got, want)
	}
}

func (st *fixture) wantStep(job string, step int, status runtime.Status, log string) {
	st.t.Helper()
	got, text := st.cloud.Step(job, step)
	if got != status || !strings.Contains(text, log) {
		st.t.Errorf("step %d of job %s is %s with the log %q; want %s and %q in the log", step, job, got, text,
			status, log)
	}
}

func TestRun(t *testing.T) {
	t.Run("job is claimed, started and removed, and the next poll follows at once", func(t *testing.T) {
		play(t, spec(func(t *runtime.Tuning) { t.Instance.Forward = []string{"AWS_REGION", "NOT_SET"} }),
			func(t *testing.T, st *fixture) {
				st.cloud.Queue("a", "b")
				st.start()
				wait(2500 * time.Millisecond) // each takes a second
				for _, job := range []string{"a", "b"} {
					st.wantOperations(job, "start", "started", "remove", "removed")
					st.wantStep(job, 0, runtime.Running, "pretended instance") // the runner reports later statuses
				}
				if calls := st.cloud.Calls(runtimetest.Claim); len(calls) != 3 ||
					calls[2].Sub(calls[0]) > 2*time.Second {
					t.Errorf("polls at %v; want one at once after each job", calls)
				}
				h := st.engine.Handoff("a")
				if h.Token != "token-of-a" || h.Forward["AWS_REGION"] != "mars" ||
					h.Forward["DOCKER_HOST"] != "unix:///engine" || len(h.Forward) != 2 {
					t.Errorf("the handoff forwards %+v, want only AWS_REGION and DOCKER_HOST", h.Forward)
				}
				if strings.Contains(st.log.String(), "token-of-") {
					t.Error("the log shows a job's token")
				}
			})
	})

	t.Run("Close is called once, after the last job", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			st := newFixture(t, spec())
			st.engine.SetDefaultScript(runtimetest.Script{Running: time.Hour, OnTerm: runtime.Exit{Code: 143}})
			st.cloud.Queue("a")
			st.start()
			wait(time.Minute)
			if st.closed != 0 {
				t.Error("Close was called while a job runs")
			}
			st.stop(errors.New("the agent is stopping"))
			_ = st.end()
			if present := st.engine.Present(); st.closed != 1 || len(present) > 0 {
				t.Errorf("Close was called %d times, with %v left; want once, and none left", st.closed, present)
			}
		})
	})

	t.Run("handoff has the CA of the claim", func(t *testing.T) {
		trusting := func(ca string) runtime.PoolSpec { return spec(most(2), func(t *runtime.Tuning) { t.CA = ca }) }
		play(t, trusting("first"), func(t *testing.T, st *fixture) {
			st.engine.SetDefaultScript(runtimetest.Script{Running: time.Hour})
			st.cloud.Queue("a")
			st.start()
			st.pool.Tune(trusting("second"))
			st.cloud.Queue("b")
			wait(2 * time.Minute)
			if a, b := st.engine.Handoff("a"), st.engine.Handoff("b"); a.CA != "first" || b.CA != "second" {
				t.Errorf("the handoffs have the CAs %q and %q, want first and second", a.CA, b.CA)
			}
		})
	})

	t.Run("no more jobs run than MaxJobs", func(t *testing.T) {
		play(t, spec(most(4)), func(t *testing.T, st *fixture) {
			for i := range 20 {
				st.cloud.Queue(fmt.Sprint("job-", i))
			}
			st.start()
			if running := len(st.engine.Present()); running != 4 {
				t.Errorf("%d jobs run at once, want 4", running)
			}
			wait(6 * time.Second)
			if st.engine.Peak() != 4 || len(st.cloud.Queued()) != 0 || len(st.engine.Present()) != 0 {
				t.Errorf("peak %d, %d queued, %v left; want 4, none, none", st.engine.Peak(), len(st.cloud.Queued()),
					st.engine.Present())
			}
		})
	})
}

func TestDrain(t *testing.T) {
	t.Run("running jobs finish and nothing is claimed", func(t *testing.T) {
		play(t, spec(most(2)), func(t *testing.T, st *fixture) {
			st.engine.SetDefaultScript(runtimetest.Script{Running: time.Hour})
			st.cloud.Queue("a", "b", "c")
			st.start()
			st.pool.Drain()
			wait(time.Minute)
			if state := st.pool.State(); state.Phase != runtime.PoolDraining || len(state.Jobs) != 2 {
				t.Errorf("the pool is %s with %d jobs, want draining with 2", state.Phase, len(state.Jobs))
			}
			if err := st.end(); err != nil {
				t.Errorf("a drained pool ended with %v", err)
			}
			if left := st.cloud.Queued(); !slices.Equal(left, []string{"c"}) {
				t.Errorf("still queued: %v, want c", left)
			}
			st.wantOperations("a", "start", "started", "remove", "removed")
		})
	})

	t.Run("Tune makes a draining pool claim jobs again", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			st.engine.SetDefaultScript(runtimetest.Script{Running: time.Hour})
			st.cloud.Queue("a", "b")
			st.start()
			st.pool.Drain()
			wait(time.Minute)
			st.pool.Tune(spec())
			wait(2 * time.Hour)
			st.wantOperations("b", "start", "started", "remove", "removed")
		})
	})

	t.Run("job that a poll returns after Drain is run", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			release := st.cloud.Hang(runtimetest.Claim)
			st.cloud.Queue("a")
			st.start()
			st.pool.Drain()
			wait(10 * time.Second)
			release()
			if err := st.end(); err != nil {
				t.Error(err)
			}
			st.wantOperations("a", "start", "started", "remove", "removed")
			if lost := st.cloud.Lost(); len(lost) > 0 {
				t.Errorf("got lost jobs %v, want none", lost)
			}
		})
	})
}

func TestStop(t *testing.T) {
	t.Run("job that a poll returns after the stop is reported as failed", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			release := st.cloud.Hang(runtimetest.Claim)
			st.cloud.Queue("a")
			st.start()
			st.stop(errors.New("the agent is stopping"))
			wait(time.Second)
			release()
			_ = st.end()
			st.wantStep("a", 0, runtime.Failed, "Error: the agent is stopping")
			if lost := st.cloud.Lost(); len(lost) > 0 {
				t.Errorf("got lost jobs %v, want none", lost)
			}
		})
	})

	t.Run("running jobs get a grace period", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			st.engine.SetDefaultScript(runtimetest.Script{Running: runtimetest.Forever, Ending: 5 * time.Second,
				OnTerm: runtime.Exit{Code: runtime.CodeFailed}})
			st.cloud.Queue("a")
			st.start()
			st.stop(errors.New("the agent is stopping"))
			_ = st.end()
			if operations := st.engine.Operations("a"); !slices.Contains(operations, "term") ||
				slices.Contains(operations, "kill") || len(st.engine.Present()) > 0 {
				t.Errorf("operations on the job: %v, instances: %v; want a TERM, no KILL and no instance", operations,
					st.engine.Present())
			}
			st.wantStep("a", 1, runtime.NotStarted, "") // the runner reports it
		})
	})

	t.Run("job that ignores TERM is killed and its step is reported", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			st.engine.SetDefaultScript(runtimetest.Script{Running: runtimetest.Forever, Ending: runtimetest.Forever})
			st.cloud.Queue("a")
			st.start()
			st.stop(errors.New("the agent is stopping"))
			_ = st.end()
			if operations := st.engine.Operations("a"); !slices.Contains(operations, "kill") {
				t.Errorf("operations on the job: %v, want a KILL", operations)
			}
			st.wantStep("a", 1, runtime.Failed, "ended before the runner reported an outcome")
		})
	})

	t.Run("hung engine delays the end by two minutes at most", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			st.engine.SetDefaultScript(runtimetest.Script{Running: runtimetest.Forever, Hung: true})
			st.cloud.Queue("a")
			st.start()
			wait(time.Hour)
			begin := time.Now()
			st.stop(errors.New("the agent is stopping"))
			_ = st.end()
			if took := time.Since(begin); took > 2*time.Minute+5*time.Second {
				t.Errorf("the pool took %s to stop, want at most 2m5s", took)
			}
			if reports := st.cloud.Reports("a"); len(reports) != 1 {
				t.Errorf("got reports %+v of a job that may still run, want none", reports[1:])
			}
			if !strings.Contains(st.log.String(), "left running for the next start") {
				t.Errorf("the log lacks the end of the job:\n%s", st.log)
			}
		})
	})

	t.Run("stop is retried until the engine works", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			busy := errors.New("the engine is busy")
			st.engine.SetDefaultScript(runtimetest.Script{Running: runtimetest.Forever, Ending: runtimetest.Forever,
				RemoveErrors: []error{busy, busy, busy}})
			st.cloud.Queue("a")
			st.start()
			st.stop(errors.New("the agent is stopping"))
			_ = st.end()
			st.wantStep("a", 1, runtime.Failed, "ended before the runner reported an outcome")
			if present := st.engine.Present(); len(present) > 0 {
				t.Errorf("got instances %v, want none", present)
			}
		})
	})

	t.Run("job that cannot be stopped keeps its slot", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			var busy []error
			for range 20 {
				busy = append(busy, errors.New("the engine is busy"))
			}
			st.engine.SetScript("a", runtimetest.Script{Running: runtimetest.Forever, RemoveErrors: busy,
				OnTerm: runtime.Exit{Code: 143}})
			st.cloud.Queue("a", "b")
			st.start()
			st.cloud.SetJobStatus("a", runtime.Cancelled)
			wait(5 * time.Minute)
			if state := st.pool.State(); len(state.Jobs) != 1 || state.Jobs[0].Phase != runtime.Stopping {
				t.Errorf("the pool has the jobs %+v, want the job that still runs", state.Jobs)
			}
			if calls := st.cloud.Calls(runtimetest.Claim); len(calls) != 1 {
				t.Errorf("polls at %v while the slot is in use, want none", calls[1:])
			}
			wait(30 * time.Minute)
			st.wantOperations("b", "start", "started", "remove", "removed")
			if warnings := strings.Count(st.log.String(), "cannot stop instance"); warnings != 1 {
				t.Errorf("the failed stop is logged %d times, want once", warnings)
			}
		})
	})

	t.Run("known end is reported although the removal fails", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			st.engine.SetDefaultScript(runtimetest.Script{Running: time.Minute,
				Exit: runtime.Exit{Code: 137, Reason: "killed"}, Hung: true})
			st.cloud.Queue("a")
			st.start()
			wait(50 * time.Second)
			st.stop(errors.New("the agent is stopping"))
			_ = st.end()
			st.wantStep("a", 1, runtime.Failed, "killed")
		})
	})
}

func TestPollStatus(t *testing.T) {
	t.Run("cancelled job is stopped and not reported", func(t *testing.T) {
		for _, status := range []runtime.JobStatus{runtime.Cancelled, runtime.Gone} {
			play(t, spec(), func(t *testing.T, st *fixture) {
				st.engine.SetDefaultScript(runtimetest.Script{Running: runtimetest.Forever,
					OnTerm: runtime.Exit{Code: 143}})
				st.cloud.Queue("a")
				st.start()
				wait(time.Minute)
				st.cloud.SetJobStatus("a", status)
				wait(31 * time.Second)
				if present := st.engine.Present(); len(present) > 0 {
					t.Errorf("%s: got instances %v one status interval later, want none", status, present)
				}
				if reports := st.cloud.Reports("a"); len(reports) != 1 || reports[0].Step != 0 {
					t.Errorf("%s: the agent reported %+v, want none after the setup", status, reports)
				}
			})
		}
	})

	t.Run("job that is cancelled during its pull is stopped", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			st.engine.SetDefaultScript(runtimetest.Script{Starting: time.Hour})
			st.cloud.Queue("a")
			st.start()
			wait(time.Minute)
			st.cloud.SetJobStatus("a", runtime.Cancelled)
			wait(31 * time.Second)
			st.wantOperations("a", "start", "no start")
			if state := st.pool.State(); len(state.Jobs) > 0 {
				t.Errorf("the pool still has the jobs %v, want none", state.Jobs)
			}
		})
	})

	t.Run("runner that has reported a failure may exit by itself", func(t *testing.T) {
		play(t, spec(func(t *runtime.Tuning) { t.StatusInterval = 5 * time.Second }), func(t *testing.T, st *fixture) {
			st.engine.SetDefaultScript(runtimetest.Script{
				Running: 45 * time.Second, Exit: runtime.Exit{Code: runtime.CodeFailed},
				Progress: []runtimetest.TimedProgress{{After: 20 * time.Second,
					Progress: runtime.Progress{Step: 1, Status: runtime.Failed}}},
			})
			st.cloud.Queue("a")
			st.start()
			wait(25 * time.Second)
			st.cloud.SetJobStatus("a", runtime.Cancelled) // because of that failure
			wait(time.Minute)
			st.wantOperations("a", "start", "started", "remove", "removed") // without a term
		})
	})

	t.Run("runner that does not exit after the last success is stopped", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			st.engine.SetDefaultScript(runtimetest.Script{Running: runtimetest.Forever})
			st.cloud.Queue("a")
			st.start()
			st.cloud.SetJobStatus("a", runtime.Completing)
			wait(80 * time.Second)
			if len(st.engine.Present()) != 1 {
				t.Error("the runner did not get a minute to exit")
			}
			wait(30 * time.Second)
			if len(st.engine.Present()) != 0 {
				t.Error("the runner was not stopped")
			}
		})
	})

	t.Run("failed status polls never stop a job", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			st.engine.SetDefaultScript(runtimetest.Script{Running: time.Hour})
			st.cloud.Queue("a")
			st.cloud.Fail(runtimetest.JobStatus, 1000, errors.New("connection refused"))
			st.start()
			wait(2 * time.Hour)
			st.wantOperations("a", "start", "started", "remove", "removed")
		})
	})

	t.Run("pool is not overdue while the service does not answer", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			st.engine.SetDefaultScript(runtimetest.Script{Running: 3 * time.Hour})
			st.cloud.Queue("a")
			st.cloud.Fail(runtimetest.JobStatus, 1000, errors.New("the service is broken"))
			st.start()
			for range 100 {
				wait(time.Minute)
				if still := st.pool.State().Overdue(time.Now()); still > time.Minute {
					t.Errorf("the pool is overdue by %s while its job runs", still)
					return
				}
			}
		})
	})
}

func TestFail(t *testing.T) {
	t.Run("instance that cannot be created fails the job", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			st.engine.SetScript("a",
				runtimetest.Script{Fail: fmt.Errorf("%w: no such image: example/none", runtime.ErrJobFault)})
			st.cloud.Queue("a", "b")
			st.start()
			wait(2 * time.Second)
			st.wantStep("a", 0, runtime.Failed, "Error: cannot be started: no such image: example/none\n")
			st.wantOperations("b", "start", "started", "remove", "removed")
		})
	})

	t.Run("unreachable engine does not fail the whole queue", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			st.engine.SetDefaultScript(runtimetest.Script{Fail: errors.New("the engine is gone")})
			for i := range 50 {
				st.cloud.Queue(fmt.Sprint("job-", i))
			}
			st.start()
			wait(time.Minute)
			if failed := 50 - len(st.cloud.Queued()); failed != 5 {
				t.Errorf("%d failed jobs in a minute, want 5: two, and one each after 5, 10 and 20 s", failed)
			}
			if state := st.pool.State(); state.Phase != runtime.PoolPaused || state.Reason == "" {
				t.Errorf("the pool is %s (%s), want paused with a reason", state.Phase, state.Reason)
			}
		})
	})

	t.Run("definition that cannot be fetched fails the job", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			st.cloud.Fail(runtimetest.Define, 1, errors.New("500 internal server error"))
			st.cloud.Queue("a")
			st.start()
			st.wantStep("a", 0, runtime.Failed, "Error: fetch the job's definition: 500 internal server error")
			st.wantOperations("a")
		})
	})
}

func TestFinalReports(t *testing.T) {
	t.Run("agent reports for a runner that was killed", func(t *testing.T) {
		died := runtime.Exit{Code: 137, Reason: "out of memory"}
		for name, c := range map[string]struct {
			progress []runtimetest.TimedProgress
			step     int
			offset   int
			reports  int
		}{
			"in its first step": {[]runtimetest.TimedProgress{
				{Progress: runtime.Progress{Step: 0, Status: runtime.Succeeded}},
				{Progress: runtime.Progress{Step: 1, Status: runtime.Running}}, {Progress: runtime.Progress{Step: 1,
					Lines: 12}},
			}, 1, 12, 2},
			"between two steps": {[]runtimetest.TimedProgress{{Progress: runtime.Progress{Step: 0, Lines: 3,
				Status: runtime.Succeeded}}}, 1, 0, 3},
			"without progress": {nil, 0, 1, 2},
			"after its last step": {[]runtimetest.TimedProgress{{Progress: runtime.Progress{Step: 1,
				Status: runtime.Succeeded}}}, 1, 0, 1},
			"after a failure": {[]runtimetest.TimedProgress{{Progress: runtime.Progress{Step: 1,
				Status: runtime.Failed}}}, 1, 0, 1},
		} {
			t.Run(name, func(t *testing.T) {
				play(t, spec(), func(t *testing.T, st *fixture) {
					st.engine.SetDefaultScript(runtimetest.Script{Running: time.Second, Exit: died,
						Progress: c.progress, Silent: c.progress == nil})
					st.cloud.Queue("a")
					st.start()
					wait(2 * time.Second)
					reports := st.cloud.Reports("a")
					if len(reports) != c.reports {
						t.Fatalf("the agent reported %+v, want %d reports", reports, c.reports)
					}
					if c.reports == 1 {
						return
					}
					last := reports[len(reports)-1]
					if last.Step != c.step || last.Offset != c.offset || last.Status != runtime.Failed ||
						!strings.Contains(last.Lines[0].Text, "out of memory (exit code 137)") {
						t.Errorf("the last report is %+v, want step %d failed at line %d for lack of memory", last,
							c.step, c.offset)
					}
				})
			})
		}
	})
}

func TestFollow(t *testing.T) {
	t.Run("broken stream is read again", func(t *testing.T) {
		progress := []runtimetest.TimedProgress{
			{After: 0, Progress: runtime.Progress{Step: 0, Lines: 1, Status: runtime.Succeeded}},
			{After: time.Second, Progress: runtime.Progress{Step: 1, Status: runtime.Running}},
			{After: time.Hour, Progress: runtime.Progress{Step: 1, Lines: 8, Status: runtime.Succeeded}},
			{After: time.Hour, Progress: runtime.Progress{Step: 2, Status: runtime.Running}},
			{After: 2 * time.Hour, Progress: runtime.Progress{Step: 2, Lines: 5}},
		}
		for name, script := range map[string]runtimetest.Script{
			"with an error": {Breaks: []time.Duration{10 * time.Minute, 90 * time.Minute},
				BreakErr: io.ErrUnexpectedEOF},
			"as if it were at its end": {Breaks: []time.Duration{10 * time.Minute, 90 * time.Minute}},
			"just before the job's end": {Breaks: []time.Duration{3*time.Hour - 10*time.Millisecond},
				BreakErr: io.ErrUnexpectedEOF},
			"before it begins": {Breaks: []time.Duration{70 * time.Minute},
				FollowErr: errors.New("the engine is gone")},
		} {
			script.Running, script.Exit, script.Progress = 3*time.Hour, runtime.Exit{Code: 137,
				Reason: "killed"}, progress
			play(t, spec(), func(t *testing.T, st *fixture) {
				st.engine.SetScript("a", script)
				st.cloud.Add(job("a"), runtimetest.Definition("one", "two", "three"))
				st.start()
				wait(4 * time.Hour)
				st.wantStep("a", 1, runtime.NotStarted, "") // the runner has reported it
				st.wantStep("a", 2, runtime.Failed, "killed")
				st.wantStep("a", 3, runtime.NotStarted, "")
				if reports := st.cloud.Reports("a"); reports[len(reports)-1].Offset != 5 {
					t.Errorf("stream that breaks %s: the last report has offset %d, want 5", name,
						reports[len(reports)-1].Offset)
				}
				if warnings := strings.Count(st.log.String(), "cannot read progress"); warnings > 3 {
					t.Errorf("stream that breaks %s: the failure is logged %d times, want at most 3", name, warnings)
				}
			})
		}
	})

	t.Run("last line counts, also after a line of an earlier step", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			st.engine.SetScript("a", runtimetest.Script{
				Running: time.Hour, Exit: runtime.Exit{Code: 137},
				Progress: []runtimetest.TimedProgress{
					{After: 0, Progress: runtime.Progress{Step: 1, Status: runtime.Running}},
					{After: 0, Progress: runtime.Progress{Step: 2, Lines: 4, Status: runtime.Running}},
					{After: 0, Progress: runtime.Progress{Step: 1, Lines: 9, Status: runtime.Failed}},
					{After: 0, Progress: runtime.Progress{Step: 2, Lines: 3}},
				},
			})
			st.cloud.Add(job("a"), runtimetest.Definition("one", "two"))
			st.start()
			wait(2 * time.Hour)
			st.wantStep("a", 2, runtime.Failed, "ended before the runner reported an outcome")
		})
	})
}

func TestSendHeartbeats(t *testing.T) {
	t.Run("heartbeats are sent during a long start", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			st.engine.SetDefaultScript(runtimetest.Script{Starting: 20 * time.Minute, Running: time.Second})
			st.cloud.Queue("a")
			st.start()
			wait(21 * time.Minute)
			if reports := st.cloud.Reports("a"); len(reports) < 20*2-1 {
				t.Errorf("%d heartbeats in 20 minutes of setup, want one every 30 s", len(reports))
			}
			before := len(st.cloud.Reports("a"))
			wait(time.Hour)
			if after := len(st.cloud.Reports("a")); after != before {
				t.Errorf("%d more heartbeats after the setup, want none", after-before)
			}
		})
	})
}

func TestNextPoll(t *testing.T) {
	t.Run("Retry-After sets the next poll unless overridden", func(t *testing.T) {
		for _, override := range []bool{false, true} {
			s := broken(func(t *runtime.Tuning) { t.PollingOverride = override })
			play(t, s, func(t *testing.T, st *fixture) {
				service := answering("204 No Content\r\nRetry-After: 600")
				st.reach(s, service)
				state := st.pool.State()
				wait(9 * time.Minute)
				calls := service.dials.Load()
				switch {
				case override && calls < 8:
					t.Errorf("overridden: %d polls in 9 minutes, want one a minute", calls)
				case !override && calls != 1:
					t.Errorf("%d polls in 9 minutes, want 1", calls)
				case !override && (state.Phase != runtime.PoolPaused || state.Reason == ""):
					t.Errorf("the pool is %s (%s), want paused with a reason", state.Phase, state.Reason)
				}
				wait(2 * time.Minute)
				if calls := service.dials.Load(); !override && calls != 2 {
					t.Errorf("%d polls in 11 minutes, want 2", calls)
				}
			})
		}
	})

	t.Run("hold remains when a job ends", func(t *testing.T) {
		play(t, spec(most(3)), func(t *testing.T, st *fixture) {
			st.engine.SetDefaultScript(runtimetest.Script{Running: 30 * time.Second})
			st.engine.SetScript("long", runtimetest.Script{Running: 5 * time.Minute})
			st.cloud.Queue("a", "long")
			st.start()
			st.cloud.Hold(runtime.NextPoll{At: time.Now().Add(10 * time.Minute), Reason: "circuit breaker open"})
			wait(70 * time.Second)
			calls := len(st.cloud.Calls(runtimetest.Claim))
			st.cloud.Queue("b")
			wait(8 * time.Minute)
			if now := len(st.cloud.Calls(runtimetest.Claim)); now != calls {
				t.Errorf("%d polls during the hold, want none", now-calls)
			}
			if still := st.pool.State().Overdue(time.Now()); still > time.Minute {
				t.Errorf("a held pool is overdue by %s", still)
			}
			wait(3 * time.Minute)
			st.wantOperations("b", "start", "started", "remove", "removed")
		})
	})

	t.Run("failed polls are retried at the interval and logged once", func(t *testing.T) {
		s := broken(func(t *runtime.Tuning) { t.BreakerFailures = 100 })
		play(t, s, func(t *testing.T, st *fixture) {
			service := answering("")
			st.reach(s, service)
			wait(4 * time.Minute)
			if polls := service.dials.Load(); polls < 4 || polls > 5 {
				t.Errorf("%d polls in four minutes, want one a minute", polls)
			}
			if loud := strings.Count(st.log.String(), "level=WARN"); loud != 1 {
				t.Errorf("%d warnings for one series of failures, want 1:\n%s", loud, st.log)
			}
			if still := st.pool.State().Overdue(time.Now()); still > time.Minute {
				t.Errorf("a pool with failed polls is overdue by %s", still)
			}
			service.answer.Store("204 No Content")
			wait(2 * time.Minute)
			if !strings.Contains(st.log.String(), "polling resumed") {
				t.Errorf("the recovery is not logged:\n%s", st.log)
			}
		})
	})

	t.Run("state has the poll error until a poll succeeds", func(t *testing.T) {
		s := broken(func(t *runtime.Tuning) {
			t.RetryCount = 2
			t.RetryWait, t.RetryMaxWait = 2*time.Minute, 2*time.Minute
		})
		play(t, s, func(t *testing.T, st *fixture) {
			if got := st.pool.State().PollError; got != "" {
				t.Errorf("before the first poll the error is %q, want none", got)
			}
			service := answering("401 Unauthorized")
			st.reach(s, service)
			if got := st.pool.State().PollError; !strings.Contains(got, "rejected the token") ||
				!strings.Contains(st.log.String(), got) {
				t.Errorf("got the error %q, want the rejected token, as in the log:\n%s", got, st.log)
			}
			service.answer.Store("")
			wait(2 * time.Minute)
			if got := st.pool.State().PollError; !strings.Contains(got, "connection refused") ||
				!strings.Contains(st.log.String(), got) {
				t.Errorf("got the error %q, want the refused connection, as in the log:\n%s", got, st.log)
			}
			service.answer.Store("204 No Content")
			wait(5 * time.Minute)
			if got := st.pool.State().PollError; got != "" {
				t.Errorf("after a successful poll the error is %q, want none", got)
			}
		})
	})
}

func TestNext(t *testing.T) {
	t.Run("single run ends after one job", func(t *testing.T) {
		play(t, spec(most(3), func(t *runtime.Tuning) { t.SingleRun = true }), func(t *testing.T, st *fixture) {
			st.start()
			wait(time.Hour)
			st.cloud.Queue("a", "b")
			if err := st.end(); err != nil {
				t.Error(err)
			}
			if left := st.cloud.Queued(); !slices.Equal(left, []string{"b"}) {
				t.Errorf("still queued: %v, want b", left)
			}
			if state := st.pool.State(); !state.Completed || state.Phase != runtime.PoolStopped {
				t.Errorf("the pool is %s, completed %v, want stopped and completed", state.Phase, state.Completed)
			}
		})
	})
}

func TestAdopt(t *testing.T) {
	t.Run("restarted agent resumes running jobs and starts none twice", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			old := runtime.Job{ID: "old", WorkflowID: "deployment-of-old", Pool: spec().Key(), Agent: "agent-1"}
			st.cloud.AddClaimed(old, runtimetest.Definition("sleep 60"))
			st.engine.SetScript("old", runtimetest.Script{Running: 10 * time.Minute})
			st.engine.SetScript("ended", runtimetest.Script{Running: time.Second})
			st.engine.SetScript("young", runtimetest.Script{Running: time.Second})
			now := time.Now()
			st.engine.Adopt(&old, now.Add(-time.Minute))
			st.engine.Adopt(&runtime.Job{ID: "ended", Pool: spec().Key(), Agent: "agent-1"}, now.Add(-time.Hour))
			st.engine.Adopt(&runtime.Job{ID: "young", Pool: spec().Key(), Agent: "agent-1"}, now.Add(-3*time.Second))
			st.engine.Adopt(&runtime.Job{ID: "other", Pool: spec().Key(), Agent: "agent-2"}, now.Add(-time.Hour))
			st.engine.Adopt(&runtime.Job{ID: "elsewhere", Pool: "another-key", Agent: "agent-1"}, now.Add(-time.Hour))
			st.cloud.Queue("a")
			st.start()
			wait(time.Minute)
			if queued := st.cloud.Queued(); len(queued) != 1 {
				t.Error("the adopted job takes no slot")
			}
			st.wantOperations("ended", "was adopted", "remove", "removed")
			st.wantOperations("young", "was adopted")
			st.wantOperations("other", "was adopted")
			st.wantOperations("elsewhere", "was adopted")
			wait(10 * time.Minute)
			st.wantOperations("old", "was adopted", "remove", "removed")
			st.wantOperations("young", "was adopted", "remove", "removed") // by a later sweep
			st.wantOperations("other", "was adopted")
			st.wantOperations("elsewhere", "was adopted")
			st.wantOperations("a", "start", "started", "remove", "removed")
		})
	})

	t.Run("adopted job that is cancelled is stopped", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			old := runtime.Job{ID: "old", WorkflowID: "deployment-of-old", Pool: spec().Key(), Agent: "agent-1"}
			st.cloud.AddClaimed(old, runtimetest.Definition("sleep 60"))
			st.engine.SetScript("old", runtimetest.Script{Running: runtimetest.Forever})
			st.engine.Adopt(&old, time.Now())
			st.start()
			st.cloud.SetJobStatus("old", runtime.Cancelled)
			wait(31 * time.Second)
			if present := st.engine.Present(); len(present) > 0 {
				t.Errorf("got instances %v, want none", present)
			}
		})
	})
}

func TestSweep(t *testing.T) {
	// An instance's times are by the clock of its engine, which may be far ahead of the agent's.
	t.Run("ended instance of an engine whose clock is ahead is removed", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			st.engine.SetScript("ahead", runtimetest.Script{Running: time.Second})
			st.pool = pool.New(spec(), pool.Parts{
				Cloud: st.cloud, Executor: aheadEngine{st.engine}, Agent: "agent-1",
				Log: slog.New(slog.NewTextHandler(st.log, nil)),
			})
			st.engine.Adopt(&runtime.Job{ID: "ahead", Pool: spec().Key(), Agent: "agent-1"}, time.Now().Add(-time.Hour))
			st.start()
			wait(time.Minute)
			st.wantOperations("ahead", "was adopted", "remove", "removed")
		})
	})

	// An engine may create such an instance if its response to the agent's create call is lost.
	t.Run("instance that was never started is removed", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			st.start()
			st.engine.SetScript("late", runtimetest.Script{NeverStarted: true})
			st.engine.Adopt(&runtime.Job{ID: "late", Pool: spec().Key(), Agent: "agent-1"}, time.Now())
			wait(11 * time.Minute)
			st.wantOperations("late", "was adopted", "remove", "removed")
		})
	})
	t.Run("instance of an earlier start is removed at the end of the job", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			script := runtimetest.Script{Running: time.Minute, FailLate: []error{runtime.ErrConnectionLost}}
			st.engine.SetScript("a", script)
			st.cloud.Queue("a")
			st.start()
			wait(10 * time.Second)
			st.engine.SetScript("a", runtimetest.Script{NeverStarted: true})
			st.engine.Adopt(&runtime.Job{ID: "a", Pool: spec().Key(), Agent: "agent-1"}, time.Now())
			wait(2 * time.Minute)
			if present := st.engine.Present(); len(present) != 0 {
				t.Errorf("got instances %v after the end of the job, want none", present)
			}
		})
	})

	busy := errors.New("the engine is busy")
	t.Run("removal is retried while the engine fails", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			st.engine.SetDefaultScript(runtimetest.Script{Running: time.Second, RemoveErrors: []error{busy, busy}})
			st.cloud.Queue("a")
			st.start()
			wait(time.Minute)
			st.wantOperations("a", "start", "started",
				"remove", "not ended", "remove", "not ended", "remove", "removed")
		})
	})

	t.Run("instance that could not be removed for two minutes is removed by a sweep", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			st.engine.SetDefaultScript(runtimetest.Script{Running: time.Second,
				RemoveErrors: slices.Repeat([]error{busy}, 8)})
			st.cloud.Queue("a")
			st.start()
			wait(5 * time.Minute)
			if present := st.engine.Present(); len(present) != 1 {
				t.Fatalf("got instances %v, want one leftover", present)
			}
			wait(20 * time.Minute)
			if present := st.engine.Present(); len(present) != 0 {
				t.Errorf("got instances %v after a sweep, want none", present)
			}
		})
	})

	t.Run("instance of a failed start is removed", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			lost := errors.New("lost the connection to the engine")
			st.engine.SetScript("a", runtimetest.Script{Fail: lost, Remains: true, RemoveErrors: []error{busy}})
			st.cloud.Queue("a")
			st.start()
			wait(time.Minute)
			st.wantStep("a", 0, runtime.Failed, "lost the connection to the engine")
			st.wantOperations("a", "start", "no start", "remove", "not ended", "remove", "removed")
		})
	})
}

// aheadEngine is an engine whose clock is a day ahead.
type aheadEngine struct{ *runtimetest.Executor }

func (e aheadEngine) List(ctx context.Context, agent string) ([]runtime.Instance, error) {
	found, err := e.Executor.List(ctx, agent)
	for i := range found {
		found[i].Started = found[i].Started.Add(24 * time.Hour)
		if !found[i].Ended.IsZero() {
			found[i].Ended = found[i].Ended.Add(24 * time.Hour)
		}
	}
	return found, err
}

func TestPoolSpecLeftover(t *testing.T) {
	leftover := runtime.PoolSpec{Name: spec().Name, Identity: spec().Identity, Leftover: true}
	run := func(t *testing.T, story func(st *fixture)) {
		synctest.Test(t, func(t *testing.T) {
			slots := pool.NewSlots(1)
			st := newFixtureWith(t, leftover, slots)
			old := runtime.Job{ID: "old", WorkflowID: "deployment-of-old", Pool: spec().Key(), Agent: "agent-1"}
			st.engine.SetScript("old", runtimetest.Script{Running: 5 * time.Hour})
			st.engine.Adopt(&old, time.Now())
			st.cloud.Queue("a")
			st.pool.Drain()
			st.start()
			story(st)
			st.stop(errors.New("the test is over"))
			if err := st.end(); err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("drains without calls to the service", func(t *testing.T) {
		run(t, func(st *fixture) {
			wait(2 * time.Hour)
			state := st.pool.State()
			if state.Phase != runtime.PoolDraining || state.Reason == "" || len(state.Jobs) != 1 ||
				state.Overdue(time.Now()) > time.Minute {
				t.Errorf("the pool is %+v, want it draining, with one job and a reason", state)
			}
			wait(4 * time.Hour)
			st.wantOperations("old", "was adopted", "remove", "removed")
			for _, call := range []runtimetest.Call{runtimetest.Claim, runtimetest.JobStatus, runtimetest.Report} {
				if calls := st.cloud.Calls(call); len(calls) > 0 {
					t.Errorf("%s was called at %v, without credentials", call, calls)
				}
			}
			if state := st.pool.State(); state.Phase != runtime.PoolStopped || state.Err != nil {
				t.Errorf("after its last job the pool is %+v, want it stopped without an error", state)
			}
		})
	})
	t.Run("claims jobs again with the settings of a configuration", func(t *testing.T) {
		run(t, func(st *fixture) {
			old := runtime.Job{ID: "old", WorkflowID: "deployment-of-old"}
			st.cloud.AddClaimed(old, runtimetest.Definition("sleep 60"))
			wait(time.Hour)
			st.pool.Tune(spec(most(2)))
			wait(2 * time.Minute)
			if asked := len(st.cloud.Calls(runtimetest.JobStatus)); asked == 0 {
				t.Error("the status of the adopted job was not polled")
			}
			if queued := st.cloud.Queued(); len(queued) != 1 {
				t.Error("the adopted job takes no slot of the process")
			}
			st.cloud.SetJobStatus("old", runtime.Cancelled)
			wait(2 * time.Minute)
			st.wantOperations("old", "was adopted", "remove", "term", "removed")
			st.wantOperations("a", "start", "started", "remove", "removed")
		})
	})
}

func TestAdoptInstance(t *testing.T) {
	adopted := func(st *fixture) {
		old := runtime.Job{ID: "old", WorkflowID: "deployment-of-old", Pool: spec().Key(), Agent: "agent-1"}
		st.cloud.AddClaimed(old, runtimetest.Definition("sleep 60"))
		st.engine.SetScript("old", runtimetest.Script{Running: runtimetest.Forever})
		st.engine.Adopt(&old, time.Now())
	}
	t.Run("adopted job continues if its service has never known the job", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			adopted(st)
			st.cloud.SetJobStatus("old", runtime.Unanswered)
			st.start()
			wait(time.Minute)
			st.cloud.SetJobStatus("old", runtime.Gone)
			wait(time.Hour)
			st.wantOperations("old", "was adopted")
		})
	})
	t.Run("adopted job is stopped if its service no longer has the job", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			adopted(st)
			st.start()
			wait(time.Minute)
			st.cloud.SetJobStatus("old", runtime.Gone)
			wait(time.Minute)
			if present := st.engine.Present(); len(present) > 0 {
				t.Errorf("got instances %v, want none", present)
			}
		})
	})
}

func TestTuning(t *testing.T) {
	t.Run("loop uses new settings at once, running jobs never", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			st.engine.SetDefaultScript(runtimetest.Script{Running: time.Hour})
			st.cloud.Queue("a", "b", "c")
			st.start()
			next := spec(most(3), func(t *runtime.Tuning) { t.PollingInterval = 10 * time.Second })
			next.Generation = 8
			st.pool.Tune(next)
			wait(11 * time.Second)
			if present := st.engine.Present(); len(present) != 3 {
				t.Errorf("after the limit was raised to 3, the jobs %v run, want 3", present)
			}
			st.pool.Tune(spec(most(1))) // a lower limit ends no job
			wait(10 * time.Minute)
			if present := st.engine.Present(); len(present) != 3 {
				t.Errorf("after the limit was lowered to 1, the jobs %v run, want the same 3", present)
			}
		})
	})
}

func TestPoolProperty(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		synctest.Test(t, func(*testing.T) {
			st := newFixture(t, spec(most(rapid.IntRange(1, 4).Draw(rt, "most"))))
			jobs := rapid.IntRange(1, 8).Draw(rt, "jobs")
			for i := range jobs {
				id := fmt.Sprint("job-", i)
				script := runtimetest.Script{
					Starting: time.Duration(rapid.IntRange(0, 90).Draw(rt, "starting")) * time.Second,
					Running:  time.Duration(rapid.IntRange(0, 300).Draw(rt, "running")) * time.Second,
					Ending:   time.Duration(rapid.IntRange(0, 60).Draw(rt, "ending")) * time.Second,
					Exit:     runtime.Exit{Code: rapid.SampledFrom([]int{0, 10, 11, 12, 1, 137}).Draw(rt, "code")},
					OnTerm:   runtime.Exit{Code: runtime.CodeFailed},
					Silent:   rapid.Bool().Draw(rt, "mute"),
				}
				if rapid.IntRange(0, 5).Draw(rt, "fail") == 0 {
					script.Fail = errors.New("no such image")
				}
				st.engine.SetScript(id, script)
				st.cloud.Queue(id)
			}
			for _, call := range []runtimetest.Call{runtimetest.Claim, runtimetest.Define, runtimetest.JobStatus} {
				st.cloud.Fail(call, rapid.IntRange(0, 2).Draw(rt, string(call)), errors.New("500"))
			}
			st.start()
			for range rapid.IntRange(0, 6).Draw(rt, "events") {
				wait(time.Duration(rapid.IntRange(1, 200).Draw(rt, "wait")) * time.Second)
				job := fmt.Sprint("job-", rapid.IntRange(0, jobs-1).Draw(rt, "which"))
				switch rapid.IntRange(0, 5).Draw(rt, "event") {
				case 0:
					st.cloud.SetJobStatus(job, runtime.Cancelled)
				case 1:
					st.cloud.SetJobStatus(job, runtime.Gone)
				case 2:
					st.pool.Tune(spec(most(rapid.IntRange(1, 4).Draw(rt, "new most"))))
				case 3:
					st.engine.FailWhen(func(context.Context,
						runtime.Tuning) error {
						return errors.New("the engine is gone")
					})
				case 4:
					st.engine.FailWhen(func(ctx context.Context, _ runtime.Tuning) error {
						select {
						case <-ctx.Done():
						case <-time.After(time.Minute):
						}
						return errors.New("the engine does not answer")
					})
				case 5:
					st.engine.FailWhen(nil)
				}
			}
			if rapid.Bool().Draw(rt, "stopped") {
				st.stop(errors.New("the agent is stopping"))
			} else {
				st.pool.Drain()
			}
			if err := st.end(); err != nil {
				rt.Fatalf("the pool ended with %v", err)
			}
			st.stop(nil)
			queued := st.cloud.Queued()
			for i := range jobs {
				id := fmt.Sprint("job-", i)
				starts := 0
				for _, operation := range st.engine.Operations(id) {
					if operation == runtimetest.Start {
						starts++
					}
				}
				if starts > 1 || starts > 0 && slices.Contains(queued, id) {
					rt.Fatalf("job %s was started %d times, want at most once, and not if it is queued: %v", id,
						starts, st.engine.Operations(id))
				}
			}
			if len(st.engine.Present()) > 0 || len(st.cloud.Lost()) > 0 || len(st.pool.State().Jobs) > 0 {
				rt.Fatalf("got instances %v, lost jobs %v and jobs %v of the pool, want none", st.engine.Present(),
					st.cloud.Lost(), st.pool.State().Jobs)
			}
		})
	})
}

// slowList is an engine that lists slowly.
type slowList struct{ *runtimetest.Executor }

func (s slowList) List(ctx context.Context, agent string) ([]runtime.Instance, error) {
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(10 * time.Second):
		return s.Executor.List(ctx, agent)
	}
}

func TestReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pool := pool.New(spec(), pool.Parts{
			Cloud: runtimetest.NewCloud(), Executor: slowList{runtimetest.NewExecutor()}, Agent: "agent-1",
			UserAgent: "test",
			Environ:   func(string) (string, bool) { return "", false }, Log: slog.New(slog.DiscardHandler),
		})
		ended := make(chan error, 1)
		go func() { ended <- pool.Run(context.Background()) }()
		state := func() string { s := pool.State(); return fmt.Sprint(s.Phase, " ", s.Ready) }
		wait(time.Second)
		if got := state(); got != "starting false" {
			t.Errorf("before its start the pool is %s, want starting false", got)
		}
		pool.Drain()
		if got := state(); got != "draining false" {
			t.Errorf("drained while it starts, the pool is %s, want draining false", got)
		}
		pool.Tune(spec())
		<-pool.Ready()
		if got := state(); got != "polling true" {
			t.Errorf("after its start the pool is %s, want polling true", got)
		}
		pool.Drain()
		if err := <-ended; err != nil || state() != "stopped true" {
			t.Errorf("after its end the pool is %s, %v; want stopped true, nil", state(), err)
		}
	})
}
