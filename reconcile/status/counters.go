package status

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cmwa-project/cmwa/runtime"
)

const (
	// maxPools limits the number of pool names that have their own series, former names
	// included. Further names count as otherLabel.
	maxPools = 1000

	// otherLabel is the value of a label for all values without their own series.
	otherLabel = "other"
)

// The known values of labels. Each pool has series with the value 0 from its start, so that
// Prometheus sees the first event as an increase.
var (
	results  = []runtime.PollResult{runtime.PollClaimed, runtime.PollEmpty, runtime.PollFailed}
	kinds    = []runtime.Kind{runtime.Deployment, runtime.InsightsScan, runtime.PolicyEvaluation}
	outcomes = []runtime.Outcome{
		runtime.OutcomeSucceeded, runtime.OutcomeFailed, runtime.OutcomeCancelled, runtime.OutcomeLost,
	}
	actions = []runtime.RecoveryAction{
		runtime.RecoveryResumed, runtime.RecoveryStarted, runtime.RecoveryReported, runtime.RecoveryRemoved,
	}
	stages = []runtime.Stage{
		runtime.StageDefinition, runtime.StagePull, runtime.StageCreate, runtime.StageStart, runtime.StageRun,
		runtime.StageReport, runtime.StageRemove,
	}
)

// Upper bounds of the buckets of histograms, in seconds. They are few, because for each value
// of the label each bucket needs memory and a line in every scrape.
var (
	requestBuckets = []float64{0.05, 0.25, 1, 5, 30}
	stageBuckets   = []float64{0.05, 0.2, 1, 5, 15, 60, 300, 900, 3600}
)

// Counters counts the work of all pools of a process: polls, requests and jobs. It is
// a [runtime.Metrics] and a [prometheus.Collector]. The counts belong to the process: a pool
// continues the counts of the pool that it replaces, if both have the same name. The number of
// series is bounded: unknown values of a label count as "other".
type Counters struct {
	polls           *poolCounter
	requests        *prometheus.CounterVec
	requestDuration *prometheus.HistogramVec
	claimed         *poolCounter
	ended           *poolCounter
	recovered       *poolCounter
	journalErrors   *poolCounter
	stageDuration   *prometheus.HistogramVec
	routes          []string

	mu    sync.Mutex
	pools map[string]bool // names with their own series
}

// NewCounters returns counters without pools. Requests with a route that is not one of routes
// count as "other".
func NewCounters(routes ...string) *Counters {
	histogram := func(name, help, label string, buckets []float64) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(
			prometheus.HistogramOpts{Name: "cmwa_" + name, Help: help, Buckets: buckets}, []string{label})
	}

	// Create the vectors, and the series of the stages.
	c := &Counters{
		polls: newPoolCounter("polls_total",
			"Attempts to claim a job, by result: job (a job was claimed), empty (the service has no job for the "+
				"pool) or failed (also attempts without a request while the circuit breaker is open).",
			"result"),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "cmwa_service_requests_total", Help: "HTTP " +
			"requests to services by route and status code, each retry included; code 0 is no response."},
			[]string{"route", "code"}),
		requestDuration: histogram("service_request_duration_seconds",
			"Duration of HTTP requests to services, each retry measured separately.", "route", requestBuckets),
		claimed: newPoolCounter("jobs_claimed_total", "Claimed jobs; adopted jobs are not counted.", "kind"),
		ended: newPoolCounter("jobs_total",
			"Ended jobs by outcome: succeeded, failed, cancelled or lost (the service no longer has the job, "+
				"or its end is unknown).", "kind", "outcome"),
		recovered: newPoolCounter("jobs_recovered_total",
			"Journalled jobs of an earlier run of the agent by action: resumed (adopted), started (again, because "+
				"it had not run), reported (as failed) or removed (the service knew its outcome).", "action"),
		journalErrors: newPoolCounter("journal_errors_total",
			"Claimed jobs that could not be journalled: they run, and may be lost if the agent is killed."),
		stageDuration: histogram("job_stage_duration_seconds",
			"Duration of the stages of jobs: definition, pull, create, start, run, report, remove.",
			"stage", stageBuckets),
		routes: routes,
		pools:  map[string]bool{},
	}
	for _, stage := range stages {
		c.stageDuration.WithLabelValues(string(stage))
	}
	return c
}

