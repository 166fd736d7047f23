package kube

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/cmwa-project/cmwa/runtime"
)

func TestAdoptOrphans(t *testing.T) {
	t.Run("no Pods of other agents", func(t *testing.T) {
		a, all := newAgents(t, "agent-x")
		awaitOwner(t, all[0], a.job(t, all[0], "job-1"), all[0].self.owner)
		before := a.Requests()
		for range 10 {
			wantAdopted(t, all[0])
		}
		if after := a.Requests(); fmt.Sprint(after) != fmt.Sprint(before) {
			t.Errorf("requests: %v before, %v after, want no further request", before, after)
		}
	})
	t.Run("agent exists", func(t *testing.T) {
		a, all := newAgents(t, "agent-x", "agent-y")
		for i := range 5 {
			awaitOwner(t, all[1], a.job(t, all[0], fmt.Sprint("job-", i)), all[0].self.owner)
		}
		before := a.Requests()["get"]
		for range 10 {
			wantAdopted(t, all[1])
		}
		if n := a.Requests()["get"] - before; n != 1 {
			t.Errorf("%d get requests for one agent with five jobs, want 1", n)
		}
	})
	t.Run("agent is deleted", func(t *testing.T) {
		a, first, second, name := newAgentsWithJob(t)
		a.Drop(testNamespace, "agent-x")
		found, err := second.AdoptOrphans(t.Context(), everyPool)
		want := testJob()
		if err != nil || len(found) != 1 || !found[0].Running || found[0].Job != "job-1" ||
			found[0].Pool != (runtime.PoolSpec{Name: want.PoolName, Identity: want.Identity}).Key() {
			t.Fatalf("adopted %+v, %v, want running job-1", found, err)
		}
		listed, err := second.List(t.Context(), "id-of-agent-y")
		if err != nil || len(listed) != 1 || listed[0].ID != found[0].ID {
			t.Errorf("List: got %+v, %v", listed, err)
		}
		if listed, err := first.List(t.Context(), "id-of-agent-x"); err != nil || len(listed) > 0 {
			t.Errorf("the old agent lists %+v, %v, want nothing", listed, err)
		}
		awaitOwner(t, second, name, second.self.owner)
		wantAdopted(t, second)
		pod := a.podOf(t, name)
		if len(pod.Spec.Containers) != 1 || len(pod.Spec.InitContainers) != 1 || pod.Labels[labelJob] != "job-1" ||
			pod.Annotations[annotationHandoff] != "sealed" || pod.Labels[labelAgent] != "id-of-agent-y" {
			t.Errorf("the adopted Pod is %+v", pod)
		}
	})
	t.Run("Pod of another pool", func(t *testing.T) {
		a, e, _, _ := newOrphan(t)
		before := a.Requests()["get"]
		if found, err := e.AdoptOrphans(t.Context(), func(string) bool { return false }); err != nil || len(found) > 0 {
			t.Errorf("adopted %+v, %v, want nothing", found, err)
		}
		if n := a.Requests()["get"] - before; n > 0 {
			t.Errorf("%d get requests for jobs of other pools, want none", n)
		}
	})
}

func TestAdoptByOwner(t *testing.T) {
	t.Run("new agent with the same name", func(t *testing.T) {
		a, all := newAgents(t, "agent-0")
		name := a.job(t, all[0], "job-1")
		a.put("agent-0", "agent")
		again := a.agent(t, "agent-0")
		awaitOwner(t, again, name, all[0].self.owner)
		if listed, err := again.List(t.Context(), "id-of-agent-0"); err != nil || len(listed) > 0 {
			t.Errorf("the new agent lists jobs of the old agent: %+v, %v", listed, err)
		}
		wantAdopted(t, again, "job-1")
	})
	t.Run("container of the agent restarts", func(t *testing.T) {
		a, all := newAgents(t, "agent-x")
		a.job(t, all[0], "job-1")
		again := a.agent(t, "agent-x")
		listed, err := again.List(t.Context(), "another id")
		if err != nil || len(listed) != 1 || listed[0].Job != "job-1" {
			t.Errorf("the restarted agent lists %+v, %v, want job-1", listed, err)
		}
		wantAdopted(t, again)
	})
	t.Run("agent is evicted", func(t *testing.T) {
		a, _, second, _ := newAgentsWithJob(t)
		a.Change(testNamespace, "agent-x", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })
		wantAdopted(t, second, "job-1")
	})
	t.Run("agent drains", func(t *testing.T) {
		a, _, second, _ := newAgentsWithJob(t)
		a.Change(testNamespace, "agent-x", deleted)
		wantAdopted(t, second)
	})
}

