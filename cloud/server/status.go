package server

import (
	"context"
	"net/http"
	"time"

	"github.com/cmwa-project/cmwa/cloud/server/objects"
	"github.com/cmwa-project/cmwa/cloud/server/store"
)

// statusView is the response of GET /api/status. It contains no reason of a failed check, because the call needs no
// token: the reason is in the log.
type statusView struct {
	Status  string            `json:"status"`
	Version string            `json:"version"`
	Schema  int64             `json:"schema"`
	Checks  map[string]string `json:"checks"`
}

// Results of checks.
const (
	checkOK     = "ok"
	checkFailed = "failed"
)

// statusLimit limits the time of all checks together. Balancers wait for 5 seconds.
const statusLimit = 4 * time.Second

// status reports whether the service can answer calls: 200 or 503. A balancer calls it every few seconds.
func (s *Server) status(c *call) (reply, error) {
	view, code := s.runChecks(c.Context()), http.StatusOK
	if view.Status != checkOK {
		code = http.StatusServiceUnavailable
	}
	return reply{code, view}, nil
}

// runChecks checks everything that calls depend on. It logs a check that failed once, until the check succeeds again.
func (s *Server) runChecks(ctx context.Context) statusView {
	ctx, cancel := context.WithTimeout(ctx, statusLimit)
	defer cancel()
	view := statusView{Status: checkOK, Version: s.options.Version, Checks: map[string]string{}}
	for name, check := range map[string]func() error{
		"database": func() error {
			return s.db.Read(ctx, func(t *store.Tx) (err error) {
				view.Schema, err = t.SchemaVersion()
				return err
			})
		},
		"keys": func() error {
			_, err := s.keys.Make(ctx, "status")
			return err
		},
		"objects": func() error { return objects.Probe(ctx, s.objects) },
	} {
		err := check()
		view.Checks[name] = checkOK
		if err != nil {
			view.Status, view.Checks[name] = checkFailed, checkFailed
		}
		_, failing := s.failing.Load(name)
		switch {
		case err != nil && !failing:
			s.log.Error("check failed", "component", "status", "check", name, "error", err)
			s.failing.Store(name, true)
		case err == nil && failing:
			s.log.Info("check succeeded again", "component", "status", "check", name)
			s.failing.Delete(name)
		}
	}
	return view
}

// healthz answers while the process can answer calls. It depends on nothing else: a restart, which is what follows
// when it fails, does not repair a disk.
func (s *Server) healthz(*call) (reply, error) {
	return reply{body: map[string]string{"status": checkOK}}, nil
}
