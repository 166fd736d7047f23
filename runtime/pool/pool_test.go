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
	testing.TB
	cloud   *runtimetest.Cloud
	leases  *runtimetest.Leases // nil for a service without leased work
	engine  *runtimetest.Executor
	records *runtimetest.Journal
	metrics *runtimetest.Metrics
	log     *logBuffer
	closed  int // calls of Close

	spec  runtime.PoolSpec
	parts pool.Parts
	pool  *pool.Pool
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

// killed is the exit of a runner that was killed.
var killed = runtime.Exit{Code: 137, Reason: "killed"}

func most(n int) func(*runtime.Tuning) { return func(t *runtime.Tuning) { t.MaxJobs = n } }

// play runs story as a subtest, in a synctest bubble. Story starts the pool. Afterwards play stops the pool, and
// checks that Run returns no error and that all jobs have ended.
func play(t *testing.T, name string, s runtime.PoolSpec, story func(st *fixture)) {
	t.Run(name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			st := newFixture(t, s)
			story(st)
			st.stop(errors.New("the test is over"))
			st.wantEnd()
			st.wantAllEnded()
		})
	})
}

func newFixture(t testing.TB, s runtime.PoolSpec) *fixture {
	st := &fixture{
		TB: t, cloud: runtimetest.NewCloud(), engine: runtimetest.NewExecutor(), records: runtimetest.NewJournal(),
		metrics: &runtimetest.Metrics{}, log: &logBuffer{}, spec: s, ended: make(chan error, 1),
	}
	variables := map[string]string{"DOCKER_HOST": "unix:///engine", "AWS_REGION": "mars", "HIDDEN": "x"}
	st.rebuild(func(p *pool.Parts) {
		*p = pool.Parts{
			Cloud: st.cloud, Executor: st.engine, Close: func() { st.closed++ }, Agent: "agent-1", UserAgent: "test",
			Journal: st.records, Metrics: st.metrics,
			Environ: func(name string) (string, bool) {
				value, ok := variables[name]
				return value, ok
			},
			Log: slog.New(slog.NewTextHandler(st.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		}
	})
	return st
}

// rebuild replaces the pool by one with other parts.
func (st *fixture) rebuild(edit func(*pool.Parts)) {
	edit(&st.parts)
	st.pool = pool.New(st.spec, st.parts)
}

// leaveInstance adds the instance of a job that an earlier run of the agent has started, age ago.
func (st *fixture) leaveInstance(id string, script runtimetest.Script, age time.Duration) {
	st.addInstance(runtime.Job{ID: id, Pool: st.spec.Key(), Agent: "agent-1"}, script, age)
}

// addInstance adds an instance that was started before the test, age ago, and the claim of its job.
func (st *fixture) addInstance(job runtime.Job, script runtimetest.Script, age time.Duration) {
	job.WorkflowID = "deployment-of-" + job.ID
	st.cloud.AddClaimed(job, runtimetest.Definition("sleep 60"))
	st.engine.SetScript(job.ID, script)
	st.engine.Adopt(&job, time.Now().Add(-age))
}

// wantAllEnded checks the metrics after the end of the pool: there is one end for each job
// that was claimed or adopted and not left running, and one claim for each job that was not
// adopted.
func (st *fixture) wantAllEnded() {
	st.Helper()
	log := st.log.String()
	left := strings.Count(log, "left running for ") + strings.Count(log, "job left to the next agent")
	adopted := st.takenOver(log)
	started := adopted + strings.Count(log, `msg="job claimed"`) + strings.Count(log, `msg="lease acquired"`)
	claimed, ended := st.metrics.Claimed(), st.metrics.Ended()
	if runtimetest.Total(ended) != started-left || runtimetest.Total(claimed) != started-adopted {
		st.Errorf("recorded claims %v and ends %v; want %d of %d jobs, %d of them adopted, ended", claimed, ended,
			started-left, started, adopted)
	}
	if polls := st.metrics.Polls(); st.leases == nil && polls["default job"] < runtimetest.Total(claimed) {
		st.Errorf("recorded polls %v and claims %v, want a poll for each claim", polls, claimed)
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

// startJobs queues jobs that follow a script, and starts the pool.
func (st *fixture) startJobs(script runtimetest.Script, jobs ...string) {
	st.engine.SetDefaultScript(script)
	st.cloud.Queue(jobs...)
	st.start()
}

// end waits for Run to return, with a timeout far above all timeouts of the pool.
func (st *fixture) end() error {
	st.Helper()
	select {
	case err := <-st.ended:
		st.ended <- err
		return err
	case <-time.After(24 * time.Hour):
		st.Fatal("the pool does not end")
		return nil
	}
}

// wantEnd waits for Run to return, and checks that it returns no error.
func (st *fixture) wantEnd() {
	st.Helper()
	if err := st.end(); err != nil {
		st.Errorf("Run returned %v", err)
	}
}

// shutdown stops the pool as the end of the agent does, and waits for Run to return.
func (st *fixture) shutdown() {
	st.Helper()
	st.stop(errors.New("the agent is stopping"))
	_ = st.end()
}

func (st *fixture) wantOperations(job string, want ...runtimetest.Operation) {
	st.Helper()
	if got := st.engine.Operations(job); !slices.Equal(got, want) {
		st.Errorf("operations on job %s: got %v, want %v", job, got, want)
	}
}

// count returns how often an operation was made on a job.
func (st *fixture) count(job string, operation runtimetest.Operation) (n int) {
	for _, made := range st.engine.Operations(job) {
		if made == operation {
			n++
		}
	}
	return n
}

// wantInstances checks the number of instances, running or ended.
func (st *fixture) wantInstances(want int) {
	st.Helper()
	if present := st.engine.Present(); len(present) != want {
		st.Errorf("got instances of the jobs %v, want %d", present, want)
	}
}

// wantJobs checks the number of jobs of the pool.
func (st *fixture) wantJobs(want int) {
	st.Helper()
	if jobs := st.pool.State().Jobs; len(jobs) != want {
		st.Errorf("the pool has the jobs %+v, want %d:\n%s", jobs, want, st.log)
	}
}

func (st *fixture) wantStep(job string, step int, status runtime.Status, log string) {
	st.Helper()
	got, text := st.cloud.Step(job, step)
	if got != status || !strings.Contains(text, log) {
		st.Errorf("step %d of job %s is %s with the log %q; want %s and %q", step, job, got, text, status, log)
	}
}

// wantOffset checks the number of the line at which the last report of a job starts.
func (st *fixture) wantOffset(job string, want int) {
	st.Helper()
	reports := st.cloud.Reports(job)
	if len(reports) == 0 || reports[len(reports)-1].Offset != want {
		st.Errorf("the reports of job %s are %+v, want offset %d in the last one", job, reports, want)
	}
}

// asked returns the number of calls of a kind that the service got.
func (st *fixture) asked(call runtimetest.Call) int { return len(st.cloud.Calls(call)) }

// wantAsked checks the number of calls of a kind that the service got.
func (st *fixture) wantAsked(call runtimetest.Call, want int) {
	st.Helper()
	if times := st.cloud.Calls(call); len(times) != want {
		st.Errorf("calls of %s at %v, want %d", call, times, want)
	}
}

// wantQueued checks which jobs are not claimed.
func (st *fixture) wantQueued(want ...string) {
	st.Helper()
	if got := st.cloud.Queued(); !slices.Equal(got, want) {
		st.Errorf("the queue has %v, want %v", got, want)
	}
}

func (st *fixture) wantNoneLost() {
	st.Helper()
	if lost := st.cloud.Lost(); len(lost) > 0 {
		st.Errorf("got lost jobs %v, want none", lost)
	}
}

// wantPhase checks the phase of the pool, and whether its single run has completed.
func (st *fixture) wantPhase(phase runtime.PoolPhase, completed bool) {
	st.Helper()
	if state := st.pool.State(); state.Phase != phase || state.Completed != completed {
		st.Errorf("the pool is %s, completed %v; want %s, %v", state.Phase, state.Completed, phase, completed)
	}
}

// wantInLog checks that the log contains these texts.
func (st *fixture) wantInLog(texts ...string) {
	st.Helper()
	for _, text := range texts {
		if !strings.Contains(st.log.String(), text) {
			st.Errorf("the log does not contain %q:\n%s", text, st.log)
		}
	}
}

// wantLogTimes checks how often the log contains a text.
func (st *fixture) wantLogTimes(want int, text string) {
	st.Helper()
	if times := strings.Count(st.log.String(), text); times != want {
		st.Errorf("the log contains %q %d times, want %d:\n%s", text, times, want, st.log)
	}
}

func TestRun(t *testing.T) {
	forwarding := func(t *runtime.Tuning) { t.Instance.Forward = []string{"AWS_REGION", "NOT_SET"} }
	play(t, "job is claimed, started and removed, and the next poll follows", spec(forwarding), func(st *fixture) {
		st.cloud.Queue("a", "b")
		st.start()
		wait(2500 * time.Millisecond) // each takes a second
		for _, job := range []string{"a", "b"} {
			st.wantOperations(job, "start", "started", "remove", "removed")
			st.wantStep(job, 0, runtime.Running, "pretended instance") // the runner reports later statuses
		}
		if calls := st.cloud.Calls(runtimetest.Claim); len(calls) != 3 || calls[2].Sub(calls[0]) > 2*time.Second {
			st.Errorf("polls at %v; want one at once after each job", calls)
		}
		h := st.engine.Handoff("a")
		if h.Token != "token-of-a" || h.Forward["AWS_REGION"] != "mars" ||
			h.Forward["DOCKER_HOST"] != "unix:///engine" || len(h.Forward) != 2 {
			st.Errorf("the handoff forwards %+v, want only AWS_REGION and DOCKER_HOST", h.Forward)
		}
		st.wantLogTimes(0, "token-of-")
	})

	play(t, "Close is called once, after the last job", spec(), func(st *fixture) {
		st.startJobs(runtimetest.Script{Running: time.Hour, OnTerm: runtime.Exit{Code: 143}}, "a")
		wait(time.Minute)
		if st.closed != 0 {
			st.Error("Close was called while a job runs")
		}
		st.shutdown()
		st.wantInstances(0)
		if st.closed != 1 {
			st.Errorf("Close was called %d times, want once", st.closed)
		}
	})

	trusting := func(ca string) runtime.PoolSpec { return spec(most(2), func(t *runtime.Tuning) { t.CA = ca }) }
	play(t, "handoff has the CA of the claim", trusting("first"), func(st *fixture) {
		st.startJobs(runtimetest.Script{Running: time.Hour}, "a")
		st.pool.Tune(trusting("second"))
		st.cloud.Queue("b")
		wait(2 * time.Minute)
		if a, b := st.engine.Handoff("a"), st.engine.Handoff("b"); a.CA != "first" || b.CA != "second" {
			st.Errorf("the handoffs have the CAs %q and %q, want first and second", a.CA, b.CA)
		}
	})

	play(t, "no more jobs run than MaxJobs", spec(most(4)), func(st *fixture) {
		st.queue(20)
		st.start()
		st.wantInstances(4)
		wait(6 * time.Second)
		st.wantQueued()
		st.wantInstances(0)
		if peak := st.engine.Peak(); peak != 4 {
			st.Errorf("%d jobs have run at once, want 4", peak)
		}
	})
}

func TestDrain(t *testing.T) {
	play(t, "running jobs finish and nothing is claimed", spec(most(2)), func(st *fixture) {
		st.startJobs(runtimetest.Script{Running: time.Hour}, "a", "b", "c")
		st.pool.Drain()
		wait(time.Minute)
		st.wantPhase(runtime.PoolDraining, false)
		st.wantJobs(2)
		st.wantEnd()
		st.wantQueued("c")
		st.wantOperations("a", "start", "started", "remove", "removed")
	})

	play(t, "job that a poll returns after Drain is run", spec(), func(st *fixture) {
		release := st.cloud.Hang(runtimetest.Claim)
		st.cloud.Queue("a")
		st.start()
		st.pool.Drain()
		wait(10 * time.Second)
		release()
		st.wantEnd()
		st.wantOperations("a", "start", "started", "remove", "removed")
		st.wantNoneLost()
	})
}

func TestStop(t *testing.T) {
	ignoresTerm := runtimetest.Script{Running: runtimetest.Forever, Ending: runtimetest.Forever}
	busy := errors.New("the engine is busy")

	play(t, "job that a poll returns after the stop is reported as failed", spec(), func(st *fixture) {
		release := st.cloud.Hang(runtimetest.Claim)
		st.cloud.Queue("a")
		st.start()
		st.stop(errors.New("the agent is stopping"))
		wait(time.Second)
		release()
		_ = st.end()
		st.wantStep("a", 0, runtime.Failed, "Error: the agent is stopping")
		st.wantNoneLost()
	})

	play(t, "running jobs get a grace period", spec(), func(st *fixture) {
		st.startJobs(runtimetest.Script{Running: runtimetest.Forever, Ending: 5 * time.Second,
			OnTerm: runtime.Exit{Code: runtime.CodeFailed}}, "a")
		st.shutdown()
		if st.count("a", runtimetest.Term) == 0 || st.count("a", runtimetest.Kill) > 0 {
			st.Errorf("operations on the job: %v, want a TERM and no KILL", st.engine.Operations("a"))
		}
		st.wantInstances(0)
		st.wantStep("a", 1, runtime.NotStarted, "") // the runner reports it
	})

	play(t, "job that ignores TERM is killed and its step is reported", spec(), func(st *fixture) {
		st.startJobs(ignoresTerm, "a")
		st.shutdown()
		if st.count("a", runtimetest.Kill) == 0 {
			st.Errorf("operations on the job: %v, want a KILL", st.engine.Operations("a"))
		}
		st.wantStep("a", 1, runtime.Failed, "ended before the runner reported an outcome")
	})

	play(t, "hung engine delays the end by two minutes at most", spec(), func(st *fixture) {
		st.startJobs(runtimetest.Script{Running: runtimetest.Forever, Hung: true}, "a")
		wait(time.Hour)
		begin := time.Now()
		st.shutdown()
		if took := time.Since(begin); took > 2*time.Minute+5*time.Second {
			st.Errorf("the pool took %s to stop, want at most 2m5s", took)
		}
		if reports := st.cloud.Reports("a"); len(reports) != 1 {
			st.Errorf("got reports %+v of a job that may still run, want none", reports[1:])
		}
		st.wantInLog("left running for the next start")
	})

	play(t, "stop is retried until the engine works", spec(), func(st *fixture) {
		script := ignoresTerm
		script.RemoveErrors = []error{busy, busy, busy}
		st.startJobs(script, "a")
		st.shutdown()
		st.wantStep("a", 1, runtime.Failed, "ended before the runner reported an outcome")
		st.wantInstances(0)
	})

	play(t, "job that cannot be stopped keeps its slot", spec(), func(st *fixture) {
		st.engine.SetScript("a", runtimetest.Script{Running: runtimetest.Forever, OnTerm: runtime.Exit{Code: 143},
			RemoveErrors: slices.Repeat([]error{busy}, 20)})
		st.cloud.Queue("a", "b")
		st.start()
		st.cloud.SetJobStatus("a", runtime.Cancelled)
		wait(5 * time.Minute)
		if jobs := st.pool.State().Jobs; len(jobs) != 1 || jobs[0].Phase != runtime.Stopping {
			st.Errorf("the pool has the jobs %+v, want the job that still runs", jobs)
		}
		st.wantAsked(runtimetest.Claim, 1) // none while the slot is in use
		wait(30 * time.Minute)
		st.wantOperations("b", "start", "started", "remove", "removed")
		st.wantLogTimes(1, "cannot stop instance")
	})

	play(t, "known end is reported although the removal fails", spec(), func(st *fixture) {
		st.startJobs(runtimetest.Script{Running: time.Minute, Exit: killed, Hung: true}, "a")
		wait(50 * time.Second)
		st.shutdown()
		st.wantStep("a", 1, runtime.Failed, "killed")
	})
}

// lateFailure returns the script of a runner whose step fails after a minute. The progress with the failure arrives
// seven seconds later. If stopped is not 0, progress that arrives at this time reports that the runner has stopped the
// step. The instance ends 10 s after a TERM.
func lateFailure(stopped time.Duration) runtimetest.Script {
	script := runtimetest.Script{
		Running: runtimetest.Forever, Ending: 10 * time.Second, OnTerm: runtime.Exit{Code: runtime.CodeFailed},
		Progress: []runtimetest.TimedProgress{
			{After: time.Second, Progress: runtime.Progress{Status: runtime.Succeeded}},
		},
	}
	progress := runtime.Progress{Step: 1, Status: runtime.Running, Stopped: stopped > 0}
	if stopped > 0 {
		script.Progress = append(script.Progress, runtimetest.TimedProgress{After: stopped, Progress: progress})
	}
	progress.Status, progress.Reason = runtime.Failed, "exit code 3"
	script.Progress = append(script.Progress, runtimetest.TimedProgress{After: 67 * time.Second, Progress: progress})
	return script
}

func TestPollStatus(t *testing.T) {
	for _, status := range []runtime.JobStatus{runtime.Cancelled, runtime.Gone} {
		play(t, "job that is "+string(status)+" is stopped and not reported", spec(), func(st *fixture) {
			st.startJobs(runtimetest.Script{Running: runtimetest.Forever, OnTerm: runtime.Exit{Code: 143}}, "a")
			wait(time.Minute)
			st.cloud.SetJobStatus("a", status)
			wait(31 * time.Second) // one status interval
			st.wantInstances(0)
			if reports := st.cloud.Reports("a"); len(reports) != 1 || reports[0].Step != 0 {
				st.Errorf("the agent reported %+v, want none after the setup", reports)
			}
		})
	}

	play(t, "job that is cancelled during its pull is stopped", spec(), func(st *fixture) {
		st.startJobs(runtimetest.Script{Starting: time.Hour}, "a")
		wait(time.Minute)
		st.cloud.SetJobStatus("a", runtime.Cancelled)
		wait(31 * time.Second)
		st.wantOperations("a", "start", "no start")
		st.wantJobs(0)
	})

	often := func(t *runtime.Tuning) { t.StatusInterval = 5 * time.Second }
	play(t, "runner that has reported a failure may exit by itself", spec(often), func(st *fixture) {
		st.startJobs(runtimetest.Script{
			Running: 45 * time.Second, Exit: runtime.Exit{Code: runtime.CodeFailed},
			Progress: []runtimetest.TimedProgress{
				{After: 20 * time.Second, Progress: runtime.Progress{Step: 1, Status: runtime.Failed}}},
		}, "a")
		wait(25 * time.Second)
		st.cloud.SetJobStatus("a", runtime.Cancelled) // because of that failure
		wait(time.Minute)
		st.wantOperations("a", "start", "started", "remove", "removed") // without a term
	})

	for name, c := range map[string]struct {
		stopped         time.Duration // see lateFailure
		exit            runtime.Exit  // of the runner, if not CodeFailed
		outcome, reason string
	}{
		"failure that the service shows before the runner reports it": {outcome: "failed", reason: "exit code 3"},
		"failure of a runner that the agent kills before it reports it": {
			exit: killed, outcome: "failed", reason: "exit code 3",
		},
		"failure of a step that the engine has stopped": {
			stopped: 50 * time.Second, outcome: "failed", reason: "exit code 3",
		},
		"failure of a step that the agent has stopped": {
			stopped: 66 * time.Second, outcome: "cancelled", reason: "the service cancelled the job",
		},
	} {
		play(t, name, spec(often), func(st *fixture) {
			script := lateFailure(c.stopped)
			if c.exit != (runtime.Exit{}) {
				script.OnTerm = c.exit
			}
			st.startJobs(script, "a")
			wait(time.Minute)
			st.cloud.SetJobStatus("a", runtime.Cancelled)
			wait(time.Minute)
			st.wantRecorded(1, map[string]int{"default deployment " + c.outcome: 1})
			st.wantInLog("job failed", fmt.Sprintf("reason=%q", c.reason))
		})
	}

	play(t, "runner that does not exit after the last success is stopped", spec(), func(st *fixture) {
		st.startJobs(runtimetest.Script{Running: runtimetest.Forever}, "a")
		st.cloud.SetJobStatus("a", runtime.Completing)
		wait(80 * time.Second)
		st.wantInstances(1) // the runner has a minute to exit
		wait(30 * time.Second)
		st.wantInstances(0)
	})

	play(t, "failed status polls neither stop a job nor make the pool overdue", spec(), func(st *fixture) {
		st.cloud.Fail(runtimetest.JobStatus, 1000, errors.New("connection refused"))
		st.startJobs(runtimetest.Script{Running: 100 * time.Minute}, "a")
		for range 120 {
			wait(time.Minute)
			st.wantNotOverdue()
		}
		st.wantOperations("a", "start", "started", "remove", "removed")
	})
}

// TestFinalReports checks what the agent reports for a runner that was killed.
func TestFinalReports(t *testing.T) {
	for name, c := range map[string]struct {
		progress []runtime.Progress
		step     int
		offset   int
		reports  int
	}{
		"in its first step": {[]runtime.Progress{
			{Step: 0, Status: runtime.Succeeded}, {Step: 1, Status: runtime.Running}, {Step: 1, Lines: 12},
		}, 1, 12, 2},
		"between two steps":   {[]runtime.Progress{{Step: 0, Lines: 3, Status: runtime.Succeeded}}, 1, 0, 3},
		"without progress":    {nil, 0, 1, 2},
		"after its last step": {[]runtime.Progress{{Step: 1, Status: runtime.Succeeded}}, 1, 0, 1},
		"after a failure":     {[]runtime.Progress{{Step: 1, Status: runtime.Failed}}, 1, 0, 1},
	} {
		play(t, name, spec(), func(st *fixture) {
			script := runtimetest.Script{Running: time.Second, Silent: c.progress == nil,
				Exit: runtime.Exit{Code: 137, Reason: "out of memory"}}
			for _, progress := range c.progress {
				script.Progress = append(script.Progress, runtimetest.TimedProgress{Progress: progress})
			}
			st.startJobs(script, "a")
			wait(2 * time.Second)
			reports := st.cloud.Reports("a")
			if len(reports) != c.reports {
				st.Fatalf("the agent reported %+v, want %d reports", reports, c.reports)
			}
			if c.reports == 1 {
				return
			}
			st.wantStep("a", c.step, runtime.Failed, "out of memory (exit code 137)")
			st.wantOffset("a", c.offset)
			if last := reports[len(reports)-1]; last.Step != c.step || last.Status != runtime.Failed {
				st.Errorf("the last report is %+v, want step %d failed", last, c.step)
			}
		})
	}
}

func TestFollow(t *testing.T) {
	progress := []runtimetest.TimedProgress{
		{After: 0, Progress: runtime.Progress{Step: 0, Lines: 1, Status: runtime.Succeeded}},
		{After: time.Second, Progress: runtime.Progress{Step: 1, Status: runtime.Running}},
		{After: time.Hour, Progress: runtime.Progress{Step: 1, Lines: 8, Status: runtime.Succeeded}},
		{After: time.Hour, Progress: runtime.Progress{Step: 2, Status: runtime.Running}},
		{After: 2 * time.Hour, Progress: runtime.Progress{Step: 2, Lines: 5}},
	}
	breaks := []time.Duration{10 * time.Minute, 90 * time.Minute}
	for name, script := range map[string]runtimetest.Script{
		"with an error":            {Breaks: breaks, BreakErr: io.ErrUnexpectedEOF},
		"as if it were at its end": {Breaks: breaks},
		"just before the job's end": {Breaks: []time.Duration{3*time.Hour - 10*time.Millisecond},
			BreakErr: io.ErrUnexpectedEOF},
		"before it begins": {Breaks: []time.Duration{70 * time.Minute}, FollowErr: errors.New("the engine is gone")},
	} {
		script.Running, script.Exit, script.Progress = 3*time.Hour, killed, progress
		play(t, "stream that breaks "+name+" is read again", spec(), func(st *fixture) {
			st.engine.SetScript("a", script)
			st.cloud.Add(job("a"), runtimetest.Definition("one", "two", "three"))
			st.start()
			wait(4 * time.Hour)
			st.wantStep("a", 1, runtime.NotStarted, "") // the runner has reported it
			st.wantStep("a", 2, runtime.Failed, "killed")
			st.wantStep("a", 3, runtime.NotStarted, "")
			st.wantOffset("a", 5)
			if warnings := strings.Count(st.log.String(), "cannot read progress"); warnings > 3 {
				st.Errorf("the failure is logged %d times, want at most 3", warnings)
			}
		})
	}

	play(t, "last line counts, also after a line of an earlier step", spec(), func(st *fixture) {
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
}

func TestNextPoll(t *testing.T) {
	const retryAfter = "204 No Content\r\nRetry-After: 600"
	play(t, "Retry-After sets the next poll", broken(), func(st *fixture) {
		service := answering(retryAfter)
		st.reach(service)
		if state := st.pool.State(); state.Phase != runtime.PoolBackoff || state.Reason == "" {
			st.Errorf("the pool is %s (%s), want paused with a reason", state.Phase, state.Reason)
		}
		wait(9 * time.Minute)
		service.wantDials(st, 1)
		wait(2 * time.Minute)
		service.wantDials(st, 2)
	})
	override := func(t *runtime.Tuning) { t.PollingOverride = true }
	play(t, "Retry-After can be overridden", broken(override), func(st *fixture) {
		service := answering(retryAfter)
		st.reach(service)
		wait(9 * time.Minute)
		if calls := service.dials.Load(); calls < 8 {
			st.Errorf("%d polls in 9 minutes, want one a minute", calls)
		}
	})

	play(t, "hold remains when a job ends", spec(most(3)), func(st *fixture) {
		st.engine.SetScript("long", runtimetest.Script{Running: 5 * time.Minute})
		st.startJobs(runtimetest.Script{Running: 30 * time.Second}, "a", "long")
		st.cloud.Hold(runtime.NextPoll{At: time.Now().Add(10 * time.Minute), Reason: "circuit breaker open"})
		wait(70 * time.Second)
		calls := st.asked(runtimetest.Claim)
		st.cloud.Queue("b")
		wait(8 * time.Minute)
		st.wantAsked(runtimetest.Claim, calls)
		st.wantNotOverdue()
		wait(3 * time.Minute)
		st.wantOperations("b", "start", "started", "remove", "removed")
	})

	lenient := func(t *runtime.Tuning) { t.BreakerFailures = 100 }
	play(t, "failed polls are retried at the interval and logged once", broken(lenient), func(st *fixture) {
		service := answering("")
		st.reach(service)
		wait(4 * time.Minute)
		if polls := service.dials.Load(); polls < 4 || polls > 5 {
			st.Errorf("%d polls in four minutes, want one a minute", polls)
		}
		st.wantLogTimes(1, "level=WARN")
		st.wantNotOverdue()
		service.answer.Store("204 No Content")
		wait(2 * time.Minute)
		st.wantInLog("polling resumed")
	})

	retrying := func(t *runtime.Tuning) {
		t.RetryCount = 2
		t.RetryWait, t.RetryMaxWait = 2*time.Minute, 2*time.Minute
	}
	play(t, "state has the poll error until a poll succeeds", broken(retrying), func(st *fixture) {
		// wantError checks that the state and the log have an error, or that the state has no error.
		wantError := func(want string) {
			st.Helper()
			got := st.pool.State().PollError
			if !strings.Contains(got, want) || (got == "") != (want == "") {
				st.Errorf("the error is %q, want %q", got, want)
			}
			st.wantInLog(got)
		}
		wantError("")
		service := answering("401 Unauthorized")
		st.reach(service)
		wantError("rejected the token")
		service.answer.Store("")
		wait(2 * time.Minute)
		wantError("connection refused")
		service.answer.Store("204 No Content")
		wait(5 * time.Minute)
		wantError("")
	})
}

func TestAdopt(t *testing.T) {
	play(t, "restarted agent resumes running jobs and starts none twice", spec(), func(st *fixture) {
		short := runtimetest.Script{Running: time.Second}
		st.leaveInstance("old", runtimetest.Script{Running: 10 * time.Minute}, time.Minute)
		st.leaveInstance("ended", short, time.Hour)
		st.leaveInstance("young", short, 3*time.Second)
		st.addInstance(runtime.Job{ID: "other", Pool: spec().Key(), Agent: "agent-2"}, short, time.Hour)
		st.addInstance(runtime.Job{ID: "elsewhere", Pool: "another-key", Agent: "agent-1"}, short, time.Hour)
		st.cloud.Queue("a")
		st.start()
		wait(time.Minute)
		st.wantQueued("a") // the adopted job takes the slot
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
}

func TestSweep(t *testing.T) {
	// An instance's times are by the clock of its engine, which may be far ahead of the agent's.
	play(t, "ended instance of an engine whose clock is ahead is removed", spec(), func(st *fixture) {
		st.rebuild(func(p *pool.Parts) { p.Executor = aheadEngine{st.engine} })
		st.leaveInstance("ahead", runtimetest.Script{Running: time.Second}, time.Hour)
		st.start()
		wait(time.Minute)
		st.wantOperations("ahead", "was adopted", "remove", "removed")
	})

	// An engine may create such an instance if its response to the agent's create call is lost.
	play(t, "instance that was never started is removed", spec(), func(st *fixture) {
		st.start()
		st.leaveInstance("late", runtimetest.Script{NeverStarted: true}, 0)
		wait(11 * time.Minute)
		st.wantOperations("late", "was adopted", "remove", "removed")
	})
	play(t, "instance of an earlier start is removed at the end of the job", spec(), func(st *fixture) {
		st.startJobs(runtimetest.Script{Running: time.Minute, FailLate: []error{runtime.ErrConnectionLost}}, "a")
		wait(10 * time.Second)
		st.engine.SetScript("a", runtimetest.Script{NeverStarted: true})
		st.engine.Adopt(&runtime.Job{ID: "a", Pool: spec().Key(), Agent: "agent-1"}, time.Now())
		wait(2 * time.Minute)
		st.wantInstances(0)
	})

	busy := errors.New("the engine is busy")
	play(t, "removal is retried while the engine fails", spec(), func(st *fixture) {
		st.startJobs(runtimetest.Script{Running: time.Second, RemoveErrors: []error{busy, busy}}, "a")
		wait(time.Minute)
		st.wantOperations("a", "start", "started", "remove", "not ended", "remove", "not ended", "remove", "removed")
	})

	play(t, "instance that could not be removed for two minutes is removed by a sweep", spec(), func(st *fixture) {
		st.startJobs(runtimetest.Script{Running: time.Second, RemoveErrors: slices.Repeat([]error{busy}, 8)}, "a")
		wait(5 * time.Minute)
		st.wantInstances(1)
		wait(20 * time.Minute)
		st.wantInstances(0)
	})

	play(t, "removal that the engine denies delays the end of a pool by seconds", spec(), func(st *fixture) {
		denied := fmt.Errorf("remove: %w", runtime.ErrDenied)
		st.startJobs(runtimetest.Script{Running: time.Minute, RemoveErrors: slices.Repeat([]error{denied}, 100)}, "a")
		wait(30 * time.Second)
		st.pool.Drain()
		wait(50 * time.Second)
		if state := st.pool.State(); state.Phase != runtime.PoolStopped {
			st.Errorf("20 seconds after the last job the pool is %s, want %s", state.Phase, runtime.PoolStopped)
		}
		st.wantInstances(1)
	})

	play(t, "instance of a failed start is removed", spec(), func(st *fixture) {
		lost := errors.New("lost the connection to the engine")
		st.startJobs(runtimetest.Script{Fail: lost, Remains: true, RemoveErrors: []error{busy}}, "a")
		wait(time.Minute)
		st.wantStep("a", 0, runtime.Failed, "lost the connection to the engine")
		st.wantOperations("a", "start", "no start", "remove", "not ended", "remove", "removed")
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
	startLeftover := func(st *fixture) {
		st.rebuild(func(p *pool.Parts) { p.Slots = pool.NewSlots(1) })
		st.leaveInstance("old", runtimetest.Script{Running: 5 * time.Hour}, 0)
		st.cloud.Queue("a")
		st.pool.Drain()
		st.start()
	}
	play(t, "drains without calls to the service", leftover, func(st *fixture) {
		startLeftover(st)
		wait(2 * time.Hour)
		if state := st.pool.State(); state.Phase != runtime.PoolDraining || state.Reason == "" || len(state.Jobs) != 1 {
			st.Errorf("the pool is %+v, want it draining, with one job and a reason", state)
		}
		st.wantNotOverdue()
		wait(4 * time.Hour)
		st.wantOperations("old", "was adopted", "remove", "removed")
		for _, call := range []runtimetest.Call{runtimetest.Claim, runtimetest.JobStatus, runtimetest.Report} {
			st.wantAsked(call, 0) // without credentials
		}
		if state := st.pool.State(); state.Phase != runtime.PoolStopped || state.Err != nil {
			st.Errorf("after its last job the pool is %+v, want it stopped without an error", state)
		}
	})
	play(t, "claims jobs again with the settings of a configuration", leftover, func(st *fixture) {
		startLeftover(st)
		wait(time.Hour)
		st.pool.Tune(spec(most(2)))
		wait(2 * time.Minute)
		if st.asked(runtimetest.JobStatus) == 0 {
			st.Error("the status of the adopted job was not polled")
		}
		st.wantQueued("a") // the adopted job takes the slot of the process
		st.cloud.SetJobStatus("old", runtime.Cancelled)
		wait(2 * time.Minute)
		st.wantOperations("old", "was adopted", "remove", "term", "removed")
		st.wantOperations("a", "start", "started", "remove", "removed")
	})
}

func TestAdoptInstance(t *testing.T) {
	for name, c := range map[string]struct {
		first, then runtime.JobStatus
		continues   bool
	}{
		"continues if its service has never known it": {runtime.Unanswered, runtime.Gone, true},
		"is stopped if its service no longer has it":  {runtime.Continue, runtime.Gone, false},
		"is stopped if it is cancelled":               {runtime.Continue, runtime.Cancelled, false},
	} {
		play(t, "adopted job "+name, spec(), func(st *fixture) {
			st.leaveInstance("old", runtimetest.Script{Running: runtimetest.Forever}, 0)
			st.cloud.SetJobStatus("old", c.first)
			st.start()
			wait(time.Minute)
			st.cloud.SetJobStatus("old", c.then)
			wait(31 * time.Second)
			if !c.continues {
				st.wantInstances(0)
				return
			}
			wait(time.Hour)
			st.wantOperations("old", "was adopted")
		})
	}
}

func TestTuning(t *testing.T) {
	play(t, "loop uses new settings at once, running jobs never", spec(), func(st *fixture) {
		st.startJobs(runtimetest.Script{Running: time.Hour}, "a", "b", "c")
		next := spec(most(3), func(t *runtime.Tuning) { t.PollingInterval = 10 * time.Second })
		next.Generation = 8
		st.pool.Tune(next)
		wait(11 * time.Second)
		st.wantInstances(3)
		st.pool.Tune(spec(most(1))) // a lower limit ends no job
		wait(10 * time.Minute)
		st.wantInstances(3)
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
					st.engine.FailWhen(failsWith(errors.New("the engine is gone")))
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
				starts := st.count(id, runtimetest.Start)
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
	play(t, "pool is ready when it has listed its instances", spec(), func(st *fixture) {
		st.rebuild(func(p *pool.Parts) { p.Executor = slowList{st.engine} })
		wantState := func(when, want string) {
			st.Helper()
			if s := st.pool.State(); fmt.Sprint(s.Phase, " ", s.Ready) != want {
				st.Errorf("%s the pool is %s %v, want %s", when, s.Phase, s.Ready, want)
			}
		}
		st.start()
		wait(time.Second)
		wantState("before its start", "starting false")
		st.pool.Drain()
		wantState("drained while it starts", "draining false")
		st.pool.Tune(spec())
		<-st.pool.Ready()
		wantState("after its start", "polling true")
		st.pool.Drain()
		st.wantEnd()
		wantState("after its end", "stopped true")
	})
}
