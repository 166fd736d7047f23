package kube

import (
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/cmwa-project/cmwa/runtime/kube/kubetest"
)

func TestIdentify(t *testing.T) {
	t.Run("agent in a Pod", func(t *testing.T) {
		a, all := newAgents(t, "agent-x")
		got, group := all[0].self, testNamespace+".deployment.agent"
		if got.owner.Name != "agent-x" || got.owner.UID == "" || got.group != group {
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
}

func TestIdentifyRefused(t *testing.T) {
	for name, c := range map[string]struct {
		fault kubetest.Fault
		cure  string
	}{
		"right is missing": {
			kubetest.Fault{Status: http.StatusForbidden, Message: `pods "agent-x" is forbidden`}, "grant get on pods",
		},
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
}

func TestIdentifyUnanswered(t *testing.T) {
	for name, fault := range map[string]kubetest.Fault{
		"API server answers with 500": {Status: http.StatusInternalServerError, Message: "etcd is slow"},
		"API server is down":          {},
		"credentials are refused":     {Status: http.StatusUnauthorized},
	} {
		t.Run(name, func(t *testing.T) {
			a, _ := newAgents(t)
			a.put("agent-x", "agent")
			a.Inject(times(1, "get", fault))
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
