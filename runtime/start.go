package runtime

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Limits of a job's start.
const (
	beatInterval    = 30 * time.Second // between two heartbeats that the agent sends
	silenceLimit    = 9 * time.Minute  // without an accepted heartbeat
	definitionLimit = 30 * time.Minute // for the definition, even while heartbeats are accepted
	recheckAfter    = time.Minute      // of preparation, after which the job may have been cancelled
)

// errSilent ends a start. A service declares a job failed that has sent no
// heartbeat for ten minutes (Pulumi documentation, "Customer-managed runners").
var errSilent = fmt.Errorf("the service has accepted no heartbeat of the job for %s, so it may have declared the job failed",
	silenceLimit)

// errNoDefinition ends a start whose definition cannot be fetched.
var errNoDefinition = fmt.Errorf("the service has not answered with a definition for %s", definitionLimit)

// start fetches the definition and makes the instance. It returns the instance's
// id, or the reason why the job has ended.
//
//  1. The agent sends heartbeats until the runner does. The whole start must end
//     before the service gives the job up.
//  2. The definition is fetched; without one, step 0 is reported as failed.
//  3. The executor makes the instance, and reports the set-up as it goes.
func (l *life) start(ctx context.Context, children *sync.WaitGroup) (id string, err error) {
	l.enter(Starting)
	job, cloud := l.job, l.pool.parts.Cloud

	// 1. Send heartbeats, and stop when none has been accepted for too long.
	limited, accepted, release := untilSilent(ctx)
	defer release()
	children.Go(func() { l.beat(limited, accepted) })

	// 2. Fetch the definition. A refusal ends the job here, and not at the service.
	setup := NewSetup(job, cloud, l.handover())
	fetching, cancel := context.WithTimeoutCause(limited, definitionLimit, errNoDefinition)
	definition, err := cloud.Definition(fetching, job)
	cancel()
	if err != nil {
		return "", l.fail(ctx, setup, fmt.Errorf("fetch the job's definition: %w", err))
	}
	job.Definition = definition
	setup.offer = l.handover()

	// 3. Make the instance.
	id, err = l.pool.parts.Executor.Start(limited, job, setup)
	if err != nil {
		return "", l.fail(ctx, setup, err)
	}
	l.saw(Progress{Step: 0, Lines: setup.told, Status: Running}, false)
	l.log.Info("job started", "environment", id)
	return id, nil
}

// untilSilent returns a context that ends when accepted has not been called for
// silenceLimit. The caller calls release.
func untilSilent(ctx context.Context) (limited context.Context, accepted, release func()) {
	limited, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(silenceLimit, func() { cancel(errSilent) })
	return limited, func() { timer.Reset(silenceLimit) }, func() {
		timer.Stop()
		cancel(nil)
	}
}

// fail reports step 0 of a job that could not be started as failed, unless the
// service itself has ended the job, and returns the reason.
func (l *life) fail(ctx context.Context, setup *Setup, reason error) error {
	if cause := context.Cause(ctx); cause != nil {
		reason = cause
	}
	l.log.Warn("job failed before its first step", "error", reason)
	fetched := len(l.job.Definition.Raw) > 0
	if errors.Is(reason, errCancelled) || errors.Is(reason, ErrGone) && fetched {
		return reason
	}
	final, cancel := context.WithTimeout(l.pool.final, farewellLimit)
	defer cancel()
	if err := setup.Fail(final, reason); err != nil {
		l.log.Error("cannot report a failed job; the service declares it failed after ten minutes of silence", "error", err)
	}
	return reason
}

// handover returns what the runner needs. The set-up adds its own part.
func (l *life) handover() Handover {
	job := l.job
	h := Handover{
		Version:    HandoverVersion,
		Service:    job.Service,
		JobID:      job.ID,
		Token:      job.Token.Reveal(),
		OIDC:       job.OIDC.Reveal(),
		UserAgent:  l.pool.parts.UserAgent,
		CA:         job.Tuning.CA,
		Grace:      Seconds((StopGrace - 5*time.Second).Seconds()), // inside the agent's own
		Forward:    map[string]string{},
		Definition: job.Definition.Raw,
	}
	for _, name := range append([]string{"DOCKER_HOST"}, job.Tuning.Place.Forward...) {
		if value, ok := l.pool.parts.Environ(name); ok {
			h.Forward[name] = value
		}
	}
	if password := job.Definition.Image.Password; !password.Empty() {
		h.Redact = append(h.Redact, password.Reveal())
	}
	return h
}

// beat sends a heartbeat every beatInterval until ctx ends, also after failures: an
// image can take longer to pull than the ten minutes a service waits. Each is
// limited to the interval, as request_timeout may be longer.
func (l *life) beat(ctx context.Context, accepted func()) {
	ticker := time.NewTicker(beatInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			once, cancel := context.WithTimeout(ctx, beatInterval)
			err := l.pool.parts.Cloud.Report(once, l.job, Report{})
			cancel()
			if err != nil {
				l.log.Debug("heartbeat failed", "error", err)
			} else {
				accepted()
			}
		}
	}
}
