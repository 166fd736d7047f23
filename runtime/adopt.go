package runtime

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

const (
	adoptInterval = 20 * time.Second // between two attempts to adopt orphaned instances
	adoptLimit    = time.Minute      // for one attempt to adopt instances and records
)

// adopt takes over, before the first claim, the jobs and instances that an earlier run of this
// agent has left, and the instances of agents that no longer exist.
//
//  1. A job with a record is adopted, started again, reported as failed, or removed: see
//     recoverRecords. If the records or the instances cannot be listed, it is not known
//     what may run, so the pool fails and is started again.
//  2. A running instance without a record becomes a job of the pool, and takes a slot even
//     if none is free. It is never started again: its runner has the job's token and
//     reports by itself.
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

	// 1. Recover the jobs with a record.
	others := p.recoverRecords(ctx, records, instances, false)

	// 2. Adopt what runs.
	for _, instance := range others {
		if instance.Running {
			p.adoptInstance(ctx, instance, "job resumed: an earlier run of this agent started it")
		}
	}

	// 3. Sweep what has ended.
	p.jobs.Go(func() { p.sweep(ctx, others) })

	if adopter, ok := p.parts.Executor.(Adopter); ok {
		p.adoptOrphans(ctx, ctx, adopter)
	}
	return nil
}

// listRecords returns the records of the agent for the pool.
func (p *Pool) listRecords(ctx context.Context) ([]Record, error) {
	ctx, cancel := context.WithTimeout(ctx, journalLimit)
	defer cancel()
	records, err := p.parts.Journal.List(ctx)
	key := p.State().Spec.Key()
	return slices.DeleteFunc(records, func(r Record) bool { return r.Pool != key }), err
}

// adoptInstance makes a running instance a job of the pool, unless the pool has the job already.
func (p *Pool) adoptInstance(ctx context.Context, instance Instance, message string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.runs[instance.Job] != nil {
		return
	}
	p.log.Info(message, "job", instance.Job, "instance", instance.ID)
	spec := p.spec
	job := &Job{
		ID: instance.Job, WorkflowID: instance.WorkflowID, Kind: Deployment, Generation: instance.Generation,
		Pool: spec.Key(), PoolName: spec.Name, Identity: spec.Identity,
		Agent: p.parts.Agent, Service: spec.Identity.Service, Tuning: spec.Tuning,
	}
	since := time.Now()
	if !instance.Started.IsZero() && instance.Started.Before(since) { // the engine's clock may differ
		since = instance.Started
	}
	r := p.newRun(job, since)
	r.id, r.adopted, r.step0Done = instance.ID, true, true
	p.startRun(ctx, r, p.parts.Slots.force(p))
}

// followOrphans adopts orphaned instances at intervals until ctx ends. The adopted jobs run
// with the second context, jobs.
func (p *Pool) followOrphans(ctx, jobs context.Context, adopter Adopter) {
	ticker := time.NewTicker(adoptInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			p.adoptOrphans(ctx, jobs, adopter)
		}
	}
}

// adoptOrphans adopts instances of agents that no longer exist.
//
//  1. A pool that drains begins no attempt, because its agent may be about to end. An
//     attempt that has begun may still adopt jobs, so the pool waits for its end. When a
//     draining pool has no job left, it cancels the attempt.
//  2. A running instance becomes a job. An instance that has ended is removed without the
//     grace period of sweep: its owner no longer exists, and so does not remove it.
func (p *Pool) adoptOrphans(ctx, jobs context.Context, adopter Adopter) {
	// 1. Make an attempt.
	limited, cancel := context.WithTimeout(ctx, adoptLimit)
	defer cancel()
	p.mu.Lock()
	key, draining := p.spec.Key(), p.draining
	if !draining {
		p.cancelAdoption = cancel
	}
	p.mu.Unlock()
	if draining {
		return
	}
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.cancelAdoption = nil
		if p.draining {
			p.wake()
		}
	}()
	instances, err := adopter.AdoptOrphans(limited, func(pool string) bool { return pool == key })
	p.logAdoption(limited, err)

	// 2. Adopt what runs, and remove what has ended.
	instances = slices.DeleteFunc(instances, func(i Instance) bool { return i.Pool != key && i.Kind.Leased() })
	for _, instance := range p.recoverOrphans(limited, jobs, p.dropLeased(jobs, instances)) {
		switch {
		case instance.Pool != key: // its labels were edited after AdoptOrphans selected it
		case p.hasJob(instance.Job): // an earlier call returned the instance, too
		case instance.Running:
			p.adoptInstance(jobs, instance, "job adopted: its agent no longer exists")
		default:
			p.jobs.Go(func() { p.removeEnded(jobs, instance) })
		}
	}
}

