package kube

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/kube/kubetest"
)

func TestAdoptRace(t *testing.T) {
	const rounds = 100
	a, all := newAgents(t, "agent-x", "agent-y", "agent-z")
	for i := range rounds {
		job := fmt.Sprint("job-", i)
		name := a.job(t, all[0], job)
		dead := owner{testNamespace, fmt.Sprint("dead-", i), "u"}
		a.Change(testNamespace, name, func(p *corev1.Pod) { self{owner: dead, group: all[0].self.group}.mark(p) })
		for _, e := range all {
			awaitOwner(t, e, name, dead)
		}
		winners := make(chan string, len(all))
		var group sync.WaitGroup
		for _, e := range all {
			group.Go(func() {
				if got, err := adopt(t, e); err != nil || len(got) > 0 && !slices.Equal(got, []string{job}) {
					t.Errorf("round %d: adopted %v, %v, want at most the job and no error", i, got, err)
				} else if len(got) == 1 {
					winners <- e.self.owner.Name
				}
			})
		}
		group.Wait()
		if len(winners) != 1 {
			t.Fatalf("round %d: %d agents adopted the job, want 1", i, len(winners))
		}
		winner := <-winners
		if got := ownerOf(a.podOf(t, name)); got.Name != winner {
			t.Fatalf("round %d: %s adopted the job, but its owner is %+v", i, winner, got)
		}
		a.Drop(testNamespace, name)
	}
}

// TestAdoptUnderChange repeats these steps: it replaces an agent, injects faults, and lets all
// agents adopt at the same time. No agent adopts a job whose agent exists, and in the end
// each job has exactly one agent.
func TestAdoptUnderChange(t *testing.T) {
	const jobs, agentsAtOnce, steps = 12, 4, 30
	random := rand.New(rand.NewPCG(1, 2))
	a, living := newAgents(t, "agent-0", "agent-1", "agent-2", "agent-3")
	agentOf := map[string]string{} // agent by job; guarded by mu
	var mu sync.Mutex
	for i := range jobs {
		job := fmt.Sprint("job-", i)
		e := living[i%agentsAtOnce]
		a.job(t, e, job)
		agentOf[job] = e.self.owner.UID
	}
	tick := func(gone map[string]bool) {
		var group sync.WaitGroup
		for _, e := range living {
			group.Go(func() {
				got, _ := adopt(t, e) // after a fault, a later call adopts the job
				mu.Lock()
				defer mu.Unlock()
				for _, job := range got {
					if before := agentOf[job]; before != e.self.owner.UID && !gone[before] {
						t.Errorf("%s adopted %s, of the existing agent %s", e.self.owner.UID, job, agentOf[job])
					}
					agentOf[job] = e.self.owner.UID
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
			name = living[i].self.owner.Name // as a StatefulSet names a new Pod
		}
		a.put(name, "agent")
		living[i] = a.agent(t, name)
		faults := []kubetest.Fault{
			{Status: http.StatusConflict}, {Status: http.StatusInternalServerError},
			{Status: http.StatusInternalServerError, After: true}, {Status: http.StatusForbidden},
		}
		verb := []string{"get", "update"}[random.IntN(2)]
		a.Inject(failFirst(random.IntN(4), verb, faults[random.IntN(len(faults))]))
		if random.IntN(4) == 0 {
			a.DropWatches()
		}
		tick(gone)
		a.Inject(nil)
	}
	limit := time.Now().Add(testLimit)
	for orphans := jobs; orphans > 0; {
		if time.Now().After(limit) {
			t.Fatalf("%d jobs have no agent that exists: %v", orphans, agentOf)
		}
		tick(gone)
		orphans = 0
		for _, agent := range agentOf {
			if gone[agent] {
				orphans++
			}
		}
	}
	for _, pod := range a.Pods(testNamespace) {
		if job := pod.Labels[labelJob]; job != "" && ownerOf(&pod).UID != agentOf[job] {
			t.Errorf("%s was adopted by %s, but its owner is %+v", job, agentOf[job], ownerOf(&pod))
		}
	}
}

// TestAdoptJobEnd adopts a running job and waits for its end.
func TestAdoptJobEnd(t *testing.T) {
	release := make(chan struct{})
	s, first, second := newAgentPair(t, func(c *kubetest.Container) int {
		<-release
		return succeed(c)
	})
	id := s.mustStart(t, first, s.job("job-1"))
	name, _, _ := parseID(id)
	awaitOwner(t, second, name, first.self.owner)
	s.Drop(testNamespace, "agent-x")
	wantAdopted(t, second, "job-1")
	ended := startWait(t, second, id)
	close(release)
	if exit := awaitExit(t, ended); exit.Code != runtime.CodeSucceeded {
		t.Errorf("got exit %+v, want success", exit)
	}
	if err := second.Remove(t.Context(), id, 0); err != nil {
		t.Error(err)
	}
	if pods := s.Pods(testNamespace); len(pods) != 1 {
		t.Errorf("got %d Pods, want only the one of the second agent", len(pods))
	}
}
