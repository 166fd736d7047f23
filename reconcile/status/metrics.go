package status

import (
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"

	"github.com/cmwa-project/cmwa/reconcile/watch"
	"github.com/cmwa-project/cmwa/runtime"
)

// maxScrapes limits concurrent scrapes.
const maxScrapes = 4

// metricsHandler returns the handler of GET /metrics, with its own registry. See
// https://prometheus.io/docs/practices/naming/ for the names.
//
// The metrics of pools are not in the registry, which checks and sorts each series for a scrape:
// 200 pools have 8,000 series.
func metricsHandler(snapshots Snapshots) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	if snapshots.Counters != nil {
		registry.MustRegister(snapshots.Counters)
	}
	gather := prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		all, err := registry.Gather()
		return append(all, poolMetrics(snapshots)...), err
	})
	return promhttp.HandlerFor(gather, promhttp.HandlerOpts{
		DisableCompression: true, MaxRequestsInFlight: maxScrapes, ErrorHandling: promhttp.ContinueOnError,
	})
}

// poolMetrics computes the metrics of the state from a new [Document], and adds the counters of pools.
func poolMetrics(snapshots Snapshots) []*dto.MetricFamily {
	d := snapshots.Document(time.Now())
	m := metrics{byName: map[string]*dto.MetricFamily{}}
	m.agent(d)
	m.config(d)
	for _, p := range d.Pools {
		m.pool(p, d.Now)
	}
	if snapshots.Counters != nil {
		snapshots.Counters.send(&m)
	}
	if snapshots.PodPhases != nil {
		m.pods(snapshots.PodPhases())
	}
	return m.all
}

// metrics collects the metrics of one scrape.
type metrics struct {
	all    []*dto.MetricFamily
	byName map[string]*dto.MetricFamily
}

func (m *metrics) agent(d Document) {
	m.gauge("build_info", "Version of the agent; always 1.", 1, label("version", d.Agent.Version))
	m.gauge("healthy", "Whether no loop of a pool is stuck (liveness).", number(d.Healthy))
	m.gauge("ready", "Whether every pool can claim and run jobs (readiness).", number(d.Ready))
	m.gauge("converged", "Whether the last accepted configuration is fully in force; "+
		"see cmwa_config_problems for the present file.", number(d.Converged))
	if d.MaxJobs > 0 {
		m.gauge("max_jobs", "Limit of the jobs of all pools together; absent without a limit.", float64(d.MaxJobs))
	}
}

func (m *metrics) config(d Document) {
	c := d.Config
	m.gauge("config_info", "Digest of the desired configuration; always 1.", 1, label("digest", c.Digest))
	m.gauge("config_generation_desired", "Generation of the last accepted configuration.", float64(c.Desired))
	m.gauge("config_generation_applied", "Last generation of the configuration that was fully in force.",
		float64(c.Applied))
	m.counter("config_accepted_total", "Accepted configurations since the start, the first one included.", c.Accepted)
	m.counter("config_rejected_total", "Rejected configurations since the start.", c.Rejected)
	m.timestamp("config_last_accepted_timestamp_seconds", "Time of the last accepted configuration.", c.AcceptedAt)
	m.timestamp("config_last_rejected_timestamp_seconds", "Time of the last rejected configuration.", c.RejectedAt)
	m.gauge("config_problems", "Problems for which the present file is rejected; 0 if it is accepted.",
		float64(c.Rejection.count()))
	m.gauge("config_warnings", "Warnings about the configuration in force, such as deprecated keys.",
		float64(len(c.Warnings)))
	m.gauge("config_restart_needed", "Changed keys that take effect only when the agent is restarted.",
		float64(len(c.Restart)))
	m.gauge("config_load_duration_seconds", "Time for reading and checking the configuration in force.", c.Seconds)
	if d.Converged {
		m.gauge("config_apply_duration_seconds", "Time from accepting the configuration in force until every pool "+
			"used it and replaced pools had drained; absent before that.",
			max(0, c.AppliedAt.Sub(c.AcceptedAt).Seconds()))
	}
	for _, mode := range []watch.Mode{watch.Events, watch.Polling} {
		m.gauge("config_watch_mode", "Whether changes of files are detected in this mode.",
			number(c.Watch == string(mode)), label("mode", string(mode)))
	}
	m.gauge("config_frozen_files", "Files whose replacement cannot be detected because of how they are mounted.",
		float64(len(c.Frozen)))
}

