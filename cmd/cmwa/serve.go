package main

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/cmwa-project/cmwa/reconcile"
)

// health answers GET /healthz, with the three fields that the original has and
// a few more, and GET /readyz. An unhealthy agent answers 503.
func health(status func() reconcile.Status) http.Handler {
	type pool struct {
		Name  string    `json:"name"`
		Phase string    `json:"phase"`
		Until time.Time `json:"until,omitzero"`
		Why   string    `json:"why,omitempty"`
		Jobs  int       `json:"jobs"`
	}
	type body struct {
		Status       string            `json:"status"`
		CurrentTime  time.Time         `json:"currentTime"`
		LastActivity time.Time         `json:"lastActivity"`
		Generation   uint64            `json:"generation"`
		Pools        []pool            `json:"pools"`
		Problems     map[string]string `json:"problems,omitempty"`
	}
	answer := func(w http.ResponseWriter, good bool, words [2]string, s reconcile.Status, now time.Time) {
		b := body{words[0], now.UTC(), s.LastProgress().UTC(), s.Applied, []pool{}, s.Problems}
		for _, p := range s.Pools {
			b.Pools = append(b.Pools, pool{p.Spec.Name, string(p.Phase), p.Until, p.Why, len(p.Jobs)})
		}
		w.Header().Set("Content-Type", "application/json")
		if !good {
			b.Status = words[1]
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_ = json.NewEncoder(w).Encode(b)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		s, now := status(), time.Now()
		answer(w, s.Healthy(now), [2]string{"healthy", "unhealthy"}, s, now)
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		s, now := status(), time.Now()
		answer(w, s.Ready(), [2]string{"ready", "not ready"}, s, now)
	})
	return mux
}
