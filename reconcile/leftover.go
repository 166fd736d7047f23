package reconcile

import (
	"context"
	"log/slog"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
)

// leftoverInterval is the time between two lists of instances. A pool whose last
// instance could not be removed, or that failed, is found by the next one.
const leftoverInterval = 10 * time.Minute

// Leftovers returns the pools that have instances of this agent at the executors,
// configured or not. With an error it returns what it found all the same. It also
// removes what the executors of the desired pools find of agents that died.
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
