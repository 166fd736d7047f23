package runtime

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

const (
	listLimit     = time.Minute      // of one look at what is there
	young         = time.Minute      // what ended more recently may still have an owner
	sweepInterval = 10 * time.Minute // between two sweeps
	adoptInterval = 20 * time.Second // between two looks for instances of agents that no longer exist
	adoptLimit    = time.Minute      // of one such look, with the adoptions
)

// adopt attends the instances that this agent finds when the pool starts, before the
// first claim: its own, of an earlier run, and those of agents that no longer exist.
//
//  1. An instance that runs is attended like any job, and takes a slot even when
//     there are no more: the runner in it holds the job's token and reports by
//     itself. It is never started again.
//  2. An instance that has ended is swept, beside the pool's loop: an engine that is
//     slow would delay the first poll.
func (p *Pool) adopt(ctx context.Context) error {
	found, err := p.look(ctx)
	if err != nil {
		return fmt.Errorf("look for what an earlier run left behind: %w", err)
	}
	for _, f := range found {
		if f.Running {
			p.attendFound(ctx, f, "a job of an earlier run still runs; attending it")
		}
	}
	p.jobs.Go(func() { p.sweep(ctx, found) })
	if adopter, ok := p.parts.Executor.(Adopter); ok {
		p.adoptOrphans(ctx, ctx, adopter)
	}
	return nil
}

// attendFound begins the life of a job whose instance was found, unless the job is
// attended already.
func (p *Pool) attendFound(ctx context.Context, f Found, message string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lives[f.Job] != nil {
		return
	}
	p.log.Info(message, "job", f.Job, "environment", f.ID)
	spec := p.spec
	job := &Job{
		ID: f.Job, Subject: f.Subject, Kind: Deployment, Generation: f.Generation,
		Pool: spec.Key(), PoolName: spec.Name, Identity: spec.Identity,
		Agent: p.parts.Agent, Service: spec.Identity.Service, Tuning: spec.Tuning,
	}
	p.begin(ctx, job, f.ID, p.parts.Slots.seize(p))
}

// followOrphans adopts instances of agents that no longer exist, until ctx ends. Jobs
// lasts as long as the pool may attend jobs.
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

// adoptOrphans adopts instances of agents that no longer exist. An instance that runs
// is attended, and one that has ended is removed: its owner cannot be about to do so.
// A pool that drains adopts nothing, because its own agent may be about to end.
func (p *Pool) adoptOrphans(ctx, jobs context.Context, adopter Adopter) {
	// Make an attempt. The loop does not end before it, and cancels it to drain.
	limited, cancel := context.WithTimeout(ctx, adoptLimit)
	defer cancel()
	p.mu.Lock()
	key, drains := p.spec.Key(), p.drain
	if !drains {
		p.adopting = cancel
	}
	p.mu.Unlock()
	if drains {
		return
	}
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.adopting = nil
		if p.drain {
			p.poke()
		}
	}()
	found, err := adopter.AdoptOrphans(limited, func(pool string) bool { return pool == key })
	p.adoptFailed(limited, err)

	// Attend what runs, and remove what has ended.
	for _, f := range found {
		switch {
		case f.Pool != key: // a pool that is not configured adopts it
		case p.attends(f.Job): // returned by an earlier call, too
		case f.Running:
			p.attendFound(jobs, f, "job adopted: its agent no longer exists")
		default:
			p.jobs.Go(func() { p.removeEnded(jobs, f) })
		}
	}
}

// adoptFailed logs the first failure of a series as a warning, the others for
// debugging, and the success after it. The end of an attempt that was cancelled is
// neither.
func (p *Pool) adoptFailed(ctx context.Context, err error) {
	if errors.Is(ctx.Err(), context.Canceled) {
		return
	}
	p.mu.Lock()
	before := p.orphansUnknown
	p.orphansUnknown = err != nil
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

// sweep removes what has ended and belongs to nobody: leftovers of an earlier
// run, and what could not be removed at its time. Nothing can be reported of it,
// as nobody holds its token any more; a runner that died without a word is
// declared failed by the service, after [HeartbeatLimit]. What
// ended within the last minute may be about to be removed by its owner, and stays. An
// end in the future comes from an engine's clock that is ahead of ours.
func (p *Pool) sweep(ctx context.Context, found []Found) {
	for _, f := range found {
		if ctx.Err() != nil {
			return
		}
		if p.attends(f.Job) || f.Running || f.Ended.IsZero() || time.Since(f.Ended).Abs() < young {
			continue
		}
		p.removeEnded(ctx, f)
	}
}

// attends reports whether a job is in one of its phases here.
func (p *Pool) attends(job string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lives[job] != nil
}

// removeEnded removes an instance that has ended.
func (p *Pool) removeEnded(ctx context.Context, f Found) {
	ctx, cancel := context.WithTimeout(ctx, removeLimit)
	defer cancel()
	p.log.Info("removing what an ended job left behind", "job", f.Job, "environment", f.ID)
	if err := p.parts.Executor.Remove(ctx, f.ID, 0); err != nil {
		p.log.Warn("cannot remove a leftover", "job", f.Job, "environment", f.ID, "error", err)
	}
}

// sweepAgain looks and sweeps.
func (p *Pool) sweepAgain(ctx context.Context) {
	found, err := p.look(ctx)
	if err != nil {
		p.log.Debug("look for leftovers", "error", err)
		return
	}
	p.sweep(ctx, found)
}

// look returns the instances that this agent has made for the pool.
func (p *Pool) look(ctx context.Context) ([]Found, error) {
	ctx, cancel := context.WithTimeout(ctx, listLimit)
	defer cancel()
	found, err := p.parts.Executor.List(ctx, p.parts.Agent)
	key := p.State().Spec.Key()
	return slices.DeleteFunc(found, func(f Found) bool { return f.Pool != key }), err
}
