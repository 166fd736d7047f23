package pool_test

import (
	"context"
	"errors"
	"fmt"
	"io"
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
)

// process is one run of an agent, which is killed at one of its calls: from then on each
// call blocks and has no effect, as if the goroutine did not exist. The service, the engine
// and the journal keep their state.
type process struct {
	dies     int           // number of the call at which it is killed; 0 is never
	after    bool          // it is killed after this call has had its effect
	died     chan struct{} // closed when it is killed
	released chan struct{} // closed at the end of the test

	mu    sync.Mutex
	calls int
}

var errKilled = errors.New("the agent was killed")

// begin begins a call. Alive is false if the call must have no effect, and now is true if the
// process is killed at this call.
func (p *process) begin() (number int, alive, now bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.isDead() {
		return 0, false, false
	}
	p.calls++
	if p.calls == p.dies && !p.after {
		close(p.died)
		return p.calls, false, true
	}
	return p.calls, true, false
}

// end ends a call.
func (p *process) end(number int) {
	p.mu.Lock()
	if number == p.dies && p.after && !p.isDead() {
		close(p.died)
	}
	p.mu.Unlock()
	if p.isDead() {
		<-p.released
	}
}

// kill kills the process.
func (p *process) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.isDead() {
		close(p.died)
	}
}

// isDead reports whether the process was killed.
func (p *process) isDead() bool {
	select {
	case <-p.died:
		return true
	default:
		return false
	}
}

// call makes one call of a process.
func call[T any](p *process, do func() (T, error)) (result T, err error) {
	number, alive, _ := p.begin()
	if !alive {
		<-p.released
		return result, errKilled
	}
	got, err := do()
	if p.end(number); p.isDead() {
		return result, errKilled
	}
	return got, err
}

// run makes one call without a result.
func run(p *process, do func() error) error {
	_, err := call(p, func() (struct{}, error) { return struct{}{}, do() })
	return err
}

// mortalCloud is the service of a process.
type mortalCloud struct {
	*runtimetest.Cloud
	p     *process
	fatal bool // a definition ends the process
}

func (c mortalCloud) Claim(ctx context.Context) (runtime.Claim, error) {
	return call(c.p, func() (runtime.Claim, error) { return c.Cloud.Claim(ctx) })
}

func (c mortalCloud) Definition(ctx context.Context, job *runtime.Job) (runtime.Definition, error) {
	if c.fatal {
		c.p.kill()
	}
	return call(c.p, func() (runtime.Definition, error) { return c.Cloud.Definition(ctx, job) })
}

func (c mortalCloud) JobStatus(ctx context.Context, job *runtime.Job) (runtime.JobStatus, error) {
	return call(c.p, func() (runtime.JobStatus, error) { return c.Cloud.JobStatus(ctx, job) })
}

func (c mortalCloud) Report(ctx context.Context, job *runtime.Job, report runtime.Report) error {
	return run(c.p, func() error { return c.Cloud.Report(ctx, job, report) })
}

// mortalJournal is the journal of a process.
type mortalJournal struct {
	*runtimetest.Journal
	p *process
}

func (j mortalJournal) Add(ctx context.Context, record runtime.Record) error {
	return run(j.p, func() error { return j.Journal.Add(ctx, record) })
}

func (j mortalJournal) SetStage(ctx context.Context, job string, stage runtime.RecordStage) error {
	return run(j.p, func() error { return j.Journal.SetStage(ctx, job, stage) })
}

// SetProgress does not block in a process that was killed, because its caller has a lock.
func (j mortalJournal) SetProgress(job string, progress runtime.Progress) {
	if !j.p.isDead() {
		j.Journal.SetProgress(job, progress)
	}
}

func (j mortalJournal) Remove(ctx context.Context, job string) error {
	return run(j.p, func() error { return j.Journal.Remove(ctx, job) })
}

func (j mortalJournal) List(ctx context.Context) ([]runtime.Record, error) {
	return call(j.p, func() ([]runtime.Record, error) { return j.Journal.List(ctx) })
}

// mortalExecutor is the executor of a process. A process that is killed at the first call of a
// start leaves an instance without a handoff. A process that is killed later, before the end of
// the start, leaves no instance, and the job may be recorded as handed off.
type mortalExecutor struct {
	*runtimetest.Executor
	p *process
}

