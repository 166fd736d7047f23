package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/kube/kubetest"
	"github.com/cmwa-project/cmwa/runtime/kube/records"
	"github.com/cmwa-project/cmwa/runtime/pool"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
)

// rollback is a fake cluster in simulated time, with the agents agent-x and agent-y of one
// Deployment. The agent agent-x runs job-1, whose container runs until release is called. A user who
// may write ConfigMaps has kept the first text of the job's record.
type rollback struct {
	*fakeCluster
	t       *testing.T
	agents  *agents
	cloud   *runtimetest.Cloud
	first   *corev1.ConfigMap // the record before the job had its handoff
	release func()
	stops   map[string]func() // of the agents that run
}

// rolledBack runs a scenario as a subtest. The agents end after the scenario.
func rolledBack(t *testing.T, name string, scenario func(s *rollback)) {
	inBubble(t, name, func(t *testing.T) {
		released := make(chan struct{})
		s := &rollback{
			t: t, cloud: runtimetest.NewCloud(), stops: map[string]func(){},
			release: func() { close(released) },
		}
		s.fakeCluster = newFakeClusterOn(t, kubetest.NewAPIWithoutNetwork(t), func(c *kubetest.Container) int {
			select {
			case <-released:
				s.cloud.SetJobStatus("job-1", runtime.Completing)
				return succeed(c)
			case <-c.Term:
				return 143
			}
		})
		s.kubelet.Hold = func(pod *corev1.Pod) *corev1.PodStatus {
			if strings.HasPrefix(pod.Name, "agent-") {
				return &corev1.PodStatus{Phase: corev1.PodRunning}
			}
			return nil
		}
		s.before(prepareContainer, func(*corev1.Pod) {
			if s.first == nil {
				s.first = s.Objects(configMaps, testNamespace)[0].(*corev1.ConfigMap).DeepCopy()
			}
		})
		s.agents = &agents{API: s.API}
		s.agents.put("agent-x", "agent")
		s.agents.put("agent-y", "agent")
		s.cloud.Queue("job-1")
		s.run("agent-x")
		s.wantOneRun()
		scenario(s)
		for _, stop := range s.stops {
			stop()
		}
		if t.Failed() {
			t.Logf("the log of the agents:\n%s", s.agents.log.String())
		}
	})
}

// run starts the pool of an agent.
func (s *rollback) run(agent string) {
	s.t.Helper()
	e := s.agents.agent(s.t, agent)
	template := testJob()
	spec := runtime.PoolSpec{Name: template.PoolName, Identity: template.Identity, Tuning: journalTuning()}
	spec.Tuning.MaxJobs, spec.Tuning.PollingInterval, spec.Tuning.StatusInterval = 10, time.Second, 30*time.Second
	p := pool.New(spec, pool.Parts{
		Cloud: s.cloud, Executor: e, Journal: journalWithKey(s.t, e, spec), Agent: "id-of-" + agent,
		Environ: environ(nil),
		Log:     slog.New(slog.NewTextHandler(&s.agents.log, nil)).With("agent", agent),
	})
	ctx, cancel := context.WithCancel(s.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	s.stops[agent] = func() {
		delete(s.stops, agent)
		cancel()
		if err := <-ended; err != nil {
			s.t.Errorf("the pool of %s ended with %v", agent, err)
		}
	}
	s.wait(time.Minute)
}

// wait waits for a span of simulated time.
func (s *rollback) wait(span time.Duration) {
	time.Sleep(span)
	synctest.Wait()
}

// writeBack replaces the record of the job by its first text, with this agent as its owner. It creates
// the record if there is none.
func (s *rollback) writeBack(agent owner) {
	o := s.first.DeepCopy()
	o.ResourceVersion = "rolled back"
	self{owner: agent, group: o.Labels[labelGroup]}.mark(o)
	s.PutObject(configMaps, o)
}

// wantOneRun checks that job-1 has had exactly one Pod, and has received one handoff.
func (s *rollback) wantOneRun() {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.keys) != 1 || len(s.received) != 1 {
		s.t.Errorf("%d Pods of the job were started, and %d handoffs opened, want 1 of each",
			len(s.keys), len(s.received))
	}
}

