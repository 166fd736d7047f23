package status

import (
	"cmp"
	"encoding/json"
	"net/http"
	"time"

	"github.com/cmwa-project/cmwa/reconcile"
)

// probe is the response to GET /healthz and GET /readyz. Pulumi's own agent returns the first
// three fields too.
type probe struct {
	Status       string              `json:"status"`
	CurrentTime  time.Time           `json:"currentTime"`
	LastActivity time.Time           `json:"lastActivity"`
	Generation   uint64              `json:"generation"`
	Pools        []probedPool        `json:"pools"`
	Problems     map[string]string   `json:"problems,omitempty"`
	NotReady     []reconcile.Unready `json:"notReady,omitempty"`
}

type probedPool struct {
	Name   string    `json:"name"`
	Phase  string    `json:"phase"`
	Until  time.Time `json:"until,omitzero"`
	Reason string    `json:"reason,omitempty"`
	Stuck  bool      `json:"stuck,omitempty"` // no progress within health_threshold
	Error  string    `json:"problem,omitempty"`
	Jobs   int       `json:"jobs"`
}

// probeOf returns the handler of a probe. Its response has one of two texts. The status code is 503
// unless the agent passes.
func probeOf(
	status func() reconcile.Status, passes func(reconcile.Status, time.Time) bool, good, bad string,
) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		s, now := status(), time.Now()
		code, text := http.StatusOK, good
		if !passes(s, now) {
			code, text = http.StatusServiceUnavailable, bad
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(newProbe(text, s, now))
	}
}

// lastActivity returns the time of the last response of a service or event of a job. It is the
// present time if no pool has started yet.
func lastActivity(s reconcile.Status, now time.Time) (last time.Time) {
	for _, pool := range s.Pools {
		if pool.ActiveAt.After(last) {
			last = pool.ActiveAt
		}
	}
	if last.IsZero() {
		return now
	}
	return last
}

func newProbe(text string, s reconcile.Status, now time.Time) probe {
	p := probe{
		Status: text, CurrentTime: now.UTC(), LastActivity: lastActivity(s, now).UTC(), Generation: s.Applied,
		Pools: []probedPool{}, Problems: s.Problems, NotReady: s.Unready(now),
	}
	for _, pool := range s.Pools {
		p.Pools = append(p.Pools, probedPool{
			Name: pool.Spec.Name, Phase: string(pool.Phase), Until: pool.Until, Reason: pool.Reason,
			Stuck: s.Stuck(pool, now), Jobs: len(pool.Jobs),
			Error: cmp.Or(pool.ExecutorProblem, pool.PollError, pool.Unserved),
		})
	}
	return p
}
