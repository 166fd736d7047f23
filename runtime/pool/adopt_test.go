package pool_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/pool"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
)

// gone is the id of an agent that no longer exists.
const gone = "agent-gone"

// adopter is an engine whose instances outlive their agent. It adopts the instances of the agent
// with the id gone.
type adopter struct {
	*runtimetest.Executor
	repeats bool // each call returns an instance again

	mu    sync.Mutex
	calls int
	taken map[string]bool // adopted instances, by id
	err   error           // error of each call
	slow  time.Duration   // duration of each call, unless its context ends first
}

// fail sets the error of each call.
func (a *adopter) fail(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.err = err
}

// count returns the number of calls.
func (a *adopter) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.calls
}

func (a *adopter) LeavesJobs() bool { return true }

func (a *adopter) AdoptOrphans(ctx context.Context, mine func(string) bool) ([]runtime.Instance, error) {
	a.mu.Lock()
	slow := a.slow
	a.mu.Unlock()
	select {
	case <-time.After(slow): // virtual
	case <-ctx.Done():
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.calls++
	all, err := a.List(context.WithoutCancel(ctx), gone)
	if err != nil {
		return nil, err
	}
	var adopted []runtime.Instance
	for _, f := range all {
		if mine(f.Pool) && (a.repeats || !a.taken[f.ID]) {
			a.taken[f.ID] = true
			adopted = append(adopted, f)
		}
	}
	return adopted, a.err
}

// unset is an environment without variables.
func unset(string) (string, bool) { return "", false }

// playAdopter runs a story with an adopter in a bubble of virtual time.
func playAdopter(t *testing.T, s runtime.PoolSpec, story func(st *fixture, a *adopter)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		st := newFixture(t, s)
		a := &adopter{Executor: st.engine, taken: map[string]bool{}}
		st.pool = pool.New(s, pool.Parts{
			Cloud: st.cloud, Executor: a, Agent: "agent-1", Environ: unset,
			Log:     slog.New(slog.NewTextHandler(st.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
			Metrics: st.metrics,
		})
		story(st, a)
		st.stop(errors.New("the test is over"))
		if err := st.end(); err != nil {
			t.Error(err)
		}
		st.wantAllEnded()
	})
}

// orphan adds an instance of the agent with the id gone, which started it age ago.
func orphan(st *fixture, id, pool string, script runtimetest.Script, age time.Duration) {
	job := runtime.Job{ID: id, WorkflowID: "deployment-of-" + id, Pool: pool, Agent: gone}
	st.cloud.AddClaimed(job, runtimetest.Definition("sleep 60"))
	st.engine.SetScript(id, script)
	st.engine.Adopt(&job, time.Now().Add(-age))
}

func TestAdoptOrphans(t *testing.T) {
	long, short := runtimetest.Script{Running: 5 * time.Minute}, runtimetest.Script{Running: time.Second}
	t.Run("orphans are adopted at the start", func(t *testing.T) {
		playAdopter(t, spec(), func(st *fixture, _ *adopter) {
			orphan(st, "running", spec().Key(), long, time.Minute)
			orphan(st, "ended", spec().Key(), short, 3*time.Second)
			orphan(st, "elsewhere", "another-key", long, time.Minute)
			st.cloud.Queue("a")
			st.start()
			wait(time.Minute)
			if len(st.cloud.Queued()) != 1 {
				t.Error("a second job was claimed, although the adopted job takes the only slot")
			}
			st.wantOperations("ended", "was adopted", "remove", "removed")
			wait(5 * time.Minute)
			st.wantOperations("running", "was adopted", "remove", "removed")
			st.wantOperations("a", "start", "started", "remove", "removed")
			st.wantOperations("elsewhere", "was adopted")
		})
	})
	t.Run("orphans are adopted while the pool runs", func(t *testing.T) {
		playAdopter(t, spec(), func(st *fixture, a *adopter) {
			a.repeats = true
			st.start()
			wait(10 * time.Minute)
			orphan(st, "running", spec().Key(), long, 0)
			orphan(st, "ended", spec().Key(), short, time.Minute)
			wait(21 * time.Second)
			if jobs := st.pool.State().Jobs; len(jobs) != 1 || jobs[0].ID != "running" {
				t.Errorf("the pool has the jobs %+v, want the running one", jobs)
			}
			wait(6 * time.Minute)
			st.wantOperations("running", "was adopted", "remove", "removed")
			st.wantOperations("ended", "was adopted", "remove", "removed")
			if n := strings.Count(st.log.String(), "job adopted"); n != 1 {
				t.Errorf("the job was adopted %d times:\n%s", n, st.log)
			}
		})
	})
	t.Run("adopted job keeps its start time", func(t *testing.T) {
		playAdopter(t, spec(), func(st *fixture, _ *adopter) {
			orphan(st, "running", spec().Key(), runtimetest.Script{Running: 5 * time.Minute}, 2*time.Minute)
			orphan(st, "future", spec().Key(), runtimetest.Script{Running: time.Hour}, -time.Minute)
			started := time.Now().Add(-2 * time.Minute)
			st.start()
			wait(time.Second)
			jobs := st.pool.State().Jobs
			if len(jobs) != 2 || !jobs[1].Since.Equal(started) || jobs[0].Since.After(time.Now()) {
				t.Errorf("the jobs are %+v, want a job that started at %s, and no start in the future", jobs, started)
			}
			wait(4 * time.Minute)
			if log := st.log.String(); !strings.Contains(log, "job=running generation=0 duration=5m0s") {
				t.Errorf("the log does not count the job's duration from its start:\n%s", log)
			}
		})
	})
	t.Run("outcome is left to the runner", func(t *testing.T) {
		playAdopter(t, spec(), func(st *fixture, _ *adopter) {
			orphan(st, "running", spec().Key(),
				runtimetest.Script{Running: time.Minute, Exit: runtime.Exit{Code: 137}}, 0)
			st.start()
			wait(5 * time.Minute)
			if calls := st.cloud.Calls(runtimetest.Report); len(calls) > 0 {
				t.Errorf("the agent reported at %v, but it does not have the job's token", calls)
			}
		})
	})
	t.Run("pool that drains begins no attempt to adopt", func(t *testing.T) {
		playAdopter(t, spec(most(2)), func(st *fixture, a *adopter) {
			st.engine.SetDefaultScript(runtimetest.Script{Running: time.Hour})
			st.cloud.Queue("a")
			st.start()
			wait(time.Second)
			st.pool.Drain()
			calls := a.count()
			orphan(st, "running", spec().Key(), long, 0)
			wait(10 * time.Minute)
			st.wantOperations("running", "was adopted")
			if n := a.count() - calls; n > 0 {
				t.Errorf("%d attempts to adopt while the pool drains, want none", n)
			}
			st.pool.Tune(spec(most(2)))
			wait(10 * time.Minute)
			st.wantOperations("running", "was adopted", "remove", "removed")
		})
	})
	t.Run("pool that is revived during an adoption polls", func(t *testing.T) {
		playAdopter(t, spec(most(2)), func(st *fixture, a *adopter) {
			st.start()
			orphan(st, "running", spec().Key(), runtimetest.Script{Running: time.Hour}, 0)
			a.mu.Lock()
			a.slow = 10 * time.Second
			a.mu.Unlock()
			wait(25 * time.Second)
			st.pool.Drain()
			wait(20 * time.Second)
			if jobs := st.pool.State().Jobs; len(jobs) != 1 {
				t.Fatalf("the pool has the jobs %+v", jobs)
			}
			st.pool.Tune(spec(most(2)))
			st.cloud.Queue("a")
			wait(5 * time.Minute)
			st.wantOperations("a", "start", "started", "remove", "removed")
		})
	})
	t.Run("draining cancels an adoption", func(t *testing.T) {
		playAdopter(t, spec(), func(st *fixture, a *adopter) {
			st.start()
			a.mu.Lock()
			a.slow = 10 * time.Second
			a.mu.Unlock()
			wait(25 * time.Second)
			began := time.Now()
			st.pool.Drain()
			if err := st.end(); err != nil || time.Since(began) > time.Second {
				t.Errorf("the pool ended after %s with %v", time.Since(began), err)
			}
			if log := st.log.String(); strings.Contains(log, "level=WARN") {
				t.Errorf("the log has a warning:\n%s", log)
			}
		})
	})
	t.Run("failures are logged once", func(t *testing.T) {
		playAdopter(t, spec(), func(st *fixture, a *adopter) {
			a.fail(errors.New("the API server is slow"))
			orphan(st, "running", spec().Key(), long, 0)
			st.start()
			wait(10 * time.Minute)
			st.wantOperations("running", "was adopted", "remove", "removed")
			a.fail(nil)
			wait(time.Minute)
			log := st.log.String()
			if strings.Count(log, `level=WARN msg="cannot adopt`) != 1 ||
				strings.Count(log, "adoption of jobs resumed") != 1 {
				t.Errorf("the failure and its end are not logged once each:\n%s", log)
			}
		})
	})
}

// sharedAdopter is an adopter that lists the instances that it has adopted.
type sharedAdopter struct{ *adopter }

func (a sharedAdopter) List(ctx context.Context, agent string) ([]runtime.Instance, error) {
	own, err := a.adopter.List(ctx, agent)
	others, _ := a.adopter.List(ctx, gone)
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, instance := range others {
		if a.taken[instance.ID] {
			own = append(own, instance)
		}
	}
	return own, err
}

// sharedJournal is a journal with records of the agent with the id gone. It lists them at most
// once in 10 seconds.
type sharedJournal struct {
	*runtimetest.Journal

	mu      sync.Mutex
	orphans []runtime.Record
	fails   int           // number of the next calls that fail
	slow    time.Duration // duration of a call that fails
	listed  time.Time
}

func (j *sharedJournal) AdoptRecords(
	ctx context.Context, _ func(string) bool,
) (adopted []runtime.Record, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if time.Since(j.listed) < 10*time.Second {
		return nil, nil
	}
	defer func() { j.listed = time.Now() }()
	if j.fails > 0 {
		j.fails--
		time.Sleep(j.slow) // virtual
		return nil, errors.New("the API server is slow")
	}
	for _, record := range j.orphans {
		err = errors.Join(err, j.Add(ctx, record))
	}
	adopted, j.orphans = j.orphans, nil
	return adopted, err
}

func TestAdoptRecordsFails(t *testing.T) {
	// playOrphan adds a job that has not run, with its instance and its record, and makes the
	// first attempts to adopt records fail.
	playOrphan := func(t *testing.T, fails int, slow time.Duration, story func(st *fixture)) {
		synctest.Test(t, func(t *testing.T) {
			st := newFixture(t, spec())
			st.cloud.AddClaimed(job("a"), runtimetest.Definition("echo a"))
			st.engine.SetScript("a", runtimetest.Script{NeverStarted: true})
			st.engine.Adopt(&runtime.Job{ID: "a", Pool: spec().Key(), Agent: gone}, time.Now())
			st.engine.SetScript("a", runtimetest.Script{Running: time.Second})
			parts := st.parts
			parts.Executor = sharedAdopter{&adopter{Executor: st.engine, taken: map[string]bool{}}}
			parts.Journal = &sharedJournal{Journal: st.records, fails: fails, slow: slow,
				orphans: []runtime.Record{{Job: "a", WorkflowID: "deployment-of-a", Kind: runtime.Deployment,
					Token: job("a").Token, Pool: spec().Key(), Stage: runtime.RecordHandedOff, Claimed: time.Now()}}}
			st.pool = pool.New(spec(), parts)
			st.start()
			story(st)
			st.stop(errors.New("the test is over"))
			if err := st.end(); err != nil {
				t.Error(err)
			}
			st.wantAllEnded()
		})
	}
	for name, slow := range map[string]time.Duration{
		"at once": 0, "after the time of the next attempt": 55 * time.Second,
	} {
		t.Run("job of an adopted instance is started again if its record was not listed, "+name, func(t *testing.T) {
			playOrphan(t, 3, slow, func(st *fixture) {
				wait(5 * time.Minute)
				st.wantOperations("a", "was adopted", "remove", "removed", "start", "started", "remove", "removed")
			})
		})
	}
	t.Run("instance is removed after ten minutes without a response", func(t *testing.T) {
		playOrphan(t, 1000, 0, func(st *fixture) {
			wait(9 * time.Minute)
			st.wantOperations("a", "was adopted")
			wait(12 * time.Minute)
			st.wantOperations("a", "was adopted", "remove", "removed")
		})
	})
}

func TestSweepInBackground(t *testing.T) {
	play(t, spec(), func(t *testing.T, st *fixture) {
		st.engine.SetDefaultScript(runtimetest.Script{Running: time.Second})
		for i, id := range []string{"old-1", "old-2", "old-3"} { // the engine lists them in this order
			started := time.Now().Add(-time.Hour + time.Duration(i)*time.Second)
			st.engine.SetScript(id, runtimetest.Script{Running: time.Second, Hung: true})
			st.engine.Adopt(&runtime.Job{ID: id, Pool: spec().Key(), Agent: "agent-1"}, started)
		}
		st.cloud.Queue("a")
		st.start()
		wait(10 * time.Second)
		st.wantOperations("a", "start", "started", "remove", "removed")
		st.wantOperations("old-1", "was adopted", "remove")
	})
}

func TestLeavesInstance(t *testing.T) {
	forever := runtimetest.Script{Running: runtimetest.Forever, OnTerm: runtime.Exit{Code: 143}}
	t.Run("running jobs continue", func(t *testing.T) {
		playAdopter(t, spec(most(2)), func(st *fixture, a *adopter) {
			st.engine.SetDefaultScript(forever)
			orphan(st, "adopted", spec().Key(), forever, 0)
			st.cloud.Queue("a")
			st.start()
			wait(time.Minute)
			st.stop(errors.New("the agent is stopping"))
			if err := st.end(); err != nil {
				t.Error(err)
			}
			st.wantOperations("a", "start", "started")
			st.wantOperations("adopted", "was adopted")
			if calls := st.cloud.Calls(runtimetest.Report); len(calls) > 1 { // one is the report of step 0
				t.Errorf("the agent reported at %v, want at most one report", calls)
			}
			if !strings.Contains(st.log.String(), "left running for the next agent") {
				t.Errorf("the log does not contain that the job is left running:\n%s", st.log)
			}

			// The next agent.
			next := newFixture(t, spec(most(2)))
			next.engine = st.engine
			next.pool = pool.New(spec(most(2)), pool.Parts{
				Cloud: st.cloud, Executor: a, Agent: "agent-1", Environ: unset,
				Log:     slog.New(slog.NewTextHandler(next.log, nil)),
				Metrics: next.metrics,
			})
			next.start()
			wait(time.Minute)
			if jobs := next.pool.State().Jobs; len(jobs) != 1 || jobs[0].ID != "a" {
				t.Errorf("the next agent has the jobs %+v, want job a", jobs)
			}
			next.stop(errors.New("the test is over"))
			if err := next.end(); err != nil {
				t.Error(err)
			}
			next.wantAllEnded()
		})
	})
	t.Run("cancelled job is stopped", func(t *testing.T) {
		playAdopter(t, spec(), func(st *fixture, _ *adopter) {
			st.engine.SetDefaultScript(forever)
			st.cloud.Queue("a")
			st.start()
			wait(time.Minute)
			st.cloud.SetJobStatus("a", runtime.Cancelled)
			wait(time.Minute)
			st.wantOperations("a", "start", "started", "remove", "term", "removed")
		})
	})
	t.Run("job that has not started is reported as failed", func(t *testing.T) {
		playAdopter(t, spec(), func(st *fixture, _ *adopter) {
			st.engine.SetDefaultScript(runtimetest.Script{Starting: time.Hour})
			st.cloud.Queue("a")
			st.start()
			wait(time.Minute)
			st.stop(errors.New("the agent is stopping"))
			if err := st.end(); err != nil {
				t.Error(err)
			}
			if status, _ := st.cloud.Step("a", 0); status != runtime.Failed {
				t.Errorf("step 0 has the status %q, want failed", status)
			}
		})
	})
}
