package kube

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/kube/kubetest"
	"github.com/cmwa-project/cmwa/runtime/pool"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
)

// simulated is a pool on a fake cluster, in simulated time.
type simulated struct {
	*fakeCluster
	*runtimetest.Service // of the fake cluster

	t   *testing.T
	log *lockedBuffer

	mu     sync.Mutex
	queue  []*runtime.Job
	jobs   map[string]*runtime.Job
	ends   map[string][]string // reported outcomes by job
	opened map[string]int      // number of opened handoffs by job
}

// inBubble runs a subtest in simulated time.
func inBubble(t *testing.T, name string, test func(*testing.T)) {
	t.Run(name, func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, test)
	})
}

// simulate runs a scenario as a subtest in simulated time. The job's container calls job while
// its step runs.
func simulate(t *testing.T, name string, job func(s *simulated, id string), scenario func(s *simulated)) {
	inBubble(t, name, func(t *testing.T) {
		s := &simulated{
			t: t, log: &lockedBuffer{},
			jobs: map[string]*runtime.Job{}, ends: map[string][]string{}, opened: map[string]int{},
		}
		s.fakeCluster = newFakeClusterOn(t, kubetest.NewAPIWithoutNetwork(t), func(c *kubetest.Container) int {
			return s.runner(c, job)
		})
		s.Service = s.service
		e := newCluster(t, Options{
			Config: s.Config(), Namespace: testNamespace, Agent: "agent-1",
			Log: slog.New(slog.NewTextHandler(s.log, nil)),
		}).Executor("")
		template := testJob()
		spec := runtime.PoolSpec{Name: template.PoolName, Identity: template.Identity, Tuning: runtime.Tuning{
			MaxJobs: 10, PollingInterval: time.Second, StatusInterval: 30 * time.Second,
		}}
		simulatedPool := pool.New(spec, pool.Parts{
			Cloud: s, Executor: e, Agent: "agent-1", Close: e.Close, Environ: environ(nil),
			Log: slog.New(slog.NewTextHandler(s.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- simulatedPool.Run(ctx) }()
		scenario(s)
		stop()
		if err := <-ended; err != nil {
			t.Errorf("the pool ended with %v", err)
		}
		if bad := s.service.Violations(); len(bad) > 0 {
			t.Errorf("invalid requests to the service: %q", bad)
		}
		if t.Failed() {
			t.Logf("the log of the agent:\n%s", s.log)
		}
	})
}

// runner simulates the runner in a job's container, without a network.
func (s *simulated) runner(c *kubetest.Container, work func(s *simulated, id string)) int {
	id := c.Pod.Annotations[annotationJob]
	handoffs := s.handoffs()
	h := handoffs[len(handoffs)-1]
	s.mu.Lock()
	job := s.jobs[id]
	s.opened[id]++
	s.mu.Unlock()
	report := func(report runtime.Report) {
		if err := s.service.Report(context.Background(), job, report); err != nil {
			s.t.Errorf("report of the runner of %s: %v", id, err)
		}
		if report.Status == runtime.Succeeded {
			fmt.Fprintf(c, `{"step":%d,"lines":0,"status":"succeeded"}`+"\n", report.Step)
		}
	}
	report(runtime.Report{Step: 0, Offset: h.SetupLines, Lines: h.Pending, Status: runtime.Succeeded})
	report(runtime.Report{Step: 1, Status: runtime.Running})
	work(s, id)
	report(runtime.Report{Step: 1, Status: runtime.Succeeded})
	s.mu.Lock()
	s.ends[id] = append(s.ends[id], "succeeded")
	s.mu.Unlock()
	return runtime.CodeSucceeded
}

// add queues a job.
func (s *simulated) add(id string) {
	job := s.job(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = append(s.queue, job)
	s.jobs[id] = job
}

// Claim returns the next job of the queue.
func (s *simulated) Claim(context.Context) (runtime.Claim, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	claim := runtime.Claim{Next: runtime.NextPoll{At: time.Now().Add(5 * time.Second)}}
	if len(s.queue) > 0 {
		claim.Job, s.queue = s.queue[0], s.queue[1:]
	}
	return claim, nil
}

// Report receives the reports of the agent.
func (s *simulated) Report(ctx context.Context, job *runtime.Job, report runtime.Report) error {
	if report.Status == runtime.Failed {
		s.mu.Lock()
		s.ends[job.ID] = append(s.ends[job.ID], "failed by the agent")
		s.mu.Unlock()
	}
	return s.service.Report(ctx, job, report)
}

// unclaimed returns the number of jobs in the queue.
func (s *simulated) unclaimed() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.queue)
}

// wantSuccess checks that each job ran once, succeeded once, and left no Pods.
func (s *simulated) wantSuccess(ids ...string) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		record := s.service.Record(id)
		if got := s.ends[id]; len(got) != 1 || got[0] != "succeeded" || s.opened[id] != 1 {
			s.t.Errorf("the outcomes of %s are %q, and it ran %d times, want one success and one run; "+
				"log of step 0:\n%s", id, got, s.opened[id], record.Text(0))
		}
		if states := fmt.Sprint(record.Statuses()); states != "[succeeded succeeded]" {
			s.t.Errorf("the steps of %s are %s, want two successes", id, states)
		}
	}
	s.fakeCluster.mu.Lock()
	defer s.fakeCluster.mu.Unlock()
	if len(s.keys) != len(ids) {
		s.t.Errorf("%d Pods were started for %d jobs, want one Pod per job", len(s.keys), len(ids))
	}
	s.wantNoPods(s.t)
}

