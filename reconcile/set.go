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
	buildLimit   = time.Minute // for building one pool, or preparing a change of the process
	buildsAtOnce = 8           // pools that are built at the same time
)

// Pool is what the set needs of a pool; [runtime.Pool] is one.
type Pool interface {
	Run(ctx context.Context) error
	Tune(spec runtime.PoolSpec)
	Drain()
	State() runtime.PoolState
	Begun() <-chan struct{} // closed when the pool is past its start
}

// Build makes a pool from its spec, with everything that it works with, and
// checks that it can work. It touches nothing that runs.
type Build func(ctx context.Context, spec runtime.PoolSpec) (Pool, error)

// Set owns the pools. A pool is a member from the moment at which it is to start
// until it is removed: while it waits to be built, is built, runs, and after it has
// stopped. Each member has one goroutine. The methods are safe for concurrent use.
type Set struct {
	changed chan struct{} // holds one empty token: a member is past its start, or has stopped

	mu       sync.Mutex
	members  map[string]*member
	queue    []*member // that wait to be built, in the order of start
	building int       // at most buildsAtOnce
}

// member is one pool. Its fields are guarded by Set.mu.
type member struct {
	pool   Pool             // nil until it is built
	spec   runtime.PoolSpec // that the pool gets when it is built
	drains bool             // the pool drains as soon as it is built
	err    error            // of the build

	mayBuild    chan struct{} // closed when the member leaves the queue
	cancelBuild context.CancelFunc
	cancel      context.CancelCauseFunc // ends the build, and stops the pool
	done        chan struct{}           // closed when the goroutine has ended
}

func newSet() *Set {
	return &Set{changed: make(chan struct{}, 1), members: map[string]*member{}}
}

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
		defer s.notify()
		defer close(m.done)
		defer cancel(nil)
		if pool := s.build(buildCtx, m, build); pool != nil {
			s.run(ctx, pool)
		}
	}()
}

// build waits for the member's turn and builds its pool. It returns nil if the build
// failed or was cancelled; a failure is the member's error, a cancellation is not. A pool
// that is built in spite of the cancellation is returned, and drains: its Run releases
// what it holds.
func (s *Set) build(ctx context.Context, m *member, build Build) Pool {
	// Wait, and build.
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

	// Apply what the loop requested during the build.
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

// run runs a pool, and notifies the loop when it is past its start.
func (s *Set) run(ctx context.Context, pool Pool) {
	ended := make(chan struct{})
	var begin sync.WaitGroup
	begin.Go(func() {
		select {
		case <-pool.Begun():
			s.notify()
		case <-ended:
		}
	})
	_ = pool.Run(ctx) // State keeps the error
	close(ended)
	begin.Wait()
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

// leaveQueue removes a member from the queue, or ends its build.
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

func (s *Set) notify() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// tune gives a pool new settings, now or when it is built. It revives a pool that
// drains.
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

// drain makes a pool claim nothing more, and cancels a build.
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

// retry ends the waits of all pools after failures, where they have such waits.
func (s *Set) retry() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.members {
		if pool, ok := m.pool.(interface{ Retry() }); ok {
			pool.Retry()
		}
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

// empty drains every member and returns when all have stopped. When hurry ends or
// the limit is over, it cancels those that are left: they stop their jobs in order.
func (s *Set) empty(hurry context.Context, limit time.Duration, cause error) {
	s.mu.Lock()
	members := make([]*member, 0, len(s.members))
	for _, key := range sorted(s.members) {
		members = append(members, s.members[key])
		s.members[key].drain()
	}
	s.mu.Unlock()
	limited, cancel := context.WithTimeout(hurry, limit)
	defer cancel()
	for _, m := range members {
		select {
		case <-m.done:
		case <-limited.Done():
		}
	}
	for _, m := range members {
		m.cancel(cause) // no effect on one that has stopped
	}
	for _, m := range members {
		<-m.done
	}
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

// state returns the state of the pool. A build has a limit of its own, so that a
// member without a pool is never overdue.
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
