package pool

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/killpoint"
)

// errNoHeartbeat ends a start if the service accepts no heartbeat for heartbeatTimeout.
var errNoHeartbeat = runtime.FailureService.Wrap(fmt.Errorf("the service has accepted no heartbeat of the job "+
	"for %s, so it may have declared the job failed", heartbeatTimeout))

// errNoDefinition ends a start if the definition is not fetched within definitionLimit.
var errNoDefinition = fmt.Errorf("the service has not answered with a definition for %s", definitionLimit)

// start fetches the definition and creates the instance. It returns the id of the
// instance, or the reason why the job has ended.
//
//  1. The agent sends heartbeats until the runner does. The whole start must end
//     before the service declares the job failed.
//  2. The definition is fetched; without one, step 0 is reported as failed.
//  3. The executor creates the instance, and logs its actions in step 0.
func (r *jobRun) start(ctx context.Context, children *sync.WaitGroup) (id string, err error) {
	r.setPhase(runtime.Starting)
	job, cloud := r.job, r.pool.parts.Cloud

	// 1. Send heartbeats, and end the start if none has been accepted for too long.
	limited, end := context.WithCancelCause(ctx)
	defer end(nil)
	timeout := time.AfterFunc(heartbeatTimeout, func() { end(errNoHeartbeat) })
	defer timeout.Stop()
	children.Go(func() { r.sendHeartbeats(limited, timeout) })

	// 2. Fetch the definition. If the service no longer has the job, end it here.
	setup := runtime.NewSetup(job, cloud, r.handoff())
	setup.Hook(runtime.SetupHooks{
		Measured: r.recordStage, HandingOff: r.recordHandoff, Withdrawn: r.recordNotRun,
		Progressed: func(p runtime.Progress) { r.pool.parts.Journal.SetProgress(job.ID, p) },
	})
	if r.recovery != nil {
		setup.Resume(r.recovery.record.Progress)
		setup.Log("Started again: the agent ended before the first step of this job")
	}
	fetched := setup.Measure(runtime.StageDefinition)
	fetchCtx, cancel := context.WithTimeoutCause(limited, definitionLimit, errNoDefinition)
	definition, err := cloud.Definition(fetchCtx, job)
	cancel()
	fetched()
	if err != nil {
		err = runtime.FailureService.Wrap(fmt.Errorf("fetch the job's definition: %w", err))
		return "", r.fail(ctx, setup, err)
	}
	r.setDefinition(definition)
	killpoint.Hit(killpoint.DefinitionFetched)
	setup.SetHandoff(r.handoff())

	// 3. Create the instance.
	id, err = r.createInstance(limited, setup)
	if err != nil {
		return "", r.fail(ctx, setup, err)
	}
	job.Definition.Raw = nil // the runner has it; a second start fetches it again
	r.observe(runtime.Progress{Step: 0, Lines: setup.Accepted(), Status: runtime.Running}, false)
	r.logStart(id)
	killpoint.Hit(killpoint.Started)
	return id, nil
}

// logStart logs the start of the job, with a link to its page if the service has one.
func (r *jobRun) logStart(id string) {
	attributes := []any{"instance", id}
	if url := r.job.Definition.Work.URL; url != "" {
		attributes = append(attributes, "url", url)
	}
	r.log().Info("job started", attributes...)
}

// createInstance creates the instance and starts the runner in it. A start that lost the
// connection to the engine is tried again, with the delays of engineBackoff, until
// startRetryLimit has passed since the connection was lost first.
func (r *jobRun) createInstance(ctx context.Context, setup *runtime.Setup) (id string, err error) {
	var lost time.Time // when the connection was lost first
	for delay := engineBackoff.First; ; delay = engineBackoff.Next(delay) {
		id, err = r.pool.parts.Executor.Start(ctx, r.job, setup)
		if !errors.Is(err, runtime.ErrConnectionLost) || ctx.Err() != nil {
			return id, err
		}
		if lost.IsZero() {
			lost = time.Now()
		}
		if time.Since(lost)+delay > startRetryLimit {
			return "", err
		}

		// Record that the job has not run, and remove what is left.
		r.log().Warn("job not started", "error", err, "retry_in", delay)
		setup.Log("Not started: %v. The agent tries again in %v", err, delay)
		r.startLost = true
		setup.Withdraw(ctx)
		if !r.removeFailedStart(err) {
			return "", err
		}
		if !runtime.Sleep(ctx, nil, delay) {
			return "", context.Cause(ctx)
		}
	}
}

