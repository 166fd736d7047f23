package runtimetest

import (
	"context"
	"crypto/rand"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// Work is what a story wants its job to do.
type Work string

// The kinds of work.
const (
	Quick    Work = "quick"    // one step that says "quick work" and succeeds
	Failing  Work = "failing"  // one step that fails
	Lasting  Work = "lasting"  // says "ready", goes on until it gets a TERM, and then says "asked to end" before it ends
	Stubborn Work = "stubborn" // says "ready" and takes no notice of a TERM
	Parent   Work = "parent"   // as Stubborn, and has put children in the background
	Hopeless Work = "hopeless" // cannot be started, for a reason of the job's own
	Misset   Work = "misset"   // cannot be started, for a reason of the agent's settings
)

// scripts has the one step of each kind of work, for any POSIX shell. Each is
// one line, so that "ready" is the second line of the step's log.
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
	default:
		return `echo quick work`
	}
}

// Harness is what the suite must know of one kind of executor.
type Harness struct {
	// New makes an executor. Each call stands for an agent that has just been
	// started: all of them look at the same engine.
	New func(t *testing.T) runtime.Executor

	// Job completes a job with what the executor needs to run it: an image, a
	// place. Its definition has the steps already, and may be changed too. For
	// Hopeless and Misset it makes the job one that cannot be started, by its
	// definition alone or by its settings alone.
	Job func(t *testing.T, job *runtime.Job, work Work)

	// Host is the address, without a port, at which an environment reaches this
	// process: the suite's service listens there.
	Host string

	// Left names what is still there of a job: processes, containers, files.
	Left func(t *testing.T, job *runtime.Job) []string

	// Exposed returns everything that can be read of a running environment from
	// outside: its command lines, variables, labels and files. Nil leaves the
	// story out.
	Exposed func(t *testing.T, job *runtime.Job, id string) string

	// Own is whether a job's definition can make its start fail. An executor that
	// ignores images has no such job, and its Hopeless job works.
	Own bool

	// Virtual is for an executor that runs nothing: each story takes virtual time
	// in a bubble, and nothing is expected to reach the service but the agent's
	// own word.
	Virtual bool
}

// Conform tells the stories that every executor must pass, as sub-tests.
func Conform(t *testing.T, harness Harness) {
	for _, story := range []struct {
		name  string
		tell  func(*testing.T, *stage)
		needs bool // whether it makes sense with real programs only
	}{
		{"AJobRunsAndIsFollowedFromTheBeginningAndAgainAfterwards", followed, false},
		{"WaitGivesTheExitCodeAndGivesItAgain", waited, false},
		{"WhatIsNotThereHasEndedAndIsRemoved", unknown, false},
		{"FollowAndWaitEndWithTheirContexts", givenUp, false},
		{"RemoveAsksFirstAndLetsTheJobEndCleanly", asked, false},
		{"RemoveEndsAJobThatDoesNotListenAfterTheGrace", forced, false},
		{"RemoveLeavesNothingAndCanBeRepeated", removed, false},
		{"ListFindsWhatIsOfThisAgentRunningOrEnded", listed, false},
		{"ARestartedAgentTakesOver", restarted, false},
		{"AStartThatIsGivenUpLeavesNothing", cancelled, false},
		{"AJobThatCannotBeStartedSaysSoAtOnce", hopeless, false},
		{"CheckReportsSettingsThatFailEveryJob", checked, false},
		{"EightJobsAtOnceDoNotMix", crowd, false},
		{"TheHandoverArrivesWholeAndStandsNowhereElse", handedOver, true},
	} {
		if harness.Virtual && story.needs {
			continue
		}
		t.Run(story.name, func(t *testing.T) {
			if harness.Virtual {
				synctest.Test(t, func(t *testing.T) { story.tell(t, newStage(t, harness)) })
				return
			}
			story.tell(t, newStage(t, harness))
		})
	}
}

// stage is where one story is told.
type stage struct {
	harness  Harness
	executor runtime.Executor
	service  *Service
	url      string
	agent    string // of this story alone
	pool     runtime.PoolSpec
}

func newStage(t *testing.T, harness Harness) *stage {
	name := rand.Text()[:10]
	s := &stage{
		harness:  harness,
		executor: harness.New(t),
		service:  NewService(),
		url:      "http://service.invalid",
		agent:    "agent-" + name,
	}
	s.pool = runtime.PoolSpec{Name: "pool-" + name, Identity: runtime.Identity{
		Service: s.url, Organization: "organization", PoolID: "id-" + name, Credentials: "token", Target: "tested", Namespace: "space",
	}}
	if !harness.Virtual {
		s.url = s.listen(t)
	}
	t.Cleanup(func() { s.clear(t) })
	return s
}

// listen serves the service where environments reach it, until the test ends.
func (s *stage) listen(t *testing.T) string {
	listener, err := net.Listen("tcp", net.JoinHostPort(s.harness.Host, "0"))
	if err != nil {
		t.Fatalf("listen where an environment reaches the tests: %v", err)
	}
	server := &http.Server{Handler: s.service, ReadHeaderTimeout: 10 * time.Second}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-done
	})
	return "http://" + listener.Addr().String()
}

// clear removes what a story has left, and shows what the service refused.
func (s *stage) clear(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	left, err := s.executor.List(ctx, s.agent)
	if err != nil {
		t.Errorf("list what is left: %v", err)
	}
	for _, found := range left {
		if err := s.executor.Remove(ctx, found.ID, 0); err != nil {
			t.Errorf("remove what is left: %v", err)
		}
	}
	for _, violation := range s.service.Violations() {
		t.Errorf("the service refused %s", violation)
	}
}

// job makes a job of the story's agent and pool.
func (s *stage) job(t *testing.T, work Work) *runtime.Job {
	t.Helper()
	id := rand.Text()[:12]
	job := &runtime.Job{
		ID:         "job-" + id,
		Kind:       runtime.Deployment,
		Subject:    "deployment-" + id,
		Token:      secret.New("token-" + rand.Text()),
		Pool:       s.pool.Key(),
		PoolName:   s.pool.Name,
		Identity:   s.pool.Identity,
		Agent:      s.agent,
		Generation: 7,
		Service:    s.url,
		Definition: Definition(scripts(work)),
	}
	s.harness.Job(t, job, work)
	return job
}

// start starts a job, which must succeed.
func (s *stage) start(t *testing.T, job *runtime.Job) string {
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

func (s *stage) tryStart(ctx context.Context, job *runtime.Job) (string, error) {
	s.service.Add(job)
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return s.executor.Start(ctx, job, runtime.NewSetup(job, s.service, Offer(job)))
}
