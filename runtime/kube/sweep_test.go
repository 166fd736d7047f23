package kube

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cmwa-project/cmwa/runtime"
)

// endedAgo makes the job of a Pod end some time ago.
func endedAgo(age time.Duration) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		mainEnds(1, "Error", "")(p)
		p.Status.Phase = corev1.PodFailed
		p.Status.ContainerStatuses[0].State.Terminated.FinishedAt = metav1.NewTime(time.Now().Add(-age))
	}
}

// TestSweepEndedPods leaves the Pods of an agent whose Deployment is gone, and sweeps them from an
// agent of another Deployment.
func TestSweepEndedPods(t *testing.T) {
	a, all := newAgents(t, "agent-x")
	a.put("agent-of-new-release", "renamed")
	other := a.agent(t, "agent-of-new-release")
	old, recent := a.job(t, all[0], "old"), a.job(t, all[0], "recent")
	running := a.job(t, all[0], "running")
	a.Change(testNamespace, old, endedAgo(runtime.LeftoverAge+time.Minute))
	a.Change(testNamespace, recent, endedAgo(runtime.LeftoverAge-time.Minute))
	a.Drop(testNamespace, "agent-x")

	if removed, err := other.Sweep(t.Context(), nil); err != nil || !slices.Equal(removed, []string{old}) {
		t.Errorf("removed %v, %v, want only %s", removed, err, old)
	}
	for _, name := range []string{recent, running} {
		if a.podOf(t, name) == nil {
			t.Errorf("the Pod %s is gone", name)
		}
	}
}

// TestSweepClocks sweeps with an agent whose clock is wrong.
func TestSweepClocks(t *testing.T) {
	const behind = 10 * 24 * time.Hour
	a, all := newAgents(t, "agent-x", "agent-y")
	a.SetClock(-behind) // the clocks of the agents are ahead of that of the cluster
	name := a.job(t, all[0], "job-1")
	a.Change(testNamespace, name, endedAgo(behind+time.Minute))
	if _, err := all[1].client.get(t.Context(), testNamespace, name); err != nil {
		t.Fatal(err)
	}
	a.PutObject(configMaps, &corev1.ConfigMap{ObjectMeta: all[1].objectMeta(testJob(), "in-use", time.Now())})
	if removed, err := all[1].Sweep(t.Context(), nil); err != nil || len(removed) > 0 {
		t.Errorf("removed %v, %v, want nothing: by the clock of the cluster, the job ended a minute ago", removed, err)
	}

	a.SetClock(0)
	removed, err := all[1].Sweep(t.Context(), nil)
	if slices.Sort(removed); err != nil || !slices.Equal(removed, []string{"configmap/in-use", name}) {
		t.Errorf("removed %v, %v, want both, because days have passed in the cluster", removed, err)
	}
}

// TestSweepOwnedObject leaves a handoff to the cluster as long as its Pod exists: its image may take
// longer than the start timeout to arrive, for example in an outage.
func TestSweepOwnedObject(t *testing.T) {
	a, all := newAgents(t, "agent-x")
	pod := a.podOf(t, a.waiting(t, all[0], largeHandoff+1))
	meta := all[0].objectMeta(testJob(), objectOf(pod.Name), time.Now().Add(-time.Hour))
	meta.OwnerReferences = ownedBy(pod.Name, pod.UID)
	a.PutObject(configMaps, &corev1.ConfigMap{ObjectMeta: meta})
	if removed, err := all[0].Sweep(t.Context(), nil); err != nil || len(removed) > 0 {
		t.Errorf("removed %v, %v, want nothing", removed, err)
	}
}

// TestAdoptFromFailedNode adopts the jobs of an agent whose node has failed while the Node object
// stays: the agent's Pod is being deleted, and never goes.
func TestAdoptFromFailedNode(t *testing.T) {
	a, all := newAgents(t, "agent-x", "agent-y")
	first, second := all[0], all[1]
	name := a.job(t, first, "job-1")
	awaitOwner(t, second, name, first.self.owner)
	deletedFor := func(age time.Duration) {
		a.Change(testNamespace, "agent-x", func(p *corev1.Pod) {
			p.DeletionTimestamp = new(metav1.NewTime(time.Now().Add(-age)))
		})
	}

	deletedFor(overdueOwnerLimit - time.Minute)
	wantAdopted(t, second)
	deletedFor(overdueOwnerLimit + time.Minute)
	second.cluster.ownersSeen = map[owner]time.Time{} // as after ownerCacheTime
	wantAdopted(t, second, "job-1")

	// The first agent may still run, for example if only the network of its node has failed.
	if ended, err := first.selfEnded(t.Context()); err != nil || !ended {
		t.Errorf("the agent on the failed node does not give its jobs up: %v, %v", ended, err)
	}
}
