package runtime

import (
	"slices"
	"sync"
	"time"
)

// patience is how long a question for work keeps its slot from a pool that
// waits for one. A service that works answers sooner; one that is silent would
// otherwise hold up every other pool until the question's own limit.
const patience = 2 * time.Second

// Slots limits the jobs of all pools together. A pool takes a slot before it
// asks for work, since an answer may be a job, and gives it back when there is
// none or when the job has ended. Its methods are safe for concurrent use; a nil
// *Slots has no limit.
//
//  1. A free slot goes to the waiting pool that holds the fewest, and among
//     equals to the one that has waited longest. Its wait counts anew when it
//     gives a slot back: a pool that was served only now is not the one that
//     has waited longest.
//  2. A question that has no answer yet after two seconds makes room for a pool
//     that waits, and for nobody else. If its answer is a job after all, that
//     job is ours: it takes a slot again, even when there is none. As a pool asks
//     one question at a time, each pool can be one job beyond the limit at most,
//     and no slot is free until the excess is gone.
type Slots struct {
	mu    sync.Mutex
	limit int // 0 is none
	taken int
	held  map[*Pool]int // slots of each pool that has any
	queue []*slot       // waiting, in the order in which they came
	late  []*slot       // of questions without an answer that would make room, the earliest first
}

// slot is a place in the queue, and then the slot itself.
type slot struct {
	of      *Slots
	by      *Pool
	granted chan struct{} // closed when the slot is taken
	lent    bool          // taken once, and made room since
	kept    bool          // by a job
	done    bool          // given back, or no longer wanted
}

// NewSlots makes so many slots; 0 is no limit.
func NewSlots(limit int) *Slots { return &Slots{limit: limit, held: map[*Pool]int{}} }

// SetLimit changes how many slots there are; 0 is no limit. Whoever has a slot
// keeps it.
func (s *Slots) SetLimit(limit int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limit = limit
	s.grant()
}

// join takes a slot, or waits in the queue for one: then granted is closed later.
func (s *Slots) join(by *Pool) *slot {
	place := &slot{of: s, by: by, granted: make(chan struct{})}
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
func (s *Slots) seize(by *Pool) *slot {
	place := &slot{of: s, by: by, granted: make(chan struct{}), kept: true}
	close(place.granted)
	if s == nil {
		return place
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.take(by)
	return place
}

// has reports whether the slot was taken.
func (p *slot) has() bool {
	select {
	case <-p.granted:
		return true
	default:
		return false
	}
}

// lend makes a slot that was taken give way to whoever waits, now or later,
// until it is kept or given back. It does nothing after that.
func (p *slot) lend() {
	if p.of == nil {
		return
	}
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	if p.done || p.kept {
		return
	}
	p.of.late = append(p.of.late, p)
	p.of.grant()
}

// keep makes a slot that was taken the slot of a job: it gives way no more. If
// it has given way already, another is taken, whether there is one or not; it
// reports whether there was none.
func (p *slot) keep() (beyond bool) {
	if p.of == nil {
		return false
	}
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	p.kept = true
	p.of.forget(p)
	if p.lent {
		p.lent = false
		p.of.take(p.by)
		return p.of.limit > 0 && p.of.taken > p.of.limit
	}
	return false
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
	p.of.forget(p)
	switch {
	case !p.has():
		p.of.queue = slices.DeleteFunc(p.of.queue, func(other *slot) bool { return other == p })
	case !p.lent:
		p.of.free(p.by)
		slices.SortStableFunc(p.of.queue, func(a, b *slot) int { return behind(a, p.by) - behind(b, p.by) })
	}
	p.of.grant()
}

// behind is 1 for a place of the pool, and 0 for every other.
func behind(place *slot, by *Pool) int {
	if place.by == by {
		return 1
	}
	return 0
}

// take counts a slot as taken. The caller holds the lock.
func (s *Slots) take(by *Pool) {
	s.taken++
	s.held[by]++
}

// free counts a slot as given back. The caller holds the lock.
func (s *Slots) free(by *Pool) {
	s.taken--
	if s.held[by]--; s.held[by] == 0 {
		delete(s.held, by)
	}
}

// forget takes a slot off those that would make room. The caller holds the lock.
func (s *Slots) forget(p *slot) {
	s.late = slices.DeleteFunc(s.late, func(other *slot) bool { return other == p })
}

// grant gives slots to those who wait for them: first what is free, then what
// late questions hold, if that is enough to make room. The caller holds the lock.
func (s *Slots) grant() {
	for len(s.queue) > 0 && (s.limit <= 0 || s.taken-len(s.late) < s.limit) {
		for s.limit > 0 && s.taken >= s.limit {
			s.late[0].lent = true
			s.free(s.late[0].by)
			s.late = s.late[1:]
		}
		next := slices.MinFunc(s.queue, func(a, b *slot) int { return s.held[a.by] - s.held[b.by] }) // the first of equals
		s.queue = slices.DeleteFunc(s.queue, func(other *slot) bool { return other == next })
		s.take(next.by)
		close(next.granted)
	}
}
