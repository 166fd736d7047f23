package runtime

import (
	"context"
	"fmt"
	"slices"
	"time"
)

const (
	listLimit     = time.Minute      // of one look at what is there
	young         = time.Minute      // what ended more recently may still have an owner
	sweepInterval = 10 * time.Minute // between two sweeps
)

// adopt takes over what an earlier run of this agent left behind, before the
// first claim:
//
//  1. What still runs is attended like any job, and takes its slot even when
//     there are no more: the runner
//     in it holds the job's token and reports by itself. It is never started
//     again.
//  2. What has ended is swept.
func (p *Pool) adopt(ctx context.Context) error {
	found, err := p.look(ctx)
	if err != nil {
		return fmt.Errorf("look for what an earlier run left behind: %w", err)
	}
	spec := p.State().Spec
	for _, f := range found {
		if !f.Running {
			continue
		}
		p.log.Info("a job of an earlier run still runs; attending it", "job", f.Job)
		job := &Job{
			ID: f.Job, Subject: f.Subject, Kind: Deployment, Generation: f.Generation,
			Pool: spec.Key(), PoolName: spec.Name, Identity: spec.Identity, Agent: p.parts.Agent, Service: spec.Identity.Service, Tuning: spec.Tuning,
		}
		p.mu.Lock()
		p.begin(ctx, job, f.ID, p.parts.Slots.seize(p))
		p.mu.Unlock()
	}
	p.sweep(ctx, found)
	return nil
}

// sweep removes what has ended and belongs to nobody: leftovers of an earlier
// run, and what could not be removed at its time. Nothing can be reported of it,
// as nobody holds its token any more; a runner that died without a word is
// declared failed by the service, after [HeartbeatLimit]. What
// ended within the last minute may be about to be removed by its owner, and stays. An
// end in the future comes from an engine's clock that is ahead of ours.
func (p *Pool) sweep(ctx context.Context, found []Found) {
	for _, f := range found {
		p.mu.Lock()
		held := p.lives[f.Job] != nil
		p.mu.Unlock()
		if held || f.Running || f.Ended.IsZero() || time.Since(f.Ended).Abs() < young {
			continue
		}
		p.log.Info("removing what an ended job left behind", "job", f.Job)
		if err := p.parts.Executor.Remove(ctx, f.ID, 0); err != nil {
			p.log.Warn("remove a leftover", "job", f.Job, "error", err)
		}
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
