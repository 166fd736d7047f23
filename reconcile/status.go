package reconcile

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
)

// Status describes the progress of the loop. It is the only source of health, metrics and
// the status document.
type Status struct {
	Desired   uint64 // generation
	Applied   uint64 // last generation that was fully in force
	AppliedAt time.Time
	Pools     []runtime.PoolState // in the order of their keys
	Problems  map[string]string   // by pool key or ProcessKey: error of the last build or change
	Names     map[string]string   // of the desired pools, by pool key
	Claiming  bool                // every desired pool has started
	Pending   bool                // an action other than the removal of a pool is due
	Stopping  bool                // no more jobs are claimed
	StopAt    time.Time           // while Stopping: time at which running jobs are stopped; zero from then on
	Process   ProcessSpec
	Paused    map[string]bool // names of pools that an operator has paused; not modified
}

// Healthy reports liveness: whether no pool is stuck. Problems of services and executors do
// not affect it; because of them [Status.Ready] is false. An agent without pools is healthy.
func (s Status) Healthy(now time.Time) bool {
	return !slices.ContainsFunc(s.Pools, func(pool runtime.PoolState) bool { return s.Stuck(pool, now) })
}

// Stuck reports whether the loop of a pool is overdue by more than the threshold.
func (s Status) Stuck(pool runtime.PoolState, now time.Time) bool {
	return !completed(pool) && pool.Overdue(now) > s.Process.HealthThreshold
}

// completed reports whether a pool is a single run that has ended.
func completed(pool runtime.PoolState) bool {
	return pool.Completed && pool.Phase == runtime.PoolStopped
}

// Converged reports whether the desired generation is fully in force.
func (s Status) Converged() bool {
	return !s.Stopping && s.Desired > 0 && s.Applied == s.Desired && s.Claiming && len(s.Problems) == 0
}

// Unready is one reason why the agent is not ready.
type Unready struct {
	Pool   string `json:"pool,omitempty"` // name; empty is the agent as a whole
	Reason string `json:"reason"`
}

// Ready reports readiness: whether the agent can claim and run jobs of every pool.
func (s Status) Ready(now time.Time) bool { return len(s.Unready(now)) == 0 }

// Unready returns the reasons why the agent is not ready, first those of the agent as a
// whole, then those of the pools by name. The agent is ready when
//
//  1. it is not stopping;
//  2. the desired generation is in force. Pools that it removes or replaces may still
//     drain, so the agent can be ready before [Status.Converged] is true;
//  3. the service of every pool has responded: to a poll, or about a job that the pool
//     adopted;
//  4. no pool's polls have failed for longer than ProcessSpec.HealthThreshold; a poll that
//     has no response yet counts from its start;
//  5. every pool's executor can work;
//  6. every pool may get work: see PoolState.Unserved.
//
// A draining pool, a completed single run and a pool that an operator has paused need no
// service.
func (s Status) Unready(now time.Time) (reasons []Unready) {
	add := func(pool, format string, args ...any) {
		reasons = append(reasons, Unready{pool, fmt.Sprintf(format, args...)})
	}

	// 1. and 2. The agent as a whole, and pools that cannot be built.
	switch {
	case s.Stopping:
		add("", "the agent is stopping")
	case s.Desired == 0:
		add("", "no configuration is loaded yet")
	case s.Pending:
		add("", "generation %d of the configuration is not fully in force yet", s.Desired)
	}
	for _, key := range sorted(s.Problems) {
		add(s.Names[key], "%s", s.Problems[key])
	}

	// 2. to 6. Each pool.
	for _, pool := range s.Pools {
		name := pool.Spec.Name
		switch pool.Phase {
		case runtime.PoolDraining, runtime.PoolStopped:
			continue
		case runtime.PoolStarting:
			add(name, "the pool is starting")
			continue
		}
		if pool.Spec.Tuning.Paused {
			continue
		}
		failing := pool.FailingSince
		if failing.IsZero() {
			failing = pool.PollingSince // the poll has no response so far
		}
		switch {
		case pool.ExecutorProblem != "" && pool.AnsweredAt.IsZero() && pool.FailingSince.IsZero():
			// The pool has not polled, because of the ExecutorProblem, which is added below.
		case pool.Unserved != "":
			add(name, "%s", pool.Unserved)
		case pool.AnsweredAt.IsZero() && !pool.FailingSince.IsZero():
			add(name, "no poll has succeeded yet")
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
