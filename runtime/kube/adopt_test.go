package kube

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/kube/kubetest"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
)

// agents is a fake cluster with agents in Pods of the Deployment "agent". Their
// jobs are Pods that do nothing.
type agents struct {
	*kubetest.API
	log lockedBuffer // of all executors
}

// lockedBuffer is a buffer that several goroutines write to.
type lockedBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// put creates the Pod of an agent, and deletes an older one of its name.
func (a *agents) put(name, deployment string) {
	a.Drop(testNamespace, name)
	pod := agentPodWith(name, "ReplicaSet", deployment+"-1", "1")
	pod.Namespace, pod.UID = testNamespace, ""
	pod.Spec.Containers = []corev1.Container{{Name: "agent", Image: agentImage}}
	pod.Status.Phase = corev1.PodRunning
	a.Put(pod)
}

// cluster returns the connection of the agent in a Pod.
func (a *agents) cluster(t testing.TB, pod string) *Cluster {
	t.Helper()
	cluster, err := New(Options{
		RunnerDirectory: runnerDirectory, Config: a.Config(), Namespace: testNamespace, Pod: pod,
		Image: agentImage, Agent: "id-of-" + pod, Log: slog.New(slog.NewTextHandler(&a.log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	return cluster
}

// agent returns an executor of the agent in a Pod.
func (a *agents) agent(t testing.TB, pod string) *Executor {
	t.Helper()
	cluster := a.cluster(t, pod)
	if err := cluster.Identify(t.Context()); err != nil {
		t.Fatal(err)
	}
	e := cluster.Executor("")
	t.Cleanup(e.Close)
	if err := e.pods.ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	return e
}

// worker creates the Pod of a job that an agent has started, and returns its name.
func (a *agents) worker(t testing.TB, e *Executor, id string) string {
	t.Helper()
	job := testJob()
	job.ID, job.Agent = id, e.cluster.options.Agent
	pod, err := podOf(job, namePrefix+id, e.podSettings())
	if err != nil {
		t.Fatal(err)
	}
	pod.Namespace = testNamespace
	pod.Annotations[annotationHandoff] = "sealed"
	pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{
		Name: mainContainer, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}},
	}}}
	a.Put(pod)
	return pod.Name
}