// AddPool creates the series of a pool, with the value 0. It does not change a series that
// exists.
func (c *Counters) AddPool(name string, enabled []runtime.Kind) {
	name = c.pool(name)
	for _, result := range results {
		c.polls.add(0, name, string(result))
	}
	for _, action := range actions {
		c.recovered.add(0, name, string(action))
	}
	c.journalErrors.add(0, name)
	for _, kind := range enabled {
		c.claimed.add(0, name, kindLabel(kind))
		for _, outcome := range outcomes {
			c.ended.add(0, name, kindLabel(kind), string(outcome))
		}
	}
}

// ServiceCall implements [runtime.Metrics].
func (c *Counters) ServiceCall(call runtime.ServiceCall) {
	route := known(call.Route, c.routes)
	code := otherLabel
	if call.Code == 0 || http.StatusText(call.Code) != "" {
		code = strconv.Itoa(call.Code)
	}
	c.requests.WithLabelValues(route, code).Inc()
	c.requestDuration.WithLabelValues(route).Observe(call.Took.Seconds())
}

// Poll implements [runtime.Metrics].
func (c *Counters) Poll(pool string, result runtime.PollResult) {
	c.polls.add(1, c.pool(pool), known(string(result), results))
}

// JobClaimed implements [runtime.Metrics].
func (c *Counters) JobClaimed(pool string, kind runtime.Kind) {
	c.claimed.add(1, c.pool(pool), kindLabel(kind))
}

// JobStage implements [runtime.Metrics].
func (c *Counters) JobStage(stage runtime.Stage, took time.Duration) {
	c.stageDuration.WithLabelValues(known(string(stage), stages)).Observe(took.Seconds())
}

// JobEnded implements [runtime.Metrics].
func (c *Counters) JobEnded(pool string, kind runtime.Kind, outcome runtime.Outcome) {
	c.ended.add(1, c.pool(pool), kindLabel(kind), known(string(outcome), outcomes))
}

// JobRecovered implements [runtime.Metrics].
func (c *Counters) JobRecovered(pool string, action runtime.RecoveryAction) {
	c.recovered.add(1, c.pool(pool), known(string(action), actions))
}

// JournalFailed implements [runtime.Metrics].
func (c *Counters) JournalFailed(pool string) { c.journalErrors.add(1, c.pool(pool)) }

// Describe implements [prometheus.Collector].
func (c *Counters) Describe(ch chan<- *prometheus.Desc) {
	for _, vector := range c.vectors() {
		vector.Describe(ch)
	}
}

// Collect implements [prometheus.Collector].
func (c *Counters) Collect(ch chan<- prometheus.Metric) {
	for _, vector := range c.vectors() {
		vector.Collect(ch)
	}
}

func (c *Counters) vectors() []prometheus.Collector {
	return []prometheus.Collector{
		c.polls, c.requests, c.requestDuration, c.claimed, c.ended, c.recovered, c.journalErrors, c.stageDuration,
	}
}

// pool returns the label for the name of a pool.
func (c *Counters) pool(name string) string {
	name = strings.ToValidUTF8(name, "\uFFFD") // the label of an instance may be invalid UTF-8
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pools[name] {
		return name
	}
	if len(c.pools) >= maxPools {
		return otherLabel
	}
	c.pools[name] = true
	return name
}

func kindLabel(kind runtime.Kind) string { return known(string(kind), kinds) }

// known returns a value if the set contains it, and otherwise otherLabel.
func known[T ~string](value string, set []T) string {
	if slices.Contains(set, T(value)) {
		return value
	}
	return otherLabel
}
