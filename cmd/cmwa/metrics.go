package main

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/cmwa-project/cmwa/reconcile/watch"
	"github.com/cmwa-project/cmwa/runtime"
)

// maxScrapes bounds the scrapes that are answered at a time.
const maxScrapes = 4

// metricsOf answers GET /metrics in the formats of Prometheus, from a registry of
// its own. See https://prometheus.io/docs/practices/naming/ for the names.
func metricsOf(a *account) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		statusMetrics{a},
	)
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{DisableCompression: true, MaxRequestsInFlight: maxScrapes, ErrorHandling: promhttp.ContinueOnError})
}

// statusMetrics makes metrics of a status, anew for each scrape: there is no
// second book that could tell another story. Which series there are depends on
// the pools, so none is described beforehand.
type statusMetrics struct{ of *account }

// Describe tells nothing, which makes the collector an unchecked one.
func (m statusMetrics) Describe(chan<- *prometheus.Desc) {}

// Collect tells everything.
func (m statusMetrics) Collect(ch chan<- prometheus.Metric) {
	status := m.of.document(time.Now())
	tell := func(kind prometheus.ValueType, name, help string, value float64, pairs ...string) {
		var names, values []string
		for i := 0; i+1 < len(pairs); i += 2 {
			names, values = append(names, pairs[i]), append(values, pairs[i+1])
		}
		metric, err := prometheus.NewConstMetric(prometheus.NewDesc("cmwa_"+name, help, names, nil), kind, value, values...)
		if err != nil {
			return // a value that is not UTF-8, which no configuration holds
		}
		ch <- metric
	}
	gauge := func(name, help string, value float64, pairs ...string) {
		tell(prometheus.GaugeValue, name, help, value, pairs...)
	}
	moment := func(name, help string, at time.Time) {
		if !at.IsZero() {
			gauge(name, help, float64(at.UnixNano())/1e9)
		}
	}

	gauge("build_info", "Version of the agent; always 1.", 1, "version", status.Agent.Version)
	gauge("healthy", "Whether no loop of a pool stands still: liveness.", truth(status.Healthy))
	gauge("ready", "Whether every pool is answered by its service and can run jobs: readiness.", truth(status.Ready))
	gauge("converged", "Whether what the last good configuration says is what runs, in full; config_problems tells whether the file as it stands is refused.", truth(status.Converged))

	c := status.Config
	gauge("config_info", "Digest of the configuration that is wanted; always 1.", 1, "digest", c.Digest)
	gauge("config_generation_desired", "Generation of the configuration that is wanted: the last good one.", float64(c.Desired))
	gauge("config_generation_applied", "Last generation of the configuration that was reached in full.", float64(c.Applied))
	tell(prometheus.CounterValue, "config_accepted_total", "Configurations that were taken since the start, the first one included.", float64(c.Accepted))
	tell(prometheus.CounterValue, "config_rejected_total", "Configurations that were refused since the start.", float64(c.Rejected))
	moment("config_last_success_timestamp_seconds", "When a configuration was taken last.", c.AcceptedAt)
	moment("config_last_rejection_timestamp_seconds", "When a configuration was refused last.", c.RejectedAt)
	gauge("config_problems", "Problems for which the configuration as it stands in the file is refused; 0 if it is in force.", float64(status.rejected()))
	gauge("config_warnings", "Warnings of the configuration in force, such as keys that are not known.", float64(len(c.Warnings)))
	gauge("config_load_seconds", "Time that reading, checking and comparing the configuration in force took.", c.Seconds)
	if status.Converged {
		gauge("config_apply_seconds", "Time from taking the configuration in force to all pools being as it says, drained ones gone; there once that is so.", max(0, c.AppliedAt.Sub(c.AcceptedAt).Seconds()))
	}
	for _, mode := range []watch.Mode{watch.Events, watch.Polling} {
		gauge("config_watch_mode", "Whether changes of files are learnt of in this mode.", truth(c.Watch == string(mode)), "mode", string(mode))
	}
	gauge("config_frozen_files", "Files that are mounted by themselves, so that one that replaces them is never seen.", float64(len(c.Frozen)))

	for _, p := range status.Pools {
		pool := []string{"pool", p.Name, "key", p.Key}
		for _, phase := range phases() {
			gauge("pool_phase", "Whether the pool is in this phase.", truth(p.Phase == phase), append(pool, "phase", phase)...)
		}
		gauge("pool_jobs", "Jobs in flight.", float64(len(p.Jobs)), pool...)
		gauge("pool_max_jobs", "Jobs that the pool may have in flight.", float64(p.MaxJobs), pool...)
		gauge("pool_failing", "Whether the pool cannot work, or failed when it asked for work last, and is tried again.", truth(p.Problem != ""), pool...)
		gauge("pool_stuck", "Whether the pool's loop has not turned within health_threshold, which makes the agent unhealthy.", truth(p.Stuck), pool...)
		if p.ProgressAt.IsZero() {
			continue // it is not there
		}
		gauge("pool_progress_age_seconds", "Time since the pool's loop turned last, or since its wait ended.", max(0, status.Now.Sub(p.ProgressAt).Seconds()), pool...)
		failing := time.Duration(0)
		if !p.FailingSince.IsZero() {
			failing = max(0, status.Now.Sub(p.FailingSince))
		}
		gauge("pool_failing_seconds", "Time for which no poll of the pool has succeeded; 0 if the last one did.", failing.Seconds(), pool...)
	}
}

// rejected counts the reasons for which the file is refused as it stands.
func (d statusDocument) rejected() int {
	r := d.Config.Rejection
	switch {
	case r == nil:
		return 0
	case len(r.Problems) == 0:
		return 1
	default:
		return len(r.Problems)
	}
}

// phases are the phases that a pool is told to be in.
func phases() []string {
	return []string{
		missing, string(runtime.PoolStarting), string(runtime.PoolPolling), string(runtime.PoolPaused),
		string(runtime.PoolWaiting), string(runtime.PoolDraining), string(runtime.PoolStopped),
	}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
