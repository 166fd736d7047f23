package pool

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
)

// Reasons why a recovered job has failed.
var (
	errNotStarted = errors.New("the agent ended before the first step of this job, and could not start it again")
	errNoTrace    = errors.New("the instance of this job was removed while no agent ran, " +
		"or the machine was restarted")
)

// recovery continues the job of a record of an earlier run of the agent, with the instances of the job.
//
//  1. A claimed job has not run: it is started again.
//  2. A job that was handed off may have run: it is adopted. It is started again only if
//     its instance shows that nothing has run. If it has no instance, it has failed.
type recovery struct {
	record    runtime.Record
	instances []runtime.Instance // usually one; an engine may create another for a call whose response was lost
	orphan    bool               // the record was that of an agent that no longer exists

	// reclaimed receives a new claim of the job, if the job has not run and the service has
	// queued it again. The pool's lock guards the sending and decided, which is true after
	// one claim, or when it is decided without a claim how the job continues.
	reclaimed chan *runtime.Job
	decided   bool

	outcome runtime.Outcome // empty if the job continues, or is left to the next agent
}

// leftover is what is left of a job: its record and its instances, or one instance without a
// record.
type leftover struct {
	record    *runtime.Record
	instances []runtime.Instance // usually one
}

// join returns the leftovers of these records and instances, those with a record first.
func join(records []runtime.Record, instances []runtime.Instance) (all []leftover) {
	byJob := map[string][]runtime.Instance{}
	for _, instance := range instances {
		byJob[instance.Job] = append(byJob[instance.Job], instance)
	}
	for _, record := range records {
		all = append(all, leftover{&record, byJob[record.Job]})
		delete(byJob, record.Job)
	}
	for _, instance := range instances {
		if byJob[instance.Job] != nil {
			all = append(all, leftover{nil, []runtime.Instance{instance}})
		}
	}
	return all
}

// removeReported removes what is left of a job whose outcome the service knows.
func (p *Pool) removeReported(ctx context.Context, r leftover) {
	log := p.log.With("job", r.record.Job)
	ctx, cancel := context.WithTimeout(ctx, removeLimit)
	defer cancel()
	for _, instance := range r.instances {
		if err := p.parts.Executor.Remove(ctx, instance.ID, 0); err != nil {
			log.Warn("cannot remove the instance of a reported job", "instance", instance.ID, "error", err)
			return
		}
	}
	if err := p.parts.Journal.Remove(ctx, r.record.Job); err != nil {
		log.Warn("cannot remove the record of a reported job", "error", err)
		return
	}
	p.parts.Metrics.JobRecovered(r.record.PoolName, runtime.RecoveryRemoved)
	log.Info("job was reported before the agent ended: its leftovers are removed")
}

// startRecovery adds the job of a record to the jobs of the pool, unless the pool has it.
func (p *Pool) startRecovery(ctx context.Context, rec *recovery) {
	p.mu.Lock()
	defer p.mu.Unlock()
	record := rec.record
	if p.runs[record.Job] != nil {
		return
	}
	job := &runtime.Job{
		ID: record.Job, WorkflowID: record.WorkflowID, Kind: record.Kind, Token: record.Token, OIDC: record.OIDC,
		Generation: record.Generation,
	}
	if len(rec.instances) > 0 {
		job.Definition.Work = rec.instances[0].Work
	}
	r := p.newRun(job, record.Claimed)
	r.recovery, r.recorded, r.last = rec, true, record.Progress
	r.startDone = record.Stage != runtime.RecordClaimed // a job that may have run delays no other start
	rec.reclaimed, rec.decided = make(chan *runtime.Job, 1), record.Stage != runtime.RecordClaimed
	p.startRun(ctx, r, p.parts.Slots.force(p))
}