// count returns the number of reasons why the file is rejected, or 0 if it is accepted.
func (r *Rejection) count() int {
	if r == nil {
		return 0
	}
	return max(1, len(r.Problems))
}

func (m *metrics) pool(p Pool, now time.Time) {
	key, name := label("key", p.Key), label("pool", p.Name)
	for _, phase := range phases() {
		m.gauge("pool_phase", "Whether the pool is in this phase.", number(p.Phase == phase.GetValue()),
			key, phase, name)
	}
	labels := []*dto.LabelPair{key, name}
	m.gauge("pool_paused", "Whether cmwa pause has paused the pool.", number(p.Paused), labels...)
	m.gauge("pool_jobs", "Jobs in flight.", float64(len(p.Jobs)), labels...)
	m.gauge("pool_max_jobs", "Limit of the jobs in flight.", float64(p.MaxJobs), labels...)
	m.gauge("pool_failing", "Whether the pool could not start, its last poll failed, "+
		"or its executor cannot start jobs.", number(p.Problem != ""), labels...)
	m.gauge("pool_stuck", "Whether the pool's loop made no progress within health_threshold, "+
		"which makes the agent unhealthy.", number(p.Stuck), labels...)
	if p.ProgressAt.IsZero() {
		return // the pool does not run
	}
	m.gauge("pool_circuit_breaker_open", "Whether the circuit breaker of the pool's polls is open.",
		number(p.BreakerOpen), labels...)
	m.timestamp("pool_token_expiry_timestamp_seconds", "Time at which the pool's exchanged token expires; "+
		"absent without such a token.", p.TokenExpiry, labels...)
	m.gauge("pool_overdue_seconds", "Time by which the progress of the pool's loop is overdue; 0 if it is not.",
		max(0, now.Sub(p.ProgressAt).Seconds()), labels...)
	failing := time.Duration(0)
	if !p.FailingSince.IsZero() {
		failing = max(0, now.Sub(p.FailingSince))
	}
	m.gauge("pool_failing_seconds", "Time since the first failed poll after the last success; "+
		"0 if the last poll succeeded.", failing.Seconds(), labels...)
}

func (m *metrics) pods(phases map[string]int) {
	if phases == nil {
		return
	}
	for _, phase := range []string{"Pending", "Running", "Succeeded", "Failed", "Unknown"} {
		m.gauge("kubernetes_pods", "Pods of this agent's jobs by phase.", float64(phases[phase]), label("phase", phase))
	}
}

// phases returns labels with the phases that a pool of a Document can have.
var phases = sync.OnceValue(func() (labels []*dto.LabelPair) {
	for _, phase := range []string{
		PhaseMissing, string(runtime.PoolStarting), string(runtime.PoolPolling), string(runtime.PoolPaused),
		string(runtime.PoolBackoff), string(runtime.PoolWaiting), string(runtime.PoolDraining),
		string(runtime.PoolStopped),
	} {
		labels = append(labels, label("phase", phase))
	}
	return labels
})

// gauge adds a series with labels that are sorted by name.
func (m *metrics) gauge(name, help string, value float64, labels ...*dto.LabelPair) {
	m.add(dto.MetricType_GAUGE, name, help, &dto.Metric{Gauge: &dto.Gauge{Value: &value}, Label: labels})
}

// counter does what gauge does, for a counter.
func (m *metrics) counter(name, help string, n uint64, labels ...*dto.LabelPair) {
	m.add(dto.MetricType_COUNTER, name, help, &dto.Metric{Counter: &dto.Counter{Value: new(float64(n))}, Label: labels})
}

// timestamp adds a gauge of a time, unless the time is zero.
func (m *metrics) timestamp(name, help string, at time.Time, labels ...*dto.LabelPair) {
	if !at.IsZero() {
		m.gauge(name, help, float64(at.UnixNano())/1e9, labels...)
	}
}

func (m *metrics) add(kind dto.MetricType, name, help string, series *dto.Metric) {
	family := m.byName[name]
	if family == nil {
		family = &dto.MetricFamily{Name: new("cmwa_" + name), Help: new(help), Type: kind.Enum()}
		m.byName[name], m.all = family, append(m.all, family)
	}
	family.Metric = append(family.Metric, series)
}

// label returns a label. The name of a leftover pool is that of a label of an instance, which may be
// invalid UTF-8: Prometheus would reject the whole page.
func label(name, value string) *dto.LabelPair {
	value = strings.ToValidUTF8(value, "\uFFFD")
	return &dto.LabelPair{Name: &name, Value: &value}
}

// number returns the value of a metric for a bool.
func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
