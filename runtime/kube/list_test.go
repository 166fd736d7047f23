package kube

import (
	"net/http"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/cmwa-project/cmwa/runtime/kube/kubetest"
)

// waiting creates a Pod that waits for a handoff of this size in bytes. It returns the name of
// the Pod.
func (a *agents) waiting(t testing.TB, e *Executor, size int) string {
	t.Helper()
	job := testJob()
	job.ID, job.Agent = "job-1", e.cluster.options.Agent
	settings := e.podSettings()
	settings.handoffSize = size
	pod, err := podOf(job, namePrefix+job.ID, settings)
	if err != nil {
		t.Fatal(err)
	}
	pod.Namespace = testNamespace
	pod.Status = corev1.PodStatus{Phase: corev1.PodRunning}
	a.Put(pod)
	return pod.Name
}

// TestListWithoutHandoff lists a Pod whose agent ended before it had sent the handoff.
func TestListWithoutHandoff(t *testing.T) {
	for name, size := range map[string]int{"small handoff": 0, "large handoff": largeHandoff + 1} {
		t.Run("no "+name+" was sent, so the runner was never started", func(t *testing.T) {
			a, all := newAgents(t, "agent-x")
			a.waiting(t, all[0], size)
			found, err := all[0].List(t.Context(), "id-of-agent-x")
			if err != nil || len(found) != 1 || found[0].Running || !found[0].Started.IsZero() ||
				found[0].Ended.IsZero() {
				t.Errorf("found %+v, %v", found, err)
			}
		})
	}
	t.Run("ConfigMap of a large handoff exists, so the job runs and List writes the annotation", func(t *testing.T) {
		a, all := newAgents(t, "agent-x")
		pod := a.waiting(t, all[0], largeHandoff+1)
		job := testJob()
		job.ID, job.Agent = "job-1", "id-of-agent-x"
		a.PutObject(configMaps, &corev1.ConfigMap{ObjectMeta: all[0].objectMeta(job, objectOf(pod), time.Now())})
		found, err := all[0].List(t.Context(), "id-of-agent-x")
		if err != nil || len(found) != 1 || !found[0].Running || found[0].Started.IsZero() || !found[0].Ended.IsZero() {
			t.Errorf("found %+v, %v", found, err)
		}
		if got := a.podOf(t, pod).Annotations[annotationHandoff]; got != carrierPrefix+configMaps {
			t.Errorf("the annotation of the Pod is %q, want the name of the resource", got)
		}
	})
	t.Run("ConfigMaps cannot be listed", func(t *testing.T) {
		a, all := newAgents(t, "agent-x")
		a.waiting(t, all[0], largeHandoff+1)
		a.Inject(func(r kubetest.Request) *kubetest.Fault {
			if r.Resource != configMaps {
				return nil
			}
			return &kubetest.Fault{Status: http.StatusServiceUnavailable}
		})
		if found, err := all[0].List(t.Context(), "id-of-agent-x"); err == nil {
			t.Errorf("listed %+v, want an error, because it is unknown whether the job may run", found)
		}
	})
}
