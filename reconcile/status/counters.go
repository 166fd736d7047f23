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
	"github.com/cmwa-project/cmwa/schema/printable"
)

const (
	// maxPools limits the number of pool names that have their own series, former names
	// included. Further names count as otherLabel.
	maxPools = 1000

	// maxEnded limits how many ended jobs are listed.
	maxEnded = 100

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
		runtime.StageClaim, runtime.StageDefinition, runtime.StagePull, runtime.StageCreate, runtime.StageStart,
		runtime.StageFirstLine, runtime.StageRun, runtime.StageReport, runtime.StageRemove,
	}
	failures = []runtime.StartFailure{
		runtime.FailureService, runtime.FailureImage, runtime.FailureUnschedulable, runtime.FailureDenied,
		runtime.FailureConnection, runtime.FailureRunner, runtime.FailureInstance,
	}
	targets = []string{"docker", "kubernetes", "process"}
	verbs   = []string{"get", "list", "watch", "create", "update", "delete"}
)

// Upper bounds of the buckets of histograms, in seconds. They are few, because for each value
// of the label each bucket needs memory and a line in every scrape.
var (
	requestBuckets = []float64{0.05, 0.25, 1, 5, 30}
	stageBuckets   = []float64{0.05, 0.2, 1, 5, 15, 60, 300, 900, 3600}
)

// Counters counts the work of all pools of a process: polls, requests and jobs. It also keeps the
// jobs that ended last. It is a [runtime.Metrics], and a [prometheus.Collector] of the metrics
// without the label pool. The counts belong to the process: a pool continues the counts of the pool
// that it replaces, if both have the same name. The number of series is bounded: unknown values of a
// label count as "other".
type Counters struct {
	polls           *poolCounter
	requests        *prometheus.CounterVec
	requestDuration *prometheus.HistogramVec
	claimed         *poolCounter
	ended           *poolCounter
	recovered       *poolCounter
	journalErrors   *poolCounter
	stageDuration   *prometheus.HistogramVec
	startFailures   *prometheus.CounterVec
	kubeRequests    *prometheus.CounterVec
	watchRestarts   prometheus.Counter
	routes          []string

	mu    sync.Mutex
	pools map[string]bool // names with their own series
	last  []EndedJob      // the jobs that ended last, at most maxEnded, in order
}

// NewCounters returns counters without pools. Requests with a route that is not one of routes
// count as "other".
func NewCounters(routes ...string) *Counters {
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(
			prometheus.HistogramOpts{Name: "cmwa_" + name, Help: help, Buckets: buckets}, labels)
	}
	return &Counters{
		polls: newPoolCounter("polls_total",
			"Attempts to claim a job, by result: job (a job was claimed), empty (the service has no job for the "+
				"pool) or failed (also attempts without a request while the circuit breaker is open).",
			"result"),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "cmwa_service_requests_total", Help: "HTTP " +
			"requests to services by route and status code, each retry included; code 0 is no response."},
			[]string{"route", "code"}),
		requestDuration: histogram("service_request_duration_seconds",
			"Duration of HTTP requests to services, each retry measured separately.", requestBuckets, "route"),
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
			"Duration of the stages of jobs: claim, definition, pull, create, start, first_line (of the runner), "+
				"run, report, remove.", stageBuckets, "target", "stage"),
		startFailures: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "cmwa_job_start_failures_total",
			Help: "Jobs that failed before their first step, by reason: service (no definition or heartbeat), image, " +
				"unschedulable, denied, connection, runner (it ended early) or instance (it was not created " +
				"or started).",
		}, []string{"target", "reason"}),
		kubeRequests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "cmwa_kubernetes_requests_total",
			Help: "Requests to the Kubernetes API server by verb and status code, each retry included; " +
				"code 0 is no response.",
		}, []string{"verb", "code"}),
		watchRestarts: prometheus.NewCounter(prometheus.CounterOpts{Name: "cmwa_kubernetes_watch_restarts_total",
			Help: "Watches of Pods that were started again before their regular end.",
		}),
		routes: routes,
		pools:  map[string]bool{},
	}
}

// AddPool creates the series of a pool and of its deploy_target, with the value 0. It does not
// change a series that exists.
func (c *Counters) AddPool(name, target string, enabled []runtime.Kind) {
	target = known(target, targets)
	for _, stage := range stages {
		c.stageDuration.WithLabelValues(target, string(stage))
	}
	for _, reason := range failures {
		c.startFailures.WithLabelValues(target, string(reason))
	}
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
	c.requests.WithLabelValues(route, codeLabel(call.Code)).Inc()
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
func (c *Counters) JobStage(target string, stage runtime.Stage, took time.Duration) {
	c.stageDuration.WithLabelValues(known(target, targets), known(string(stage), stages)).Observe(took.Seconds())
}

// JobStartFailed implements [runtime.Metrics].
func (c *Counters) JobStartFailed(target string, reason runtime.StartFailure) {
	c.startFailures.WithLabelValues(known(target, targets), known(string(reason), failures)).Inc()
}

// KubernetesRequest counts a request to the API server. It is a method of the Metrics of runtime/kube.
func (c *Counters) KubernetesRequest(verb string, code int) {
	c.kubeRequests.WithLabelValues(known(verb, verbs), codeLabel(code)).Inc()
}

// WatchRestarted counts an interrupted watch. It is a method of the Metrics of runtime/kube.
func (c *Counters) WatchRestarted() { c.watchRestarts.Inc() }

// JobEnded implements [runtime.Metrics].
func (c *Counters) JobEnded(pool string, job runtime.JobState, outcome runtime.Outcome) {
	c.ended.add(1, c.pool(pool), kindLabel(job.Kind), known(string(outcome), outcomes))
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.last) == maxEnded {
		c.last = slices.Delete(c.last, 0, 1)
	}
	c.last = append(c.last, EndedJob{
		Job: jobOf(job), Pool: printable.Shorten(pool, maxValue), Outcome: string(outcome), EndedAt: time.Now().UTC(),
	})
}

// lastEnded returns the jobs that ended last, the last one first.
func (c *Counters) lastEnded() []EndedJob {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	last := slices.Clone(c.last)
	slices.Reverse(last)
	return last
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
		c.requests, c.requestDuration, c.stageDuration, c.startFailures, c.kubeRequests, c.watchRestarts,
	}
}

// send adds the metrics with the label pool to those of a scrape.
func (c *Counters) send(m *metrics) {
	for _, counter := range []*poolCounter{c.polls, c.claimed, c.ended, c.recovered, c.journalErrors} {
		counter.send(m)
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

// codeLabel returns the label for an HTTP status; 0 is no response.
func codeLabel(code int) string {
	if code == 0 || http.StatusText(code) != "" {
		return strconv.Itoa(code)
	}
	return otherLabel
}

func kindLabel(kind runtime.Kind) string { return known(string(kind), kinds) }

// known returns a value if the set contains it, and otherwise otherLabel.
func known[T ~string](value string, set []T) string {
	if slices.Contains(set, T(value)) {
		return value
	}
	return otherLabel
}
