package runtimetest

import (
	"context"
	"crypto/rand"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/schema/secret"
)

const (
	// limit is the timeout for each operation of a test. An engine that runs the Pods of other
	// tests too may take a minute, so limit ends only an operation that hangs.
	limit = 3 * time.Minute

	// longGrace is a grace period longer than limit: a Remove that succeeds with it did not
	// wait for its end.
	longGrace = time.Hour
)

// Work is the work of a job in a test of the suite.
type Work string

// The kinds of work.
const (
	Quick         Work = "quick"         // one step that prints "quick work" and succeeds
	Failing       Work = "failing"       // one step that fails
	Lasting       Work = "lasting"       // prints "ready"; after a SIGTERM it prints "asked to end" and fails
	Stubborn      Work = "stubborn"      // prints "ready" and ignores SIGTERM
	Parent        Work = "parent"        // as Stubborn, with children in the background
	Pulumi        Work = "pulumi"        // a program named pulumi that prints "ready" and ends after SIGINT or SIGTERM
	BadJob        Work = "bad job"       // cannot be started, because of the job's definition
	Misconfigured Work = "misconfigured" // cannot be started, because of the agent's settings
)

// scripts returns the script of step 1 for a kind of work, for any POSIX shell. Each script is
// one line: the log of the step begins with the script, so "ready" is the second line of the
// log.
func scripts(work Work) string {
	const wait = `while :; do sleep 1 & wait $!; done`
	switch work {
	case Failing:
		return `echo failing work; exit 3`
	case Lasting:
		return `trap 'echo asked to end; exit 4' TERM; echo ready; ` + wait
	case Stubborn:
		return `trap '' TERM; echo ready; ` + wait
	case Parent:
		return `trap '' TERM; (sleep 3600 & sleep 3600 &) ; nohup sleep 3600 >/dev/null 2>&1 & echo ready; ` + wait
	case Pulumi:
		return `printf '#!/bin/sh\nn=0; end=\ntrap "n=\\$((n+1)); end=1" INT TERM\necho ready\n` +
			`while [ -z "$end" ]; do sleep 0.1; done\nsleep 0.3; echo "signals: $n"; exit 5\n' >pulumi; ` +
			`chmod +x pulumi; ./pulumi`
	default:
		return `echo quick work`
	}
}

// Harness describes one kind of executor to the suite.
type Harness struct {
	// New returns a new executor, such as a restarted agent has. All executors use the same
	// engine.
	New func(t *testing.T) runtime.Executor

	// Job completes a job with the settings that the executor needs, such as an image. The
	// definition of the job already has the steps; Job may change it too. Job must make the
	// start of a BadJob fail through the definition alone, and the start of a Misconfigured
	// job through the settings alone. If the instance has a grace period of its own, which may
	// replace that of Remove, Job must set it to more than an hour.
	Job func(t *testing.T, job *runtime.Job, work Work)

	// Host is the address, without a port, at which an instance reaches this test process. The
	// service of the suite listens there.
	Host string

	// Leftovers returns what exists of a job: processes, containers, files.
	Leftovers func(t *testing.T, job *runtime.Job) []string

	// Exposed returns everything about a running instance that can be read from outside:
	// its command lines, variables, labels and files. Nil skips that test.
	Exposed func(t *testing.T, job *runtime.Job, id string) string

	// BadJobs reports whether a job's definition can make its start fail. It is false for an
	// executor that ignores images and therefore starts a BadJob.
	BadJobs bool

	// Virtual is for an executor that runs nothing: each test uses virtual time in a
	// bubble, and only the reports of the agent are expected at the service.
	Virtual bool

	// Parallel is for an engine that takes seconds to start an instance: the tests run at the
	// same time.
	Parallel bool
}

