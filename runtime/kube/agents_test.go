package kube

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/kube/kubetest"
)

// agents is a fake cluster with agents in Pods of the Deployment "agent". The Pods of their
// jobs do nothing.
type agents struct {
	*kubetest.API
	log    lockedBuffer      // of all executors
	labels map[string]string // of new agents; without labels, agents do not watch each other
}

// lockedBuffer is a buffer that is safe for concurrent use, such as a log.
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

// put creates the Pod of an agent. If a Pod with this name exists, put deletes it first.
func (a *agents) put(name, deployment string) {
	a.Drop(testNamespace, name)
	pod := agentPodWith(name, "ReplicaSet", deployment+"-1", "1")
	pod.Namespace, pod.UID = testNamespace, ""
	maps.Copy(pod.Labels, a.labels)
	pod.Spec.Containers = []corev1.Container{{Name: "agent", Image: agentImage}}
	pod.Status.Phase = corev1.PodRunning
	a.Put(pod)
}

// cluster returns the Cluster of an agent in a Pod.
func (a *agents) cluster(t testing.TB, pod string) *Cluster {
	t.Helper()
	return newCluster(t, Options{
		Config: a.Config(), Namespace: testNamespace, Pod: pod, Agent: "id-of-" + pod,
		Log: slog.New(slog.NewTextHandler(&a.log, nil)),
	})
}

// agent returns an executor of the agent in a Pod.
func (a *agents) agent(t testing.TB, pod string) *Executor {
	t.Helper()
	cluster := a.cluster(t, pod)
	if err := cluster.Identify(t.Context()); err != nil {
		t.Fatal(err)
	}
	e := executorOf(t, cluster)
	if err := e.pods.ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	return e
}

// job creates the Pod of a running job of an agent, and returns its name.
func (a *agents) job(t testing.TB, e *Executor, id string) string {
	t.Helper()
	return a.putJob(t, e, id, 0, func(p *corev1.Pod) {
		p.Annotations[annotationHandoff] = "sealed"
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{
			Name:  MainContainer,
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}},
		}}
	})
}

// waiting creates a Pod of job-1 that waits for a handoff of this size in bytes, and returns its name.
func (a *agents) waiting(t testing.TB, e *Executor, size int) string {
	t.Helper()
	return a.putJob(t, e, "job-1", size, func(*corev1.Pod) {})
}

// putJob creates the changed Pod of a job of an agent, and returns its name.
func (a *agents) putJob(t testing.TB, e *Executor, id string, handoffSize int, change func(*corev1.Pod)) string {
	t.Helper()
	job, settings := testJob(), e.podSettings()
	job.ID, job.Agent, settings.handoffSize = id, e.cluster.options.Agent, handoffSize
	pod, err := podOf(job, namePrefix+id, settings)
	if err != nil {
		t.Fatal(err)
	}
	pod.Namespace, pod.Status.Phase = testNamespace, corev1.PodRunning
	change(pod)
	a.Put(pod)
	return pod.Name
}

// storeHandoff creates the ConfigMap with the handoff of a Pod of job-1.
func (a *agents) storeHandoff(e *Executor, pod string) {
	a.PutObject(configMaps, &corev1.ConfigMap{ObjectMeta: e.objectMeta(testJob(), objectOf(pod), time.Now())})
}

// wantDelivered checks that only one running job was found, and that the annotation of its Pod makes the
// kubelet read the ConfigMap with the handoff.
func (a *agents) wantDelivered(t testing.TB, found []runtime.Instance, err error, pod string) {
	t.Helper()
	if err != nil || len(found) != 1 || !found[0].Running || found[0].Started.IsZero() || !found[0].Ended.IsZero() {
		t.Errorf("found %+v, %v, want a running job", found, err)
	}
	if got := a.podOf(t, pod).Annotations[annotationHandoff]; got != carrierPrefix+configMaps {
		t.Errorf("the annotation of the Pod is %q, want the name of the resource", got)
	}
}

// awaitState blocks until the condition holds for the states in the watch of an executor.
func awaitState(t testing.TB, e *Executor, what string, condition func(all map[string]*state) bool) {
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

// awaitOwner blocks until the watch of an executor shows a Pod with this owner.
func awaitOwner(t testing.TB, e *Executor, name string, o owner) {
	t.Helper()
	awaitState(t, e, fmt.Sprintf("%s of %s", name, o.Name), func(all map[string]*state) bool {
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

// wantAdopted checks which jobs one call of AdoptOrphans adopts.
func wantAdopted(t testing.TB, e *Executor, want ...string) {
	t.Helper()
	if got, err := adopt(t, e); err != nil || !slices.Equal(got, want) {
		t.Errorf("adopted %v, %v, want %v", got, err, want)
	}
}

// wantAdoptError checks that one call of AdoptOrphans returns an error and no job.
func wantAdoptError(t testing.TB, e *Executor) {
	t.Helper()
	if got, err := adopt(t, e); err == nil || len(got) > 0 {
		t.Errorf("adopted %v, %v, want an error and no job", got, err)
	}
}

// newWatchedAgents returns a fake cluster without agents. New agents have a label in common, by which
// they watch each other.
func newWatchedAgents(api *kubetest.API) *agents {
	return &agents{API: api, labels: map[string]string{"app": "agent"}}
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

// newAgentsWithJob returns a fake cluster with the agents agent-x and agent-y. The watch of the second
// agent shows the Pod of the first agent's job.
func newAgentsWithJob(t testing.TB) (a *agents, first, second *Executor, pod string) {
	t.Helper()
	a, all := newAgents(t, "agent-x", "agent-y")
	pod = a.job(t, all[0], "job-1")
	awaitOwner(t, all[1], pod, all[0].self.owner)
	return a, all[0], all[1], pod
}