// fail ends a job that could not be started, and returns the reason. It reports step 0 as
// failed, unless the service itself has ended the job.
func (r *jobRun) fail(ctx context.Context, setup *runtime.Setup, reason error) error {
	if cause := context.Cause(ctx); cause != nil {
		reason = cause
	}
	r.log().Warn("job failed before its first step", "error", reason)
	if r.endedByService(reason) {
		r.settled = true
		return reason
	}
	finalCtx, cancel := context.WithTimeout(r.reporting, finalReportLimit)
	defer cancel()
	defer setup.Measure(runtime.StageReport)()
	err := setup.Fail(finalCtx, reason)
	if err != nil {
		r.log().Error("cannot report failed job; "+runtime.DeclaredFailed, "error", err)
	}
	r.settled = err == nil || errors.Is(err, runtime.ErrGone)
	killpoint.Hit(killpoint.Reported)
	return reason
}

// endedByService reports whether a start failed because the service has cancelled the job, or
// removed it after the agent had its definition.
func (r *jobRun) endedByService(err error) bool {
	fetched := len(r.job.Definition.Raw) > 0
	return errors.Is(err, runtime.ErrCancelled) || errors.Is(err, runtime.ErrGone) && fetched
}

// handoff returns the handoff of the job, to which the setup adds its own part.
func (r *jobRun) handoff() runtime.Handoff {
	job := r.job
	h := runtime.Handoff{
		Version:    runtime.HandoffVersion,
		Service:    job.Service,
		JobID:      job.ID,
		Token:      job.Token.Reveal(),
		OIDC:       job.OIDC.Reveal(),
		UserAgent:  r.pool.parts.UserAgent,
		CA:         job.Tuning.CA,
		Grace:      runtime.Seconds((runtime.StopGrace - 5*time.Second).Seconds()), // shorter than the agent's
		Forward:    map[string]string{},
		Definition: job.Definition.Raw,
		LocalLog:   job.Tuning.Instance.LocalLog,

		CancelGrace: runtime.Seconds(job.Tuning.CancelGrace.Seconds()),
	}
	if job.Kind.Leased() {
		h.CancelGrace = 0 // see stop
	}
	if _, ok := r.pool.parts.Executor.(runtime.Explainer); ok {
		h.Yield = runtime.Seconds(reasonWait.Seconds())
	}
	for _, name := range append([]string{"DOCKER_HOST"}, job.Tuning.Instance.Forward...) {
		if value, ok := r.pool.parts.Environ(name); ok {
			h.Forward[name] = value
		}
	}
	if tracer := r.pool.parts.Tracer; tracer != nil {
		h.TraceParent = tracer.Parent(job)
	}
	if password := job.Definition.Image.Password; !password.Empty() {
		h.Redact = append(h.Redact, password.Reveal())
	}
	return h
}

// sendHeartbeats sends a heartbeat every HeartbeatInterval until ctx ends, also after
// failures. Each heartbeat that the service accepts restarts the timeout. A start needs heartbeats
// because the pull of an image can take longer than [runtime.HeartbeatLimit]. Each call is limited
// to the interval, because request_timeout may be longer.
func (r *jobRun) sendHeartbeats(ctx context.Context, timeout *time.Timer) {
	ticker := time.NewTicker(runtime.HeartbeatInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			once, cancel := context.WithTimeout(ctx, runtime.HeartbeatInterval)
			err := r.pool.parts.Cloud.Report(once, r.job, runtime.Report{})
			cancel()
			if err != nil {
				r.log().Debug("heartbeat failed", "error", err)
			} else {
				timeout.Reset(heartbeatTimeout)
			}
		}
	}
}
