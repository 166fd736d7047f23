package reconcile

import (
	"context"
	"log/slog"
	"maps"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
)

// turnInterval is the longest time between two turns of Run.
const turnInterval = 10 * time.Second

// retryBackoff is the delay after a failed action.
var retryBackoff = runtime.Backoff{First: time.Second, Max: time.Minute}

// Loop turns the observed state into the desired state. Its methods are safe for
// concurrent use; Run is called once.
type Loop struct {
	build   Build
	process Process
	log     *slog.Logger
	set     *Set
	woken   chan struct{}  // holds one notification: a turn is due
	change  *processChange // in preparation; nil without one; used by Run alone
	stop    *shutdown      // nil until Run stops the pools

	mu        sync.Mutex
	desired   Desired
	applied   Desired
	appliedAt time.Time
	inForce   ProcessSpec
	failures  map[string]failure
	leftover  map[string]runtime.PoolSpec // see Observed.Leftovers
}

// failure describes a pool that could not be built or has failed, or a change of the process
// that could not be prepared.
type failure struct {
	err   error
	wait  time.Duration // before the next retry; 0 after Retry
	until time.Time     // no retry before
}

// New returns a loop without a desired state. InForce has the present settings of the process.
func New(build Build, process Process, inForce ProcessSpec, log *slog.Logger) *Loop {
	l := &Loop{
		build:    build,
		process:  process,
		inForce:  inForce,
		log:      log.With("component", "reconcile"),
		woken:    make(chan struct{}, 1),
		failures: map[string]failure{},
	}
	l.set = newSet(l.wake)
	return l
}

// Want replaces the desired state. Failed builds and changes are retried at once. While
// the pools are being stopped, only the shutdown timeout is replaced.
func (l *Loop) Want(desired Desired) {
	l.mu.Lock()
	if l.stop != nil {
		l.wantWhileStopping(desired)
	} else {
		desired.Paused = l.desired.Paused
		l.desired = desired
		clear(l.failures)
	}
	l.mu.Unlock()
	l.wake()
}

// Retry ends the waits after failures: failed builds and changes are retried now, and a
// pool whose last poll failed polls again, unless the service requested a longer wait.
// The next failure starts a new back-off.
func (l *Loop) Retry() {
	l.mu.Lock()
	for key, f := range l.failures {
		l.failures[key] = failure{err: f.err}
	}
	l.mu.Unlock()
	l.set.each((*member).retry)
	l.wake()
}

// wake causes another turn of the loop.
func (l *Loop) wake() {
	select {
	case l.woken <- struct{}{}:
	default:
	}
}

// Run takes one turn after another until ctx ends, and then drains: no job is claimed any
// more, and running jobs may finish within the shutdown timeout. When the timeout has passed,
// or forceStop has ended, running jobs are stopped. Run returns nil after all pools have
// stopped. It also returns when every desired pool is a single run that has completed.
//
// The shutdown timeout counts from the end of ctx. If it is changed during the drain, the
// change takes effect at once.
func (l *Loop) Run(ctx, forceStop context.Context) error {
	pools := context.WithoutCancel(ctx)
	ticker := time.NewTicker(turnInterval)
	defer ticker.Stop()
	ended, forced := ctx.Done(), (<-chan struct{})(nil)
	for {
		if l.stop == nil && (ctx.Err() != nil || l.allCompleted()) {
			l.beginStop()
			ended, forced = nil, forceStop.Done()
		}
		var retry <-chan time.Time
		if l.stop == nil {
			retry = l.turn(ctx, pools)
		} else {
			if l.set.empty() {
				break
			}
			if retry = l.stopTurn(forceStop); forceStop.Err() != nil {
				forced = nil
			}
		}

		select {
		case <-ended:
		case <-forced:
		case <-l.woken:
		case <-retry:
		case <-ticker.C:
		}
	}
	if l.change != nil {
		l.change.discard()
	}
	return nil
}

// turn observes, diffs and acts once. It does not block: goroutines build the pools and
// prepare the changes of the process. The end of each goroutine causes another turn. The
// returned channel receives when the first blocked action may be retried.
func (l *Loop) turn(ctx, pools context.Context) <-chan time.Time {
	l.finishChange()
	desired, observed := l.observe()
	plan := Diff(desired, observed)
	if len(plan) == 0 && l.converge(desired, observed) {
		debug.FreeOSMemory() // a reload leaves much garbage: 30 MB for a file with a thousand pools
	}
	if l.act(ctx, pools, plan) {
		l.wake()
	}
	return l.next()
}

// observe returns the desired and the observed state. It forgets failures of pools that are
// no longer desired or that run again, and leftover pools that are desired or exist.
func (l *Loop) observe() (Desired, Observed) {
	states := l.set.snapshot()
	l.mu.Lock()
	defer l.mu.Unlock()
	blocked := map[string]time.Time{}
	for key, f := range l.failures {
		_, desired := l.desired.Pools[key]
		if key == ProcessKey {
			desired = l.desired.Process != l.inForce
		}
		state := states[key]
		if runs := state.Ready && state.Err == nil; runs || !desired {
			delete(l.failures, key)
			continue
		}
		blocked[key] = f.until
	}
	maps.DeleteFunc(l.leftover, func(key string, _ runtime.PoolSpec) bool {
		_, desired := l.desired.Pools[key]
		_, exists := states[key]
		return desired || exists // such a pool adopts its instances itself
	})
	return l.desired, Observed{
		Now: time.Now(), Pools: states, Process: l.inForce, RetryAt: blocked, Leftovers: maps.Clone(l.leftover),
	}
}

