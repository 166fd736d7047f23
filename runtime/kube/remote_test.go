package kube

import (
	"log/slog"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/kube/kubetest"
)

// remoteAgent returns an executor of an agent in a Pod of the home cluster. Its jobs run in the remote
// cluster.
func remoteAgent(t testing.TB, home *agents, remote *rest.Config, pod string) *Executor {
	t.Helper()
	home.put(pod, "agent")
	cluster := newCluster(t, Options{
		Config: remote, Home: home.Config(), Namespace: testNamespace, Pod: pod, Agent: "id-of-" + pod,
		Log: slog.New(slog.NewTextHandler(&home.log, nil)),
	})
	if err := cluster.Identify(t.Context()); err != nil {
		t.Fatal(err)
	}
	e := executorOf(t, cluster)
	if err := e.pods.ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	return e
}

// TestAdoptInAnotherCluster replaces an agent whose pool has kubernetes.context: its jobs run in a
// cluster that does not know the Pods of agents.
func TestAdoptInAnotherCluster(t *testing.T) {
	home, remote := &agents{API: kubetest.NewAPI(t)}, &agents{API: kubetest.NewAPI(t)}
	first := remoteAgent(t, home, remote.Config(), "agent-x")
	second := remoteAgent(t, home, remote.Config(), "agent-y")
	if !first.LeavesJobs() || !first.Owned() {
		t.Error("the agent would stop its jobs when its Pod is replaced, or would lose them")
	}
	running := remote.job(t, first, "job-1")
	awaitOwner(t, second, running, first.self.owner)
	records := journalOf(first)
	records.add(t, "job-2") // claimed, and not started

	home.Drop(testNamespace, "agent-x")
	wantAdopted(t, second, "job-1")
	found, err := journalOf(second).adoptRecords(t)
	if err != nil || len(found) != 1 || found[0].Job != "job-2" || found[0].Stage != runtime.RecordClaimed {
		t.Errorf("adopted the records %+v, %v, want that of job-2", found, err)
	}

	// An agent of a third cluster shares the remote one. It cannot find out whether agents exist in the
	// home cluster, so it leaves their jobs alone.
	foreign := remoteAgent(t, &agents{API: kubetest.NewAPI(t)}, remote.Config(), "agent-z")
	wantAdopted(t, foreign)
	prefix := testNamespace + ".deployment.agent."
	if a, b := foreign.self.group, second.self.group; a == b || !strings.HasPrefix(a, prefix) {
		t.Errorf("the groups of agents in two clusters are %s and %s", a, b)
	}
}
