package status

import (
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
	counts map[string][]poolCount // by pool, in the order of creation
}

// poolCount is one series of a pool.
type poolCount struct {
	values [2]string // of the labels after the label pool
	n      uint64
}

// newPoolCounter returns a counter without series. Labels are those after the label pool.
func newPoolCounter(name, help string, labels ...string) *poolCounter {
	return &poolCounter{name: name, help: help, labels: labels, counts: map[string][]poolCount{}}
}

// add counts n events of a pool. With 0 events, it creates the series. There is a value for each
// label after the label pool.
func (c *poolCounter) add(n uint64, pool string, values ...string) {
	added := poolCount{n: n}
	copy(added.values[:], values)
	c.mu.Lock()
	defer c.mu.Unlock()
	counts := c.counts[pool]
	i := slices.IndexFunc(counts, func(count poolCount) bool { return count.values == added.values })
	if i < 0 {
		c.counts[pool] = append(counts, added)
		return
	}
	counts[i].n += n
}

// send adds the series of the counter to those of a scrape, sorted by pool.
func (c *poolCounter) send(m *metrics) {
	c.mu.Lock()
	defer c.mu.Unlock()
	shared := map[[2]string][]*dto.LabelPair{} // the labels after the label pool, by their values
	for _, pool := range slices.Sorted(maps.Keys(c.counts)) {
		name := label("pool", pool)
		for _, count := range c.counts[pool] {
			if _, ok := shared[count.values]; !ok {
				shared[count.values] = c.others(count.values)
			}
			labels := append([]*dto.LabelPair{name}, shared[count.values]...)
			slices.SortFunc(labels, func(a, b *dto.LabelPair) int { return strings.Compare(a.GetName(), b.GetName()) })
			m.counter(c.name, c.help, count.n, labels...)
		}
	}
}

// others returns the labels after the label pool.
func (c *poolCounter) others(values [2]string) (labels []*dto.LabelPair) {
	for i, name := range c.labels {
		labels = append(labels, label(name, values[i]))
	}
	return labels
}
