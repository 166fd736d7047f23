package status

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/cmwa-project/cmwa/reconcile"
)

// Handler returns the handler of the agent's HTTP server: GET /healthz, /readyz, /status and
// /metrics, and GET / with the status for people: a page for browsers, and text for others. Every
// client that can reach the port can read all of them, so none contains a secret. Of the settings,
// they contain the names, targets, services and job limits of pools. / and /status also contain
// the values that the last reload changed.
func Handler(snapshots Snapshots) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", probeOf(snapshots.Loop, reconcile.Status.Healthy, "healthy", "unhealthy"))
	mux.HandleFunc("GET /readyz", probeOf(snapshots.Loop, reconcile.Status.Ready, "ready", "not ready"))
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		_ = json.NewEncoder(w).Encode(snapshots.Document(time.Now()))
	})
	page := newPage(snapshots.Document)
	page.handle(mux)
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Vary", "Accept")
		if wantsPage(r) {
			page.write(w)
			return
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("Cache-Control", "no-store")
		_ = WriteText(w, snapshots.Document(time.Now()), false)
	})
	mux.Handle("GET /metrics", metricsHandler(snapshots))
	return mux
}
