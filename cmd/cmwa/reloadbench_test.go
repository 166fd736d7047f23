package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// reloadLimit is the limit of the 99th percentile of the time from the rename of a
// configuration to the first poll of its new pool. The time includes the time that the
// watcher waits for writers.
const reloadLimit = 150 * time.Millisecond

// BenchmarkReload measures the time from the rename of a configuration that has a new pool
// to the first poll with that pool's token. Each edit also removes the pool that the
// previous edit added, so the number of pools stays the same.
func BenchmarkReload(b *testing.B) {
	const edits = 100
	for _, pools := range []int{1, 100} {
		b.Run(fmt.Sprint("pools=", pools), func(b *testing.B) {
			for b.Loop() {
				var spans []time.Duration
				w := newWorld(b, "docker")
				v, made := w.countPolls(), w.pools(pools-1+edits+1)
				steady, fresh := made[:pools-1], made[pools-1:]
				text := func(edit int) string {
					var list strings.Builder
					list.WriteString(w.content("polling_interval: 1h") + "pools:\n")
					for i, p := range steady {
						fmt.Fprintf(&list, "  - name: steady-%d\n    token: %s\n    max_concurrent_workflows: 4\n",
							i, p.token)
					}
					fmt.Fprintf(&list, "  - name: fresh-%d\n    token: %s\n", edit, fresh[edit].token)
					return list.String()
				}
				agent := w.followText(nil, text(0))
				w.eventually("all pools have polled", func() bool { return len(v.within(time.Hour)) == pools })
				for edit := 1; edit <= edits; edit++ {
					w.must(os.WriteFile(w.file()+".new", []byte(text(edit)), 0o600))
					started := time.Now()
					w.must(os.Rename(w.file()+".new", w.file()))
					w.eventually("the new pool polls", func() bool { return v.count(fresh[edit].token) > 0 })
					spans = append(spans, v.firstOf(fresh[edit].token).Sub(started))
					agent.ends(5 * lookEvery) // meanwhile, the agent removes the previous pool
				}
				slices.Sort(spans)
				b.ReportMetric(milliseconds(quantile(spans, 50)), "ms-p50")
				b.ReportMetric(milliseconds(quantile(spans, 99)), "ms-p99")
				b.Logf("from the rename to the first poll of the new pool, %d edits of a file of %d pools:\n"+
					"  p50 %6.1f ms\n  p99 %6.1f ms (limit %s)\n  max %6.1f ms",
					len(spans), pools, milliseconds(quantile(spans, 50)), milliseconds(quantile(spans, 99)),
					reloadLimit,
					milliseconds(quantile(spans, 100)))
				if quantile(spans, 99) > reloadLimit {
					b.Errorf("the 99th percentile for a file of %d pools is %s", pools, quantile(spans, 99))
				}
			}
		})
	}
}

// quantile returns a percentile of spans, which must be sorted.
func quantile(spans []time.Duration, percent int) time.Duration {
	return spans[(len(spans)*percent+99)/100-1]
}
