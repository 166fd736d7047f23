package runtime

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestSlotsAreNeverOverdrawnNorIdleAndThePoolWithTheFewestIsServedFirst(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(0, 3).Draw(t, "limit")
		slots := NewSlots(limit)
		pools := []*Pool{{}, {}, {}}
		var all []*slot // in the order in which they came, without those that left
		late := map[*slot]bool{}
		for range rapid.IntRange(1, 80).Draw(t, "turns") {
			before := slices.Clone(slots.queue)
			held := slots.taken
			what := rapid.SampledFrom([]string{"join", "join", "leave", "leave", "limit", "seize", "lend", "keep"}).Draw(t, "what")
			var one *slot
			switch what {
			case "leave", "lend", "keep":
				if len(all) == 0 {
					continue
				}
				one = all[rapid.IntRange(0, len(all)-1).Draw(t, "which")]
				if what != "leave" && (!one.has() || one.kept) {
					continue
				}
			default:
				one = &slot{by: pools[rapid.IntRange(0, len(pools)-1).Draw(t, "who")]}
			}
			switch what {
			case "join":
				all = append(all, slots.join(one.by))
			case "seize":
				all = append(all, slots.seize(one.by))
			case "lend":
				if !late[one] {
					one.lend()
				}
				late[one] = true
			case "keep":
				lent := one.lent
				if beyond := one.keep(); beyond != (lent && limit > 0 && held >= limit) {
					t.Fatalf("limit %d, %d taken: a late job is beyond the limit: %v", limit, held, beyond)
				}
				one.lend() // a timer that came too late
				delete(late, one)
			case "leave":
				one.leave()
				one.leave()
				one.lend()
				all = slices.DeleteFunc(all, func(other *slot) bool { return other == one })
				delete(late, one)
			case "limit":
				limit = rapid.IntRange(0, 4).Draw(t, "limit")
				slots.SetLimit(limit)
			}

			counts, taken, waiting, spare := map[*Pool]int{}, 0, 0, 0
			for _, place := range all {
				switch {
				case !place.has():
					waiting++
				case !place.lent:
					taken++
					counts[place.by]++
					if late[place] {
						spare++
					}
				}
			}
			for _, pool := range pools {
				if counts[pool] != slots.held[pool] {
					t.Fatalf("a pool holds %d slots, counted are %d", counts[pool], slots.held[pool])
				}
			}
			switch {
			case taken != slots.taken || waiting != len(slots.queue) || spare != len(slots.late):
				t.Fatalf("%d are taken, %d wait, %d are late; counted are %d, %d, %d", taken, waiting, spare, slots.taken, len(slots.queue), len(slots.late))
			case waiting > 0 && (limit == 0 || taken-spare < limit):
				t.Fatalf("limit %d: %d wait though of %d that are taken %d would make room", limit, waiting, taken, spare)
			case limit > 0 && taken > max(limit, held) && what != "seize" && what != "keep":
				t.Fatalf("limit %d: %d were taken, and after %q %d are", limit, held, what, taken)
			}
			if what == "leave" {
				mayHaveBeen(t, slots, before, one)
			}
		}
		for _, place := range all {
			place.leave()
		}
		if slots.taken != 0 || len(slots.held) != 0 || len(slots.queue) != 0 || len(slots.late) != 0 {
			t.Fatalf("%d slots are taken by nobody", slots.taken)
		}
	})
}

// mayHaveBeen checks whom a slot went to that was given back: when one place was
// served, no pool that still waits held fewer, and none that held as many came
// before it, except a pool that gave the slot back.
func mayHaveBeen(t *rapid.T, slots *Slots, before []*slot, gone *slot) {
	var served []*slot
	for _, place := range before {
		if place != gone && place.has() {
			served = append(served, place)
		}
	}
	if len(served) != 1 {
		return
	}
	next := served[0]
	had := slots.held[next.by] - 1
	for _, place := range slots.queue {
		if place.by == next.by {
			continue
		}
		earlier := slices.Index(before, place) < slices.Index(before, next)
		switch has := slots.held[place.by]; {
		case has < had:
			t.Fatalf("a pool with %d slots was served before one with %d", had, has)
		case has == had && next.by == gone.by:
			t.Fatalf("the pool that gave the slot back got it again before an equal")
		case has == had && earlier && place.by != gone.by:
			t.Fatalf("a place was served before an earlier one of an equal pool")
		}
	}
}

func TestAFreeSlotIsLentOnlyToOneWhoWaits(t *testing.T) {
	slots, silent, other := NewSlots(1), &Pool{}, &Pool{}
	question := slots.join(silent)
	question.lend()
	if question.lent {
		t.Error("the slot was given up though nobody waits")
	}
	waiting := slots.join(other)
	if !waiting.has() || !question.lent {
		t.Error("whoever comes after the two seconds does not get the slot at once")
	}
	if !question.keep() || slots.taken != 2 {
		t.Errorf("the late job is not counted: %d are taken", slots.taken)
	}
	waiting.leave()
	if next := slots.join(other); next.has() {
		t.Error("somebody was served although the late job fills the limit")
	}
}

func TestWithoutSlotsThereIsNoLimit(t *testing.T) {
	var none *Slots
	for range 3 {
		place := none.join(nil)
		if !place.has() {
			t.Error("somebody waits")
		}
		place.lend()
		if place.keep() {
			t.Error("a job is beyond no limit")
		}
		place.leave()
		none.seize(nil).leave()
	}
}
