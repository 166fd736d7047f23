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
	lookInterval = 10 * time.Second // the net under the wake-ups
	firstRetry   = time.Second      // of what could not be built, doubling
	lastRetry    = time.Minute
)

// errNewer is the cause with which the preparation of a plan ends when something
// else is wanted.
var errNewer = errors.New("there is a newer wish")

// errStopping is the cause with which jobs are stopped.
var errStopping = errors.New("the agent is stopping")

// Loop converges what runs onto what is wanted. Its methods are safe for
// concurrent use; Run is called once.
type Loop struct {
	build   Build
	process Process
	log     *slog.Logger
	set     *Set
	woken   chan struct{} // holds one empty token: something is new

	mu       sync.Mutex
	desired  Desired
	applied  Desired
	inForce  ProcessSpec
	since    time.Time // of applied
	failures map[string]failure
	leftover map[string]runtime.PoolSpec // see Observed.Leftovers
	stopping bool
	giveUp   context.CancelCauseFunc // ends the preparation that is under way
}

// failure is a pool that could not be built, or did not live.
type failure struct {
	err   error
	times int // in a row
	until time.Time
}

// Process prepares a change of the process as a whole, opens what is new, and
// touches nothing that is in use. Commit then makes the change, and cannot fail.
type Process func(ctx context.Context, from, to ProcessSpec) (commit func(), err error)

// New makes a loop that wants nothing yet. The process is as inForce says.
func New(build Build, process Process, inForce ProcessSpec, log *slog.Logger) *Loop {
	return &Loop{
		build:    build,
		process:  process,
		inForce:  inForce,
		log:      log.With("component", "reconcile"),
		set:      newSet(),
		woken:    make(chan struct{}, 1),
		failures: map[string]failure{},
		giveUp:   func(error) {},
	}
}

// Want replaces what is wanted. The latest wins: it does not wait for what is
// being prepared for the one before.
func (l *Loop) Want(desired Desired) {
	l.mu.Lock()
	l.desired = desired
	clear(l.failures) // a new wish is a new try
	l.giveUp(errNewer)
	l.mu.Unlock()
	l.wake()
}

// Retry ends the waits after failures: what could not be built is built again now, and
// a pool whose last poll failed polls again, unless the service asked for a longer
// wait. If it fails again, the wait begins again.
func (l *Loop) Retry() {
	l.mu.Lock()
	for key, f := range l.failures {
		l.failures[key] = failure{err: f.err}
	}
	l.mu.Unlock()
	l.set.retry()
	l.wake()
}

// wake makes the loop look again.
func (l *Loop) wake() {
	select {
	case l.woken <- struct{}{}:
	default:
	}
}

// Run converges until ctx ends, and then drains: nothing new is claimed, jobs
// that run may finish until the shutdown timeout is over or hurry ends, and are
// then stopped in order. It returns nil, after everything has ended. It also
// returns when every pool was wanted for a single run, and that is over.
func (l *Loop) Run(ctx, hurry context.Context) error {
	pools := context.WithoutCancel(ctx)
	ticker := time.NewTicker(lookInterval)
	defer ticker.Stop()
	for !l.over() {
		wake := l.turn(ctx, pools)
		select {
		case <-ctx.Done():
			l.stop(hurry)
			return nil
		case <-l.woken:
		case <-l.set.moved:
		case <-wake:
		case <-ticker.C:
		}
	}
	l.stop(hurry)
	return nil
}

// stop ends every pool in order.
func (l *Loop) stop(hurry context.Context) {
	l.mu.Lock()
	l.stopping = true
	limit := l.desired.Process.ShutdownTimeout
	l.mu.Unlock()
	if jobs := l.running(); jobs > 0 {
		l.log.Info("stopping: nothing new is claimed, and running jobs may finish", "jobs", jobs, "limit", limit)
	}
	l.set.empty(hurry, limit, errStopping)
}

// turn is one look: observe, diff, do what takes no time, build and start the pools
// that are new. The channel it returns says when to look again for what is
// blocked until then.
func (l *Loop) turn(ctx, pools context.Context) <-chan time.Time {
	for {
		current, done := l.untilNewer(ctx)
		desired, observed := l.observe()
		plan := Diff(desired, observed)
		if len(plan) == 0 {
			done(nil)
			l.converged(desired, observed)
			break
		}
		swift, starts := plan.parts()
		acted := l.commit(swift, l.prepareProcess(current, swift))
		started := l.start(current, pools, starts)
		done(nil)
		if !acted && !started {
			break
		}
	}
	return l.next()
}

