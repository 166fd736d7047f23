package pool

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/killpoint"
)

// Causes for which a job is stopped.
var (
	errJobGone    = fmt.Errorf("%w: the service no longer has the job", runtime.ErrCancelled)
	errShutdown   = errors.New("the time limit for stopping jobs is exceeded")
	errTimeLimit  = errors.New("the job exceeded its time limit")
	errRunnerHung = errors.New("the last step is reported, but the runner does not exit")
	errOperator   = errors.New("cmwa jobs stop has stopped the job")
)

// jobRun is one job from its claim to its removal. It starts the goroutines of the job and
// waits for them: heartbeats until the runner starts, progress, status polls, and the wait for
// its end.
type jobRun struct {
	pool  *Pool
	named atomic.Pointer[slog.Logger] // see log
	job   *runtime.Job
	id    string // id of the instance; before run, only an adopted job has one; see setInstance

	inherited bool // another run or another agent started the instance: the service may not know the job
	startDone bool // step 0 has ended, or may have: other starts do not wait for this job; guarded by the pool's lock
	unnamed   bool // no record names the instance, so another user may have created it: it takes no slot
	recorded  bool // the journal has a record of the job
	settled   bool // the service needs no further report of the job: its record may be removed
	startLost bool // a start lost the connection to the engine

	recovery *recovery // nil without a record of an earlier run

	operator context.Context // ends when an operator stops the job
	stopJob  context.CancelCauseFunc

	mu     sync.Mutex // guards the following fields, and changes of job
	since  time.Time  // of the claim; without a record, of the start of the instance
	phase  runtime.Phase
	last   runtime.Progress // last progress that the runner has reported; the service has accepted it
	active time.Time        // of the last change of phase or last
	silent time.Time        // when the runner got its handoff; zero after its first report, and for an adopted job
	stages []runtime.StageTime
	steps  []runtime.StepTime
	ending ending
	lease  lease

	reporting  context.Context // of the last reports; it ends with finalCtx, or when the lease is lost
	endReports context.CancelCauseFunc

	stepEnded chan struct{} // closed when a stopped step has ended, and the reason was added to its log
	result    result        // set by the goroutine of run

	stream progressReader // used only by the goroutine of follow
}

// ending is what is known about why a job ends. The run's lock guards it.
type ending struct {
	stopReason    string         // why this agent stops the job; empty if it does not
	external      bool           // the runner was stopped, and not by this agent or an earlier one
	endReason     string         // why the job ended, as added to its log; empty if unknown
	pulumi        runtime.Pulumi // how pulumi ended in a step that was stopped; empty if it did not run
	stack         string         // of that pulumi; empty if unknown
	agentLogLines int            // lines that the agent has added to the log of the last step
}

// result is how a job has ended.
type result struct {
	outcome  runtime.Outcome // empty before the end
	end      instanceEnd
	startErr error // why the job could not be started
}

// runJob runs the job, with its lease if it has one.
func (r *jobRun) runJob(ctx context.Context) {
	r.reporting, r.endReports = context.WithCancelCause(r.pool.finalCtx)
	defer r.endReports(nil)
	if r.lease.leaser != nil {
		r.runLeased(ctx)
	} else {
		r.run(ctx)
	}
}

// run starts the job, waits for its end, and reports its outcome. When ctx ends, run stops
// the job with a grace period and still reports the outcome, or it leaves the job running
// (leavesInstance). The result gone is whether the instance and the record of the job are
// removed, as far as the agent knows. The lease of leased work is then not renewed any more.
func (r *jobRun) run(ctx context.Context) (gone bool) {
	ctx, cancel := context.WithCancelCause(ctx)
	var children sync.WaitGroup
	defer func() {
		cancel(nil)
		children.Wait()
	}()

	// Record the job, or find out what an earlier run of the agent has left of it.
	switch {
	case r.recovery != nil:
		if !r.continueRecovered(ctx) {
			return r.endRecovery()
		}
	case !r.inherited && r.lease.leaser == nil: // leased work needs no record: its lease expires without the agent
		r.record()
	}
	if r.lease.leaser == nil { // renewals of the lease detect the cancellation of leased work
		known := !r.inherited // copied, because inherited changes if the job is started again
		children.Go(func() { r.pollStatus(ctx, cancel, known) })
	}

	// From now on an operator can stop the job.
	defer context.AfterFunc(r.operator, func() { cancel(context.Cause(r.operator)) })()

	// Start the job, unless it has an instance, and wait for its end. If an instance of an
	// earlier run of the agent ended without a handoff, nothing has run in it: start the
	// job again in a new instance.
	for {
		if r.id == "" {
			id, err := r.start(ctx, &children)
			if err != nil {
				return r.endFailedStart(ctx, err)
			}
			r.setInstance(id)
		}
		end := r.waitForEnd(ctx, cancel, &children)
		if end == nil || !r.hasNotRun(ctx, end) {
			return r.finish(ctx, end)
		}
		if !r.prepareRestart(ctx) {
			return r.endRecovery()
		}
	}
}

