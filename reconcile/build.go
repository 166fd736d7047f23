package reconcile

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	buildLimit   = time.Minute // for building one pool, or preparing a change of the process
	buildsAtOnce = 8
)

// prepareProcess prepares the change of the process, if the plan has one.
func (l *Loop) prepareProcess(ctx context.Context, plan Plan) (commit func()) {
	for _, action := range plan {
		if a, ok := action.(SetProcess); ok {
			limited, cancel := context.WithTimeout(ctx, buildLimit)
			defer cancel()
			commit, err := l.process(limited, a.From, a.To)
			switch {
			case err == nil:
				return commit
			case ctx.Err() == nil:
				l.failed(a.key(), "agent cannot be set; trying again", "", err)
			}
		}
	}
	return nil
}

// built is what came of building one pool.
type built struct {
	action StartPool
	pool   Pool
	err    error
}

// start builds the pools that a plan starts, several at a time, and starts each as
// soon as it is built. What takes no time is done meanwhile, as it comes up: a pool
// whose engine hangs keeps only itself waiting. What is not built when ctx ends is
// left, and that is no failure. It reports whether it did anything.
func (l *Loop) start(ctx, pools context.Context, starts Plan) (acted bool) {
	results := l.buildAll(ctx, starts)
	for {
		select {
		case r, more := <-results:
			switch {
			case !more:
				return acted
			case r.err == nil:
				acted = true
				l.startOne(pools, r.action, r.pool)
			case ctx.Err() == nil && r.action.Spec.Leftover:
				l.leftoverFailed(r.action.Spec, r.err)
			case ctx.Err() == nil:
				l.failed(r.action.key(), poolFails, r.action.Spec.Name, r.err)
			}
		case <-l.set.moved:
			swift, _ := Diff(l.observe()).parts()
			acted = l.commit(swift, nil) || acted
		}
	}
}

// buildAll builds pools, and closes the channel when nothing is under way any more.
func (l *Loop) buildAll(ctx context.Context, starts Plan) <-chan built {
	results := make(chan built)
	go func() {
		defer close(results)
		var building errgroup.Group
		building.SetLimit(buildsAtOnce)
		for _, action := range starts {
			a, ok := action.(StartPool)
			if !ok || ctx.Err() != nil {
				continue
			}
			building.Go(func() error {
				limited, cancel := context.WithTimeout(ctx, buildLimit)
				defer cancel()
				pool, err := l.build(limited, a.Spec)
				results <- built{a, pool, err}
				return nil
			})
		}
		_ = building.Wait() // errors are among the results
	}()
	return results
}

// startOne starts a pool. One that is not wanted any more ends as soon as it
// begins, and lets go of what it holds.
func (l *Loop) startOne(pools context.Context, a StartPool, pool Pool) {
	if a.Spec.Leftover || !l.wanted(a.key()) { // a leftover that is desired by now is revived
		pool.Drain()
	}
	l.set.start(pools, a.key(), pool)
	l.log.Info(a.String(), "service", a.Spec.Identity.Service, "target", a.Spec.Identity.Target)
}

// wanted reports whether a pool is still wanted.
func (l *Loop) wanted(key string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, wanted := l.desired.Pools[key]
	return wanted
}
