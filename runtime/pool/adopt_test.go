package pool_test

import (
	"context"
	"errors"
	"sync"
	"testing"
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

	replaced bool // the agent counts as ended
}

// set changes the fields while the pool runs.
func (a *adopter) set(edit func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	edit()
}

// count returns the number of calls.
func (a *adopter) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.calls
}

func (a *adopter) LeavesJobs() bool { return true }

func (a *adopter) Replaced(context.Context) bool { return a.replaced }

var _ runtime.Adopter = (*adopter)(nil)

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

// playAdopter does what play does, with an adopter and without a journal.
func playAdopter(t *testing.T, name string, s runtime.PoolSpec, story func(st *fixture, a *adopter)) {
	play(t, name, s, func(st *fixture) {
		a := &adopter{Executor: st.engine, taken: map[string]bool{}}
		st.rebuild(func(p *pool.Parts) { p.Executor, p.Journal = a, nil })
		story(st, a)
	})
}

// orphan adds an instance of the agent with the id gone, which started it age ago.
func (st *fixture) orphan(id string, script runtimetest.Script, age time.Duration) {
	st.addInstance(runtime.Job{ID: id, Pool: st.spec.Key(), Agent: gone}, script, age)
}

func TestAdoptOrphans(t *testing.T) {
	long, short := runtimetest.Script{Running: 5 * time.Minute}, runtimetest.Script{Running: time.Second}
	playAdopter(t, "orphans are adopted at the start", spec(), func(st *fixture, _ *adopter) {
		st.orphan("running", long, time.Minute)
		st.orphan("ended", short, 3*time.Second)
		st.addInstance(runtime.Job{ID: "elsewhere", Pool: "another-key", Agent: gone}, long, time.Minute)
		st.cloud.Queue("a")
		st.start()
		wait(time.Minute)
		st.wantQueued("a") // the adopted job takes the only slot
		st.wantOperations("ended", "was adopted", "remove", "removed")
		wait(5 * time.Minute)
		st.wantOperations("running", "was adopted", "remove", "removed")
		st.wantOperations("a", "start", "started", "remove", "removed")
		st.wantOperations("elsewhere", "was adopted")
	})
	playAdopter(t, "orphans are adopted while the pool runs", spec(), func(st *fixture, a *adopter) {
		a.repeats = true
		st.start()
		wait(10 * time.Minute)
		st.orphan("running", long, 0)
		st.orphan("ended", short, time.Minute)
		wait(26 * time.Second) // more than the longest interval
		if jobs := st.pool.State().Jobs; len(jobs) != 1 || jobs[0].ID != "running" {
			st.Errorf("the pool has the jobs %+v, want the running one", jobs)
		}
		wait(6 * time.Minute)
		st.wantOperations("running", "was adopted", "remove", "removed")
		st.wantOperations("ended", "was adopted", "remove", "removed")
		st.wantLogTimes(1, "job adopted")
	})
	playAdopter(t, "adopted job keeps its start time", spec(), func(st *fixture, _ *adopter) {
		st.orphan("running", long, 2*time.Minute)
		st.orphan("future", runtimetest.Script{Running: time.Hour}, -time.Minute)
		started := time.Now().Add(-2 * time.Minute)
		st.start()
		wait(time.Second)
		jobs := st.pool.State().Jobs
		if len(jobs) != 2 || !jobs[1].Since.Equal(started) || jobs[0].Since.After(time.Now()) {
			st.Errorf("the jobs are %+v, want a job that started at %s, and no start in the future", jobs, started)
		}
		wait(4 * time.Minute)
		st.wantInLog("job=running generation=0 deployment=deployment-of-running duration=5m0s")
	})
	playAdopter(t, "outcome is left to the runner", spec(), func(st *fixture, _ *adopter) {
		st.orphan("running", runtimetest.Script{Running: time.Minute, Exit: killed}, 0)
		st.start()
		wait(5 * time.Minute)
		st.wantAsked(runtimetest.Report, 0) // the agent does not have the job's token
	})
	playAdopter(t, "pool that drains begins no attempt to adopt", spec(most(2)), func(st *fixture, a *adopter) {
		st.startJobs(runtimetest.Script{Running: time.Hour}, "a")
		wait(time.Second)
		st.pool.Drain()
		calls := a.count()
		st.orphan("running", long, 0)
		wait(10 * time.Minute)
		st.wantOperations("running", "was adopted")
		if n := a.count() - calls; n > 0 {
			st.Errorf("%d attempts to adopt while the pool drains, want none", n)
		}
		st.pool.Tune(spec(most(2)))
		wait(10 * time.Minute)
		st.wantOperations("running", "was adopted", "remove", "removed")
	})
	playAdopter(t, "pool that is revived during an adoption polls", spec(most(2)), func(st *fixture, a *adopter) {
		st.start()
		st.orphan("running", runtimetest.Script{Running: time.Hour}, 0)
		a.set(func() { a.slow = 10 * time.Second })
		wait(25 * time.Second)
		st.pool.Drain()
		wait(20 * time.Second)
		st.wantJobs(1)
		st.pool.Tune(spec(most(2)))
		st.cloud.Queue("a")
		wait(5 * time.Minute)
		st.wantOperations("a", "start", "started", "remove", "removed")
	})
	playAdopter(t, "draining cancels an adoption", spec(), func(st *fixture, a *adopter) {
		st.start()
		a.set(func() { a.slow = 10 * time.Second })
		wait(25 * time.Second)
		began := time.Now()
		st.pool.Drain()
		st.wantEnd()
		if took := time.Since(began); took > time.Second {
			st.Errorf("the pool ended after %s", took)
		}
		st.wantLogTimes(0, "level=WARN")
	})
	playAdopter(t, "failures are logged once", spec(), func(st *fixture, a *adopter) {
		a.set(func() { a.err = errors.New("the API server is slow") })
		st.orphan("running", long, 0)
		st.start()
		wait(10 * time.Minute)
		st.wantOperations("running", "was adopted", "remove", "removed")
		a.set(func() { a.err = nil })
		wait(time.Minute)
		st.wantLogTimes(1, `level=WARN msg="cannot adopt`)
		st.wantLogTimes(1, "adoption of jobs resumed")
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
	// startOrphan adds a job that has not run, with its instance and its record, and starts the
	// pool. Its first attempts to adopt records fail.
	startOrphan := func(st *fixture, fails int, slow time.Duration) {
		st.orphan("a", runtimetest.Script{NeverStarted: true}, 0)
		st.cloud.AddClaimed(job("a"), runtimetest.Definition("echo a"))
		st.engine.SetScript("a", runtimetest.Script{Running: time.Second})
		record := runtime.Record{Job: "a", WorkflowID: "deployment-of-a", Kind: runtime.Deployment,
			Token: job("a").Token, Pool: spec().Key(), Stage: runtime.RecordHandedOff, Claimed: time.Now()}
		st.rebuild(func(p *pool.Parts) {
			p.Executor = sharedAdopter{&adopter{Executor: st.engine, taken: map[string]bool{}}}
			p.Journal = &sharedJournal{
				Journal: st.records, fails: fails, slow: slow, orphans: []runtime.Record{record},
			}
		})
		st.start()
	}
	for name, slow := range map[string]time.Duration{
		"at once": 0, "after the time of the next attempt": 55 * time.Second,
	} {
		play(t, "job is started again if the list of its record failed "+name, spec(), func(st *fixture) {
			startOrphan(st, 3, slow)
			wait(5 * time.Minute)
			st.wantOperations("a", "was adopted", "remove", "removed", "start", "started", "remove", "removed")
		})
	}
	play(t, "instance is removed after ten minutes without a response", spec(), func(st *fixture) {
		startOrphan(st, 1000, 0)
		wait(9 * time.Minute)
		st.wantOperations("a", "was adopted")
		wait(12 * time.Minute)
		st.wantOperations("a", "was adopted", "remove", "removed")
	})
}

// TestAdoptWithoutRecord adopts instances that no record names, as a user who may create Pods can
// make them.
func TestAdoptWithoutRecord(t *testing.T) {
	long := runtimetest.Script{Running: 5 * time.Minute}
	playShared := func(name string, story func(st *fixture, j *sharedJournal)) {
		play(t, name, spec(), func(st *fixture) {
			j := &sharedJournal{Journal: st.records}
			st.rebuild(func(p *pool.Parts) {
				p.Executor = sharedAdopter{&adopter{Executor: st.engine, taken: map[string]bool{}}}
				p.Journal = j
			})
			story(st, j)
		})
	}
	playShared("instances without a record take no slot and are not stopped", func(st *fixture, _ *sharedJournal) {
		st.orphan("foreign-1", long, time.Minute)
		st.orphan("foreign-2", long, time.Minute)
		st.cloud.Queue("a")
		st.start()
		wait(time.Minute)
		st.wantOperations("a", "start", "started", "remove", "removed")
		st.wantOperations("foreign-1", "was adopted")
		wait(5 * time.Minute)
		st.wantOperations("foreign-1", "was adopted", "remove", "removed") // it has ended by itself
		st.wantOperations("foreign-2", "was adopted", "remove", "removed")
	})
	playShared("instance with a record takes a slot", func(st *fixture, j *sharedJournal) {
		st.orphan("b", long, time.Minute)
		st.cloud.AddClaimed(job("b"), runtimetest.Definition("echo b"))
		j.orphans = []runtime.Record{{Job: "b", WorkflowID: "deployment-of-b", Kind: runtime.Deployment,
			Token: job("b").Token, Pool: spec().Key(), Stage: runtime.RecordHandedOff, Claimed: time.Now()}}
		st.cloud.Queue("a")
		st.start()
		wait(time.Minute)
		st.wantQueued("a")
	})
	playShared("instance takes a slot while records cannot be listed", func(st *fixture, j *sharedJournal) {
		j.fails = 1000
		st.orphan("b", long, time.Minute)
		st.cloud.Queue("a")
		st.start()
		wait(time.Minute)
		st.wantQueued("a")
	})
}

func TestSweepInBackground(t *testing.T) {
	play(t, "a slow removal does not delay the first poll", spec(), func(st *fixture) {
		for i, id := range []string{"old-1", "old-2", "old-3"} { // the engine lists them in this order
			age := time.Hour - time.Duration(i)*time.Second
			st.leaveInstance(id, runtimetest.Script{Running: time.Second, Hung: true}, age)
		}
		st.cloud.Queue("a")
		st.start()
		wait(10 * time.Second)
		st.wantOperations("a", "start", "started", "remove", "removed")
		st.wantOperations("old-1", "was adopted", "remove")
	})
}

// TestRecoveryReplaced recovers a job in an agent that another one replaces although it runs: its Pod was
// force-deleted. The other agent may run the job, so this agent must not report that the job has failed.
func TestRecoveryReplaced(t *testing.T) {
	for name, c := range map[string]struct {
		stage    runtime.RecordStage
		replaced bool
		want     []runtime.Report
	}{
		"job whose next start cannot be recorded": {runtime.RecordClaimed, true, nil},
		"job without an instance":                 {runtime.RecordHandedOff, true, nil},
		"job of an agent that exists": {
			runtime.RecordClaimed, false, []runtime.Report{
				{Step: 0, Status: runtime.Running}, {Step: 0, Status: runtime.Failed},
			},
		},
	} {
		play(t, name, spec(), func(st *fixture) {
			st.rebuild(func(p *pool.Parts) {
				p.Executor = &adopter{Executor: st.engine, taken: map[string]bool{}, replaced: c.replaced}
			})
			st.leave("a", c.stage, time.Minute)
			st.records.Fail(runtimetest.AddRecord, 1, errors.New("the token is refused"))
			st.start()
			wait(time.Minute)
			st.wantReports("a", c.want...)
			st.wantOperations("a")
			if !c.replaced {
				st.wantNothingLeft("a", "job reported failed")
				return
			}
			st.wantInLog("job not reported failed: this agent counts as ended")
			if record, ok := st.records.Record("a"); !ok || record.Stage != c.stage {
				st.Errorf("the record of the job is %v, want it unchanged", record)
			}
		})
	}
}

func TestLeavesInstance(t *testing.T) {
	forever := runtimetest.Script{Running: runtimetest.Forever, OnTerm: runtime.Exit{Code: 143}}
	playAdopter(t, "running jobs continue", spec(most(2)), func(st *fixture, a *adopter) {
		st.orphan("adopted", forever, 0)
		st.startJobs(forever, "a")
		wait(time.Minute)
		st.shutdown()
		st.wantOperations("a", "start", "started")
		st.wantOperations("adopted", "was adopted")
		if reports := st.asked(runtimetest.Report); reports > 1 { // one is the report of step 0
			st.Errorf("the agent reported %d times, want at most one report", reports)
		}
		st.wantInLog("left running for the next agent")

		// The next agent.
		next := newFixture(st.TB, spec(most(2)))
		next.rebuild(func(p *pool.Parts) { p.Cloud, p.Executor, p.Journal = st.cloud, a, nil })
		next.start()
		wait(time.Minute)
		if jobs := next.pool.State().Jobs; len(jobs) != 1 || jobs[0].ID != "a" {
			st.Errorf("the next agent has the jobs %+v, want job a", jobs)
		}
		next.shutdown()
		next.wantEnd()
		next.wantAllEnded()
	})
	playAdopter(t, "cancelled job is stopped", spec(), func(st *fixture, _ *adopter) {
		st.startJobs(forever, "a")
		wait(time.Minute)
		st.cloud.SetJobStatus("a", runtime.Cancelled)
		wait(time.Minute)
		st.wantOperations("a", "start", "started", "remove", "term", "removed")
	})
	playAdopter(t, "job that has not started is reported as failed", spec(), func(st *fixture, _ *adopter) {
		st.startJobs(runtimetest.Script{Starting: time.Hour}, "a")
		wait(time.Minute)
		st.shutdown()
		st.wantStep("a", 0, runtime.Failed, "")
	})
}
