package reconcile

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
)

const (
	lookInterval = 10 * time.Second // longest time between two turns
	firstRetry   = time.Second      // after the first failure; doubles with each further one
	lastRetry    = time.Minute
)

// errStopping is the cause with which jobs are stopped.
var errStopping = errors.New("the agent is stopping")

// Loop turns the observed state into the desired state. Its methods are safe for
// concurrent use; Run is called once.
type Loop struct {
	build   Build
	process Process
	log     *slog.Logger
	set     *Set
	woken   chan struct{}  // holds one empty token: a turn is due
	change  *processChange // that is being prepared, nil if none is; used by Run alone

	mu       sync.Mutex
	desired  Desired
	applied  Desired
	inForce  ProcessSpec
	since    time.Time // of applied
	failures map[string]failure
	leftover map[string]runtime.PoolSpec // see Observed.Leftovers
	stopping bool
}

// failure is a pool that could not be built or has failed, or a change of the process
// that could not be prepared.
type failure struct {
	err   error
	times int // in a row
	until time.Time
}

// New returns a loop that desires nothing yet. The process is as inForce describes.
func New(build Build, process Process, inForce ProcessSpec, log *slog.Logger) *Loop {
	return &Loop{
		build:    build,
		process:  process,
		inForce:  inForce,
		log:      log.With("component", "reconcile"),
		set:      newSet(),
		woken:    make(chan struct{}, 1),
		failures: map[string]failure{},
	}
}

// Want replaces the desired state. Failed builds and changes are retried at once.
func (l *Loop) Want(desired Desired) {
	l.mu.Lock()
	l.desired = desired
	clear(l.failures)
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
	l.set.retry()
	l.wake()
}

// wake makes the loop take another turn.
func (l *Loop) wake() {
	select {
	case l.woken <- struct{}{}:
	default:
	}
}

// Run takes one turn after another until ctx ends, and then drains: nothing new is
// claimed, running jobs may finish until the shutdown timeout is over or hurry ends, and
// are then stopped in order. It returns nil, after everything has ended. It also returns
// when every desired pool is a single run, and all of them are over.
func (l *Loop) Run(ctx, hurry context.Context) error {
	pools := context.WithoutCancel(ctx)
	ticker := time.NewTicker(lookInterval)
	defer ticker.Stop()
	for ctx.Err() == nil && !l.over() {
		retry := l.turn(ctx, pools)
		select {
		case <-ctx.Done():
		case <-l.woken:
		case <-l.set.changed:
		case <-retry:
		case <-ticker.C:
		}
	}
	l.stop(hurry)
	return nil
}

// stop ends every pool in order, and discards a change of the process that is being
// prepared.
func (l *Loop) stop(hurry context.Context) {
	l.mu.Lock()
	l.stopping = true
	limit := l.desired.Process.ShutdownTimeout
	l.mu.Unlock()
	if jobs := l.running(); jobs > 0 {
		l.log.Info("stopping: nothing new is claimed, and running jobs may finish", "jobs", jobs, "limit", limit)
	}
	if l.change != nil {
		l.change.cancel()
		defer l.change.discard()
	}
	l.set.empty(hurry, limit, errStopping)
}

// turn observes, diffs and acts once. It does not block: pools are built, and changes of
// the process prepared, by goroutines whose end causes another turn. The returned channel
// receives when the first blocked action may be retried.
func (l *Loop) turn(ctx, pools context.Context) <-chan time.Time {
	l.finishChange()
	desired, observed := l.observe()
	plan := Diff(desired, observed)
	if len(plan) == 0 {
		l.converged(desired, observed)
	}
	if l.act(ctx, pools, plan) {
		l.wake()
	}
	return l.next()
}

// observe returns the desired and the observed state. It forgets failures of pools
// that are no longer desired, or that work again.
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
		state, there := states[key]
		if works := there && state.Begun && state.Err == nil; works || !desired {
			delete(l.failures, key)
			continue
		}
		blocked[key] = f.until
	}
	maps.DeleteFunc(l.leftover, func(key string, _ runtime.PoolSpec) bool {
		_, wanted := l.desired.Pools[key]
		_, there := states[key]
		return wanted || there // such a pool adopts its instances itself
	})
	return l.desired, Observed{
		Now: time.Now(), Pools: states, Process: l.inForce, Blocked: blocked, Leftovers: maps.Clone(l.leftover),
	}
}

