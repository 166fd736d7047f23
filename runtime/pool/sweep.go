package pool

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
)

// sweep removes instances that have ended: those of an earlier run, and those whose removal
// failed. It reports nothing about their jobs, because no agent has the tokens of these jobs
// any more. If a runner did not report the outcome of its job, the service declares the job
// failed after [runtime.HeartbeatLimit]. Instances that ended within the last minute stay, and while
// adopted instances wait for their records, all stay for as long as that. The end of an instance
// that was never started is the time of its creation. An end in the future comes from an
// engine whose clock is ahead of the agent's.
func (p *Pool) sweep(ctx context.Context, instances []runtime.Instance) {
	for _, instance := range instances {
		if ctx.Err() != nil {
			return
		}
		grace := sweepGrace
		if p.awaitsRecords() {
			grace = runtime.HeartbeatLimit
		}
		if p.hasJob(instance.Job) || instance.Running || !endedBefore(instance, grace) {
			continue
		}
		p.removeEnded(ctx, instance)
	}
}

// endedBefore reports whether an instance is known to have ended longer than this time ago.
func endedBefore(instance runtime.Instance, span time.Duration) bool {
	return !instance.Ended.IsZero() && time.Since(instance.Ended).Abs() >= span
}

// removeEnded removes an instance that has ended.
func (p *Pool) removeEnded(ctx context.Context, instance runtime.Instance) {
	ctx, cancel := context.WithTimeout(ctx, removeLimit)
	defer cancel()
	p.log.Info("removing leftover instance", "job", instance.Job, "instance", instance.ID)
	if err := p.parts.Executor.Remove(ctx, instance.ID, 0); err != nil {
		p.log.Warn("cannot remove leftover instance", "job", instance.Job, "instance", instance.ID, "error", err)
		return
	}
	if err := p.parts.Journal.Remove(ctx, instance.Job); err != nil { // usually the job has no record
		p.log.Warn("cannot remove the record of a job", "job", instance.Job, "error", err)
	}
}

// maxDenials is how often the engine must deny the removal of an instance before a pool that drains gives
// up. A single response may be wrong.
const maxDenials = 3

// removeEnded removes an instance in which nothing of the job runs, and reports whether the
// instance is removed. While the engine fails, it retries for removeLimit. A pool that drains gives up
// after maxDenials: for example, kubectl delete -k removes the rights of the agent while its last job ends,
// and the namespace is deleted only after the agent.
func (r *jobRun) removeEnded(id string) (gone bool) {
	ctx, cancel := context.WithTimeout(r.pool.finalCtx, removeLimit)
	defer cancel()
	denials := 0
	r.retryEngine(ctx, nil, "cannot remove instance", func() (done bool, err error) {
		err = r.pool.parts.Executor.Remove(ctx, id, 0)
		gone = err == nil
		if errors.Is(err, runtime.ErrDenied) {
			denials++
		}
		return gone || denials >= maxDenials && r.pool.isDraining(), err
	})
	if !gone {
		r.log().Warn("instance of ended job left", "instance", id)
	}
	return gone
}

// removeFailedStart removes what a failed start has left, and reports whether nothing is left.
// A start that fails because of the engine may be unable to remove its instance, or the engine
// may have created an instance although its response was lost. After a fault of the job itself,
// nothing is left unless an earlier start of the job lost the connection to the engine.
func (r *jobRun) removeFailedStart(reason error) (gone bool) {
	return errors.Is(reason, runtime.ErrJobFault) && !r.startLost || r.removeAll()
}

// removeAll removes all instances of the job, and reports whether none is left.
func (r *jobRun) removeAll() (gone bool) {
	ctx, cancel := context.WithTimeout(r.pool.finalCtx, removeLimit)
	defer cancel()
	var left []runtime.Instance
	r.retryEngine(ctx, nil, "cannot list the instances of a job", func() (done bool, err error) {
		left, err = r.pool.list(ctx)
		gone = err == nil
		return gone, err
	})
	for _, instance := range left {
		if instance.Job == r.job.ID && !r.removeEnded(instance.ID) {
			gone = false
		}
	}
	return gone
}

// listAndSweep lists the instances of the pool, and sweeps them.
func (p *Pool) listAndSweep(ctx context.Context) {
	instances, err := p.list(ctx)
	if err != nil {
		p.log.Debug("cannot list instances", "error", err)
		return
	}
	p.sweep(ctx, instances)
}

// list returns the instances of the agent for the pool.
func (p *Pool) list(ctx context.Context) ([]runtime.Instance, error) {
	ctx, cancel := context.WithTimeout(ctx, listLimit)
	defer cancel()
	instances, err := p.parts.Executor.List(ctx, p.parts.Agent)
	key := p.State().Spec.Key()
	return slices.DeleteFunc(instances, func(i runtime.Instance) bool { return i.Pool != key }), err
}

// dropLeased returns the instances of the list that are not leased work, and removes the
// others from the engine in the background. Leased work is never adopted: the lease may have
// expired, and another agent may have the work. The pool leases nothing until these instances
// are removed.
func (p *Pool) dropLeased(ctx context.Context, instances []runtime.Instance) (others []runtime.Instance) {
	for _, instance := range instances {
		if !instance.Kind.Leased() {
			others = append(others, instance)
			continue
		}
		if p.hasJob(instance.Job) {
			continue
		}
		p.mu.Lock()
		p.leftovers++
		p.mu.Unlock()
		p.jobs.Go(func() { p.removeLeased(ctx, instance) })
	}
	return others
}

// removeLeased removes an instance of leased work, with retries until ctx ends.
func (p *Pool) removeLeased(ctx context.Context, instance runtime.Instance) {
	log := p.log.With("job", instance.Job, "instance", instance.ID)
	log.Info("removing leased work of an agent that has ended; its lease expires")
	for delay := leftoverBackoff.First; ; delay = leftoverBackoff.Next(delay) {
		limited, cancel := context.WithTimeout(ctx, leftoverGrace+removeLimit)
		err := p.parts.Executor.Remove(limited, instance.ID, leftoverGrace)
		cancel()
		if err == nil {
			break
		}
		log.Warn("cannot remove leased work; the pool leases nothing until it is gone",
			"error", err, "retry_in", delay)
		if !runtime.Sleep(ctx, nil, delay) {
			return
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leftovers--
	p.wake()
}