// continueRecovered decides how a recovered job continues. It returns false if the job is over, or is
// left to the next start because ctx has ended. Otherwise the job has an instance, or it must be
// started.
func (r *jobRun) continueRecovered(ctx context.Context) (continues bool) {
	record := r.recovery.record
	if record.Instance != "" { // another user may have created an instance with the labels of the job
		r.recovery.instances = slices.DeleteFunc(r.recovery.instances, func(i runtime.Instance) bool {
			return i.ID != record.Instance
		})
	}
	switch {
	case record.Stage == runtime.RecordClaimed:
		return r.prepareRestart(ctx)
	case len(r.recovery.instances) == 0:
		r.reportLost(ctx)
		return false
	}

	// Resume the job. Of several instances, use one that runs, or else one that has run. If the
	// runner was never started, for example in a container that was only created, start the job
	// again.
	instance := r.recovery.instances[0]
	for _, other := range r.recovery.instances {
		if other.Running || !instance.Running && !other.Started.IsZero() {
			instance = other
		}
	}
	if !instance.Running && instance.Started.IsZero() {
		return r.prepareRestart(ctx)
	}
	r.inherited = true
	r.setInstance(instance.ID)
	r.recovery.instances = []runtime.Instance{instance}
	message := "job resumed: an earlier run of this agent started it"
	switch {
	case r.recovery.orphan:
		message = "job adopted: its agent no longer exists"
	case !instance.Running:
		message = "job resumed: it ended while no agent ran"
	}
	r.noteRecovery(runtime.RecoveryResumed)
	r.log().Info(message, "instance", instance.ID)
	return true
}

// noteRecovery counts what is done with the job.
func (r *jobRun) noteRecovery(action runtime.RecoveryAction) {
	r.pool.parts.Metrics.JobRecovered(r.job.PoolName, action)
}

// hasNotRun reports whether the instance of an earlier run has ended without a handoff, so that
// nothing of the job can have run.
func (r *jobRun) hasNotRun(ctx context.Context, end *instanceEnd) bool {
	return r.recovery != nil && r.inherited && ctx.Err() == nil &&
		end.err == nil && end.exit.Code == runtime.CodeUsage
}

// endRecovery ends the run of a job that does not continue, and reports whether the job has no
// record any more.
func (r *jobRun) endRecovery() (gone bool) {
	if r.recovery.outcome == "" {
		r.log().Info("job left to the next agent")
		return false
	}
	r.setOutcome(r.recovery.outcome)
	return r.removeRecord()
}

// prepareRestart prepares a job that has not run for another start, and reports whether it can be
// started. Otherwise the job is reported as failed, unless the service has ended it, ctx has ended,
// or another agent may adopt it.
func (r *jobRun) prepareRestart(ctx context.Context) (ok bool) {
	reason := r.resetStart(ctx)
	if job := r.closeClaims(); job != nil {
		r.reclaim(job)
		reason = nil
	}
	if reason == nil {
		reason = r.recordRestart(ctx)
	}
	switch {
	case reason == nil:
		r.noteRecovery(runtime.RecoveryStarted)
		r.log().Info("job started again: the agent ended before its first step")
		return true
	case ctx.Err() != nil && r.operator.Err() == nil: // the next agent decides
	case isRefusal(reason):
		r.noteRecovery(runtime.RecoveryRemoved)
		r.log().Info(isOverMessage, "reason", reason)
		r.settled, r.recovery.outcome = true, runtime.OutcomeLost
	case r.isReplaced(reason): // the other agent decides
	case r.operator.Err() != nil:
		r.failRecovery(errOperator)
	default:
		r.failRecovery(fmt.Errorf("%w: %w", errNotStarted, reason))
	}
	return false
}