// wantLine checks that step 0 of a job contains a line.
func (s *simulated) wantLine(id, line string) {
	s.t.Helper()
	if text := s.service.Record(id).Text(0); !strings.Contains(text, line) {
		s.t.Errorf("step 0 of %s has\n%s\nwant %q", id, text, line)
	}
}

// wait waits for a span of simulated time, and then until all goroutines are blocked.
func (s *simulated) wait(span time.Duration) {
	time.Sleep(span) // simulated
	synctest.Wait()
}

func TestExecutorOutage(t *testing.T) {
	spans := map[string]time.Duration{"ends-meanwhile": 3 * time.Minute, "ends-later": 12 * time.Minute}
	work := func(_ *simulated, id string) { time.Sleep(spans[id]) }
	for name, fault := range map[string]kubetest.Fault{
		"broken connections":   {},
		"requests hang":        {Hang: time.Hour},
		"status 503":           {Status: 503, Message: "apiserver is shutting down"},
		"status 429":           {Status: 429, RetryAfter: 3600},
		"proxy pages with 404": {Status: 404, Page: "<html>no such host</html>", MediaType: "text/html"},
		"proxy pages with 200": {Status: 200, Page: "<html>Welcome</html>", MediaType: "text/html"},
		"invalid protobuf": {
			Status: 200, Page: "k8s\x00\xff\xfe\xfd", MediaType: "application/vnd.kubernetes.protobuf",
		},
		"credentials refused": {Status: 401, Message: "Unauthorized"},
	} {
		simulate(t, name, work, func(s *simulated) {
			// During an outage of five minutes, one job ends, and the init container of
			// another one reports its key. A third job ends after the outage.
			s.before(prepareContainer, func(pod *corev1.Pod) {
				if pod.Annotations[annotationJob] == "starts-meanwhile" {
					time.Sleep(time.Minute)
				}
			})
			s.add("ends-meanwhile")
			s.add("ends-later")
			s.wait(time.Minute)
			s.add("starts-meanwhile")
			s.wait(30 * time.Second)

			// The create of another job starts the outage. Credentials are refused for
			// only ten seconds: a longer refusal is an error.
			span := 5 * time.Minute
			if fault.Status == 401 {
				span = 10 * time.Second
			}
			var mu sync.Mutex
			broken := false
			s.Inject(func(r kubetest.Request) *kubetest.Fault {
				mu.Lock()
				defer mu.Unlock()
				broken = broken || r.Verb == "create" && bytes.Contains(r.Body, []byte("created-meanwhile"))
				if !broken {
					return nil
				}
				return &fault
			})
			s.add("created-meanwhile")
			s.wait(5 * time.Second)
			s.DropWatches()
			s.wait(span - 5*time.Second)
			s.add("claimed-later")
			if fault.Status != 401 && fault.Hang == 0 {
				s.wait(30 * time.Second)
				if s.unclaimed() != 1 {
					s.t.Error("a job was claimed although none can be started")
				}
				s.wantLine("created-meanwhile", "The Pod cannot be created yet, retrying: ")
				s.wantLine("starts-meanwhile", "Waiting for the cluster: watch the Pod: ")
			}

			// End the outage.
			s.Inject(nil)
			s.DropWatches()
			s.wait(15 * time.Minute)
			s.wantSuccess("ends-meanwhile", "ends-later", "starts-meanwhile", "created-meanwhile", "claimed-later")
		})
	}
}
