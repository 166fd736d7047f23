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

// beatInterval is the time between two signs of life. A service gives a silent
// job up after ten minutes (Pulumi documentation, deployment agents).
const beatInterval = 30 * time.Second

// beat gives signs of life, the first at once, until ctx ends. A service that
// has no such call gets none; one that has the call and does not know the job
// any more does not want it.
func beat(ctx context.Context, jobs *cloud.Jobs, gone func(error), log *slog.Logger) {
	ticker := time.NewTicker(beatInterval)
	defer ticker.Stop()
	known := false // that the service has the call
	for {
		once, cancel := context.WithTimeout(ctx, beatInterval)
		err := jobs.Heartbeat(once)
		cancel()
		var status *cloud.StatusError
		switch answered := errors.As(err, &status); {
		case err == nil:
			known = true
		case ctx.Err() != nil:
			return
		case answered && lacksCall(status.Code, known):
			log.Info("the service takes no signs of life; going on without", "error", err)
			return
		case errors.Is(err, runtime.ErrGone), errors.Is(err, runtime.ErrUnauthorized):
			gone(err)
			return
		default:
			log.Warn("a sign of life did not arrive", "error", err)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// lacksCall reports whether a status says that there is no such call. A 404
// says so only until the call has been seen to work: every other call of the
// job is asked for by then, and they say whether the job itself is there.
func lacksCall(code int, known bool) bool {
	switch code {
	case http.StatusMethodNotAllowed, http.StatusNotImplemented:
		return true
	case http.StatusNotFound:
		return !known
	}
	return false
}
