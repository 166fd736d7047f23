package reconcile_test

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/reconcile"
	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/schema"
)

// hundredLimit is the limit of the 99th percentile of the time for loading, checking and
// planning a file with a hundred pools.
const hundredLimit = 60 * time.Millisecond

// BenchmarkReloadHundredPools measures a reload of a file with a hundred pools, from the read
// of the file to the plan. In each version of the file, another pool has its own service, so
// that a reload changes two pools. The fastest of several rounds counts, because other
// programs may use the machine.
func BenchmarkReloadHundredPools(b *testing.B) {
	const pools, rounds, looks = 100, 5, 100
	content, round := "", 0
	write := func() {
		round++
		var text strings.Builder
		text.WriteString("polling_interval: 1h\nmax_concurrent_workflows: 40\nlog_level: warn\npools:\n")
		for i := range pools {
			service := "one"
			if i == round%pools {
				service = fmt.Sprint("of-round-", round)
			}
			fmt.Fprintf(&text, "  - name: pool-%d\n    token: token-%d\n    service_url: https://%s.example.com\n"+
				"    max_concurrent_workflows: %d\n    env_forward_allowlist: [HTTPS_PROXY, NO_PROXY]\n"+
				"    docker:\n      memory: 4g\n      cpus: 2\n      labels: [team=number-%d]\n",
				i, i, service, 1+i%20, i)
		}
		content = text.String()
	}
	var plan reconcile.Plan
	var desired reconcile.Desired
	most := 0 // actions of one plan
	observed := reconcile.Observed{Pools: map[string]runtime.PoolState{}}
	reloader := reconcile.NewReloader(reconcile.ReloaderParts{
		Find: func() (schema.Source, error) {
			return schema.Source{Path: "agent.yaml", Content: []byte(content)}, nil
		},
		Watch: func(...string) {},
		Log:   slog.New(slog.DiscardHandler),
	})
	reloader.Deliver(func(d reconcile.Desired) {
		desired = d
		plan = reconcile.Diff(desired, observed)
	})
	var best []time.Duration
	at := func(spans []time.Duration, percent int) time.Duration { return spans[(len(spans)*percent+99)/100-1] }
	for b.Loop() {
		for range rounds {
			var spans []time.Duration
			for range looks {
				write()
				started := time.Now()
				if err := reloader.Reload(); err != nil {
					b.Fatal(err)
				}
				spans = append(spans, time.Since(started))
				for ; len(plan) > 0; plan = reconcile.Diff(desired, observed) {
					most = max(most, len(plan))
					apply(&observed, plan)
				}
			}
			slices.Sort(spans)
			b.Logf("a round of %d reloads: p50 %s, p99 %s", looks, at(spans, 50), at(spans, 99))
			if best == nil || at(spans, 99) < at(best, 99) {
				best = spans
			}
		}
	}
	if len(observed.Pools) != pools || most < 2 {
		b.Fatalf("%d pools run, want %d; the longest plan has %d actions, want at least 2",
			len(observed.Pools), pools, most)
	}
	ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	middle, late := at(best, 50), at(best, 99)
	b.ReportMetric(ms(middle), "ms-p50")
	b.ReportMetric(ms(late), "ms-p99")
	b.Logf("a file of %d pools (%d bytes) is loaded, checked and planned, in the fastest round:\n"+
		"  p50 %6.1f ms\n  p99 %6.1f ms (limit %s)", pools, len(content), ms(middle), ms(late), hundredLimit)
	if late > hundredLimit {
		b.Errorf("the 99th percentile for a file of %d pools is %s, want at most %s", pools, late, hundredLimit)
	}
}

// apply changes observed as if each action of a plan succeeds at once.
func apply(observed *reconcile.Observed, plan reconcile.Plan) {
	for _, action := range plan {
		switch a := action.(type) {
		case reconcile.SetProcess:
			observed.Process = a.To
		case reconcile.StartPool:
			observed.Pools[a.Spec.Key()] = runtime.PoolState{Spec: a.Spec, Phase: runtime.PoolPolling, Ready: true}
		case reconcile.TunePool:
			observed.Pools[a.Spec.Key()] = runtime.PoolState{Spec: a.Spec, Phase: runtime.PoolPolling, Ready: true}
		case reconcile.DrainPool:
			delete(observed.Pools, a.Key)
		}
	}
}
