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

// leftoverInterval is the time between two lists of instances. A pool whose last
// instance could not be removed, or that failed, is found by the next one.
const leftoverInterval = 10 * time.Minute

// recoverLimit bounds one list of the instances at a deploy_target, and one sweep
// there.
const recoverLimit = 3 * time.Minute

// Leftovers returns the pools that have instances of this agent at the executors,
// configured or not. With an error it returns what it found all the same. Of pools
// that are not desired, it first adopts the instances of agents that no longer exist.
// It also removes what the executors of the desired pools find of agents that died.
type Leftovers func(ctx context.Context, desired map[string]runtime.PoolSpec) ([]runtime.PoolSpec, error)

// FollowLeftovers lists instances at once and then every ten minutes, until ctx
// ends, so that those of pools that no configuration describes are adopted by a
// pool that drains. After a failure it lists again soon.
func (l *Loop) FollowLeftovers(ctx context.Context, list Leftovers) error {
	failures := 0
	for {
		l.mu.Lock()
		desired := l.desired.Pools // never changed
		l.mu.Unlock()
		specs, err := list(ctx, desired)
		if ctx.Err() != nil {
			return nil
		}
		l.setLeftovers(specs)
		wait, level := leftoverInterval, slog.LevelDebug
		if err != nil {
			wait = min(lastRetry, firstRetry<<min(failures, 10))
			if failures++; failures == 1 {
				level = slog.LevelWarn
			}
			l.log.Log(ctx, level, "cannot list instances of earlier runs", "error", err, "retry_in", wait)
		} else {
			failures = 0
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
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

// Recovery finds what earlier runs of this agent left at its deploy_targets. The
// word target means a [runtime.Identity.Location] here: instances in two namespaces
// are at two targets.
type Recovery struct {
	Agent     string // id
	Record    TargetRecord
	Supported []string // deploy_targets that this release can use; others are forgotten
	Log       *slog.Logger

	// Executor returns the executor of a deploy_target, and a function that closes it.
	Executor func(ctx context.Context, target string) (executor runtime.Executor, closeIt func(), err error)
}

// TargetRecord lists the deploy_targets at which the agent may have instances, this
// run and earlier ones included.
type TargetRecord interface {
	Targets() []string
	RemoveTarget(target string) // has no effect on one that this run uses
	Empty()                     // no target has instances
}

// List is a [Leftovers]. It asks each deploy_target that the agent uses or has used,
// and forgets one that has no instances.
func (r Recovery) List(ctx context.Context, desired map[string]runtime.PoolSpec) ([]runtime.PoolSpec, error) {
	// The deploy_targets, also of pools that are not built yet.
	targets := r.Record.Targets()
	for _, spec := range desired {
		targets = append(targets, spec.Identity.Location())
	}
	slices.Sort(targets)

	// Their instances.
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
	if len(errs) == 0 && len(specs) == 0 {
		r.Record.Empty()
	}
	return specs, errors.Join(errs...)
}

// recover returns the instances of this agent at one deploy_target, and removes what
// agents that died left there. Its error is of the list alone.
func (r Recovery) recover(
	ctx context.Context, target string, desired map[string]runtime.PoolSpec,
) ([]runtime.Found, error) {
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

	// Sweep, if the executor can.
	sweeper, ok := executor.(runtime.Sweeper)
	if !ok {
		return found, nil
	}
	var places []runtime.Place
	for _, spec := range desired {
		if spec.Identity.Location() == target {
			places = append(places, spec.Tuning.Place)
		}
	}
	removed, err := sweeper.Sweep(ctx, places)
	if len(removed) > 0 {
		r.Log.Info("removed leftovers of agents that died", "target", target, "removed", removed)
	}
	if err != nil {
		r.Log.Warn("cannot remove leftovers of agents that died", "target", target, "error", err)
	}
	return found, nil
}

// adopt takes over instances of agents that no longer exist, of pools that are not
// desired. The next list contains them.
func (r Recovery) adopt(
	ctx context.Context, target string, adopter runtime.Adopter, desired map[string]runtime.PoolSpec,
) {
	adopted, err := adopter.AdoptOrphans(ctx, func(pool string) bool {
		_, adopts := desired[pool]
		return !adopts
	})
	for _, instance := range adopted {
		r.Log.Info("job adopted: its agent no longer exists, and its pool is no longer configured",
			"target", target, "pool", instance.PoolName, "job", instance.Job, "environment", instance.ID)
	}
	if err != nil {
		r.Log.Debug("cannot adopt jobs of agents that no longer exist", "target", target, "error", err)
	}
}
