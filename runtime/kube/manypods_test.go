//go:build !race

package kube

import (
	"testing"
	"time"
)

// TestExecutorManyPods lists 5,000 Pods as a stream, and three pages of Pods. It checks the
// memory per Pod. It runs without the race detector, with which the first list may take longer than
// syncLimit on a busy machine.
func TestExecutorManyPods(t *testing.T) {
	const maxStored = 4 << 10 // bytes per Pod
	for name, pods := range map[string]int{"stream": 5000, "pages": 3 * pageSize} {
		t.Run(name, func(t *testing.T) {
			config, send := startFakeCluster(t, pods)
			if name == "pages" {
				config.WrapTransport = withoutStreams
			}
			cluster := newCluster(t, Options{Config: config, Namespace: testNamespace, Agent: "agent-1"})
			before := memory()
			start := time.Now()
			e := cluster.Executor("")
			defer e.Close()
			if err := e.pods.ready(t.Context()); err != nil {
				t.Fatal(err)
			}
			took := time.Since(start)
			used := (memory() - before) / int64(pods)
			t.Logf("%d Pods listed after %s; %d bytes per Pod; requests %v", pods, took.Round(time.Millisecond),
				used, send(""))
			if used > maxStored {
				t.Errorf("a Pod takes %d bytes, want at most %d", used, maxStored)
			}
			found, err := e.List(t.Context(), "agent-1")
			if err != nil || len(found) != pods {
				t.Errorf("List returns %d Pods, %v, want %d", len(found), err, pods)
			}
		})
	}
}
