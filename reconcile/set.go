package reconcile

import (
	"context"
	"sync"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
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

// Set owns the pools that run: each has a cancel and a done. It is used by one
// goroutine, but for snapshot, which anyone may call.
type Set struct {
	moved chan struct{} // holds one empty token: a pool is past its start, or has ended

	mu    sync.Mutex
	pools map[string]*member
}

type member struct {
	pool   Pool
	cancel context.CancelCauseFunc
	done   chan struct{}
}

func newSet() *Set {
	return &Set{moved: make(chan struct{}, 1), pools: map[string]*member{}}
}

// start runs a pool under key until it ends or is stopped.
func (s *Set) start(ctx context.Context, key string, pool Pool) {
	ctx, cancel := context.WithCancelCause(ctx)
	m := &member{pool: pool, cancel: cancel, done: make(chan struct{})}
	s.mu.Lock()
	s.pools[key] = m
	s.mu.Unlock()
	go func() {
		defer close(m.done)
		defer cancel(nil)
		_ = pool.Run(ctx) // State keeps the error
		s.move()
	}()
	go func() {
		select {
		case <-pool.Begun():
			s.move()
		case <-m.done:
		}
	}()
}

func (s *Set) move() {
	select {
	case s.moved <- struct{}{}:
	default:
	}
}

func (s *Set) tune(spec runtime.PoolSpec) {
	if m := s.get(spec.Key()); m != nil {
		m.pool.Tune(spec)
	}
}

// retry ends the waits of all pools after failures, where they have such waits.
func (s *Set) retry() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.pools {
		if pool, ok := m.pool.(runtime.Retrier); ok {
			pool.Retry()
		}
	}
}

func (s *Set) drain(key string) {
	if m := s.get(key); m != nil {
		m.pool.Drain()
	}
}

// remove forgets a pool that has stopped, waits for its goroutine, and returns
// the error that it died of, if any.
func (s *Set) remove(key string) error {
	m := s.get(key)
	if m == nil {
		return nil
	}
	<-m.done
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pools, key)
	return m.pool.State().Err
}

// empty drains every pool and returns when all have ended. When hurry ends or
// the limit is over, the pools are cancelled, and then stop their jobs in
// order.
func (s *Set) empty(hurry context.Context, limit time.Duration, cause error) {
	s.mu.Lock()
	members := make([]*member, 0, len(s.pools))
	for _, key := range sorted(s.pools) {
		members = append(members, s.pools[key])
	}
	s.mu.Unlock()
	for _, m := range members {
		m.pool.Drain()
	}
	over := time.NewTimer(limit)
	defer over.Stop()
	for _, m := range members {
		select {
		case <-m.done:
			continue
		case <-hurry.Done():
		case <-over.C:
			over.Reset(0) // for the others too
		}
		m.cancel(cause)
		for _, other := range members {
			other.cancel(cause)
		}
		<-m.done
	}
}

// snapshot returns the state of every pool.
func (s *Set) snapshot() map[string]runtime.PoolState {
	s.mu.Lock()
	defer s.mu.Unlock()
	states := make(map[string]runtime.PoolState, len(s.pools))
	for key, m := range s.pools {
		states[key] = m.pool.State()
	}
	return states
}

func (s *Set) get(key string) *member {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pools[key]
}
