package pool

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestSlotsProperty checks that slots are never granted above the limit, that no slot is idle
// while a pool waits, and that the pool with the fewest slots is served first.
func TestSlotsProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(0, 3).Draw(t, "limit")
		slots := NewSlots(limit)
		pools := []*Pool{{}, {}, {}}
		var all []*slot // in the order of arrival, without those that were released
		shared := map[*slot]bool{}
		for range rapid.IntRange(1, 80).Draw(t, "turns") {
			// Draw an operation and its slot.
			before := slices.Clone(slots.queue)
			held := slots.taken
			operation := rapid.SampledFrom([]string{
				"join", "join", "release", "release", "limit", "force", "share", "keep",
			}).Draw(t, "operation")
			var target *slot
			switch operation {
			case "release", "share", "keep":
				if len(all) == 0 {
					continue
				}
				target = all[rapid.IntRange(0, len(all)-1).Draw(t, "slot")]
				if operation != "release" && (!closed(target.granted) || target.hasJob) {
					continue
				}
			default:
				target = &slot{pool: pools[rapid.IntRange(0, len(pools)-1).Draw(t, "pool")]}
			}

			// Apply the operation.
			switch operation {
			case "join":
				all = append(all, slots.join(target.pool))
			case "force":
				all = append(all, slots.force(target.pool))
			case "share":
				if !shared[target] {
					target.share()
				}
				shared[target] = true
			case "keep":
				takenOver := target.takenOver
				if exceeds := target.keep(); exceeds != (takenOver && limit > 0 && held >= limit) {
					t.Fatalf("limit %d, %d taken: keep reports that a late job exceeds the limit: %v",
						limit, held, exceeds)
				}
				target.share() // by a timer that fires too late
				delete(shared, target)
			case "release":
				target.release()
				target.release()
				target.share()
				all = slices.DeleteFunc(all, func(other *slot) bool { return other == target })
				delete(shared, target)
			case "limit":
				limit = rapid.IntRange(0, 4).Draw(t, "limit")
				slots.SetLimit(limit)
			}

			// Compare the counters, and check that no slot is idle or above the limit.
			counts, taken, queued, sharedTaken := map[*Pool]int{}, 0, 0, 0
			for _, entry := range all {
				switch {
				case !closed(entry.granted):
					queued++
				case !entry.takenOver:
					taken++
					counts[entry.pool]++
					if shared[entry] {
						sharedTaken++
					}
				}
			}
			for _, pool := range pools {
				if counts[pool] != slots.held[pool] {
					t.Fatalf("a pool holds %d slots, want %d", slots.held[pool], counts[pool])
				}
			}
			switch {
			case taken != slots.taken || queued != len(slots.queue) || sharedTaken != len(slots.shared):
				t.Fatalf("got %d taken, %d queued, %d shared; want %d, %d, %d",
					slots.taken, len(slots.queue), len(slots.shared), taken, queued, sharedTaken)
			case queued > 0 && (limit == 0 || taken-sharedTaken < limit):
				t.Fatalf("limit %d: %d slots are queued although %d of %d taken slots are shared", limit,
					queued, sharedTaken, taken)
			case limit > 0 && taken > max(limit, held) && operation != "force" && operation != "keep":
				t.Fatalf("limit %d: %d slots were taken, and after %q %d slots are taken",
					limit, held, operation, taken)
			}
			if operation == "release" {
				checkServed(t, slots, before, target)
			}
		}

		// Release all slots.
		for _, entry := range all {
			entry.release()
		}
		if slots.taken != 0 || len(slots.held) != 0 || len(slots.queue) != 0 || len(slots.shared) != 0 {
			t.Fatalf("%d slots are still taken", slots.taken)
		}
	})
}

// checkServed checks which pool got a released slot, if exactly one slot was granted. No pool
// that is still in the queue may hold fewer slots than the served pool held. A pool with as
// many slots may not have come earlier, unless it released the slot itself. The pool that
// released the slot may not be served before another pool with as many slots.
func checkServed(t *rapid.T, slots *Slots, before []*slot, released *slot) {
	// Find the slot that was granted.
	var served []*slot
	for _, entry := range before {
		if entry != released && closed(entry.granted) {
			served = append(served, entry)
		}
	}
	if len(served) != 1 {
		return
	}
	next := served[0]

	// Compare its pool with those that remain in the queue.
	nextHeld := slots.held[next.pool] - 1
	for _, entry := range slots.queue {
		if entry.pool == next.pool {
			continue
		}
		earlier := slices.Index(before, entry) < slices.Index(before, next)
		switch otherHeld := slots.held[entry.pool]; {
		case otherHeld < nextHeld:
			t.Fatalf("a pool with %d slots was served before a pool with %d", nextHeld, otherHeld)
		case otherHeld == nextHeld && next.pool == released.pool:
			t.Fatalf("the pool that released the slot got it again before another pool with as many slots")
		case otherHeld == nextHeld && earlier && entry.pool != released.pool:
			t.Fatalf("a pool was served before a pool that had as many slots and came earlier")
		}
	}
}

func TestSlotShare(t *testing.T) {
	t.Run("a shared slot is taken over only by a pool in the queue", func(t *testing.T) {
		slots, slow, other := NewSlots(1), &Pool{}, &Pool{}
		poll := slots.join(slow)
		poll.share()
		if poll.takenOver {
			t.Error("the slot was taken over although the queue is empty")
		}
		queued := slots.join(other)
		if !closed(queued.granted) || !poll.takenOver {
			t.Error("a pool that joins after slotGrace does not get the shared slot at once")
		}
		if !poll.keep() || slots.taken != 2 {
			t.Errorf("the late job is not counted: %d are taken", slots.taken)
		}
		queued.release()
		if next := slots.join(other); closed(next.granted) {
			t.Error("a slot was granted although the late job uses the limit")
		}
	})
	t.Run("slots without a limit", func(t *testing.T) {
		unlimited := NewSlots(0)
		for range 3 {
			entry := unlimited.join(&Pool{})
			if !closed(entry.granted) {
				t.Error("a slot is queued although there is no limit")
			}
			entry.share()
			if entry.keep() {
				t.Error("keep returned true although there is no limit")
			}
			entry.release()
			unlimited.force(nil).release()
		}
	})
}