// endFailedStart removes what a failed start has left. The result gone is that of run.
func (r *jobRun) endFailedStart(ctx context.Context, err error) (gone bool) {
	gone = r.removeFailedStart(err)
	r.countFailedStart(ctx, err)
	r.result.startErr = err
	r.setOutcome(startOutcome(ctx, err))
	r.recordReport()
	return r.removeRecord() && gone // nothing has run, so the record is not needed for the instance
}

// waitForEnd waits for the end of the instance, and stops the job if it exceeds its time
// limit. It returns nil if the job may still run.
func (r *jobRun) waitForEnd(
	ctx context.Context, cancel context.CancelCauseFunc, children *sync.WaitGroup,
) *instanceEnd {
	r.setPhase(runtime.Started)
	runningSince := time.Now()
	if r.inherited {
		runningSince = r.since
	} else {
		r.setSilent(runningSince)
	}

	// The runner enforces the time limit, counted from its own start. The timer is a
	// fallback: its limit is longer by timeLimitGrace and the cancel grace period.
	if limit := r.job.Definition.Timeout; limit > 0 {
		grace := timeLimitGrace + r.job.Tuning.CancelGrace
		limit = min(limit, math.MaxInt64-grace) + grace
		overdue := time.AfterFunc(limit, func() { cancel(errTimeLimit) })
		defer overdue.Stop()
	}
	end := r.wait(ctx, children)
	if end != nil {
		r.recordStage(runtime.StageRun, runningSince)
	}
	return end
}

// finish reports how the job ended and removes its instance, unless end is nil, because the job
// may still run. The result gone is that of run.
func (r *jobRun) finish(ctx context.Context, end *instanceEnd) (gone bool) {
	switch {
	case end == nil && r.leavesInstance(ctx):
		r.log().Info("job left running for the next agent", "instance", r.id)
		return false
	case end == nil:
		r.log().Error("cannot stop job before shutdown; left running for the next start", "instance", r.id)
		return false
	}

	killpoint.Hit(killpoint.RunnerEnded)
	r.setPhase(runtime.Done)
	r.countEnd(ctx, *end)
	r.settled = r.reportEnd(ctx, end.exit, end.err)
	killpoint.Hit(killpoint.Reported)
	r.recordReport()
	r.result.end = *end
	r.setOutcome(r.outcome(ctx, *end))

	// Remove the instance. If that fails, a later sweep (sweep.go) removes it. A recovered job, or a
	// job that was started again, may have other instances, which are listed.
	removed := r.measure(runtime.StageRemove)
	gone = r.removeEnded(r.id)
	if r.recovery != nil || r.startLost {
		gone = r.removeAll()
	}
	removed()
	killpoint.Hit(killpoint.Removed)
	return gone && r.removeRecord() // the next start removes a record that stays, and what is left of the instance
}

// instanceEnd is how the instance of a job ended.
type instanceEnd struct {
	exit runtime.Exit
	err  error
}

// wait blocks until the job has ended. When ctx ends first, it stops the job, or leaves it
// running (leavesInstance). It returns nil if the job may still run.
//
// Thousands of goroutines may block in it for hours. The frames of wait and of its callers are
// small, so that a stack of 4 KiB is enough. For this reason the end is a pointer, and the code
// before and after the wait is in other functions.
func (r *jobRun) wait(ctx context.Context, children *sync.WaitGroup) *instanceEnd {
	// Wait for the end and follow the progress, each in its own goroutine. The first
	// goroutine writes end, and end is read only after endedCh is closed.
	end := new(instanceEnd)
	endedCh, followedCh := make(chan struct{}), make(chan struct{})
	waitCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	children.Go(func() {
		r.retryEngine(waitCtx, nil, "cannot wait for instance", func() (done bool, err error) {
			end.exit, end.err = r.pool.parts.Executor.Wait(waitCtx, r.id)
			return end.err == nil || errors.Is(end.err, runtime.ErrNoInstance), end.err
		})
		close(endedCh)
	})
	children.Go(func() {
		r.follow(waitCtx, endedCh)
		close(followedCh)
	})

	// Wait for the end of the job or of ctx.
	select {
	case <-endedCh:
	case <-ctx.Done():
		if r.leavesInstance(ctx) && !closed(endedCh) || !r.stop(context.Cause(ctx), endedCh, children) {
			return nil
		}
	}

	// Wait until follow has read the last lines of the stream, which already exist.
	runtime.Sleep(waitCtx, followedCh, streamGrace)
	if !closed(endedCh) {
		return &instanceEnd{err: errors.New("the engine did not report how the instance ended")}
	}
	return end
}