// recoverOrphans takes over the records of agents that no longer exist, if agents share the
// journal. It returns the instances that have no record. If the instances of the pool cannot
// be listed, the records wait for the next attempt. If the records cannot be adopted, instances
// wait for it: see awaitRecords.
func (p *Pool) recoverOrphans(ctx, jobs context.Context, instances []Instance) (other []Instance) {
	// Take over the records. Right after a failure, the journal may return none and no error.
	adopter, ok := p.parts.Journal.(RecordAdopter)
	if !ok {
		return instances
	}
	key := p.State().Spec.Key()
	adopted, err := adopter.AdoptRecords(ctx, func(pool string) bool { return pool == key })
	if err != nil {
		p.log.Debug("cannot adopt the records of jobs", "error", err)
	}
	p.mu.Lock()
	if err != nil {
		p.recordsFailed = time.Now()
	}
	failed := time.Since(p.recordsFailed) < adoptInterval/2
	records := append(p.orphans, slices.DeleteFunc(adopted, func(r Record) bool { return r.Pool != key })...)
	p.orphans = nil
	nothing := len(records) == 0 && (failed || len(p.awaiting) == 0)
	p.mu.Unlock()
	if nothing {
		return p.awaitRecords(instances, failed)
	}

	// Recover their jobs, also those whose instances were adopted before.
	all, err := p.list(ctx)
	if err != nil {
		p.log.Debug("cannot list instances", "error", err)
		p.mu.Lock()
		p.orphans = append(p.orphans, records...)
		p.mu.Unlock()
		return p.awaitRecords(slices.DeleteFunc(instances, func(i Instance) bool {
			return slices.ContainsFunc(records, func(r Record) bool { return r.Job == i.Job })
		}), failed)
	}
	for _, instance := range instances {
		if !slices.ContainsFunc(all, func(i Instance) bool { return i.ID == instance.ID }) {
			all = append(all, instance)
		}
	}
	others := p.recoverRecords(jobs, records, all, true)

	// Return the instances without a record, also those that have waited for it.
	var waited map[string]bool
	if !failed {
		p.mu.Lock()
		waited, p.awaiting = p.awaiting, nil
		p.mu.Unlock()
	}
	return p.awaitRecords(slices.DeleteFunc(others, func(i Instance) bool {
		adopted := slices.ContainsFunc(instances, func(adopted Instance) bool { return adopted.ID == i.ID })
		return !adopted && !waited[i.ID]
	}), failed)
}

// awaitRecords returns the instances that do not wait for the next attempt to adopt records.
// If an attempt has failed, instances that have ended wait for the next one, because their
// records may be removed with them. An instance waits until [HeartbeatLimit] after its end. A
// running instance does not wait.
func (p *Pool) awaitRecords(instances []Instance, failed bool) (others []Instance) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, instance := range instances {
		if !failed || instance.Running || endedBefore(instance, HeartbeatLimit) {
			others = append(others, instance)
			continue
		}
		if p.awaiting == nil {
			p.awaiting = map[string]bool{}
		}
		p.awaiting[instance.ID] = true
	}
	return others
}

// awaitsRecord reports whether an instance waits for the next attempt to adopt records.
func (p *Pool) awaitsRecord(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.awaiting[id]
}

// logAdoption logs the first failure of a series as a warning, later failures for debugging,
// and the success after them. It ignores the result of an attempt that was cancelled.
func (p *Pool) logAdoption(ctx context.Context, err error) {
	if errors.Is(ctx.Err(), context.Canceled) {
		return
	}
	p.mu.Lock()
	before := p.adoptFailing
	p.adoptFailing = err != nil
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
