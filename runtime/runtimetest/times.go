package runtimetest

import (
	"testing"
	"time"
)

// WantAscending checks that the times of each chain are positive and in ascending order. The name
// of a chain is the rule that this order keeps.
func WantAscending(t *testing.T, chains map[string][]time.Duration) {
	t.Helper()
	for name, chain := range chains {
		before := time.Duration(0)
		for _, next := range chain {
			if next <= before {
				t.Errorf("%s: %v is not in ascending order", name, chain)
				break
			}
			before = next
		}
	}
}