func TestAdoptByWorker(t *testing.T) {
	t.Run("ended job, and job without a handoff", func(t *testing.T) {
		a, all := newAgents(t, "agent-x", "agent-y")
		ended, noHandoff := a.job(t, all[0], "ended"), a.job(t, all[0], "no-handoff")
		a.Change(testNamespace, ended, mainEnds(10, "Error", ""))
		a.Change(testNamespace, noHandoff, func(p *corev1.Pod) { delete(p.Annotations, annotationHandoff) })
		awaitOwner(t, all[1], noHandoff, all[0].self.owner)
		a.Drop(testNamespace, "agent-x")
		found, err := all[1].AdoptOrphans(t.Context(), everyPool)
		if err != nil || len(found) != 2 || found[0].Running || found[1].Running {
			t.Errorf("adopted %+v, %v, want two ended jobs", found, err)
		}
	})
	t.Run("kept Pod", func(t *testing.T) {
		a, first, second, name := newAgentsWithJob(t)
		if err := first.keepPod(t.Context(), name, string(a.podOf(t, name).UID)); err != nil {
			t.Fatal(err)
		}
		a.Drop(testNamespace, "agent-x")
		wantAdopted(t, second)
		a.Change(testNamespace, name, func(p *corev1.Pod) { p.Annotations[annotationKept] = "now" })
		if removed, err := second.Sweep(t.Context(), nil); err != nil || len(removed) != 1 {
			t.Errorf("swept %v, %v, want one Pod", removed, err)
		}
	})
	t.Run("pools in several namespaces", func(t *testing.T) {
		a, all := newAgents(t, "agent-x", "agent-y")
		here, there := all[1], all[1].cluster.Executor("elsewhere")
		t.Cleanup(there.Close)
		name := a.job(t, all[0], "job-1")
		moved := a.podOf(t, name)
		moved.Namespace, moved.UID = "elsewhere", ""
		a.Put(moved)
		a.Drop(testNamespace, name)
		awaitOwner(t, there, name, all[0].self.owner)
		a.Drop(testNamespace, "agent-x")
		wantAdopted(t, here)
		wantAdopted(t, there, "job-1")
		pods, want := a.Pods("elsewhere"), there.self.owner
		if len(pods) != 1 || ownerOf(&pods[0]) != want || want.Namespace != testNamespace {
			t.Errorf("got Pods %+v in the other namespace, want the adopted one", pods)
		}
	})
	t.Run("another Deployment", func(t *testing.T) {
		a, all := newAgents(t, "agent-x")
		name := a.job(t, all[0], "job-1")
		a.put("other-x", "other")
		other := a.agent(t, "other-x")
		a.Drop(testNamespace, "agent-x")
		wantAdopted(t, other)
		other.pods.each(func(s *state) { t.Errorf("the agent of the other Deployment watches %s", s.name) })
		release := func(p *corev1.Pod) { releasePod(p, time.Now().Add(-time.Hour)) }
		a.Change(testNamespace, name, release)
		if removed, err := other.Sweep(t.Context(), nil); err != nil || len(removed) > 0 {
			t.Errorf("the agent of the other Deployment swept %v, %v, want nothing", removed, err)
		}
	})
}
