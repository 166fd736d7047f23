package runner

import (
	"context"
	"errors"
	"fmt"

	"github.com/cmwa-project/cmwa/cloud"
	"github.com/cmwa-project/cmwa/runtime"
)

// reportStatus reports the status of a step to the service, and then the progress to the
// agent. It retries for at most statusTimeout. If the service responds that it no longer has
// the job, or responds with any error after a stop request, reportStatus returns errGone.
func (j *job) reportStatus(jobCtx, workCtx context.Context, now runtime.Progress) error {
	ctx, cancel := context.WithTimeout(jobCtx, statusTimeout)
	defer cancel()
	err := j.client.Status(ctx, now.Step, now.Status)
	switch {
	case err == nil:
		j.progress.report(now)
		return nil
	case jobCtx.Err() != nil:
		return context.Cause(jobCtx)
	case errors.Is(err, runtime.ErrGone), errors.Is(err, runtime.ErrUnauthorized),
		errors.Is(context.Cause(workCtx), errStopped) && errors.As(err, new(*cloud.StatusError)):
		j.gone(err)
		return fmt.Errorf("%w: %w", errGone, err)
	}
	return err
}

// openLog opens the log of a step. Accepted is the number of lines that the service already
// has. First contains further lines that the service may have; they were sent as one batch.
func (j *job) openLog(logCtx context.Context, step, accepted int, first []cloud.LogLine) *stepLog {
	return openLog(logCtx, &sender{
		jobs: j.client, step: step, accepted: accepted, first: first, onGone: j.gone, log: j.log,
		onAccepted: func(lines int) {
			j.progress.report(runtime.Progress{Step: step, Lines: lines, Status: runtime.Running})
		},
	}, j.local)
}
