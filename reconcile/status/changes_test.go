package status

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

func TestChangesArePrintedOnceAndNothingElse(t *testing.T) {
	var out bytes.Buffer
	var changes Changes
	look := func(d Document) string {
		out.Reset()
		if err := changes.Write(&out, d); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	d := fixedDocument()
	if first := look(d); !strings.Contains(first, "POOL") || !strings.Contains(first, "2026-11-21T10:18:00Z") {
		t.Error(first)
	}
	d.Now = d.Now.Add(time.Second)
	if second := look(d); second != "" {
		t.Errorf("without a change:\n%s", second)
	}
	d.Pools[0].Phase, d.Pools[0].Until, d.Pools[0].Why = "polling", time.Time{}, ""
	if third := look(d); !strings.HasPrefix(third, "prod ") || !strings.Contains(third, "polling") || strings.Contains(third, "POOL") || strings.Contains(third, "config") {
		t.Errorf("with one change:\n%s", third)
	}
	d.Pools, d.Config.Rejection = d.Pools[:1], nil
	if gone := strings.TrimSpace(look(d)); gone != "gone: refused\ngone: pool a-pool-with-a-name-that-is-much-too-long-for-a-table, a-2" {
		t.Error(gone)
	}
}
