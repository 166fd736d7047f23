package kube

import (
	"net/http"
	"testing"

	"github.com/cmwa-project/cmwa/runtime/kube/kubetest"
)

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
		a.storeHandoff(all[0], pod)
		found, err := all[0].List(t.Context(), "id-of-agent-x")
		a.wantDelivered(t, found, err, pod)
	})
	t.Run("kubelet changes the Pod before List writes the annotation", func(t *testing.T) {
		a, all := newAgents(t, "agent-x")
		pod := a.waiting(t, all[0], largeHandoff+1)
		a.storeHandoff(all[0], pod)
		a.Inject(failFirst(2, "update", kubetest.Fault{Status: http.StatusConflict}))
		found, err := all[0].List(t.Context(), "id-of-agent-x")
		a.wantDelivered(t, found, err, pod)
	})
	t.Run("ConfigMaps cannot be listed", func(t *testing.T) {
		a, all := newAgents(t, "agent-x")
		a.waiting(t, all[0], largeHandoff+1)
		a.Inject(failResource(configMaps, kubetest.Fault{Status: http.StatusServiceUnavailable}))
		if found, err := all[0].List(t.Context(), "id-of-agent-x"); err == nil {
			t.Errorf("listed %+v, want an error, because it is unknown whether the job may run", found)
		}
	})
}
