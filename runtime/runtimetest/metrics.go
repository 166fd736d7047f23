package runtimetest

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
)

// Metrics is a [runtime.Metrics] that stores what it records in memory. The zero value is
// ready for use. Methods are safe for concurrent use.
type Metrics struct {
	mu      sync.Mutex
	polls   map[string]int
	claimed map[string]int
	ended   map[string]int
	stages  map[runtime.Stage][]time.Duration

	recovered map[string]int
	failed    map[string]int
	unstarted map[string]int
}

// ServiceCall records nothing: the fakes make no HTTP calls.
func (r *Metrics) ServiceCall(runtime.ServiceCall) {}

// Poll implements [runtime.Metrics].
func (r *Metrics) Poll(pool string, result runtime.PollResult) { r.count(&r.polls, pool, result) }

// JobClaimed implements [runtime.Metrics].
func (r *Metrics) JobClaimed(pool string, kind runtime.Kind) { r.count(&r.claimed, pool, kind) }

// JobEnded implements [runtime.Metrics].
func (r *Metrics) JobEnded(pool string, job runtime.JobState, outcome runtime.Outcome) {
	r.count(&r.ended, pool, job.Kind, outcome)
}

// JobStage implements [runtime.Metrics].
func (r *Metrics) JobStage(_ string, stage runtime.Stage, took time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stages == nil {
		r.stages = map[runtime.Stage][]time.Duration{}
	}
	r.stages[stage] = append(r.stages[stage], took)
}

// JobStartFailed implements [runtime.Metrics].
func (r *Metrics) JobStartFailed(target string, reason runtime.StartFailure) {
	r.count(&r.unstarted, target, reason)
}

// JobRecovered implements [runtime.Metrics].
func (r *Metrics) JobRecovered(pool string, action runtime.RecoveryAction) {
	r.count(&r.recovered, pool, action)
}

// JournalFailed implements [runtime.Metrics].
func (r *Metrics) JournalFailed(pool string) { r.count(&r.failed, pool) }

func (r *Metrics) count(counter *map[string]int, labels ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if *counter == nil {
		*counter = map[string]int{}
	}
	key := fmt.Sprintln(labels...) // separated by spaces
	(*counter)[key[:len(key)-1]]++
}

// Polls returns the number of polls by pool and result, such as "default empty".
func (r *Metrics) Polls() map[string]int { return r.snapshot(&r.polls) }

// Claimed returns the number of claimed jobs by pool and kind.
func (r *Metrics) Claimed() map[string]int { return r.snapshot(&r.claimed) }

// Ended returns the number of ended jobs by pool, kind and outcome.
func (r *Metrics) Ended() map[string]int { return r.snapshot(&r.ended) }

// Recovered returns the number of recovered jobs by pool and action.
func (r *Metrics) Recovered() map[string]int { return r.snapshot(&r.recovered) }

// JournalFailures returns, by pool, the number of failures to record a job in the journal.
func (r *Metrics) JournalFailures() map[string]int { return r.snapshot(&r.failed) }

func (r *Metrics) snapshot(counter *map[string]int) map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(*counter)
}

// StartFailures returns the number of failed starts by target and reason, such as "docker image".
func (r *Metrics) StartFailures() map[string]int { return r.snapshot(&r.unstarted) }

// Total returns the sum of counters.
func Total(counters map[string]int) (sum int) {
	for _, n := range counters {
		sum += n
	}
	return sum
}

// Stages returns the durations of a stage, in the order in which they were recorded.
func (r *Metrics) Stages(stage runtime.Stage) []time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.stages[stage])
}
