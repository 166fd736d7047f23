package kube

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cmwa-project/cmwa/runtime/kube/kubetest"
)

// TestObserverWithoutStreams uses an API server that refuses to send a list as a stream, as that of
// Kubernetes 1.33 does. The observer then requests a list. The refusal is neither a failure nor an interruption of
// the watch, and delays nothing.
func TestObserverWithoutStreams(t *testing.T) {
	inBubble(t, "the list takes a tenth of a second", func(t *testing.T) {
		const answer = time.Second / 10
		s := newFakeClusterOn(t, kubetest.NewAPIWithoutNetwork(t), runUntilTerm)
		config, m := s.Config(), &recordedMetrics{}
		config.WrapTransport = func(next http.RoundTripper) http.RoundTripper {
			next = withoutStreams(next)
			return transport(func(r *http.Request) (*http.Response, error) {
				if verbOf(r) == "list" {
					time.Sleep(answer)
				}
				return next.RoundTrip(r)
			})
		}
		opened := time.Now()
		options := Options{Config: config, Namespace: testNamespace, Agent: "agent-1", Metrics: m}
		e := executorOf(t, newCluster(t, options))
		synctest.Wait()
		job := s.job("job-1")
		if err := e.Check(t.Context(), job.Tuning); err != nil {
			t.Errorf("before the list is complete, Check returns %v", err)
		}
		s.mustStart(t, e, job)
		if took := time.Since(opened); took > 2*answer {
			t.Errorf("the job runs after %v, want at most %v", took, 2*answer)
		}
		requests, restarts := m.current()
		if requests["watch 422"] != 1 || requests["list 200"] != 1 || requests["watch 200"] != 1 || restarts != 0 {
			t.Errorf("got the requests %v and %d restarts, want one list and no restart", requests, restarts)
		}
	})
}
