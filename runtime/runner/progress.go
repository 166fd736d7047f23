package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/cmwa-project/cmwa/cloud"
	"github.com/cmwa-project/cmwa/runtime"
)

// progress tells the agent what the service has accepted. It is safe for
// concurrent use. An agent that does not listen is no reason to stop.
type progress struct {
	mu   sync.Mutex
	out  *json.Encoder
	log  *slog.Logger
	deaf bool
}

func (p *progress) tell(now runtime.Progress) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.deaf {
		return
	}
	if err := p.out.Encode(now); err != nil {
		p.deaf = true
		p.log.Warn("progress can not be told to the agent any more", "error", err)
	}
}

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

// openLog begins a step's log, of which the service has so many lines.
func (j *job) openLog(life context.Context, step, told int) *stepLog {
	return openLog(life, &sender{
		jobs: j.client, step: step, told: told, gone: j.gone, log: j.log,
		accepted: func(lines int) { j.progress.tell(runtime.Progress{Step: step, Lines: lines}) },
	})
}
