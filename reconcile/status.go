package reconcile

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
)

// Status describes how far the loop got: the only source for health, metrics and the
// status document.
type Status struct {
	Desired   uint64 // generation
	Applied   uint64 // last generation that was in force in full
	AppliedAt time.Time
	Pools     []runtime.PoolState // by name
	Problems  map[string]string   // by pool key: why it cannot be built now
	Names     map[string]string   // of the desired pools, by pool key
	Claiming  bool                // every desired pool is past its start
	Pending   bool                // a part of the desired generation is not in force; draining pools do not count
	Stopping  bool                // nothing new is claimed any more
	Process   ProcessSpec
}

// Healthy reports liveness: whether the loop of every pool has turned within the
// threshold, or waits within a limit. What a service answers, and whether an executor
// can work, is a matter of [Status.Ready]. An agent without pools has no loop that
// could stand still.
func (s Status) Healthy(now time.Time) bool {
	return !slices.ContainsFunc(s.Pools, func(pool runtime.PoolState) bool { return s.Stuck(pool, now) })
}

// Stuck reports whether the loop of a pool is overdue by more than the threshold.
func (s Status) Stuck(pool runtime.PoolState, now time.Time) bool {
	return !over(pool) && pool.Overdue(now) > s.Process.HealthThreshold
}

// LastProgress returns the last progress at a time of the pool that has waited longest
// for one: when its loop should have turned, or now if it is not overdue. It is zero
// when there is no pool.
func (s Status) LastProgress(now time.Time) (oldest time.Time) {
	for _, pool := range s.Pools {
		if progress := now.Add(-pool.Overdue(now)); !over(pool) && (oldest.IsZero() || progress.Before(oldest)) {
			oldest = progress
		}
	}
	return oldest
}

// over reports whether a pool has no progress to make: its single run has ended.
func over(pool runtime.PoolState) bool {
	return pool.Finished && pool.Phase == runtime.PoolStopped
}

// Converged reports whether the desired generation is in force in full.
func (s Status) Converged() bool {
	return !s.Stopping && s.Desired > 0 && s.Applied == s.Desired && s.Claiming && len(s.Problems) == 0
}

// Unready is one reason why the agent is not ready.
type Unready struct {
	Pool   string // name; empty is the agent as a whole
	Reason string
}

// Ready reports readiness: whether every job that the services hold for this agent
// would be claimed and run.
func (s Status) Ready(now time.Time) bool { return len(s.Unready(now)) == 0 }

// Unready returns why the agent is not ready, first what concerns the agent as a
// whole, then the pools by name. The agent is ready when
//
//  1. it is not stopping;
//  2. the desired generation is in force. Pools that it removes or replaces may
//     still drain, so the agent can be ready before it has [Status.Converged];
//  3. every pool has had an answer of its service: to a poll, a job or none, or about
//     a job that it adopted;
//  4. no pool has been refused, or without an answer, for longer than
//     ProcessSpec.HealthThreshold: a poll that is under way counts from its start;
//  5. every pool's executor can work.
//
// A pool that drains, and a single run that is over, need no service any more.
func (s Status) Unready(now time.Time) (reasons []Unready) {
	add := func(pool, format string, args ...any) {
		reasons = append(reasons, Unready{pool, fmt.Sprintf(format, args...)})
	}

	// 1. and 2. The agent as a whole, and what cannot be built.
	switch {
	case s.Stopping:
		add("", "the agent is stopping")
	case s.Desired == 0:
		add("", "no configuration is loaded yet")
	case s.Pending:
		add("", "generation %d of the configuration is not in force in full yet", s.Desired)
	}
	for _, key := range sorted(s.Problems) {
		add(s.Names[key], "%s", s.Problems[key])
	}

	// 2. to 5. Each pool.
	for _, pool := range s.Pools {
		name := pool.Spec.Name
		switch pool.Phase {
		case runtime.PoolDraining, runtime.PoolStopped:
			continue
		case runtime.PoolStarting:
			add(name, "the pool is starting")
			continue
		}
		failing := pool.FailingSince
		if failing.IsZero() {
			failing = pool.PollingSince // it has had no answer so far
		}
		switch {
		case pool.ExecutorProblem != "" && pool.AnsweredAt.IsZero() && pool.FailingSince.IsZero():
			// It has not polled, and the reason is below.
		case pool.AnsweredAt.IsZero():
			add(name, "the service has not answered yet")
		case !failing.IsZero() && now.Sub(failing) > s.Process.HealthThreshold:
			add(name, "no poll has succeeded since %s", failing.UTC().Format(time.RFC3339))
		}
		if pool.ExecutorProblem != "" {
			add(name, "%s", pool.ExecutorProblem)
		}
	}
	if len(reasons) == 0 && !s.Claiming {
		add("", "not every pool has started")
	}
	slices.SortStableFunc(reasons, func(a, b Unready) int { return cmp.Compare(a.Pool, b.Pool) })
	return reasons
}
