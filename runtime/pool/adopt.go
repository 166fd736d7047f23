package pool

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
)

// adopt takes over, before the first claim, the jobs and instances that an earlier run of this
// agent has left, and the instances of agents that no longer exist.
//
//  1. A job with a record is adopted, started again, reported as failed, or removed: see
//     recovery. If the records or the instances cannot be listed, it is not known what may
//     run, so the pool fails and is started again.
//  2. A running instance without a record becomes a job of the pool, and takes a slot even
//     if none is free, unless it is unnamed: see adoptInstance. It is never started again: its
//     runner has the job's token and reports by itself.
//  3. An instance without a record that has ended is swept in the background, because a
//     slow engine would delay the first poll. If it may have ended within the last minute,
//     a later sweep removes it.
//
// Instances of leased work are not adopted: see dropLeased.
func (p *Pool) adopt(ctx context.Context) error {
	records, err := p.listRecords(ctx)
	if err != nil {
		return fmt.Errorf("list the records of an earlier run: %w", err)
	}
	instances, err := p.list(ctx)
	if err != nil {
		return fmt.Errorf("list instances of an earlier run: %w", err)
	}
	instances = p.dropLeased(ctx, instances)

	var ended []runtime.Instance
	for _, l := range join(records, instances) {
		if l.record == nil && !l.instances[0].Running {
			ended = append(ended, l.instances[0]) // 3.
			continue
		}
		p.takeOver(ctx, l, false, true) // 1. and 2.
	}
	p.jobs.Go(func() { p.sweep(ctx, ended) })

	if adopter, ok := p.parts.Executor.(runtime.Adopter); ok {
		p.adoptOrphans(ctx, ctx, adopter)
	}
	return nil
}

// takeOver recovers the job of a record, or makes a running instance without a record a job of
// the pool. If orphan is true, the agent of the job no longer exists, and an instance that has
// ended is removed without the grace period of sweep. Complete is false if records may be missing.
func (p *Pool) takeOver(ctx context.Context, l leftover, orphan, complete bool) {
	switch {
	case l.record != nil && l.record.Stage == runtime.RecordReported:
		p.jobs.Go(func() { p.removeReported(ctx, l) })
	case l.record != nil:
		p.startRecovery(ctx, &recovery{record: *l.record, instances: l.instances, orphan: orphan})
	case !l.instances[0].Running:
		p.jobs.Go(func() { p.removeEnded(ctx, l.instances[0]) })
	case orphan:
		p.adoptInstance(ctx, l.instances[0], complete, "job adopted: its agent no longer exists")
	default:
		p.adoptInstance(ctx, l.instances[0], complete, "job resumed: an earlier run of this agent started it")
	}
}

// listRecords returns the records of the agent for the pool.
func (p *Pool) listRecords(ctx context.Context) ([]runtime.Record, error) {
	ctx, cancel := context.WithTimeout(ctx, journalLimit)
	defer cancel()
	records, err := p.parts.Journal.List(ctx)
	key := p.State().Spec.Key()
	return slices.DeleteFunc(records, func(r runtime.Record) bool { return r.Pool != key }), err
}

// adoptInstance makes a running instance without a record a job of the pool, unless the pool has the
// job already.
//
// If agents share the journal and no record is missing, the job is unnamed: it takes no slot, so that
// it stops no claims. Every user who may create Pods can create an instance with the labels of a job,
// and only agents can write records. A job whose record could not be stored, or was sealed with an
// earlier token, is unnamed too; then more jobs run than the limit allows.
func (p *Pool) adoptInstance(ctx context.Context, instance runtime.Instance, complete bool, message string) {
	_, shared := p.parts.Journal.(runtime.RecordAdopter)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.runs[instance.Job] != nil {
		return
	}
	job := &runtime.Job{
		ID: instance.Job, WorkflowID: instance.WorkflowID, Kind: runtime.Deployment, Generation: instance.Generation,
		Definition: runtime.Definition{Work: instance.Work},
	}
	since := time.Now()
	if !instance.Started.IsZero() && instance.Started.Before(since) { // the engine's clock may differ
		since = instance.Started
	}
	r := p.newRun(job, since)
	r.log().Info(message, "instance", instance.ID)
	r.id, r.inherited, r.startDone = instance.ID, true, true
	if r.unnamed = shared && complete; r.unnamed {
		p.startRun(ctx, r, nil)
		return
	}
	p.startRun(ctx, r, p.parts.Slots.force(p))
}

// followOrphans adopts orphaned instances at intervals until ctx ends. The adopted jobs run
// with the second context, jobs. The intervals vary, because all agents notice at the same time that
// another agent has ended.
func (p *Pool) followOrphans(ctx, jobs context.Context, adopter runtime.Adopter) {
	for runtime.Sleep(ctx, nil, runtime.Jitter(adoptInterval)) {
		p.adoptOrphans(ctx, jobs, adopter)
	}
}

