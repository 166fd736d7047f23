package runner

import (
	"context"
	"errors"
	"fmt"

	"github.com/cmwa-project/cmwa/cloud"
	"github.com/cmwa-project/cmwa/runtime"
)

// status reports a step's state, for as long as that makes sense.
func (j *job) status(life, work context.Context, step, lines int, status runtime.Status) error {
	ctx, cancel := context.WithTimeout(life, statusPatience)
	defer cancel()
	err := j.client.Status(ctx, step, status)
	var answer *cloud.StatusError
	switch {
	case err == nil:
		j.progress.tell(runtime.Progress{Step: step, Lines: lines, Status: status})
		return nil
	case life.Err() != nil:
		return context.Cause(life)
	case errors.Is(err, runtime.ErrGone), errors.Is(err, runtime.ErrUnauthorized),
		errors.Is(context.Cause(work), errStopped) && errors.As(err, &answer):
		j.gone(err)
		return fmt.Errorf("%w: %w", errGone, err)
	}
	return err
}

// openLog begins a step's log, of which the service has so many lines. It may have
// the lines of first besides, as one batch.
func (j *job) openLog(life context.Context, step, told int, first []cloud.LogLine) *stepLog {
	return openLog(life, &sender{
		jobs: j.client, step: step, told: told, first: first, gone: j.gone, log: j.log,
		accepted: func(lines int) {
			j.progress.tell(runtime.Progress{Step: step, Lines: lines, Status: runtime.Running})
		},
	})
}
