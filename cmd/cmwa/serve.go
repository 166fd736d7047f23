package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/cmwa-project/cmwa/reconcile"
)

// closeLimit bounds the end of the HTTP server: its answers are short.
const closeLimit = 5 * time.Second

// listen opens the health server's port. Port 0 is no server: nil, nil.
func listen(port int) (net.Listener, error) {
	if port == 0 {
		return nil, nil
	}
	listener, err := net.Listen("tcp", net.JoinHostPort("", strconv.Itoa(port)))
	if err != nil {
		return nil, fmt.Errorf("open the health port: %w: set http_server_port to a free port, or to 0 for none", err)
	}
	return listener, nil
}

// serve answers on the listener until ctx ends. A nil listener waits only.
func serve(ctx context.Context, listener net.Listener, status func() reconcile.Status) error {
	if listener == nil {
		<-ctx.Done()
		return nil
	}
	server := &http.Server{
		Handler:           health(status),
		ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second, IdleTimeout: time.Minute,
		MaxHeaderBytes: 16 << 10,
	}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	select {
	case err := <-failed:
		return fmt.Errorf("serve health: %w", err)
	case <-ctx.Done():
	}
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeLimit)
	defer cancel()
	err := server.Shutdown(closing)
	if served := <-failed; err == nil && !errors.Is(served, http.ErrServerClosed) {
		err = served
	}
	return err
}

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