// adoptOrphans takes over jobs of agents that no longer exist.
//
//  1. A pool that drains starts no attempt, because its agent may be about to end. An
//     attempt that has started may still adopt jobs, so the pool waits for its end. When a
//     draining pool has no job left, it cancels the attempt.
//  2. If there are instances or records to take over, all instances of the pool are listed,
//     because a record may belong to an instance that was adopted before. If they cannot be listed,
//     everything waits for the next attempt.
//  3. If the records could not be adopted, an instance that has ended waits for the next attempt,
//     because its record would be removed with it. It waits until [runtime.HeartbeatLimit] after its end.
//     A running instance does not wait: its runner has the job's token and reports by itself.
func (p *Pool) adoptOrphans(ctx, jobs context.Context, adopter runtime.Adopter) {
	// 1. Make an attempt.
	limited, cancel := context.WithTimeout(ctx, adoptLimit)
	defer cancel()
	p.mu.Lock()
	key, draining := p.spec.Key(), p.draining
	if !draining {
		p.adoption.cancel = cancel
	}
	p.mu.Unlock()
	if draining {
		return
	}
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.adoption.cancel = nil
		if p.draining {
			p.wake()
		}
	}()
	mine := func(pool string) bool { return pool == key }
	instances, err := adopter.AdoptOrphans(limited, mine)
	p.logAdoption(limited, err)
	records, complete := p.adoptRecords(limited, mine)

	// 2. List the instances of the pool. Labels may have been edited since AdoptOrphans read them.
	instances = slices.DeleteFunc(instances, func(i runtime.Instance) bool { return i.Pool != key })
	retries := p.retriesAdoption(complete)
	if len(instances)+len(records) == 0 && !retries {
		return
	}
	all, err := p.list(jobs)
	if err != nil {
		p.log.Debug("cannot list instances", "error", err)
		p.retryAdoption(records)
		return
	}
	has := func(list []runtime.Instance, id string) bool {
		return slices.ContainsFunc(list, func(i runtime.Instance) bool { return i.ID == id })
	}
	for _, instance := range instances {
		if !has(all, instance.ID) { // the list may not have it yet
			all = append(all, instance)
		}
	}

	// 3. Take over what is complete.
	for _, l := range join(records, p.dropLeased(jobs, all)) {
		if l.record == nil {
			instance := l.instances[0]
			if p.hasJob(instance.Job) || !retries && !has(instances, instance.ID) {
				continue
			}
			if !complete && !instance.Running && !endedBefore(instance, runtime.HeartbeatLimit) {
				p.retryAdoption(nil)
				continue
			}
		}
		p.takeOver(jobs, l, true, complete)
	}
}

// adoptRecords takes over the records of agents that no longer exist, if agents share the journal,
// and returns them with those of an earlier attempt. Complete is false if records may be missing:
// right after a failure, the journal may return none and no error.
func (p *Pool) adoptRecords(ctx context.Context, mine func(string) bool) (records []runtime.Record, complete bool) {
	adopter, ok := p.parts.Journal.(runtime.RecordAdopter)
	if !ok {
		return nil, true
	}
	records, err := adopter.AdoptRecords(ctx, mine)
	records = slices.DeleteFunc(records, func(r runtime.Record) bool { return !mine(r.Pool) })
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.log.Debug("cannot adopt the records of jobs", "error", err)
		p.adoption.failed = time.Now()
	}
	records, p.adoption.records = append(p.adoption.records, records...), nil
	return records, time.Since(p.adoption.failed) >= adoptInterval/2
}

// adoption is what the last attempts to adopt jobs have left.
type adoption struct {
	records []runtime.Record // adopted, but not taken over yet
	failed  time.Time        // end of the last failed attempt to adopt records
	again   bool             // instances were adopted, but not taken over yet
	failing bool             // the last attempt to adopt instances failed
	cancel  func()           // cancels the attempt that is under way; nil without one
}

// retryAdoption makes a later attempt take over the records, and the instances of the pool.
func (p *Pool) retryAdoption(records []runtime.Record) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.adoption.records, p.adoption.again = append(p.adoption.records, records...), true
}

// retriesAdoption reports whether instances of an earlier attempt are to be taken over now. They
// wait until records can be adopted.
func (p *Pool) retriesAdoption(complete bool) (retries bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	retries = p.adoption.again && complete
	p.adoption.again = p.adoption.again && !complete
	return retries
}

// awaitsRecords reports whether ended instances of the pool wait for their records.
func (p *Pool) awaitsRecords() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.adoption.again
}

// logAdoption logs the first failure of a series as a warning, later failures for debugging,
// and the success after them. It ignores the result of an attempt that was cancelled.
func (p *Pool) logAdoption(ctx context.Context, err error) {
	if errors.Is(ctx.Err(), context.Canceled) {
		return
	}
	p.mu.Lock()
	before := p.adoption.failing
	p.adoption.failing = err != nil
	p.mu.Unlock()
	switch {
	case err != nil && !before:
		p.log.Warn("cannot adopt jobs of agents that no longer exist", "error", err, "retry_in", adoptInterval)
	case err != nil:
		p.log.Debug("cannot adopt jobs of agents that no longer exist", "error", err)
	case before:
		p.log.Info("adoption of jobs resumed")
	}
}

// hasJob reports whether the pool runs a job.
func (p *Pool) hasJob(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.runs[id] != nil
}