// Conform runs the tests that every executor must pass, as subtests.
func Conform(t *testing.T, harness Harness) {
	for _, c := range []struct {
		name     string
		run      func(*testing.T, *fixture)
		realOnly bool // needs real programs
	}{
		{"Follow returns the same progress during a job and after its end", testFollow, false},
		{"Wait returns the exit code each time", testWait, false},
		{"instance that does not exist has ended", testUnknownID, false},
		{"Follow and Wait end with their contexts", testContexts, false},
		{"Interrupt comes before the signals of Remove", testInterrupt, true},
		{"runner interrupts pulumi after a SIGTERM of Remove", testStopStages, true},
		{"Remove sends TERM first", testRemoveWithGrace, false},
		{"Remove sends KILL after the grace period", testRemoveAfterGrace, false},
		{"Remove leaves nothing and can be repeated", testRemove, false},
		{"List returns this agent's instances, running or ended", testList, false},
		{"restarted agent takes over", testRestart, false},
		{"cancelled start leaves nothing", testCancelledStart, false},
		{"start that fails returns at once", testFailedStart, false},
		{"Check fails for settings with which no job can start", testCheck, false},
		{"eight concurrent jobs are separate", testConcurrentJobs, false},
		{"handoff arrives whole and is not exposed", testHandoff, true},
	} {
		if harness.Virtual && c.realOnly {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			if harness.Virtual {
				synctest.Test(t, func(t *testing.T) { c.run(t, newFixture(t, harness)) })
				return
			}
			if harness.Parallel {
				t.Parallel()
			}
			c.run(t, newFixture(t, harness))
		})
	}
}

// fixture is an executor with a service, for one test of the suite.
type fixture struct {
	harness  Harness
	executor runtime.Executor
	service  *Service
	url      string
	agent    string // id of an agent that no other test uses
	pool     runtime.PoolSpec
}

func newFixture(t *testing.T, harness Harness) *fixture {
	name := rand.Text()[:10]
	s := &fixture{
		harness:  harness,
		executor: harness.New(t),
		service:  NewService(),
		url:      "http://service.invalid",
		agent:    "agent-" + name,
	}
	s.pool = runtime.PoolSpec{Name: "pool-" + name, Identity: runtime.Identity{
		Service: s.url, Organization: "organization", PoolID: "id-" + name,
		Credentials: "token", Target: "tested", Namespace: "space",
	}}
	if !harness.Virtual {
		s.url = Serve(t, harness.Host, s.service)
	}
	t.Cleanup(func() { s.clear(t) })
	return s
}

// clear removes leftover instances, and fails the test for calls that the service rejected.
func (s *fixture) clear(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	left, err := s.executor.List(ctx, s.agent)
	if err != nil {
		t.Errorf("list leftovers: %v", err)
	}
	for _, found := range left {
		if err := s.executor.Remove(ctx, found.ID, 0); err != nil {
			t.Errorf("remove leftover: %v", err)
		}
	}
	for _, violation := range s.service.Violations() {
		t.Errorf("the service rejected %s", violation)
	}
}

func (s *fixture) job(t *testing.T, work Work) *runtime.Job {
	t.Helper()
	id := rand.Text()[:12]
	job := &runtime.Job{
		ID:         "job-" + id,
		Kind:       runtime.Deployment,
		WorkflowID: "deployment-" + id,
		Token:      secret.New("token-" + rand.Text()),
		Pool:       s.pool.Key(),
		PoolName:   s.pool.Name,
		Identity:   s.pool.Identity,
		Agent:      s.agent,
		Generation: 7,
		Service:    s.url,
		Definition: Definition(scripts(work)),
	}
	job.Definition.Work = runtime.Work{
		Organization: "acme", Project: "web site", Stack: "prod-" + id, Operation: "update", Version: "12",
		URL: "https://app.example.com/acme/12",
	}
	s.harness.Job(t, job, work)
	return job
}

func (s *fixture) start(t *testing.T, job *runtime.Job) string {
	t.Helper()
	id, err := s.tryStart(t.Context(), job)
	if err != nil {
		t.Fatalf("start %s: %v", job.ID, err)
	}
	if id == "" {
		t.Fatalf("start %s: the id is empty", job.ID)
	}
	return id
}

func (s *fixture) tryStart(ctx context.Context, job *runtime.Job) (string, error) {
	s.service.Add(job)
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	handoff := BaseHandoff(job)
	handoff.Grace = runtime.Seconds(longGrace.Seconds()) // so that only Remove kills a job that ignores TERM
	return s.executor.Start(ctx, job, runtime.NewSetup(job, s.service, handoff))
}
