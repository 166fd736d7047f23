package reconcile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
)

// leftoverInterval is the time between two lists of instances. A leftover pool that failed, or
// whose last instance could not be removed, is found by the next list.
const leftoverInterval = 10 * time.Minute

// recoverLimit is the timeout of all work at one deploy_target: adoption, list and sweep
// together.
const recoverLimit = 3 * time.Minute

// Leftovers returns the pools, configured or not, that have instances of this agent at the
// executors, or jobs in its journal. The list may be incomplete if the error is not nil.
// Leftovers first adopts instances of agents that no longer exist, unless the pools of these
// instances are desired. At each deploy_target whose instances it could list, it also removes
// leftovers of agents that no longer exist, see [runtime.Executor].
type Leftovers func(ctx context.Context, desired map[string]runtime.PoolSpec) ([]runtime.PoolSpec, error)

// FollowLeftovers lists instances at once and then every ten minutes, until ctx ends. For
// instances whose pool is not configured, the loop starts a pool that adopts them and drains.
// After a failure the list is retried with back-off.
func (l *Loop) FollowLeftovers(ctx context.Context, list Leftovers) error {
	for retry := time.Duration(0); ; {
		l.mu.Lock()
		desired := l.desired.Pools // never modified
		l.mu.Unlock()
		specs, err := list(ctx, desired)
		if ctx.Err() != nil {
			return nil
		}
		l.setLeftovers(specs)
		wait := leftoverInterval
		if err != nil {
			level := slog.LevelDebug
			if retry == 0 {
				level = slog.LevelWarn
			}
			retry = retryBackoff.Next(retry)
			wait = retry
			l.log.Log(ctx, level, "cannot list instances of earlier runs", "error", err, "retry_in", wait)
		} else {
			retry = 0
		}
		if !runtime.Sleep(ctx, nil, wait) {
			return nil
		}
	}
}

func (l *Loop) setLeftovers(specs []runtime.PoolSpec) {
	l.mu.Lock()
	l.leftover = make(map[string]runtime.PoolSpec, len(specs))
	for _, spec := range specs {
		l.leftover[spec.Key()] = spec
	}
	l.mu.Unlock()
	l.wake()
}

// Recovery finds instances of earlier runs of this agent at its deploy_targets. Targets
// are [runtime.Identity.Location] values: instances in two namespaces are at two targets.
type Recovery struct {
	Agent     string // id
	Record    TargetRecord
	Journal   runtime.Journal // of the agent's claimed jobs; may be nil
	Supported []string        // deploy_targets of this release; locations of other deploy_targets are forgotten
	Log       *slog.Logger

	// Executor returns the executor of a deploy_target, and a function that closes it.
	Executor func(ctx context.Context, target string) (executor runtime.Executor, closeIt func(), err error)
}

// TargetRecord lists the deploy_targets at which this run of the agent, or an earlier run, may
// have instances.
type TargetRecord interface {
	Targets() []string
	RemoveTarget(target string) // has no effect on a target that this run uses
}

// List has the type [Leftovers]. It lists the instances at each deploy_target that the agent
// uses or has used, and forgets targets without instances. Then it lists the records of the
// journal. The specs of the records come last, so that they replace the specs of instances
// with the same key: a record also has settings, which the labels of an instance lack.
func (r Recovery) List(ctx context.Context, desired map[string]runtime.PoolSpec) ([]runtime.PoolSpec, error) {
	// Collect the deploy_targets, also of pools that are not built yet.
	targets := r.Record.Targets()
	for _, spec := range desired {
		targets = append(targets, spec.Identity.Location())
	}
	slices.Sort(targets)

	var specs []runtime.PoolSpec
	var errs []error
	for _, target := range slices.Compact(targets) {
		found, err := r.recover(ctx, target, desired)
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("deploy_target %s: %w", target, err))
		case len(found) == 0:
			r.Record.RemoveTarget(target)
		}
		for _, instance := range found {
			specs = append(specs, instance.Spec())
		}
	}
	recorded, err := r.records(ctx)
	if err != nil {
		errs = append(errs, fmt.Errorf("list the records of jobs: %w", err))
	}
	return append(specs, recorded...), errors.Join(errs...)
}

// records returns the pools of the records in the journal.
func (r Recovery) records(ctx context.Context) (specs []runtime.PoolSpec, err error) {
	if r.Journal == nil {
		return nil, nil
	}
	records, err := r.Journal.List(ctx)
	for _, record := range records {
		if slices.Contains(r.Supported, record.Identity.Target) {
			specs = append(specs, record.Spec())
		}
	}
	return specs, err
}

// recover returns the instances of this agent at one deploy_target, and removes leftovers of
// agents that no longer exist. It returns an error if the executor cannot be opened or the list
// fails. It logs other errors.
func (r Recovery) recover(
	ctx context.Context, target string, desired map[string]runtime.PoolSpec,
) ([]runtime.Instance, error) {
	if kind, _, _ := strings.Cut(target, ":"); !slices.Contains(r.Supported, kind) {
		return nil, nil
	}

	// Adopt instances that no desired pool adopts, and list all.
	ctx, cancel := context.WithTimeout(ctx, recoverLimit)
	defer cancel()
	executor, closeIt, err := r.Executor(ctx, target)
	if err != nil {
		return nil, err
	}
	defer closeIt()
	if adopter, ok := executor.(runtime.Adopter); ok {
		r.adopt(ctx, target, adopter, desired)
	}
	found, err := executor.List(ctx, r.Agent)
	if err != nil {
		return nil, err
	}

	var places []runtime.InstanceSpec
	for _, spec := range desired {
		if spec.Identity.Location() == target {
			places = append(places, spec.Tuning.Instance)
		}
	}
	removed, err := executor.Sweep(ctx, places)
	if len(removed) > 0 {
		r.Log.Info("removed leftovers of agents that no longer exist", "target", target, "removed", removed)
	}
	if err != nil {
		r.Log.Warn("cannot remove leftovers of agents that no longer exist", "target", target, "error", err)
	}
	return found, nil
}

// adopt adopts instances of agents that no longer exist, unless the pools of these instances
// are desired. The list that recover makes afterwards contains the adopted instances.
func (r Recovery) adopt(
	ctx context.Context, target string, adopter runtime.Adopter, desired map[string]runtime.PoolSpec,
) {
	adopted, err := adopter.AdoptOrphans(ctx, func(pool string) bool {
		_, adopts := desired[pool]
		return !adopts
	})
	for _, instance := range adopted {
		r.Log.Info("job adopted: its agent no longer exists, and its pool is no longer configured",
			"target", target, "pool", instance.PoolName, "job", instance.Job, "instance", instance.ID)
	}
	if err != nil {
		r.Log.Debug("cannot adopt jobs of agents that no longer exist", "target", target, "error", err)
	}
}