// resetStart makes the job one that was only claimed, and returns nil if it can be started again:
//
//  1. The record gets the stage of a job that has not run, and then what is left of the
//     earlier start is removed. In the other order, an agent that is killed in between would
//     leave the record of a job that may have run, without an instance.
//  2. The pool is configured, the claim is young enough, and the job was not started too often.
//  3. The service accepts a heartbeat, or has handed out the job again.
//
// If the service cancels the job meanwhile, it returns nil: the start fails for this reason.
func (r *jobRun) resetStart(ctx context.Context) error {
	// 1. Record that nothing of the job has run, and remove what is left.
	switch record := r.recovery.record; {
	case len(r.recovery.instances) > 0 && record.Restarts > 0: // the definition did not end the agent
		r.recordCreated(ctx)
	case record.Stage != runtime.RecordClaimed:
		r.recordNotRun(ctx)
	}
	for _, instance := range r.recovery.instances {
		if !r.removeEnded(instance.ID) {
			return fmt.Errorf("instance %s of its start cannot be removed", instance.ID)
		}
	}
	r.mu.Lock()
	r.inherited = false
	r.mu.Unlock()
	r.setInstance("")

	// 2. Check the pool and the age.
	record := r.recovery.record
	age := time.Since(record.Claimed)
	switch {
	case r.pool.isLeftover():
		return errors.New("its pool is no longer configured")
	case record.Restarts >= maxRestarts:
		return fmt.Errorf("agents have ended %d times before they created anything for it", record.Restarts+1)
	case age > heartbeatTimeout, age < -clockSkew:
		return fmt.Errorf("the job was claimed at %s, and a job can be started again only within %s of its claim",
			record.Claimed.UTC().Format(time.RFC3339), heartbeatTimeout)
	}

	// 3. Send heartbeats. Some services accept late heartbeats of a job that has ended, so
	// request its status too.
	err := r.confirm(ctx, heartbeatTimeout-age)
	switch {
	case err != nil:
		return err
	case r.isOver(ctx):
		return fmt.Errorf("%w: the job has ended at the service", runtime.ErrGone)
	case errors.Is(context.Cause(ctx), runtime.ErrCancelled):
		return nil
	}
	return context.Cause(ctx)
}

// confirm sends a heartbeat of the job until the service accepts or refuses it, or hands out the
// job again, or until limit has passed. Report retries the heartbeat.
func (r *jobRun) confirm(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	response := make(chan error, 1)
	go func() { response <- r.pool.parts.Cloud.Report(ctx, r.job, runtime.Report{}) }()
	select {
	case err := <-response:
		return err
	case job := <-r.recovery.reclaimed:
		cancel()
		<-response
		r.reclaim(job)
		return nil
	}
}

// closeClaims makes the run refuse later claims of its job. It returns a claim that has arrived
// and is not used yet, or nil.
func (r *jobRun) closeClaims() *runtime.Job {
	r.pool.mu.Lock()
	defer r.pool.mu.Unlock()
	r.recovery.decided = true
	select {
	case job := <-r.recovery.reclaimed:
		return job
	default:
		return nil
	}
}

// offer passes a new claim of the job to its run, and reports whether the run takes it. If not, the
// pool drops the claim, because the run continues with the first one. The caller holds the pool's
// lock.
func (r *jobRun) offer(job *runtime.Job) bool {
	if r.recovery == nil || r.recovery.decided {
		return false
	}
	r.recovery.decided = true
	r.recovery.reclaimed <- job // does not block: the channel has room for one claim
	return true
}

// reclaim continues the run with a new claim of its job.
func (r *jobRun) reclaim(job *runtime.Job) {
	r.pool.mu.Lock() // the loop reads the kind of the job
	r.mu.Lock()
	r.job, r.since = job, time.Now()
	r.mu.Unlock()
	r.pool.mu.Unlock()
	r.recovery.record.Progress = runtime.Progress{}
	r.record()
}

// failRecovery reports that step 0 of a job has failed, because the job is not started again.
func (r *jobRun) failRecovery(reason error) {
	setup := runtime.NewSetup(r.job, r.pool.parts.Cloud, r.handoff())
	setup.Resume(r.recovery.record.Progress)
	r.noteRecovery(runtime.RecoveryReported)
	r.log().Warn("job reported failed", "reason", reason)
	r.recovery.outcome = runtime.OutcomeFailed
	finalCtx, cancel := context.WithTimeout(r.pool.finalCtx, finalReportLimit)
	defer cancel()
	r.settle(setup.Fail(finalCtx, reason))
}
