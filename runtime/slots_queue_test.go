package runtime

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestSlotsAreNeverOverdrawnNorIdleAndFirstComeIsFirstServed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		slots := NewSlots(rapid.IntRange(0, 3).Draw(t, "limit"))
		limit := slots.limit
		var all []*slot // in the order in which they came, without those that left
		forced := 0
		for range rapid.IntRange(1, 60).Draw(t, "turns") {
			switch rapid.SampledFrom([]string{"join", "leave", "limit", "seize"}).Draw(t, "what") {
			case "join":
				all = append(all, slots.join())
			case "seize":
				all, forced = append(all, slots.seize()), forced+1
			case "leave":
				if len(all) == 0 {
					continue
				}
				i := rapid.IntRange(0, len(all)-1).Draw(t, "who")
				all[i].leave()
				all[i].leave()
				all = slices.Delete(all, i, i+1)
			case "limit":
				limit = rapid.IntRange(0, 4).Draw(t, "limit")
				slots.SetLimit(limit)
			}
			taken, idle := 0, true
			var late bool // somebody was served behind one who waits
			for _, place := range all {
				switch {
				case place.has():
					taken++
				default:
					idle = false
				}
			}
			waiting := slots.queue
			for i, place := range waiting {
				if place.has() || i > 0 && slices.Index(all, waiting[i-1]) > slices.Index(all, place) {
					late = true
				}
			}
			if taken != slots.taken || late || !idle && (limit == 0 || taken < limit) {
				t.Fatalf("limit %d: %d taken (counted %d), %d wait, out of order: %v", limit, taken, slots.taken, len(waiting), late)
			}
		}
		for _, place := range all {
			place.leave()
		}
		if slots.taken != 0 || len(slots.queue) != 0 {
			t.Fatalf("%d slots are taken by nobody", slots.taken)
		}
	})
}

func TestWithoutSlotsThereIsNoLimit(t *testing.T) {
	var none *Slots
	for range 3 {
		if place := none.join(); !place.has() {
			t.Error("somebody waits")
		} else {
			place.leave()
		}
		none.seize().leave()
	}
}