// seen waits until the watch of an executor shows what the condition demands.
func seen(t testing.TB, e *Executor, what string, condition func(all map[string]*state) bool) {
	t.Helper()
	limit := time.After(testLimit)
	for {
		all := map[string]*state{}
		e.pods.each(func(s *state) { all[s.name] = s })
		if condition(all) {
			return
		}
		select {
		case <-limit:
			t.Fatalf("the watch does not show %s: %+v", what, all)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// shows waits until the watch of an executor shows a Pod with this owner.
func shows(t testing.TB, e *Executor, name string, o owner) {
	t.Helper()
	seen(t, e, fmt.Sprintf("%s of %s", name, o.Name), func(all map[string]*state) bool {
		return all[name] != nil && all[name].owner.Value() == o
	})
}

func everyPool(string) bool { return true }

// adopt calls AdoptOrphans, and returns the ids of the adopted jobs.
func adopt(t testing.TB, e *Executor) ([]string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testLimit)
	defer cancel()
	found, err := e.AdoptOrphans(ctx, everyPool)
	var jobs []string
	for _, f := range found {
		jobs = append(jobs, f.Job)
	}
	slices.Sort(jobs)
	return jobs, err
}

// wantAdopted checks what one call of AdoptOrphans adopts.
func wantAdopted(t testing.TB, e *Executor, want ...string) {
	t.Helper()
	if got, err := adopt(t, e); err != nil || !slices.Equal(got, want) {
		t.Errorf("adopted %v, %v, want %v", got, err, want)
	}
}

func newAgents(t testing.TB, names ...string) (*agents, []*Executor) {
	t.Helper()
	a := &agents{API: kubetest.NewAPI(t)}
	var all []*Executor
	for _, name := range names {
		a.put(name, "agent")
		all = append(all, a.agent(t, name))
	}
	return a, all
}

func TestIdentify(t *testing.T) {
	get := func(fault kubetest.Fault) func(kubetest.Request) *kubetest.Fault { return times(1, "get", fault) }
	t.Run("agent in a Pod", func(t *testing.T) {
		a, all := newAgents(t, "agent-x")
		if got := all[0].self; got.owner.Name != "agent-x" || got.owner.UID == "" || got.group != testNamespace+".deployment.agent" {
			t.Errorf("got %+v", got)
		}
		for range 3 {
			if err := all[0].cluster.Identify(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if n := a.Requests()["get"]; n != 1 {
			t.Errorf("%d requests for the agent's own Pod, want 1", n)
		}
		if !all[0].Owned() || !all[0].LeavesJobs() || strings.Contains(a.log.String(), "WARN") {
			t.Errorf("owned: %v, leaves jobs: %v; the log:\n%s", all[0].Owned(), all[0].LeavesJobs(), &a.log)
		}
	})
	t.Run("many pools at once", func(t *testing.T) {
		a, _ := newAgents(t)
		a.put("agent-x", "agent")
		cluster := a.cluster(t, "agent-x")
		var group sync.WaitGroup
		for range 20 {
			group.Go(func() {
				if err := cluster.Identify(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		group.Wait()
		if n := a.Requests()["get"]; n != 1 {
			t.Errorf("%d requests for the agent's own Pod, want 1", n)
		}
	})
	t.Run("agent outside of a cluster", func(t *testing.T) {
		a, _ := newAgents(t)
		cluster := a.cluster(t, "")
		if err := cluster.Identify(t.Context()); err != nil || a.Requests()["get"] > 0 || a.log.String() != "" {
			t.Errorf("got %v after %v; the log:\n%s", err, a.Requests(), &a.log)
		}
		e := cluster.Executor("")
		defer e.Close()
		if e.Owned() || e.LeavesJobs() {
			t.Error("it behaves as in a Pod")
		}
	})
	for name, c := range map[string]struct {
		fault kubetest.Fault
		cure  string
	}{
		"right is missing": {kubetest.Fault{Status: http.StatusForbidden, Message: `pods "agent-x" is forbidden`}, "grant get on pods"},
		"name is not that of the Pod": {
			kubetest.Fault{Status: http.StatusNotFound, Message: `pods "agent-x" not found`}, "POD_NAME from metadata.name",
		},
	} {
		t.Run(name, func(t *testing.T) {
			a, _ := newAgents(t)
			a.put("agent-x", "agent")
			a.Inject(times(2, "get", c.fault))
			cluster := a.cluster(t, "agent-x")
			for range 2 {
				if err := cluster.Identify(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			e := cluster.Executor("")
			defer e.Close()
			if log := a.log.String(); strings.Count(log, "level=WARN") != 1 || !strings.Contains(log, c.cure) {
				t.Errorf("want one warning with the cure %q; the log:\n%s", c.cure, log)
			}
			if e.Owned() || !e.LeavesJobs() || e.pods.selector != watched(self{}, "id-of-agent-x") {
				t.Errorf("owned: %v, leaves jobs: %v, selector %s", e.Owned(), e.LeavesJobs(), e.pods.selector)
			}
			wantAdopted(t, e)
			if err := cluster.Identify(t.Context()); err != nil || !cluster.selfNow().known() {
				t.Errorf("after the cure: %+v, %v", cluster.selfNow(), err)
			}
		})
	}
	for name, fault := range map[string]kubetest.Fault{
		"API server answers with 500": {Status: http.StatusInternalServerError, Message: "etcd is slow"},
		"API server is down":          {},
		"credentials are refused":     {Status: http.StatusUnauthorized},
	} {
		t.Run(name, func(t *testing.T) {
			a, _ := newAgents(t)
			a.put("agent-x", "agent")
			a.Inject(get(fault))
			if fault.Status == 0 { // which client-go repeats
				a.Inject(func(kubetest.Request) *kubetest.Fault { return &fault })
			}
			cluster := a.cluster(t, "agent-x")
			if err := cluster.Identify(t.Context()); err == nil {
				t.Error("no error: the agent would go by its id until it ends")
			}
			a.Inject(nil)
			if err := cluster.Identify(t.Context()); err != nil || !cluster.selfNow().known() {
				t.Errorf("afterwards: %+v, %v", cluster.selfNow(), err)
			}
		})
	}
}

func TestAdoptOrphans(t *testing.T) {
	t.Run("nothing of others is there", func(t *testing.T) {
		a, all := newAgents(t, "agent-x")
		shows(t, all[0], a.worker(t, all[0], "job-1"), all[0].self.owner)
		before := a.Requests()
		for range 10 {
			wantAdopted(t, all[0])
		}
		if after := a.Requests(); fmt.Sprint(after) != fmt.Sprint(before) {
			t.Errorf("requests: %v before, %v after", before, after)
		}
	})
	t.Run("agent exists", func(t *testing.T) {
		a, all := newAgents(t, "agent-x", "agent-y")
		for i := range 5 {
			shows(t, all[1], a.worker(t, all[0], fmt.Sprint("job-", i)), all[0].self.owner)
		}
		before := a.Requests()["get"]
		for range 10 {
			wantAdopted(t, all[1])
		}
		if n := a.Requests()["get"] - before; n != 1 {
			t.Errorf("%d requests for one agent with five jobs, want 1", n)
		}
	})
	t.Run("agent is deleted", func(t *testing.T) {
		a, all := newAgents(t, "agent-x", "agent-y")
		name := a.worker(t, all[0], "job-1")
		shows(t, all[1], name, all[0].self.owner)
		a.Drop(testNamespace, "agent-x")
		found, err := all[1].AdoptOrphans(t.Context(), everyPool)
		want := testJob()
		if err != nil || len(found) != 1 || !found[0].Running || found[0].Job != "job-1" ||
			found[0].Pool != (runtime.PoolSpec{Name: want.PoolName, Identity: want.Identity}).Key() {
			t.Fatalf("adopted %+v, %v", found, err)
		}
		listed, err := all[1].List(t.Context(), "id-of-agent-y")
		if err != nil || len(listed) != 1 || listed[0].ID != found[0].ID {
			t.Errorf("afterwards the list has %+v, %v", listed, err)
		}
		if listed, err := all[0].List(t.Context(), "id-of-agent-x"); err != nil || len(listed) > 0 {
			t.Errorf("the agent before lists %+v, %v", listed, err)
		}
		shows(t, all[1], name, all[1].self.owner)
		wantAdopted(t, all[1])
		for _, pod := range a.Pods(testNamespace) {
			if pod.Name == name && (pod.Labels[labelAgent] != "id-of-agent-y" || pod.Annotations[annotationHandoff] != "sealed" ||
				len(pod.Spec.Containers) != 1 || len(pod.Spec.InitContainers) != 1 || pod.Labels[labelJob] != "job-1") {
				t.Errorf("the adopted Pod is %+v", pod)
			}
		}
	})
	t.Run("pool of another", func(t *testing.T) {
		a, all := newAgents(t, "agent-x", "agent-y")
		shows(t, all[1], a.worker(t, all[0], "job-1"), all[0].self.owner)
		a.Drop(testNamespace, "agent-x")
		before := a.Requests()["get"]
		if found, err := all[1].AdoptOrphans(t.Context(), func(string) bool { return false }); err != nil || len(found) > 0 {
			t.Errorf("adopted %+v, %v", found, err)
		}
		if n := a.Requests()["get"] - before; n > 0 {
			t.Errorf("%d requests for jobs of other pools", n)
		}
	})
	t.Run("agent with the name of one before", func(t *testing.T) {
		a, all := newAgents(t, "agent-0")
		name := a.worker(t, all[0], "job-1")
		a.put("agent-0", "agent")
		again := a.agent(t, "agent-0")
		shows(t, again, name, all[0].self.owner)
		if listed, err := again.List(t.Context(), "id-of-agent-0"); err != nil || len(listed) > 0 {
			t.Errorf("it lists %+v of the one before, %v", listed, err)
		}
		wantAdopted(t, again, "job-1")
	})
	t.Run("container of the agent starts again", func(t *testing.T) {
		a, all := newAgents(t, "agent-x")
		a.worker(t, all[0], "job-1")
		again := a.agent(t, "agent-x")
		listed, err := again.List(t.Context(), "another id")
		if err != nil || len(listed) != 1 || listed[0].Job != "job-1" {
			t.Errorf("it lists %+v, %v", listed, err)
		}
		wantAdopted(t, again)
	})
	t.Run("agent is evicted", func(t *testing.T) {
		a, all := newAgents(t, "agent-x", "agent-y")
		shows(t, all[1], a.worker(t, all[0], "job-1"), all[0].self.owner)
		a.Change(testNamespace, "agent-x", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })
		wantAdopted(t, all[1], "job-1")
	})
	t.Run("agent drains", func(t *testing.T) {
		a, all := newAgents(t, "agent-x", "agent-y")
		shows(t, all[1], a.worker(t, all[0], "job-1"), all[0].self.owner)
		a.Change(testNamespace, "agent-x", func(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.Now()) })
		wantAdopted(t, all[1])
	})
	t.Run("jobs that have ended", func(t *testing.T) {
		a, all := newAgents(t, "agent-x", "agent-y")
		ended, begun := a.worker(t, all[0], "ended"), a.worker(t, all[0], "begun")
		a.Change(testNamespace, ended, mainIs(ends(mainContainer, 10, "Error", "")))
		a.Change(testNamespace, begun, func(p *corev1.Pod) { delete(p.Annotations, annotationHandoff) })
		shows(t, all[1], begun, all[0].self.owner)
		a.Drop(testNamespace, "agent-x")
		found, err := all[1].AdoptOrphans(t.Context(), everyPool)
		if err != nil || len(found) != 2 || found[0].Running || found[1].Running {
			t.Errorf("adopted %+v, %v, want two that have ended", found, err)
		}
	})
	t.Run("kept Pod", func(t *testing.T) {
		a, all := newAgents(t, "agent-x", "agent-y")
		name := a.worker(t, all[0], "job-1")
		shows(t, all[1], name, all[0].self.owner)
		if err := all[0].keep(t.Context(), name, string(a.Pods(testNamespace)[2].UID)); err != nil {
			t.Fatal(err)
		}
		a.Drop(testNamespace, "agent-x")
		wantAdopted(t, all[1])
		a.Change(testNamespace, name, func(p *corev1.Pod) { p.Annotations[annotationKept] = "now" })
		if removed, err := all[1].Sweep(t.Context(), nil); err != nil || len(removed) != 1 {
			t.Errorf("swept %v, %v", removed, err)
		}
	})
	t.Run("pools in several namespaces", func(t *testing.T) {
		a, all := newAgents(t, "agent-x", "agent-y")
		here, there := all[1], all[1].cluster.Executor("elsewhere")
		t.Cleanup(there.Close)
		name := a.worker(t, all[0], "job-1")
		for _, pod := range a.Pods(testNamespace) {
			if pod.Name == name {
				moved := pod.DeepCopy()
				moved.Namespace, moved.UID = "elsewhere", ""
				a.Put(moved)
				a.Drop(testNamespace, name)
			}
		}
		shows(t, there, name, all[0].self.owner)
		a.Drop(testNamespace, "agent-x")
		wantAdopted(t, here)
		wantAdopted(t, there, "job-1")
		if pods := a.Pods("elsewhere"); len(pods) != 1 || ownerOf(&pods[0]) != there.self.owner || there.self.owner.Namespace != testNamespace {
			t.Errorf("the Pods elsewhere are %+v", pods)
		}
	})
	t.Run("another Deployment", func(t *testing.T) {
		a, all := newAgents(t, "agent-x")
		name := a.worker(t, all[0], "job-1")
		a.put("other-x", "other")
		other := a.agent(t, "other-x")
		a.Drop(testNamespace, "agent-x")
		wantAdopted(t, other)
		other.pods.each(func(s *state) { t.Errorf("it watches %s", s.name) })
		release := func(p *corev1.Pod) { release(p, time.Now().Add(-time.Hour)) }
		a.Change(testNamespace, name, release)
		if removed, err := other.Sweep(t.Context(), nil); err != nil || len(removed) > 0 {
			t.Errorf("it swept %v, %v", removed, err)
		}
	})
}

func TestAdoptOrphansWithFaults(t *testing.T) {
	// begin returns a cluster with a running job whose agent does not exist any more.
	begin := func(t *testing.T) (a *agents, e *Executor, name string, before owner) {
		a, all := newAgents(t, "agent-x", "agent-y")
		name = a.worker(t, all[0], "job-1")
		shows(t, all[1], name, all[0].self.owner)
		a.Drop(testNamespace, "agent-x")
		return a, all[1], name, all[0].self.owner
	}
	for name, fault := range map[string]kubetest.Fault{
		"403":      {Status: http.StatusForbidden, Message: "not allowed"},
		"500":      {Status: http.StatusInternalServerError, Message: "etcd is slow"},
		"time-out": {Status: http.StatusGatewayTimeout, Message: "Timeout: request did not complete"},
	} {
		t.Run("request for the owner is answered with "+name, func(t *testing.T) {
			a, e, worker, before := begin(t)
			a.Inject(func(r kubetest.Request) *kubetest.Fault {
				if r.Verb == "get" && r.Name == "agent-x" {
					return &fault
				}
				return nil
			})
			if got, err := adopt(t, e); err == nil || !strings.Contains(err.Error(), "agent-x") || len(got) > 0 {
				t.Errorf("adopted %v, %v, want an error that names the agent's Pod", got, err)
			}
			shows(t, e, worker, before)
			a.Inject(nil)
			wantAdopted(t, e, "job-1")
		})
	}
	t.Run("API server is down", func(t *testing.T) {
		a, e, _, _ := begin(t)
		a.Inject(down)
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		if found, err := e.AdoptOrphans(ctx, everyPool); err == nil || len(found) > 0 {
			t.Errorf("adopted %v, %v", found, err)
		}
		a.Inject(nil)
		wantAdopted(t, e, "job-1")
	})
	t.Run("kubelet reports between read and update", func(t *testing.T) {
		a, e, worker, _ := begin(t)
		left := 2
		a.Inject(func(r kubetest.Request) *kubetest.Fault {
			if r.Verb == "update" && left > 0 {
				left--
				a.Change(testNamespace, worker, func(p *corev1.Pod) { p.Status.Message = fmt.Sprint("report ", left) })
			}
			return nil
		})
		wantAdopted(t, e, "job-1")
		if left > 0 {
			t.Error("no update was tried")
		}
	})
	t.Run("Pod changes before each update", func(t *testing.T) {
		a, e, worker, _ := begin(t)
		a.Inject(func(r kubetest.Request) *kubetest.Fault {
			if r.Verb == "update" {
				a.Change(testNamespace, worker, func(*corev1.Pod) {})
			}
			return nil
		})
		if got, err := adopt(t, e); err == nil || len(got) > 0 {
			t.Errorf("adopted %v, %v", got, err)
		}
		a.Inject(nil)
		wantAdopted(t, e, "job-1")
	})
	t.Run("another agent is first", func(t *testing.T) {
		a, e, worker, _ := begin(t)
		a.put("agent-z", "agent")
		third := a.agent(t, "agent-z")
		a.Inject(func(r kubetest.Request) *kubetest.Fault {
			if r.Verb == "update" {
				a.Change(testNamespace, worker, third.self.mark)
			}
			return nil
		})
		wantAdopted(t, e)
		a.Inject(nil)
		shows(t, e, worker, third.self.owner)
	})
	t.Run("watch is behind", func(t *testing.T) {
		a, e, worker, before := begin(t)
		a.put("agent-z", "agent")
		third := a.agent(t, "agent-z")
		shows(t, third, worker, before)
		a.Inject(func(r kubetest.Request) *kubetest.Fault {
			if r.Verb == "watch" || r.Verb == "list" {
				return &kubetest.Fault{Status: http.StatusServiceUnavailable}
			}
			return nil
		})
		a.DropWatches()
		wantAdopted(t, third, "job-1")
		shows(t, e, worker, before)
		wantAdopted(t, e)
		a.Drop(testNamespace, worker)
		wantAdopted(t, e)
	})
	t.Run("answer of the update is lost", func(t *testing.T) {
		a, e, worker, _ := begin(t)
		a.Inject(times(1, "update", kubetest.Fault{Status: http.StatusInternalServerError, After: true}))
		if got, err := adopt(t, e); err == nil || len(got) > 0 {
			t.Errorf("adopted %v, %v", got, err)
		}
		a.Inject(nil)
		shows(t, e, worker, e.self.owner)
		wantAdopted(t, e, "job-1")
		wantAdopted(t, e)
	})
	t.Run("answer of the update is lost and the Pod is deleted", func(t *testing.T) {
		a, e, worker, _ := begin(t)
		a.Inject(times(1, "update", kubetest.Fault{Status: http.StatusInternalServerError, After: true}))
		if got, err := adopt(t, e); err == nil || len(got) > 0 {
			t.Errorf("adopted %v, %v", got, err)
		}
		a.Drop(testNamespace, worker)
		seen(t, e, "no Pod", func(all map[string]*state) bool { return len(all) == 0 })
		wantAdopted(t, e)
		if len(e.unsure) > 0 {
			t.Errorf("the Pods %v are still unsure", e.unsure)
		}
	})
	t.Run("owner that is damaged", func(t *testing.T) {
		a, e, worker, _ := begin(t)
		a.Change(testNamespace, worker, func(p *corev1.Pod) {
			p.Annotations[annotationOwner], p.Labels[labelOwner] = "{", ""
		})
		shows(t, e, worker, owner{Namespace: testNamespace})
		if got, err := adopt(t, e); err == nil || len(got) > 0 {
			t.Errorf("adopted %v, %v", got, err)
		}
	})
}

func TestAdoptRace(t *testing.T) {
	const rounds = 100
	a, all := newAgents(t, "agent-x", "agent-y", "agent-z")
	for i := range rounds {
		job := fmt.Sprint("job-", i)
		name := a.worker(t, all[0], job)
		dead := owner{testNamespace, fmt.Sprint("dead-", i), "u"}
		a.Change(testNamespace, name, self{owner: dead, group: all[0].self.group}.mark)
		for _, e := range all {
			shows(t, e, name, dead)
		}
		winners := make(chan string, len(all))
		var group sync.WaitGroup
		for _, e := range all {
			group.Go(func() {
				if got, err := adopt(t, e); err != nil || len(got) > 0 && !slices.Equal(got, []string{job}) {
					t.Errorf("round %d: adopted %v, %v", i, got, err)
				} else if len(got) == 1 {
					winners <- e.self.owner.Name
				}
			})
		}
		group.Wait()
		if len(winners) != 1 {
			t.Fatalf("round %d: %d agents adopted the job", i, len(winners))
		}
		winner := <-winners
		for _, pod := range a.Pods(testNamespace) {
			if pod.Name == name && ownerOf(&pod).Name != winner {
				t.Fatalf("round %d: %s adopted the job, and its owner is %+v", i, winner, ownerOf(&pod))
			}
		}
		a.Drop(testNamespace, name)
	}
}

// TestAdoptUnderChange lets agents come and go, and faults happen, while they adopt. No
// agent adopts a job whose agent exists, and in the end each job has exactly one.
func TestAdoptUnderChange(t *testing.T) {
	const jobs, agentsAtOnce, steps = 12, 4, 30
	random := rand.New(rand.NewPCG(1, 2))
	a, living := newAgents(t, "agent-0", "agent-1", "agent-2", "agent-3")
	attends := map[string]string{} // agent by job; guarded by mu
	var mu sync.Mutex
	for i := range jobs {
		job := fmt.Sprint("job-", i)
		e := living[i%agentsAtOnce]
		a.worker(t, e, job)
		attends[job] = e.self.owner.UID
	}
	tick := func(gone map[string]bool) {
		var group sync.WaitGroup
		for _, e := range living {
			group.Go(func() {
				got, _ := adopt(t, e) // faults are repeated by a later turn
				mu.Lock()
				defer mu.Unlock()
				for _, job := range got {
					if before := attends[job]; before != e.self.owner.UID && !gone[before] {
						t.Errorf("%s adopted %s, which %s attends", e.self.owner.UID, job, attends[job])
					}
					attends[job] = e.self.owner.UID
				}
			})
		}
		group.Wait()
	}
	gone := map[string]bool{}
	for step := range steps {
		i := random.IntN(len(living))
		a.Drop(testNamespace, living[i].self.owner.Name)
		gone[living[i].self.owner.UID] = true
		name := fmt.Sprint("agent-", agentsAtOnce+step)
		if random.IntN(3) == 0 {
			name = living[i].self.owner.Name // as a StatefulSet does
		}
		a.put(name, "agent")
		living[i] = a.agent(t, name)
		faults := []kubetest.Fault{
			{Status: http.StatusConflict}, {Status: http.StatusInternalServerError},
			{Status: http.StatusInternalServerError, After: true}, {Status: http.StatusForbidden},
		}
		verb := []string{"get", "update"}[random.IntN(2)]
		a.Inject(times(random.IntN(4), verb, faults[random.IntN(len(faults))]))
		if random.IntN(4) == 0 {
			a.DropWatches()
		}
		tick(gone)
		a.Inject(nil)
	}
	limit := time.Now().Add(testLimit)
	for orphans := jobs; orphans > 0; {
		if time.Now().After(limit) {
			t.Fatalf("%d jobs have no agent: %v", orphans, attends)
		}
		tick(gone)
		orphans = 0
		for _, agent := range attends {
			if gone[agent] {
				orphans++
			}
		}
	}
	for _, pod := range a.Pods(testNamespace) {
		if job := pod.Labels[labelJob]; job != "" && ownerOf(&pod).UID != attends[job] {
			t.Errorf("%s is attended by %s, and its owner is %+v", job, attends[job], ownerOf(&pod))
		}
	}
}

// TestAdoptedJob follows a job over the end of its agent to its own end.
func TestAdoptedJob(t *testing.T) {
	release := make(chan struct{})
	s := newScripted(t, func(c *kubetest.Container) int {
		<-release
		return succeed(c)
	})
	s.kubelet.Hold = func(pod *corev1.Pod) *corev1.PodStatus {
		if !strings.HasPrefix(pod.Name, "agent-") {
			return nil
		}
		return &corev1.PodStatus{Phase: corev1.PodRunning}
	}
	a := &agents{API: s.API}
	a.put("agent-x", "agent")
	a.put("agent-y", "agent")
	first, second := a.agent(t, "agent-x"), a.agent(t, "agent-y")
	job := s.job("job-1")
	setup := runtime.NewSetup(job, s.service, runtimetest.Offer(job))
	id, err := first.Start(t.Context(), job, setup)
	if err != nil {
		t.Fatal(err)
	}
	name, _, _ := parseID(id)
	shows(t, second, name, first.self.owner)
	a.Drop(testNamespace, "agent-x")
	wantAdopted(t, second, "job-1")
	ended := waiting(t, second, id)
	close(release)
	if exit := receive(t, ended); exit.Code != runtime.CodeSucceeded {
		t.Errorf("got %+v", exit)
	}
	if err := second.Remove(t.Context(), id, 0); err != nil {
		t.Error(err)
	}
	if pods := a.Pods(testNamespace); len(pods) != 1 {
		t.Errorf("%d Pods are left, want the one of the second agent", len(pods))
	}
}
