package runtimetest

import (
	"slices"
	"testing"
)

// TestDraw draws the faults of many calls. Other faults than refusals also hit three calls in a row.
func TestDraw(t *testing.T) {
	refusals, others := 0, 0 // longest runs of one fault
	var last Fault
	run := 0
	for n := range 20_000 {
		fault := draw(7, "POST api/workflow/jobs/1/1/logs", n, 0.08)
		if fault == (Fault{}) || fault != last {
			run = 0
		}
		last, run = fault, run+1
		switch {
		case fault.Kind == Stray && slices.Contains(strayClient, fault.Status):
			refusals = max(refusals, run)
		case fault.Kind != "":
			others = max(others, run)
		}
	}
	if refusals != longestRefusalBurst || others < longestBurst {
		t.Errorf("one fault refuses %d calls in a row, want %d; another hits %d, want at least %d",
			refusals, longestRefusalBurst, others, longestBurst)
	}
}
