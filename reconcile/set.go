package reconcile

import (
	"context"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
)

const (
	buildLimit   = time.Minute // timeout for building one pool, or preparing a change of the process
	buildsAtOnce = 8           // largest number of pools that are built at the same time
)

// Pool contains the methods of [runtime/pool.Pool] that the Set uses.
type Pool interface {
	Run(ctx context.Context) error
	Tune(spec runtime.PoolSpec)
	Drain()
	StopJob(id string) (found bool)
	State() runtime.PoolState
	Ready() <-chan struct{} // closed when the pool has started
}

// Build returns a pool of a spec, with its client and executor, and checks that it can
// work. It does not affect running pools.
type Build func(ctx context.Context, spec runtime.PoolSpec) (Pool, error)

// Set owns the pools. A pool is a member from the call of start until it is removed:
// while it waits for its build, is built, runs, and after it has stopped. Each member has
// one goroutine. The methods are safe for concurrent use.
type Set struct {
	changed func() // called when a member has started, or has stopped

	mu       sync.Mutex
	members  map[string]*member
	queue    []*member // waiting to be built, in the order of start
	building int       // at most buildsAtOnce
}

// member is one pool. Its fields are guarded by Set.mu.
type member struct {
	pool   Pool             // nil until it is built
	spec   runtime.PoolSpec // in force when the pool is built
	drains bool             // the pool drains as soon as it is built
	err    error            // of the build

	mayBuild    chan struct{} // closed when the member leaves the queue
	cancelBuild context.CancelFunc
	cancel      context.CancelCauseFunc // ends the build, and stops the pool
	done        chan struct{}           // closed when the goroutine has ended
}

func newSet(changed func()) *Set { return &Set{changed: changed, members: map[string]*member{}} }

// start adds a member, and returns at once. The member's goroutine builds the pool
// and runs it until it ends or is stopped. At most buildsAtOnce pools are built at the
// same time, in the order of the calls; each build is limited to buildLimit.
func (s *Set) start(ctx context.Context, spec runtime.PoolSpec, build Build) {
	ctx, cancel := context.WithCancelCause(ctx)
	buildCtx, cancelBuild := context.WithCancel(ctx)
	m := &member{
		spec: spec, drains: spec.Leftover,
		mayBuild: make(chan struct{}), cancelBuild: cancelBuild, cancel: cancel, done: make(chan struct{}),
	}
	s.mu.Lock()
	s.members[spec.Key()] = m
	s.queue = append(s.queue, m)
	s.admit()
	s.mu.Unlock()
	go func() {
		defer s.changed()
		defer close(m.done)
		defer cancel(nil)
		if pool := s.build(buildCtx, m, build); pool != nil {
			s.run(ctx, pool)
		}
	}()
}

// build waits until the member may build, and builds its pool. It returns nil if the
// build failed or was cancelled; a failure is the member's error, a cancellation is not. If
// the build succeeds in spite of the cancellation, build returns the pool, because only the
// pool's Run releases its resources.
func (s *Set) build(ctx context.Context, m *member, build Build) Pool {
	defer s.leaveQueue(m)
	select {
	case <-m.mayBuild:
	case <-ctx.Done():
	}
	if ctx.Err() != nil {
		return nil
	}

	s.mu.Lock()
	spec := m.spec
	s.mu.Unlock()
	limited, cancel := context.WithTimeout(ctx, buildLimit)
	defer cancel()
	pool, err := build(limited, spec)

	// Apply the new settings or the drain that the loop requested during the build.
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		if ctx.Err() == nil {
			m.err = err
		}
		return nil
	}
	m.pool = pool
	if !reflect.DeepEqual(m.spec, spec) {
		pool.Tune(m.spec)
	}
	if m.drains {
		pool.Drain()
	}
	return pool
}

// run runs a pool, and notifies the loop when it has started.
func (s *Set) run(ctx context.Context, pool Pool) {
	ended := make(chan struct{})
	var ready sync.WaitGroup
	ready.Go(func() {
		select {
		case <-pool.Ready():
			s.changed()
		case <-ended:
		}
	})
	_ = pool.Run(ctx) // State returns the error
	close(ended)
	ready.Wait()
}

// admit takes members from the queue while fewer than buildsAtOnce pools are built. The
// caller holds s.mu.
func (s *Set) admit() {
	for len(s.queue) > 0 && s.building < buildsAtOnce {
		close(s.queue[0].mayBuild)
		s.queue = s.queue[1:]
		s.building++
	}
}

// leaveQueue removes a member from the queue. If the member has left the queue before, its
// build has ended, and no longer counts as one of buildsAtOnce.
func (s *Set) leaveQueue(m *member) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.queue, m); i >= 0 {
		s.queue = slices.Delete(s.queue, i, i+1)
	} else {
		s.building--
	}
	s.admit()
}

// tune gives a pool new settings, now or when it is built. It revives a draining pool.
func (s *Set) tune(spec runtime.PoolSpec) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.members[spec.Key()]
	switch {
	case m == nil:
	case m.pool != nil:
		m.pool.Tune(spec)
	default:
		m.spec, m.drains = spec, false
	}
}

// drain makes a pool claim no more jobs, or cancels its build.
func (s *Set) drain(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.members[key]; m != nil {
		m.drain()
	}
}

func (m *member) drain() {
	if m.pool != nil {
		m.pool.Drain()
		return
	}
	m.drains = true
	m.cancelBuild()
}

// stopJob stops a job of a pool, and reports whether a pool has the job.
func (s *Set) stopJob(id string) (found bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.members {
		if m.pool != nil && m.pool.StopJob(id) {
			return true
		}
	}
	return false
}

// retry ends the wait of a pool whose last poll failed.
func (m *member) retry() {
	if pool, ok := m.pool.(interface{ Retry() }); ok {
		pool.Retry()
	}
}

// forceStop shortens the cancel grace period of jobs that are being stopped.
func (m *member) forceStop() {
	if pool, ok := m.pool.(interface{ ForceStop() }); ok {
		pool.ForceStop()
	}
}

// each calls do for every member, with the lock of the Set.
func (s *Set) each(do func(*member)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.members {
		do(m)
	}
}

// remove forgets a member that has stopped, and returns its last state.
func (s *Set) remove(key string) runtime.PoolState {
	s.mu.Lock()
	m := s.members[key]
	s.mu.Unlock()
	if m == nil {
		return runtime.PoolState{}
	}
	<-m.done
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.members, key)
	return m.state()
}

// empty reports whether every member has stopped.
func (s *Set) empty() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.members {
		select {
		case <-m.done:
		default:
			return false
		}
	}
	return true
}

// snapshot returns the state of every member.
func (s *Set) snapshot() map[string]runtime.PoolState {
	s.mu.Lock()
	defer s.mu.Unlock()
	states := make(map[string]runtime.PoolState, len(s.members))
	for key, m := range s.members {
		states[key] = m.state()
	}
	return states
}

// state returns the state of the pool. A member without a pool is never overdue, because
// builds have their own limit.
func (m *member) state() runtime.PoolState {
	if m.pool != nil {
		return m.pool.State()
	}
	state := runtime.PoolState{Spec: m.spec, Phase: runtime.PoolStarting}
	if m.drains {
		state.Phase = runtime.PoolDraining
	}
	select {
	case <-m.done:
		state.Phase, state.Err = runtime.PoolStopped, m.err
	default:
	}
	return state
}