// leavesInstance reports whether the job is left running after ctx has ended: the pool
// has to stop, and another agent adopts the executor's instances. A job that must end
// for another reason, and leased work, is stopped.
func (r *jobRun) leavesInstance(ctx context.Context) bool {
	adopter, ok := r.pool.parts.Executor.(runtime.Adopter)
	if !ok || !adopter.LeavesJobs() || r.lease.leaser != nil {
		return false
	}
	cause := context.Cause(ctx)
	return !errors.Is(cause, runtime.ErrCancelled) && !errors.Is(cause, errOperator) &&
		!errors.Is(cause, errTimeLimit) && !errors.Is(cause, errRunnerHung)
}

// follow reads the runner's progress until the job has ended and endedCh is closed. A
// stream that breaks off earlier is read again from its beginning.
func (r *jobRun) follow(ctx context.Context, endedCh <-chan struct{}) {
	r.retryEngine(ctx, endedCh, "cannot read progress", func() (done bool, err error) {
		complete := closed(endedCh)
		err = r.readStream(ctx)
		switch {
		case complete, ctx.Err() != nil, errors.Is(err, runtime.ErrNoInstance):
			return true, nil
		case err == nil: // the job is about to end, or the stream broke off without an error
			return !runtime.Sleep(ctx, endedCh, exitGrace) || closed(endedCh), nil
		}
		return false, err
	})
}

// remove removes the instance. It uses finalCtx, so it also works after the context of the
// job has ended.
func (r *jobRun) remove(grace time.Duration) error {
	ctx, cancel := context.WithTimeout(r.pool.finalCtx, grace+removeLimit)
	defer cancel()
	return r.pool.parts.Executor.Remove(ctx, r.id, grace)
}

// log returns the log of the job. Its lines have the names of the job, as far as they are known.
func (r *jobRun) log() *slog.Logger { return r.named.Load() }

// name gives the log of the job the names that are known now.
func (r *jobRun) name() {
	work := r.job.Definition.Work
	attributes := []any{"job", r.job.ID, "generation", r.job.Generation}
	for _, a := range [][2]string{
		{r.job.Kind.Subject(), r.job.WorkflowID}, {"lease", r.job.Lease.ID}, {"organization", work.Organization},
		{"project", work.Project}, {"stack", work.Stack}, {"operation", work.Operation}, {"version", work.Version},
	} {
		if a[1] != "" {
			attributes = append(attributes, a[0], a[1])
		}
	}
	r.named.Store(r.pool.log.With(attributes...))
}

// setOutcome sets the outcome of the job, which has ended, and counts it.
func (r *jobRun) setOutcome(outcome runtime.Outcome) {
	r.result.outcome = outcome
	r.pool.parts.Metrics.JobEnded(r.job.PoolName, r.state(), outcome)
}

// setDefinition sets the definition of the job.
func (r *jobRun) setDefinition(definition runtime.Definition) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.job.Definition = definition
	r.name()
}

// measure starts to measure a stage of the job, and returns a function that ends and records the measurement.
func (r *jobRun) measure(stage runtime.Stage) (end func()) {
	start := time.Now()
	return func() { r.recordStage(stage, start) }
}

// recordStage records a stage that ends now.
func (r *jobRun) recordStage(stage runtime.Stage, start time.Time) {
	now := time.Now()
	r.pool.parts.Metrics.JobStage(r.job.Identity.Target, stage, now.Sub(start))
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.stages) < maxStages {
		r.stages = append(r.stages, runtime.StageTime{Stage: stage, Start: start, End: now})
	}
}

// setSilent sets the time since when the runner has reported nothing; zero when it has reported. It
// returns the time before.
func (r *jobRun) setSilent(since time.Time) (before time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before, r.silent = r.silent, since
	return before
}

// setInstance sets the id of the instance. Only the goroutine of run calls it, so this goroutine reads the id without
// the lock.
func (r *jobRun) setInstance(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.id = id
}

func (r *jobRun) setPhase(phase runtime.Phase) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.phase, r.active = phase, time.Now()
}

// lastProgress returns the last progress that the runner has reported.
func (r *jobRun) lastProgress() runtime.Progress {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last
}

func (r *jobRun) state() runtime.JobState {
	r.mu.Lock()
	defer r.mu.Unlock()
	return runtime.JobState{
		ID: r.job.ID, WorkflowID: r.job.WorkflowID, Kind: r.job.Kind, Work: r.job.Definition.Work,
		Phase: r.phase, Instance: r.id, Since: r.since, ActiveAt: r.active,
		Stages: slices.Clip(r.stages), // never changed, only appended to
	}
}
