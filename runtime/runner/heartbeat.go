package runner

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/cmwa-project/cmwa/cloud"
	"github.com/cmwa-project/cmwa/runtime"
)

// beatInterval is the time between two heartbeats, a small part of
// [runtime.HeartbeatLimit].
const beatInterval = 30 * time.Second

// beat sends heartbeats, the first at once, until ctx ends, also after refusals: a
// service that has no such call now may have it in a minute. A refusal that
// is believed, of a call that has worked before, calls gone.
func beat(ctx context.Context, jobs *cloud.Jobs, gone func(error), log *slog.Logger) {
	ticker := time.NewTicker(beatInterval)
	defer ticker.Stop()
	known := false // that the service has the call
	failing := false
	for {
		once, cancel := context.WithTimeout(ctx, beatInterval)
		err := jobs.Heartbeat(once)
		cancel()
		switch {
		case err == nil:
			if failing {
				log.Info("heartbeat accepted again")
			}
			known, failing = true, false
		case ctx.Err() != nil:
			return
		case isGone(err, known):
			gone(err)
		default:
			level := slog.LevelDebug
			if !failing {
				level = slog.LevelWarn
			}
			log.Log(ctx, level, "heartbeat failed", "error", err, "retry_in", beatInterval)
			failing = true
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// isGone reports whether a believed refusal means that the service no longer has
// the job. A 404 means so only once the call has worked: otherwise the service may
// not have the call.
func isGone(err error, known bool) bool {
	var status *cloud.StatusError
	if errors.As(err, &status) && status.Code == http.StatusNotFound {
		return known
	}
	return errors.Is(err, runtime.ErrGone) || errors.Is(err, runtime.ErrUnauthorized)
}
