package pool

import (
	"slices"
	"sync"
)

// Slots limits the jobs of all pools together. A pool takes a slot before it polls,
// because the response may be a job, and releases it when there is no job or when the job
// has ended. Methods of Slots are safe for concurrent use.
//
//  1. A free slot goes to the pool in the queue that holds the fewest slots. If several pools
//     hold the same number, it goes to the pool that has waited longest. When a pool releases
//     a slot, its wait starts again.
//  2. A poll without a response shares its slot after slotGrace: a pool in the queue may
//     take the slot over. If the response is a job after all, the job takes a slot even if
//     none is free. A pool makes one poll for deployments and one for leased work at a time, so
//     each pool can exceed the limit by one job of each. No slot is granted while the limit is
//     exceeded.
//
// For example, with a limit of 1 the pool a polls a service that hangs, and b waits. After two
// seconds b takes the slot over and polls. If both responses are jobs, two jobs run, and no slot is
// granted until one of them has ended.
//
// A slot has six states: queued, granted, shared, taken over, with a job, and released.
// Shared and taken over exist only because a service may not answer. Without them, one such
// service would stop the pools of all other services.
type Slots struct {
	mu     sync.Mutex
	limit  int // 0 is no limit
	taken  int
	held   map[*Pool]int // number of slots by pool; a pool without slots is not in it
	queue  []*slot       // in the order of arrival
	shared []*slot       // of polls without a response, the oldest first
}

// slot is a place in the queue, and then the slot itself.
type slot struct {
	slots     *Slots
	pool      *Pool
	granted   chan struct{} // closed when the slot is taken; this wakes the pool
	takenOver bool          // by another pool, after the slot was shared
	hasJob    bool
	released  bool // or removed from the queue
}

// NewSlots returns Slots with a limit; 0 is no limit.
func NewSlots(limit int) *Slots { return &Slots{limit: limit, held: map[*Pool]int{}} }

// SetLimit changes the number of slots; 0 is no limit. Slots that are in use stay valid.
func (s *Slots) SetLimit(limit int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limit = limit
	s.grant()
}

// join takes a free slot, or enters the queue. The channel granted is closed when the slot is
// taken.
func (s *Slots) join(pool *Pool) *slot {
	place := &slot{slots: s, pool: pool, granted: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = append(s.queue, place)
	s.grant()
	return place
}

// force takes a slot even if none is free, for a job that runs already.
func (s *Slots) force(pool *Pool) *slot {
	forced := &slot{slots: s, pool: pool, granted: make(chan struct{}), hasJob: true}
	close(forced.granted)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.take(pool)
	return forced
}

// share lets a pool in the queue take the slot over, now or later, until the slot has a
// job or is released. After that share does nothing.
func (p *slot) share() {
	p.slots.mu.Lock()
	defer p.slots.mu.Unlock()
	if p.released || p.hasJob {
		return
	}
	p.slots.shared = append(p.slots.shared, p)
	p.slots.grant()
}

// keep gives the slot to a job, and ends share. If another pool has taken the slot over,
// the job takes another one, even if none is free. In that case keep reports whether more
// slots are taken than the limit allows.
func (p *slot) keep() (exceeds bool) {
	p.slots.mu.Lock()
	defer p.slots.mu.Unlock()
	p.hasJob = true
	p.slots.shared = without(p.slots.shared, p)
	if p.takenOver {
		p.takenOver = false
		p.slots.take(p.pool)
		return p.slots.limit > 0 && p.slots.taken > p.slots.limit
	}
	return false
}

// release gives the slot back, or leaves the queue. It can be repeated.
func (p *slot) release() {
	p.slots.mu.Lock()
	defer p.slots.mu.Unlock()
	if p.released {
		return
	}
	p.released = true
	p.slots.shared = without(p.slots.shared, p)
	switch {
	case !closed(p.granted):
		p.slots.queue = without(p.slots.queue, p)
	case !p.takenOver:
		// The pool just had a slot: its place in the queue moves to the end.
		p.slots.free(p.pool)
		slices.SortStableFunc(p.slots.queue, func(a, b *slot) int { return isOf(a, p.pool) - isOf(b, p.pool) })
	}
	p.slots.grant()
}

// isOf returns 1 for a slot of the pool, and 0 for any other.
func isOf(s *slot, pool *Pool) int {
	if s.pool == pool {
		return 1
	}
	return 0
}

// take counts a slot as taken. The caller holds the lock.
func (s *Slots) take(pool *Pool) {
	s.taken++
	s.held[pool]++
}

// free counts a slot as free. The caller holds the lock.
func (s *Slots) free(pool *Pool) {
	s.taken--
	if s.held[pool]--; s.held[pool] == 0 {
		delete(s.held, pool)
	}
}

// without removes a slot from a list.
func without(list []*slot, p *slot) []*slot {
	return slices.DeleteFunc(list, func(other *slot) bool { return other == p })
}

// grant gives slots to the queue: first the free ones, and then shared ones, if taking over
// all of them would make a slot free. The caller holds the lock.
func (s *Slots) grant() {
	for len(s.queue) > 0 && (s.limit <= 0 || s.taken-len(s.shared) < s.limit) {
		// Rule 2: take over shared slots until one slot is free.
		for s.limit > 0 && s.taken >= s.limit {
			s.shared[0].takenOver = true
			s.free(s.shared[0].pool)
			s.shared = s.shared[1:]
		}

		// Rule 1: grant it to the pool with the fewest slots; MinFunc returns the first of equals.
		next := slices.MinFunc(s.queue, func(a, b *slot) int { return s.held[a.pool] - s.held[b.pool] })
		s.queue = without(s.queue, next)
		s.take(next.pool)
		close(next.granted)
		notify(next.pool.changed)
	}
}