// TestJournalRollback writes back the first text of a record, whose stage is claimed, although the job runs.
func TestJournalRollback(t *testing.T) {
	dead := owner{Namespace: testNamespace, Name: "agent-z", UID: "uid-of-agent-z"}

	// finish ends the job, and checks that it ran once and that nothing is left.
	finish := func(s *rollback) {
		s.t.Helper()
		s.release()
		s.wait(2 * time.Minute)
		s.wantOneRun()
		for _, pod := range s.Pods(testNamespace) {
			if pod.Labels[labelJob] != "" {
				s.t.Errorf("the Pod %s is left", pod.Name)
			}
		}
		s.agents.wantRecords(s.t)
	}

	rolledBack(t, "to an agent that never existed, while another replica runs the job", func(s *rollback) {
		s.writeBack(dead)
		s.run("agent-y")
		s.wantOneRun()
		s.Drop(testNamespace, "agent-x")
		s.stops["agent-x"]()
		s.wait(time.Minute)
		if got := ownerOf(s.jobPod()).Name; got != "agent-y" {
			s.t.Errorf("the Pod belongs to %s, want agent-y", got)
		}
		finish(s)
	})
	rolledBack(t, "before a rolling update", func(s *rollback) {
		s.stops["agent-x"]()
		s.writeBack(ownerOf(s.first))
		s.Drop(testNamespace, "agent-x")
		s.run("agent-y")
		finish(s)
	})
	rolledBack(t, "after the job was adopted", func(s *rollback) {
		s.stops["agent-x"]()
		s.Drop(testNamespace, "agent-x")
		s.run("agent-y")
		s.writeBack(ownerOf(s.first))
		s.wait(5 * time.Minute)
		finish(s)
	})
	rolledBack(t, "before the agent's container is restarted", func(s *rollback) {
		s.stops["agent-x"]()
		s.writeBack(ownerOf(s.first))
		s.run("agent-x")
		finish(s)
	})
	rolledBack(t, "after the job has ended", func(s *rollback) {
		s.stops["agent-x"]()
		s.Drop(testNamespace, "agent-x")
		s.run("agent-y")
		finish(s)
		s.writeBack(ownerOf(s.first))
		s.wait(2 * time.Minute)
		s.wantOneRun()
		s.agents.wantRecords(s.t)
		if !strings.Contains(s.agents.log.String(), "job has already ended at the service") {
			s.t.Error("the agent has not asked the service whether the job has ended")
		}
	})
	rolledBack(t, "ten minutes after the claim, while the service accepts heartbeats of the job", func(s *rollback) {
		s.stops["agent-x"]()
		s.Drop(testNamespace, "agent-x")
		s.run("agent-y")
		s.wait(10 * time.Minute)
		finish(s)
		s.cloud.SetJobStatus("job-1", runtime.Continue)
		s.writeBack(ownerOf(s.first))
		s.wait(2 * time.Minute)
		s.wantOneRun()
	})
	rolledBack(t, "to an agent that exists and does not have the Pod", func(s *rollback) {
		y := s.agents.podOf(s.t, "agent-y")
		s.writeBack(owner{testNamespace, y.Name, string(y.UID)})
		s.run("agent-y")
		s.wantOneRun()
		s.stops["agent-x"]()
		s.Drop(testNamespace, "agent-x")
		s.wait(2 * time.Minute)
		finish(s)
	})
}

// jobPod returns the only Pod of a job.
func (s *rollback) jobPod() *corev1.Pod {
	s.t.Helper()
	for _, pod := range s.Pods(testNamespace) {
		if pod.Labels[labelJob] != "" {
			return &pod
		}
	}
	s.t.Fatal("the job has no Pod")
	return nil
}

// editRecord changes the only record, as a user who may write ConfigMaps can.
func (a *agents) editRecord(change func(*corev1.ConfigMap)) {
	o := a.Objects(configMaps, testNamespace)[0].(*corev1.ConfigMap).DeepCopy()
	o.ResourceVersion += "-edited"
	change(o)
	a.PutObject(configMaps, o)
}

// TestJournalEdited edits the record of a job that starts.
func TestJournalEdited(t *testing.T) {
	deadOwner := func(o *corev1.ConfigMap) {
		self{owner: owner{testNamespace, "agent-z", "uid-of-agent-z"}, group: o.Labels[labelGroup]}.mark(o)
	}
	for name, change := range map[string]func(*corev1.ConfigMap){
		"owner that does not exist":    deadOwner,
		"no labels and no annotations": func(o *corev1.ConfigMap) { o.Labels, o.Annotations = nil, nil },
	} {
		t.Run(name, func(t *testing.T) {
			a, all := newAgents(t, "agent-x")
			j := journalOf(all[0])
			j.add(t, "job-1")
			a.editRecord(change)
			j.start(t, "job-1", a.podOf(t, a.waiting(t, all[0], 0)))
			a.wantRecords(t, "job-1")
			if got := ownerOf(a.Objects(configMaps, testNamespace)[0]); got != all[0].self.owner {
				t.Errorf("the record belongs to %+v, want the agent", got)
			}
			a.editRecord(change)
			j.remove(t, "job-1")
			a.wantRecords(t)
		})
	}

	t.Run("two agents start the job", func(t *testing.T) {
		for _, deleted := range []bool{false, true} {
			a, all := newAgents(t, "agent-x", "agent-y")
			first, second := journalOf(all[0]), journalOf(all[1])
			first.add(t, "job-1")
			a.editRecord(deadOwner)
			second.wantAdopted(t, "job-1", runtime.RecordClaimed)
			if deleted {
				text := a.Objects(configMaps, testNamespace)[0].(*corev1.ConfigMap)
				if err := all[0].removeObject(t.Context(), configMaps, text.Name); err != nil {
					t.Fatal(err)
				}
			}

			// Each agent creates its Pod before it records the handoff.
			for i, e := range all {
				a.putJob(t, e, "job-1", 0, func(p *corev1.Pod) { p.Name += fmt.Sprint("-", i) })
			}
			started := 0
			for _, j := range []journal{first, second} {
				switch err := j.SetStage(t.Context(), "job-1", runtime.RecordHandedOff); {
				case err == nil, errors.Is(err, runtime.ErrNoRecord): // then the job runs without a record
					started++
				case !errors.Is(err, runtime.ErrGone):
					t.Errorf("SetStage: got %v, want ErrGone", err)
				}
			}
			if started > 1 {
				t.Errorf("deleted=%v: %d agents start the job, want at most 1", deleted, started)
			}
		}
	})
}

