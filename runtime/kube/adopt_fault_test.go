package kube

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/cmwa-project/cmwa/runtime/kube/kubetest"
)

// newOrphan returns a fake cluster with a running job whose agent no longer exists, and
// another agent whose watch shows the job.
func newOrphan(t *testing.T) (a *agents, e *Executor, pod string, before owner) {
	t.Helper()
	a, first, e, pod := newAgentsWithJob(t)
	a.Drop(testNamespace, "agent-x")
	return a, e, pod, first.self.owner
}

func TestReplaced(t *testing.T) {
	forceDelete := func(a *agents) { a.Drop(testNamespace, "agent-x") }
	unauthorized := kubetest.Fault{Status: 401, Message: "Unauthorized"}
	answer := func(fault kubetest.Fault) func(a *agents) {
		return func(a *agents) { a.Inject(failAll("get", fault)) }
	}
	for name, c := range map[string]struct {
		happens func(a *agents)
		want    bool
	}{
		"the agent's Pod exists":            {func(*agents) {}, false},
		"the agent's Pod was force-deleted": {forceDelete, true},
		"the token of the Pod is refused":   {answer(unauthorized), true},
		"the agent lacks a right":           {answer(kubetest.Fault{Status: 403, Message: "not allowed"}), false},
		"the API server fails":              {answer(kubetest.Fault{Status: 500, Message: "etcd is slow"}), false},
		"a proxy asks for credentials":      {answer(kubetest.Fault{Status: 401, Page: "Log in"}), false},
	} {
		t.Run(name, func(t *testing.T) {
			a, all := newAgents(t, "agent-x")
			c.happens(a)
			if got := all[0].Replaced(t.Context()); got != c.want {
				t.Errorf("Replaced is %v, want %v", got, c.want)
			}
		})
	}
}

// TestSweepObjectsRefused lists the metadata of objects with a token that the API server refuses.
func TestSweepObjectsRefused(t *testing.T) {
	a, all := newAgents(t, "agent-x")
	a.Inject(failAll("list", kubetest.Fault{Status: 401, Message: "Unauthorized"}))
	_, err := all[0].sweepObjects(t.Context())
	if err == nil || !strings.Contains(err.Error(), "does not accept the agent's credentials") {
		t.Errorf("got %v, want an error about the agent's credentials", err)
	}
}

func TestAdoptOwnerUnknown(t *testing.T) {
	for name, fault := range map[string]kubetest.Fault{
		"403":     {Status: http.StatusForbidden, Message: "not allowed"},
		"500":     {Status: http.StatusInternalServerError, Message: "etcd is slow"},
		"timeout": {Status: http.StatusGatewayTimeout, Message: "Timeout: request did not complete"},
	} {
		t.Run("get of the owner fails with "+name, func(t *testing.T) {
			a, e, worker, before := newOrphan(t)
			a.Inject(failAll("get", fault))
			if got, err := adopt(t, e); err == nil || !strings.Contains(err.Error(), "agent-x") || len(got) > 0 {
				t.Errorf("adopted %v, %v, want an error that names the agent's Pod", got, err)
			}
			awaitOwner(t, e, worker, before)
			a.Inject(nil)
			wantAdopted(t, e, "job-1")
		})
	}
	t.Run("API server is down", func(t *testing.T) {
		a, e, _, _ := newOrphan(t)
		a.Inject(apiDown)
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		if found, err := e.AdoptOrphans(ctx, everyPool); err == nil || len(found) > 0 {
			t.Errorf("adopted %v, %v, want an error and no job", found, err)
		}
		a.Inject(nil)
		wantAdopted(t, e, "job-1")
	})
	t.Run("owner annotation is damaged", func(t *testing.T) {
		a, e, worker, _ := newOrphan(t)
		a.Change(testNamespace, worker, func(p *corev1.Pod) {
			p.Annotations[annotationOwner], p.Labels[labelOwner] = "{", ""
		})
		awaitOwner(t, e, worker, owner{Namespace: testNamespace})
		wantAdoptError(t, e)
	})
}