// act carries out a plan. It reports whether another turn is due at once.
func (l *Loop) act(ctx, pools context.Context, plan Plan) (acted bool) {
	for _, action := range plan {
		switch a := action.(type) {
		case SetProcess:
			l.prepareChange(ctx, a)
			continue // logged when it is made
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
		l.log.Info(action.String())
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

// poolFailed notes that a pool could not be built, or has failed. A desired pool is
// started again, with back-off. A pool of an earlier run is found by the next list of
// instances.
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
	case state.Begun:
		l.failed(key, state.Err, log, "pool failed")
	default:
		l.failed(key, state.Err, log, "pool failed to start")
	}
}

// failed notes a failure, so that the action is retried after a back-off if it is still
// desired then. The first failure of a series is a warning, the others are logged for
// debugging.
func (l *Loop) failed(key string, err error, log *slog.Logger, message string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f := l.failures[key]
	wait := min(lastRetry, firstRetry<<min(f.times, 10))
	level := slog.LevelWarn
	if f.times > 0 {
		level = slog.LevelDebug
	}
	l.failures[key] = failure{err: err, times: f.times + 1, until: time.Now().Add(wait)}
	log.Log(context.Background(), level, message, "error", err, "retry_in", wait)
}

// converged notes that the desired state is in force, unless a pool still starts or
// drains, or something is blocked.
func (l *Loop) converged(desired Desired, observed Observed) {
	l.mu.Lock()
	defer l.mu.Unlock()
	pools := 0
	for _, state := range observed.Pools {
		if !state.Spec.Leftover { // one that drains for hours is no part of a generation
			pools++
		}
	}
	if l.applied.Generation == desired.Generation || len(l.failures) > 0 ||
		pools != len(desired.Pools) || !desired.claimedIn(observed.Pools) {
		return
	}
	l.applied, l.since = desired, observed.Now
	l.log.Info("converged", "generation", desired.Generation, "pools", len(desired.Pools))
}

// next returns a channel that receives when the first blocked action may be retried. It
// is nil if no action is blocked.
func (l *Loop) next() <-chan time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	var first time.Time
	now := time.Now()
	for _, f := range l.failures {
		if !f.until.After(now) {
			continue // retried already: its pool is starting, or about to stop
		}
		if first.IsZero() || f.until.Before(first) {
			first = f.until
		}
	}
	if first.IsZero() {
		return nil
	}
	return time.After(time.Until(first))
}

// over reports whether every desired pool is a single run that is over, and no other
// pool has jobs to finish.
func (l *Loop) over() bool {
	states := l.set.snapshot()
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.desired.Pools) == 0 {
		return false
	}
	for key, state := range states {
		if _, wanted := l.desired.Pools[key]; !wanted && state.Phase != runtime.PoolStopped {
			return false
		}
	}
	for key, spec := range l.desired.Pools {
		state, there := states[key]
		if !there || !spec.Tuning.SingleRun || !state.Finished || state.Phase != runtime.PoolStopped {
			return false
		}
	}
	return true
}

// running counts the jobs in flight.
func (l *Loop) running() (jobs int) {
	for _, state := range l.set.snapshot() {
		jobs += len(state.Jobs)
	}
	return jobs
}

// Status returns a snapshot.
func (l *Loop) Status() Status {
	states := l.set.snapshot()
	l.mu.Lock()
	defer l.mu.Unlock()
	status := Status{
		Desired: l.desired.Generation, Applied: l.applied.Generation, AppliedAt: l.since,
		Problems: map[string]string{}, Names: map[string]string{}, Stopping: l.stopping,
		Process: l.desired.Process, Claiming: l.desired.claimedIn(states),
	}
	for _, key := range sorted(states) {
		status.Pools = append(status.Pools, states[key])
	}
	now := time.Now()
	observed := Observed{Now: now, Pools: states, Process: l.inForce, Blocked: map[string]time.Time{}}
	for key, f := range l.failures {
		status.Problems[key] = f.err.Error()
		observed.Blocked[key] = now.Add(time.Hour) // the problem is the reason
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
