package runtime

import (
	"slices"
	"sync"
)

// Slots limits the jobs of all pools together. A pool takes a slot before it
// asks for work, since an answer may be a job, and gives it back when there is
// none or when the job has ended. Pools that wait are served in the order in
// which they came. Its methods are safe for concurrent use; a nil *Slots has no
// limit.
type Slots struct {
	mu    sync.Mutex
	limit int // 0 is none
	taken int
	queue []*slot // waiting, the first one first
}

// slot is a place in the queue, and then the slot itself.
type slot struct {
	of      *Slots
	granted chan struct{} // closed when the slot is taken
	done    bool          // given back, or no longer wanted
}

// NewSlots makes so many slots; 0 is no limit.
func NewSlots(limit int) *Slots { return &Slots{limit: limit} }

// SetLimit changes how many slots there are; 0 is no limit. Whoever has a slot
// keeps it.
func (s *Slots) SetLimit(limit int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limit = limit
	s.grant()
}

// join takes a slot, or waits in the queue for one: then granted is closed later.
func (s *Slots) join() *slot {
	place := &slot{of: s, granted: make(chan struct{})}
	if s == nil {
		close(place.granted)
		return place
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = append(s.queue, place)
	s.grant()
	return place
}

// seize takes a slot whether there is one or not: for a job that runs already.
func (s *Slots) seize() *slot {
	place := &slot{of: s, granted: make(chan struct{})}
	close(place.granted)
	if s == nil {
		return place
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken++
	return place
}

// has reports whether the slot is taken.
func (p *slot) has() bool {
	select {
	case <-p.granted:
		return true
	default:
		return false
	}
}

// leave gives the slot back, or leaves the queue. It can be repeated.
func (p *slot) leave() {
	if p.of == nil {
		return
	}
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	if p.done {
		return
	}
	p.done = true
	if p.has() {
		p.of.taken--
	}
	p.of.queue = slices.DeleteFunc(p.of.queue, func(other *slot) bool { return other == p })
	p.of.grant()
}

// grant gives free slots to those who have waited longest. The caller holds the
// lock.
func (s *Slots) grant() {
	for len(s.queue) > 0 && (s.limit <= 0 || s.taken < s.limit) {
		s.taken++
		close(s.queue[0].granted)
		s.queue = s.queue[1:]
	}
}