func TestAdoptConflict(t *testing.T) {
	t.Run("kubelet updates the status between read and update", func(t *testing.T) {
		a, e, worker, _ := newOrphan(t)
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
			t.Errorf("%d changes were not injected, want an update for each", left)
		}
	})
	t.Run("Pod changes before each update", func(t *testing.T) {
		a, e, worker, _ := newOrphan(t)
		a.Inject(func(r kubetest.Request) *kubetest.Fault {
			if r.Verb == "update" {
				a.Change(testNamespace, worker, func(*corev1.Pod) {})
			}
			return nil
		})
		wantAdoptError(t, e)
		a.Inject(nil)
		wantAdopted(t, e, "job-1")
	})
	t.Run("another agent adopts first", func(t *testing.T) {
		a, e, worker, _ := newOrphan(t)
		a.put("agent-z", "agent")
		third := a.agent(t, "agent-z")
		a.Inject(func(r kubetest.Request) *kubetest.Fault {
			if r.Verb == "update" {
				a.Change(testNamespace, worker, func(p *corev1.Pod) { third.self.mark(p) })
			}
			return nil
		})
		wantAdopted(t, e)
		a.Inject(nil)
		awaitOwner(t, e, worker, third.self.owner)
	})
	t.Run("watch is outdated", func(t *testing.T) {
		a, e, worker, before := newOrphan(t)
		a.put("agent-z", "agent")
		third := a.agent(t, "agent-z")
		awaitOwner(t, third, worker, before)
		a.Inject(failWatches)
		a.DropWatches()
		wantAdopted(t, third, "job-1")
		awaitOwner(t, e, worker, before)
		wantAdopted(t, e)
		a.Drop(testNamespace, worker)
		wantAdopted(t, e)
	})
}

func TestAdoptLostAnswer(t *testing.T) {
	t.Run("response to the update is lost", func(t *testing.T) {
		a, e, worker, _ := newOrphan(t)
		a.Inject(failFirst(1, "update", kubetest.Fault{Status: http.StatusInternalServerError, After: true}))
		wantAdoptError(t, e)
		a.Inject(nil)
		awaitOwner(t, e, worker, e.self.owner)
		wantAdopted(t, e, "job-1")
		wantAdopted(t, e)
	})
	t.Run("response to the update is lost and the Pod is deleted", func(t *testing.T) {
		a, e, worker, _ := newOrphan(t)
		a.Inject(failFirst(1, "update", kubetest.Fault{Status: http.StatusInternalServerError, After: true}))
		wantAdoptError(t, e)
		a.Drop(testNamespace, worker)
		awaitState(t, e, "no Pod", func(all map[string]*state) bool { return len(all) == 0 })
		wantAdopted(t, e)
		if len(e.unresolved) > 0 {
			t.Errorf("the Pods %v are still unresolved", e.unresolved)
		}
	})
}

// TestAdoptLargeHandoff adopts a Pod with a large handoff whose agent ended between the create of
// the ConfigMap and the write of the annotation. The kubelet reads the ConfigMap, so the job runs.
func TestAdoptLargeHandoff(t *testing.T) {
	orphan := func(t *testing.T, stored bool) (a *agents, e *Executor, pod string) {
		t.Helper()
		a, all := newAgents(t, "agent-x", "agent-y")
		pod = a.waiting(t, all[0], largeHandoff+1)
		if stored {
			a.storeHandoff(all[0], pod)
		}
		awaitOwner(t, all[1], pod, all[0].self.owner)
		a.Drop(testNamespace, "agent-x")
		return a, all[1], pod
	}
	wantRunning := func(t *testing.T, a *agents, e *Executor, pod string) {
		t.Helper()
		found, err := e.AdoptOrphans(t.Context(), everyPool)
		a.wantDelivered(t, found, err, pod)
	}
	t.Run("ConfigMap exists", func(t *testing.T) {
		a, e, pod := orphan(t, true)
		wantRunning(t, a, e, pod)
	})
	for name, fault := range map[string]func(kubetest.Request) *kubetest.Fault{
		"response to the update is lost": failFirst(1, "update",
			kubetest.Fault{Status: http.StatusInternalServerError, After: true}),
		// It is unknown whether the job may run.
		"ConfigMaps cannot be listed": failResource(configMaps, kubetest.Fault{Status: http.StatusServiceUnavailable}),
	} {
		t.Run(name, func(t *testing.T) {
			a, e, pod := orphan(t, true)
			a.Inject(fault)
			wantAdoptError(t, e)
			a.Inject(nil)
			awaitOwner(t, e, pod, e.self.owner)
			wantRunning(t, a, e, pod)
			wantAdopted(t, e)
		})
	}
	t.Run("ConfigMap does not exist, so the job has not run", func(t *testing.T) {
		_, e, _ := orphan(t, false)
		found, err := e.AdoptOrphans(t.Context(), everyPool)
		if err != nil || len(found) != 1 || found[0].Running || !found[0].Started.IsZero() {
			t.Errorf("adopted %+v, %v, want a job that has not run", found, err)
		}
	})
}