// act applies a plan. It reports whether another turn is due at once.
func (l *Loop) act(ctx, pools context.Context, plan Plan) (acted bool) {
	for _, action := range plan {
		switch a := action.(type) {
		case SetProcess:
			l.prepareChange(ctx, a)
			continue // logged when it is committed
		case StartPool:
			l.set.start(pools, a.Spec, l.buildPool)
			continue // logged when it is built
		case TunePool:
			l.set.tune(a.Spec)
		case DrainPool:
			l.set.drain(a.Key)
		case RemovePool:
			acted = true
			if state := l.set.remove(a.Key); state.Err != nil {
				l.poolFailed(a.Key, state)
				continue
			}
		}
		acted = true
		level := slog.LevelInfo
		if tune, ok := action.(TunePool); ok && !tune.Revive {
			level = slog.LevelDebug // the reload was logged
		}
		l.log.Log(ctx, level, action.String())
	}
	return acted
}

// buildPool builds a pool, and logs that it starts.
func (l *Loop) buildPool(ctx context.Context, spec runtime.PoolSpec) (Pool, error) {
	pool, err := l.build(ctx, spec)
	if err == nil {
		l.log.Info(StartPool{spec}.String(), "service", spec.Identity.Service, "target", spec.Identity.Target)
	}
	return pool, err
}

// poolFailed records that a pool could not be built, or has failed. A desired pool is
// started again, with back-off. The next list of instances finds a leftover pool again.
func (l *Loop) poolFailed(key string, state runtime.PoolState) {
	l.mu.Lock()
	_, desired := l.desired.Pools[key]
	if !desired {
		delete(l.leftover, key)
	}
	l.mu.Unlock()
	log := l.log.With("pool", state.Spec.Name)
	switch {
	case !desired && state.Spec.Leftover:
		log.Warn("cannot adopt instances of a pool that is no longer configured",
			"error", state.Err, "retry_in", leftoverInterval)
	case !desired:
		log.Warn("pool that is no longer desired failed", "error", state.Err)
	case state.Ready:
		l.failed(key, state.Err, log, "pool failed")
	default:
		l.failed(key, state.Err, log, "pool failed to start")
	}
}

// failed records a failure, so that the action is retried after a back-off if it is still
// desired then. The first failure of a series is logged as a warning, the others for
// debugging.
func (l *Loop) failed(key string, err error, log *slog.Logger, message string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f := l.failures[key]
	wait, level := retryBackoff.Next(f.wait), slog.LevelDebug
	if f.wait == 0 {
		level = slog.LevelWarn
	}
	l.failures[key] = failure{err: err, wait: wait, until: time.Now().Add(wait)}
	log.Log(context.Background(), level, message, "error", err, "retry_in", wait)
}

// converge records that the desired state is in force, unless a pool starts or drains, or an
// action is blocked. It reports whether that is new.
func (l *Loop) converge(desired Desired, observed Observed) (converged bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	pools := 0
	for _, state := range observed.Pools {
		if !state.Spec.Leftover { // a leftover pool may drain for hours
			pools++
		}
	}
	if l.applied.Generation == desired.Generation || len(l.failures) > 0 ||
		pools != len(desired.Pools) || !desired.allReady(observed.Pools) {
		return false
	}
	l.applied, l.appliedAt = desired, observed.Now
	l.log.Info("converged", "generation", desired.Generation, "pools", len(desired.Pools))
	return true
}

// next returns a channel that receives when the first blocked action may be retried. It
// is nil if no action is blocked.
func (l *Loop) next() <-chan time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	var first time.Time
	now := time.Now()
	for _, f := range l.failures {
		// If the time is past, the retry runs: its pool is starting, or about to stop.
		if f.until.After(now) && (first.IsZero() || f.until.Before(first)) {
			first = f.until
		}
	}
	if first.IsZero() {
		return nil
	}
	return time.After(time.Until(first))
}

// allCompleted reports whether every desired pool is a single run that has completed, and
// all other pools have stopped.
func (l *Loop) allCompleted() bool {
	states := l.set.snapshot()
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.desired.Pools) == 0 {
		return false
	}
	for key, state := range states {
		if _, desired := l.desired.Pools[key]; !desired && state.Phase != runtime.PoolStopped {
			return false
		}
	}
	for key, spec := range l.desired.Pools {
		if !spec.Tuning.SingleRun || !completed(states[key]) {
			return false
		}
	}
	return true
}

// running returns the number of jobs in flight.
func (l *Loop) running() (jobs int) {
	for _, state := range l.set.snapshot() {
		jobs += len(state.Jobs)
	}
	return jobs
}

// Status returns a snapshot of the progress.
func (l *Loop) Status() Status {
	states := l.set.snapshot()
	l.mu.Lock()
	defer l.mu.Unlock()
	status := Status{
		Desired: l.desired.Generation, Applied: l.applied.Generation, AppliedAt: l.appliedAt,
		Problems: map[string]string{}, Names: map[string]string{}, Stopping: l.stop != nil,
		Process: l.desired.Process, Claiming: l.desired.allReady(states), Paused: l.desired.Paused,
	}
	if l.stop != nil && !l.stop.cancelled {
		status.StopAt = l.stopAt()
	}
	for _, key := range sorted(states) {
		status.Pools = append(status.Pools, states[key])
	}
	now := time.Now()
	observed := Observed{Now: now, Pools: states, Process: l.inForce, RetryAt: map[string]time.Time{}}
	for key, f := range l.failures {
		status.Problems[key] = f.err.Error()
		observed.RetryAt[key] = now.Add(time.Hour) // so that Diff omits the action: it is in Problems
	}
	status.Pending = slices.ContainsFunc(Diff(l.desired, observed), func(action Action) bool {
		_, removes := action.(RemovePool)
		return !removes
	})
	for key, spec := range l.desired.Pools {
		status.Names[key] = spec.Name
	}
	return status
}
