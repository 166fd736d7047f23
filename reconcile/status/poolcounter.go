package status

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"

	dto "github.com/prometheus/client_model/go"
)

// poolCounter is a counter with the label pool and at most two further labels. It is safe for
// concurrent use. It creates its series for each scrape: a prometheus.CounterVec would keep 0.6 kB for
// each series, which is 13 MB for a thousand pools.
type poolCounter struct {
	name, help string
	labels     []string // after the label pool

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
	return &poolCounter{name: name, help: help, labels: labels, counts: map[poolSeries]uint64{}}
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

// send adds the series of the counter to those of a scrape, sorted by pool.
func (c *poolCounter) send(m *metrics) {
	c.mu.Lock()
	counts := maps.Clone(c.counts)
	c.mu.Unlock()
	for _, key := range slices.SortedFunc(maps.Keys(counts), poolSeries.compare) {
		labels := []*dto.LabelPair{label("pool", key.pool)}
		for i, name := range c.labels {
			labels = append(labels, label(name, key.others[i]))
		}
		slices.SortFunc(labels, func(a, b *dto.LabelPair) int { return strings.Compare(a.GetName(), b.GetName()) })
		m.counter(c.name, c.help, counts[key], labels...)
	}
}

func (s poolSeries) compare(other poolSeries) int {
	return cmp.Or(strings.Compare(s.pool, other.pool), slices.Compare(s.others[:], other.others[:]))
}
