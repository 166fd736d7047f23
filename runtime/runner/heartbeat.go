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

// sendHeartbeats sends heartbeats until ctx ends, the first immediately. It continues
// after a rejection, because a service that does not have the call now may have it after
// an upgrade. It calls gone when the service no longer has the job.
func sendHeartbeats(ctx context.Context, jobs *cloud.Jobs, gone func(error), log *slog.Logger) {
	ticker := time.NewTicker(runtime.HeartbeatInterval)
	defer ticker.Stop()
	supported := false // whether the service has the call
	failing := false
	for {
		callCtx, cancel := context.WithTimeout(ctx, runtime.HeartbeatInterval)
		err := jobs.Heartbeat(callCtx)
		cancel()
		switch {
		case err == nil:
			if failing {
				log.Info("heartbeat accepted again")
			}
			supported, failing = true, false
		case ctx.Err() != nil:
			return
		case isGone(err, supported):
			gone(err)
		default:
			level := slog.LevelDebug
			if !failing {
				level = slog.LevelWarn
			}
			log.Log(ctx, level, "heartbeat failed", "error", err, "retry_in", runtime.HeartbeatInterval)
			failing = true
		}

		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// isGone reports whether the error of a heartbeat means that the service no longer has
// the job. A 404 means this only if an earlier heartbeat was accepted: otherwise the
// service may not have the call.
func isGone(err error, supported bool) bool {
	if status, ok := errors.AsType[*cloud.StatusError](err); ok && status.Code == http.StatusNotFound {
		return supported
	}
	return errors.Is(err, runtime.ErrGone) || errors.Is(err, runtime.ErrUnauthorized)
}
