package kube

import (
	"net/http"
	"strings"
)

// Metrics records the requests of a [Cluster] to the API server. Its methods do not block and are
// safe for concurrent use.
type Metrics interface {
	// KubernetesRequest records one request with its verb, as in a Role. Each retry is another
	// request. Code is the HTTP status, or 0 for a request without a response. A watch or a log
	// counts at its start.
	KubernetesRequest(verb string, code int)
	// WatchRestarted records that a watch of Pods is started again although it should still run.
	// The regular end of each watch, after five to ten minutes, does not count.
	WatchRestarted()
}

// noMetrics implements [Metrics] and records nothing.
type noMetrics struct{}

func (noMetrics) KubernetesRequest(string, int) {}
func (noMetrics) WatchRestarted()               {}

// counted returns a transport that records each request. The metrics of client-go are not used: they
// are variables of the process, and count a get, a list and a watch together.
func counted(base http.RoundTripper, metrics Metrics) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		response, err := base.RoundTrip(r)
		code := 0
		if err == nil {
			code = response.StatusCode
		}
		metrics.KubernetesRequest(verbOf(r), code)
		return response, err
	})
}

// verbOf returns the verb of a request for objects of the core group. For example,
// /api/v1/namespaces/jobs/pods is a list, because a name would follow the resource.
func verbOf(r *http.Request) string {
	switch r.Method {
	case http.MethodPost:
		return "create"
	case http.MethodPut:
		return "update"
	case http.MethodDelete:
		return "delete"
	}
	_, path, _ := strings.Cut(r.URL.Path, "/api/v1/")
	switch {
	case r.URL.Query().Has("watch"):
		return "watch"
	case !strings.HasSuffix(path, "/log") && len(strings.Split(path, "/"))%2 == 1:
		return "list"
	}
	return "get"
}

// PodPhases returns the number of Pods of this agent's jobs by phase, as the watches show them.
func (c *Cluster) PodPhases() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	phases := map[string]int{}
	for key, o := range c.observers {
		if key.agents {
			continue
		}
		o.each(func(s *state) {
			if !o.self.known() || s.owner.Value() == o.self.owner {
				phases[string(s.phase)]++
			}
		})
	}
	return phases
}
