package kube

import (
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/cmwa-project/cmwa/runtime/kube/kubetest"
)

// recordedMetrics is a [Metrics] that stores what it records.
type recordedMetrics struct {
	mu       sync.Mutex
	requests map[string]int // by verb and code, such as "get 200"
	restarts int
}

func (m *recordedMetrics) KubernetesRequest(verb string, code int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.requests == nil {
		m.requests = map[string]int{}
	}
	m.requests[fmt.Sprint(verb, " ", code)]++
}

func (m *recordedMetrics) WatchRestarted() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.restarts++
}

func (m *recordedMetrics) current() (requests map[string]int, restarts int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.requests), m.restarts
}

func TestVerbOf(t *testing.T) {
	for request, want := range map[string]string{
		"GET /api/v1/namespaces/jobs/pods":                          "list",
		"GET /api/v1/namespaces/jobs/pods?watch=true":               "watch",
		"GET /api/v1/namespaces/jobs/pods/list":                     "get",
		"GET /api/v1/namespaces/jobs/pods/job-1/log?follow=true":    "get",
		"GET /k8s/clusters/c-1/api/v1/namespaces/jobs/pods/job-1":   "get",
		"GET /api/v1/nodes/node-1":                                  "get",
		"GET /api/v1/namespaces/jobs/events?fieldSelector=watch%3D": "list",
		"POST /api/v1/namespaces/jobs/pods":                         "create",
		"PUT /api/v1/namespaces/jobs/pods/job-1":                    "update",
		"DELETE /api/v1/namespaces/jobs/pods/job-1":                 "delete",
	} {
		var method, target string
		_, _ = fmt.Sscan(request, &method, &target)
		if got := verbOf(httptest.NewRequest(method, target, nil)); got != want {
			t.Errorf("%s: got %s, want %s", request, got, want)
		}
	}
}

// TestMetrics follows the requests of one job, and of a watch that the API server interrupts.
func TestMetrics(t *testing.T) {
	inBubble(t, "requests, watches and phases of Pods", func(t *testing.T) {
		s := newFakeClusterOn(t, kubetest.NewAPIWithoutNetwork(t), runUntilTerm)
		m := &recordedMetrics{}
		cluster := newCluster(t, Options{Config: s.Config(), Namespace: testNamespace, Agent: "agent-1", Metrics: m})
		if got := cluster.PodPhases(); len(got) > 0 {
			t.Errorf("before the first Pod the phases are %v", got)
		}
		e := executorOf(t, cluster)
		s.mustStart(t, e, s.job("job-1"))
		synctest.Wait()
		if got := cluster.PodPhases(); !maps.Equal(got, map[string]int{string(corev1.PodRunning): 1}) {
			t.Errorf("the phases are %v, want one running Pod", got)
		}
		requests, restarts := m.current()
		want := map[string]int{"watch 200": 1, "create 201": 1, "update 200": 1}
		if !maps.Equal(requests, want) || restarts != 0 {
			t.Errorf("got the requests %v and %d restarts, want %v and 0", requests, restarts, want)
		}

		// After an hour, each watch has ended at its time.
		time.Sleep(time.Hour)
		requests, restarts = m.current()
		if watches := requests["watch 200"]; watches < 6 || watches > 13 || restarts != 0 {
			t.Errorf("after an hour: got %d watches and %d restarts, want 6 to 13 and 0", watches, restarts)
		}

		// An API server that restarts interrupts the watch and refuses the next one.
		s.Inject(failAll("watch", kubetest.Fault{Status: http.StatusServiceUnavailable}))
		s.DropWatches()
		time.Sleep(time.Minute)
		requests, restarts = m.current()
		if requests["watch 503"] == 0 || restarts == 0 {
			t.Errorf("after an interrupted watch: got the requests %v and %d restarts", requests, restarts)
		}
	})
}
