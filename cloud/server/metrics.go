package server

import (
	"context"
	"crypto/subtle"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/cmwa-project/cmwa/cloud/server/store"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// maxScrapes limits concurrent scrapes.
const maxScrapes = 4

// metrics are the metrics of one service, with a registry of its own. Names follow
// https://prometheus.io/docs/practices/naming/.
type metrics struct {
	registry *prometheus.Registry
	calls    *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
}

func newMetrics(version string) *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cmwa_cloud_http_requests_total", Help: "Calls by route and status.",
		}, []string{"route", "code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "cmwa_cloud_http_request_duration_seconds", Help: "Time from the header of a call to its last byte.",
			Buckets: []float64{.005, .025, .1, .5, 2.5, 10, 60},
		}, []string{"route"}),
	}
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "cmwa_cloud_build_info", Help: "Version of the service; always 1.",
		ConstLabels: prometheus.Labels{"version": version},
	})
	build.Set(1)
	m.registry.MustRegister(m.calls, m.seconds, build, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// observe counts and measures the calls of a handler. The label route is a pattern of routes.go, so the number of
// series is limited.
func (m *metrics) observe(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start, watched := time.Now(), &statusWriter{ResponseWriter: w, code: http.StatusOK}
		next.ServeHTTP(watched, r)
		m.calls.WithLabelValues(r.Pattern, strconv.Itoa(watched.code)).Inc()
		m.seconds.WithLabelValues(r.Pattern).Observe(time.Since(start).Seconds())
	})
}

// statusWriter remembers the status of a response.
type statusWriter struct {
	http.ResponseWriter
	code int
}

// WriteHeader implements [http.ResponseWriter].
func (w *statusWriter) WriteHeader(code int) {
	w.code = code
	w.ResponseWriter.WriteHeader(code)
}

// Unwrap returns the writer for [http.ResponseController].
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// scrape returns the handler of GET /metrics. It requires the header "Authorization: webhook-token SECRET", as Pulumi
// documents it for METRICS_WEBHOOK_SECRET. Without this option every call is refused.
func (s *Server) scrape() http.Handler {
	s.metrics.registry.MustRegister(collector{s})
	page := promhttp.HandlerFor(s.metrics.registry, promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := s.mayScrape(r); err != nil {
			s.writeError(&call{Request: r, out: w, now: time.Now()}, requestID(), err)
			return
		}
		page.ServeHTTP(w, r)
	})
}

// mayScrape compares hashes, so that the time of the comparison depends on no part of the secret.
func (s *Server) mayScrape(r *http.Request) error {
	if s.options.MetricsSecret.Empty() {
		return refuse(http.StatusUnauthorized, "metrics are off: start the service with METRICS_WEBHOOK_SECRET")
	}
	scheme, sent, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	got, want := hash(secret.New(sent)), hash(s.options.MetricsSecret)
	if !strings.EqualFold(scheme, "webhook-token") || subtle.ConstantTimeCompare(got, want) != 1 {
		return refuse(http.StatusUnauthorized,
			"send the METRICS_WEBHOOK_SECRET in the form \"Authorization: webhook-token SECRET\"")
	}
	return nil
}

// collector reads metrics of the service for each scrape. Describe sends nothing, so it is an unchecked collector.
type collector struct{ s *Server }

// Describe implements [prometheus.Collector].
func (collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements [prometheus.Collector]. It sends no deployments if the database cannot be read.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(name, help string, value float64, label, of string) {
		description := prometheus.NewDesc("cmwa_cloud_"+name, help, []string{label}, nil)
		ch <- prometheus.MustNewConstMetric(description, prometheus.GaugeValue, value, of)
	}
	ctx, cancel := context.WithTimeout(context.Background(), statusLimit)
	defer cancel()
	for name, result := range c.s.runChecks(ctx).Checks {
		value := 0.0
		if result == checkOK {
			value = 1
		}
		gauge("check", "Whether a check of GET /api/status succeeds.", value, "check", name)
	}
	err := c.s.db.Read(ctx, func(t *store.Tx) error {
		counts, err := t.ActiveCounts()
		for status, count := range counts {
			gauge("deployments", "Deployments that have not ended.", float64(count), "status", status)
		}
		return err
	})
	if err != nil {
		c.s.log.Error("cannot count deployments", "component", "metrics", "error", err)
	}
}