func (e mortalExecutor) Start(ctx context.Context, job *runtime.Job, setup *runtime.Setup) (string, error) {
	// Create the instance.
	if _, alive, now := e.p.begin(); !alive {
		if now {
			e.orphan(job)
		}
		<-e.p.released
		return "", errKilled
	}

	// Get the handoff, and send it.
	number, alive, now := e.p.begin()
	if now {
		if _, err := setup.Handoff(ctx, "/"); err == nil { // must fail
			return "", errors.New("a process that was killed got a handoff")
		}
	}
	if !alive {
		<-e.p.released
		return "", errKilled
	}
	id, err := e.Executor.Start(ctx, job, setup)
	if e.p.end(number); e.p.isDead() {
		return "", errKilled
	}
	return id, err
}

// orphan adds an instance whose runner ends without a handoff.
func (e mortalExecutor) orphan(job *runtime.Job) {
	e.SetScript(job.ID, runtimetest.Script{Silent: true, Exit: runtime.Exit{Code: runtime.CodeUsage}})
	e.Adopt(job, time.Now())
}

func (e mortalExecutor) Follow(ctx context.Context, id string) (io.ReadCloser, error) {
	return call(e.p, func() (io.ReadCloser, error) { return e.Executor.Follow(ctx, id) })
}

func (e mortalExecutor) Wait(ctx context.Context, id string) (runtime.Exit, error) {
	return call(e.p, func() (runtime.Exit, error) { return e.Executor.Wait(ctx, id) })
}

func (e mortalExecutor) Remove(ctx context.Context, id string, grace time.Duration) error {
	return run(e.p, func() error { return e.Executor.Remove(ctx, id, grace) })
}

func (e mortalExecutor) List(ctx context.Context, agent string) ([]runtime.Instance, error) {
	return call(e.p, func() ([]runtime.Instance, error) { return e.Executor.List(ctx, agent) })
}

// crashes is a fixture whose agent is killed and started again.
type crashes struct {
	*fixture
	jobs  []string
	codes map[string]int  // exit code of the runner, by job
	lost  map[string]bool // jobs whose claim only a killed process knew
	fatal bool            // a definition ends the agent
	ends  []func()
}

// live runs the agent until it is killed, or until limit has passed.
func (c *crashes) live(dies int, after bool, limit time.Duration) {
	// Start the agent.
	p := &process{dies: dies, after: after, died: make(chan struct{}), released: make(chan struct{})}
	parts := c.parts
	parts.Cloud, parts.Executor = mortalCloud{c.cloud, p, c.fatal}, mortalExecutor{c.engine, p}
	parts.Journal, parts.Close = mortalJournal{c.records, p}, nil
	pool := pool.New(spec(most(3)), parts)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- pool.Run(ctx) }()
	c.ends = append(c.ends, func() {
		stop()
		close(p.released)
		<-ended
	})

	// Wait until the agent is killed or limit has passed. Then find the claims that are lost.
	select {
	case <-p.died:
	case <-time.After(limit):
	}
	synctest.Wait()
	for _, id := range c.jobs {
		c.script(id)
		_, recorded := c.records.Record(id)
		if !recorded && c.runs(id) == 0 && len(c.outcomes(id)) == 0 && !slices.Contains(c.cloud.Queued(), id) {
			c.lost[id] = true
		}
	}
}

// script sets what the runner of a job does after it has got its handoff.
func (c *crashes) script(id string) {
	c.engine.SetScript(id, runtimetest.Script{Running: 20 * time.Second, Exit: runtime.Exit{Code: c.codes[id]}})
}

// runs returns how often the runner of a job got its handoff.
func (c *crashes) runs(id string) int { return c.count(id, runtimetest.StartDone) }

// outcomes returns the final statuses that the agents have reported of a job.
func (c *crashes) outcomes(id string) (all []runtime.Status) {
	for _, report := range c.cloud.Reports(id) {
		if report.Status == runtime.Failed || report.Status == runtime.Succeeded {
			all = append(all, report.Status)
		}
	}
	return all
}

