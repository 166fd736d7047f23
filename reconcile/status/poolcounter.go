package status

import (
	"maps"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// poolCounter is a counter with the label pool and at most two further labels. It is a
// [prometheus.Collector], and safe for concurrent use. It creates its metrics for each scrape: a
// [prometheus.CounterVec] would keep 0.6 kB for each series, which is 13 MB for a thousand pools.
type poolCounter struct {
	description *prometheus.Desc
	others      int // number of labels after the label pool

	mu     sync.Mutex
	counts map[poolSeries]uint64
}

// poolSeries identifies a series by the values of its labels.
type poolSeries struct {
	pool   string
	others [2]string
}

// newPoolCounter returns a counter without series. Labels are those after the label pool.
func newPoolCounter(name, help string, labels ...string) *poolCounter {
	return &poolCounter{
		description: prometheus.NewDesc("cmwa_"+name, help, append([]string{"pool"}, labels...), nil),
		others:      len(labels),
		counts:      map[poolSeries]uint64{},
	}
}

// add counts n events of a pool. With 0 events, it creates the series. There is a value for each
// label after the label pool.
func (c *poolCounter) add(n uint64, pool string, values ...string) {
	key := poolSeries{pool: pool}
	copy(key.others[:], values)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts[key] += n
}

// Describe implements [prometheus.Collector].
func (c *poolCounter) Describe(ch chan<- *prometheus.Desc) { ch <- c.description }

// Collect implements [prometheus.Collector].
func (c *poolCounter) Collect(ch chan<- prometheus.Metric) {
	c.mu.Lock()
	counts := maps.Clone(c.counts) // the reader of ch may be slow
	c.mu.Unlock()
	for key, count := range counts {
		values := append([]string{key.pool}, key.others[:c.others]...) // valid UTF-8, so there is no error
		ch <- prometheus.MustNewConstMetric(c.description, prometheus.CounterValue, float64(count), values...)
	}
}