// untilNewer returns a context that ends when something else is wanted from now
// on.
func (l *Loop) untilNewer(ctx context.Context) (context.Context, context.CancelCauseFunc) {
	ctx, giveUp := context.WithCancelCause(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.giveUp = giveUp
	return ctx, giveUp
}

// observe returns what is wanted and what is there. A failure of what is not
// wanted any more is forgotten.
func (l *Loop) observe() (Desired, Observed) {
	states := l.set.snapshot()
	l.mu.Lock()
	defer l.mu.Unlock()
	blocked := map[string]time.Time{}
	for key, f := range l.failures {
		_, wanted := l.desired.Pools[key]
		if key == ProcessKey {
			wanted = l.desired.Process != l.inForce
		}
		if !wanted {
			delete(l.failures, key)
			continue
		}
		if state, there := states[key]; there && state.Begun && state.Err == nil {
			delete(l.failures, key) // it works again, or has worked
			continue
		}
		blocked[key] = f.until
	}
	maps.DeleteFunc(l.leftover, func(key string, _ runtime.PoolSpec) bool {
		_, wanted := l.desired.Pools[key]
		_, there := states[key]
		return wanted || there // such a pool adopts its instances itself
	})
	return l.desired, Observed{Now: time.Now(), Pools: states, Process: l.inForce, Blocked: blocked, Leftovers: maps.Clone(l.leftover)}
}

// poolFails is the word of a pool that cannot be built, or does not live.
const poolFails = "pool cannot work; trying again"

// commit does what takes no time, and reports whether it did anything. The change
// of the process is left if it could not be prepared. A pool that died by itself
// is removed and noted as a failure, so that it comes back with back-off.
func (l *Loop) commit(plan Plan, setProcess func()) (acted bool) {
	for _, action := range plan {
		switch a := action.(type) {
		case SetProcess:
			if setProcess == nil {
				continue
			}
			setProcess()
			l.mu.Lock()
			l.inForce = a.To
			delete(l.failures, ProcessKey)
			l.mu.Unlock()
		case TunePool:
			l.set.tune(a.Spec)
		case DrainPool:
			l.set.drain(a.Key)
		case RemovePool:
			if err := l.set.remove(a.Key); err != nil {
				l.failed(a.Key, poolFails, a.Name, err)
			}
		}
		acted = true
		l.log.Info(action.String())
	}
	return acted
}

// failed notes that something could not be built or did not live, so that it is
// tried again if it is wanted. The first failure of a row is a warning, the others
// are for those who look closely.
func (l *Loop) failed(key, what, pool string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, wanted := l.desired.Pools[key]; !wanted && key != ProcessKey {
		l.log.Warn("pool that is not wanted any more ended with an error", "pool", pool, "error", err)
		return
	}
	f := l.failures[key]
	wait := min(lastRetry, firstRetry<<min(f.times, 10))
	level := slog.LevelWarn
	if f.times > 0 {
		level = slog.LevelDebug
	}
	l.failures[key] = failure{err: err, times: f.times + 1, until: time.Now().Add(wait)}
	log := l.log
	if pool != "" {
		log = log.With("pool", pool)
	}
	log.Log(context.Background(), level, what, "error", err, "in", wait)
}

// converged notes that what is wanted is what runs, unless something still
// starts, drains or is blocked.
func (l *Loop) converged(desired Desired, observed Observed) {
	l.mu.Lock()
	defer l.mu.Unlock()
	pools := 0
	for _, state := range observed.Pools {
		if !state.Spec.Leftover { // one that drains for hours is no part of a generation
			pools++
		}
	}
	if len(l.failures) > 0 || pools != len(desired.Pools) || l.applied.Generation == desired.Generation || !desired.claimedIn(observed.Pools) {
		return
	}
	l.applied, l.since = desired, observed.Now
	l.log.Info("converged", "generation", desired.Generation, "pools", len(desired.Pools))
}

// next says when the first of what is blocked may be tried again.
func (l *Loop) next() <-chan time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	var first time.Time
	now := time.Now()
	for _, f := range l.failures {
		if !f.until.After(now) {
			continue // tried again already: its pool is about to work, or to end
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

// over reports whether all that was wanted was wanted once, and is done, and
// nothing else has jobs to finish.
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

// Status returns a snapshot of how far we got.
func (l *Loop) Status() Status {
	states := l.set.snapshot()
	l.mu.Lock()
	defer l.mu.Unlock()
	status := Status{
		Desired: l.desired.Generation, Applied: l.applied.Generation, AppliedAt: l.since,
		Problems: map[string]string{}, Names: map[string]string{}, Stopping: l.stopping, Process: l.desired.Process, Claiming: l.desired.claimedIn(states),
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