// settle sets the status at the service of the jobs that have ended.
func (c *crashes) settle() {
	for _, id := range c.jobs {
		ended := c.runs(id) > 0 && !slices.Contains(c.running(), id)
		switch {
		case len(c.outcomes(id)) > 0, ended && c.codes[id] == runtime.CodeFailed:
			c.cloud.SetJobStatus(id, runtime.Cancelled)
		case ended && c.codes[id] == runtime.CodeSucceeded:
			c.cloud.SetJobStatus(id, runtime.Completing)
		}
	}
}

// running returns the jobs whose instances run.
func (c *crashes) running() (jobs []string) {
	all, err := c.engine.List(context.Background(), "agent-1")
	if err != nil {
		panic(err) // only after the end of the context
	}
	for _, instance := range all {
		if instance.Running {
			jobs = append(jobs, instance.Job)
		}
	}
	return jobs
}

// check returns what is wrong after the end of a job, or an empty text.
func (c *crashes) check(id string) string {
	runs, outcomes := c.runs(id), c.outcomes(id)
	reported := map[int]int{runtime.CodeSucceeded: 0, runtime.CodeFailed: 0}
	want, ok := reported[c.codes[id]]
	if !ok || runs == 0 {
		want = 1
	}
	_, recorded := c.records.Record(id)
	switch {
	case recorded:
		return "its record is left"
	case c.lost[id] && runs == 0 && len(outcomes) == 0:
		return ""
	case runs > 1:
		return fmt.Sprintf("it ran %d times", runs)
	case len(outcomes) != want:
		return fmt.Sprintf("the agents have reported %q, want %d outcomes", outcomes, want)
	}
	return ""
}

// TestRecoveryProperty kills an agent at random calls. It checks that each job has one outcome,
// that no job runs twice, and that no instance and no record is left.
func TestRecoveryProperty(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		synctest.Test(t, func(*testing.T) {
			c := &crashes{fixture: newFixture(t, spec()), codes: map[string]int{}, lost: map[string]bool{}}
			for i := range rapid.IntRange(1, 4).Draw(rt, "jobs") {
				id := fmt.Sprint("job-", i)
				c.jobs = append(c.jobs, id)
				c.codes[id] = rapid.SampledFrom([]int{0, 0, 10, 12, 14, 137}).Draw(rt, "code")
				c.script(id)
				c.cloud.Queue(id)
			}
			for range rapid.IntRange(1, 4).Draw(rt, "crashes") {
				dies := rapid.IntRange(1, 60).Draw(rt, "call")
				c.live(dies, rapid.Bool().Draw(rt, "after"), 5*time.Minute)
				time.Sleep(time.Duration(rapid.IntRange(0, 90).Draw(rt, "down")) * time.Second)
				c.settle()
			}
			c.live(0, false, 15*time.Minute)
			left, log := c.engine.Present(), c.log.String()
			for _, end := range c.ends {
				end()
			}
			for _, id := range c.jobs {
				if problem := c.check(id); problem != "" {
					rt.Errorf("%s: %s; operations %v, journal %v", id, problem, c.engine.Operations(id),
						c.records.Operations(id))
				}
			}
			if len(left) > 0 {
				rt.Errorf("instances of %q are left", left)
			}
			if rt.Failed() {
				rt.Logf("log:\n%s", strings.ReplaceAll(log, "level=", "\n  level="))
			}
		})
	})
}

// TestRecoveryFatalDefinition checks that a job whose definition ends each agent, for example for lack
// of memory, is reported failed after eleven starts.
func TestRecoveryFatalDefinition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &crashes{fixture: newFixture(t, spec()), jobs: []string{"a"}, lost: map[string]bool{}, fatal: true}
		c.cloud.Queue("a")
		killed := 0
		for range 13 {
			begin := time.Now()
			if c.live(0, false, time.Minute); time.Since(begin) < time.Minute {
				killed++
			}
		}
		c.wantStep("a", 0, runtime.Failed, "the agent ended before the first step of this job, "+
			"and could not start it again: agents have ended 11 times before they created anything for it")
		_, recorded := c.records.Record("a")
		for _, end := range c.ends {
			end()
		}
		if killed != 11 || recorded {
			t.Errorf("%d agents were killed, want 11; a record is left: %t", killed, recorded)
		}
	})
}