// stageHook is a journal that calls a function before it changes a stage.
type stageHook struct {
	*records.Store
	before func()
}

func (h stageHook) SetStage(ctx context.Context, job string, stage runtime.RecordStage) error {
	h.before()
	return h.Store.SetStage(ctx, job, stage)
}

// journalWithKey returns the journal of a pool.
func journalWithKey(t *testing.T, e *Executor, spec runtime.PoolSpec) *records.Store {
	t.Helper()
	j, ok := e.Journal(spec.Key(), spec.Tuning)
	if !ok {
		t.Fatal("the pool has no journal")
	}
	return j.(*records.Store)
}

// TestJournalRollbackOnCluster writes back the first version of the record of a job that runs, and
// deletes its agent's Pod by force.
func TestJournalRollbackOnCluster(t *testing.T) {
	t.Parallel()
	n := onCluster(t)
	a, deployment := adminOf(t, n), newReplicas(t, n)
	names := deployment.await(t)
	service, job := newScriptJob(t, n.HostAddress(t), "echo started; sleep 15; echo ended")
	service.Add(job)
	spec := runtime.PoolSpec{Name: "main", Identity: job.Identity, Tuning: job.Tuning}
	spec.Identity.Service = job.Service
	spec.Tuning.Token, spec.Tuning.MaxJobs, spec.Tuning.StatusInterval = journalTuning().Token, 2, time.Hour
	spec.Tuning.Kinds = []runtime.Kind{runtime.Deployment}
	var first *corev1.ConfigMap // the record before the handoff, as in a backup of the namespace
	keep := func() {
		var list corev1.ConfigMapList
		err := a.get(configMaps).Param("labelSelector", labelRecord+"="+recordValue).Do(t.Context()).Into(&list)
		if first == nil && err == nil && len(list.Items) == 1 {
			first = &list.Items[0]
		}
	}
	run := func(agent string, jobs chan *runtime.Job) (stop func()) {
		e := deployment.agent(t, agent)
		p := pool.New(spec, pool.Parts{
			Cloud: &oneJob{service, jobs}, Executor: e, Agent: "id-of-" + agent, Environ: environ(nil),
			Journal: stageHook{journalWithKey(t, e, spec), keep},
			Log:     slog.New(slog.NewTextHandler(t.Output(), nil)).With("agent", agent),
		})
		ended := make(chan error, 1)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { ended <- p.Run(ctx) }()
		return sync.OnceFunc(func() { cancel(); <-ended })
	}
	jobs := make(chan *runtime.Job, 1)
	jobs <- job
	stop := run(names[0], jobs)
	defer stop()
	service.Await(t, job.ID, "the step to start", func(r runtimetest.Record) bool {
		return strings.Contains(r.Text(1), "started")
	})
	before := podsOfJob(t, n, job)

	// The agent is killed, and the record is restored.
	stop()
	first.ResourceVersion = ""
	err := a.core.Put().Namespace(n.Name).Resource(configMaps).Name(first.Name).Body(first).Do(t.Context()).Error()
	if err != nil {
		t.Fatal(err)
	}
	deployment.delete(names[0])
	stop = run(names[1], make(chan *runtime.Job))
	defer stop()

	// The job runs once, in its first Pod.
	service.Await(t, job.ID, "the job to end", func(r runtimetest.Record) bool {
		after := podsOfJob(t, n, job)
		if len(after) > 1 || len(after) == 1 && !slices.Equal(before, after) {
			t.Fatalf("the job has the Pods %v, and had %v", after, before)
		}
		status := r.Statuses()[1]
		return status == runtime.Succeeded || status == runtime.Failed
	})
	text := service.Record(job.ID).Text(1)
	if strings.Count(text, "started\n") != 1 || !strings.Contains(text, "ended\n") {
		t.Errorf("step 1 printed\n%s", text)
	}
	await(t, "the end of the Pod and of the record", func(ctx context.Context) (bool, error) {
		var list corev1.ConfigMapList
		err := a.get(configMaps).Param("labelSelector", labelRecord+"="+recordValue).Do(ctx).Into(&list)
		return len(list.Items)+len(podsOfJob(t, n, job)) == 0, err
	})
}
