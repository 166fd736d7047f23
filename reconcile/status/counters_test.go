package status

import (
	"fmt"
	goruntime "runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
)

// metricsOf returns the page of metrics of an agent with these counters.
func metricsOf(t *testing.T, c *Counters) string {
	t.Helper()
	a := calmAgent(t)
	a.Counters = c
	return a.page(t, "/metrics")
}

// series returns the lines of a page that start with a name.
func series(page, name string) (lines []string) {
	for line := range strings.Lines(page) {
		if strings.HasPrefix(line, name) {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

func TestCounters(t *testing.T) {
	const route = "GET /api/deployments/poll"
	wantLines := func(t *testing.T, page string, lines ...string) {
		t.Helper()
		for _, line := range lines {
			wantTexts(t, page, "\n"+line+"\n")
		}
	}
	t.Run("events are counted by label", func(t *testing.T) {
		c := NewCounters(route)
		c.Poll("prod", runtime.PollClaimed)
		c.Poll("prod", runtime.PollClaimed)
		c.Poll("prod", runtime.PollFailed)
		c.ServiceCall(runtime.ServiceCall{Route: route, Code: 200, Took: 100 * time.Millisecond})
		c.ServiceCall(runtime.ServiceCall{Route: route, Code: 0, Took: 2 * time.Second})
		c.JobClaimed("prod", runtime.Deployment)
		c.AddPool("prod", "docker", nil)
		c.JobStage("docker", runtime.StageRun, 10*time.Minute)
		c.JobStartFailed("docker", runtime.FailureImage)
		c.KubernetesRequest("watch", 200)
		c.KubernetesRequest("create", 0)
		c.WatchRestarted()
		c.JobEnded("prod", runtime.JobState{Kind: runtime.Deployment}, runtime.OutcomeFailed)
		wantLines(t, metricsOf(t, c),
			`cmwa_polls_total{pool="prod",result="job"} 2`,
			`cmwa_polls_total{pool="prod",result="failed"} 1`,
			`cmwa_service_requests_total{code="200",route="GET /api/deployments/poll"} 1`,
			`cmwa_service_requests_total{code="0",route="GET /api/deployments/poll"} 1`,
			`cmwa_service_request_duration_seconds_count{route="GET /api/deployments/poll"} 2`,
			`cmwa_service_request_duration_seconds_bucket{route="GET /api/deployments/poll",le="0.25"} 1`,
			`cmwa_jobs_claimed_total{kind="deployment",pool="prod"} 1`,
			`cmwa_jobs_total{kind="deployment",outcome="failed",pool="prod"} 1`,
			`cmwa_job_stage_duration_seconds_bucket{stage="run",target="docker",le="300"} 0`,
			`cmwa_job_stage_duration_seconds_bucket{stage="run",target="docker",le="900"} 1`,
			`cmwa_job_stage_duration_seconds_count{stage="pull",target="docker"} 0`,
			`cmwa_job_start_failures_total{reason="image",target="docker"} 1`,
			`cmwa_job_start_failures_total{reason="runner",target="docker"} 0`,
			`cmwa_kubernetes_requests_total{code="200",verb="watch"} 1`,
			`cmwa_kubernetes_requests_total{code="0",verb="create"} 1`,
			`cmwa_kubernetes_watch_restarts_total 1`)
	})
	t.Run("series of a pool start at 0", func(t *testing.T) {
		c := NewCounters(route)
		c.AddPool("prod", "docker", []runtime.Kind{runtime.Deployment})
		page := metricsOf(t, c)
		wantLines(t, page,
			`cmwa_polls_total{pool="prod",result="job"} 0`,
			`cmwa_polls_total{pool="prod",result="empty"} 0`,
			`cmwa_polls_total{pool="prod",result="failed"} 0`,
			`cmwa_jobs_claimed_total{kind="deployment",pool="prod"} 0`,
			`cmwa_jobs_total{kind="deployment",outcome="succeeded",pool="prod"} 0`,
			`cmwa_jobs_total{kind="deployment",outcome="lost",pool="prod"} 0`,
			`cmwa_jobs_recovered_total{action="started",pool="prod"} 0`,
			`cmwa_journal_errors_total{pool="prod"} 0`)
		if n := len(series(page, "cmwa_jobs_total{")); n != len(outcomes) {
			t.Errorf("got %d outcomes, want %d", n, len(outcomes))
		}
	})
	t.Run("replaced pool keeps its counts", func(t *testing.T) {
		c := NewCounters()
		c.AddPool("prod", "docker", []runtime.Kind{runtime.Deployment})
		c.Poll("prod", runtime.PollEmpty)
		c.AddPool("prod", "process", []runtime.Kind{runtime.Deployment})
		wantLines(t, metricsOf(t, c), `cmwa_polls_total{pool="prod",result="empty"} 1`)
	})
	t.Run("unknown values share a series", func(t *testing.T) {
		c := NewCounters(route)
		for i := range 2 * maxPools {
			pool := fmt.Sprintf("pool-%d", i)
			c.Poll(pool, runtime.PollResult(pool))
			c.JobClaimed(pool, runtime.Kind(pool))
			c.JobEnded(pool, runtime.JobState{Kind: runtime.Kind(pool)}, runtime.Outcome(pool))
			c.JobStage(pool, runtime.Stage(pool), time.Second)
			c.JobStartFailed(pool, runtime.StartFailure(pool))
			c.KubernetesRequest(pool, 1000+i)
			c.JobRecovered(pool, runtime.RecoveryAction(pool))
			c.JournalFailed(pool)
			c.ServiceCall(runtime.ServiceCall{Route: "GET /" + pool, Code: i})
		}
		page := metricsOf(t, c)
		wantLines(t, page,
			fmt.Sprintf(`cmwa_polls_total{pool="other",result="other"} %d`, maxPools),
			fmt.Sprintf(`cmwa_jobs_total{kind="other",outcome="other",pool="other"} %d`, maxPools),
			fmt.Sprintf(`cmwa_jobs_recovered_total{action="other",pool="other"} %d`, maxPools),
			fmt.Sprintf(`cmwa_journal_errors_total{pool="other"} %d`, maxPools),
			fmt.Sprintf(`cmwa_job_stage_duration_seconds_count{stage="other",target="other"} %d`, 2*maxPools),
			fmt.Sprintf(`cmwa_job_start_failures_total{reason="other",target="other"} %d`, 2*maxPools),
			fmt.Sprintf(`cmwa_kubernetes_requests_total{code="other",verb="other"} %d`, 2*maxPools),
			`cmwa_service_requests_total{code="404",route="other"} 1`)
		if n := len(series(page, "cmwa_service_requests_total{")); n > 70 {
			t.Errorf("got %d series of requests, want at most 70: one for each known code", n)
		}
		if n := len(series(page, "cmwa_polls_total{")); n != maxPools+1 {
			t.Errorf("got %d series of polls, want %d", n, maxPools+1)
		}
	})
	t.Run("invalid UTF-8 in a pool's name is replaced", func(t *testing.T) {
		c := NewCounters()
		c.Poll("a\xffb", runtime.PollEmpty)
		wantLines(t, metricsOf(t, c), `cmwa_polls_total{pool="a`+"\uFFFD"+`b",result="empty"} 1`)
	})
	t.Run("series of a pool need less than 5 kB", func(t *testing.T) {
		heap := func() uint64 {
			goruntime.GC()
			var stats goruntime.MemStats
			goruntime.ReadMemStats(&stats)
			return stats.HeapAlloc
		}
		c := NewCounters()
		before := heap()
		for i := range maxPools {
			c.AddPool(fmt.Sprint("pool-", i), "docker", kinds)
		}
		used := int64(heap()-before) / maxPools
		goruntime.KeepAlive(c)
		if used > 5000 {
			t.Errorf("the series of a pool need %d bytes, want at most 5000", used)
		}
	})
	t.Run("safe for concurrent use", func(t *testing.T) {
		c := NewCounters(route)
		var workers sync.WaitGroup
		for range 8 {
			workers.Go(func() {
				for range 100 {
					c.AddPool("prod", "docker", kinds)
					c.Poll("prod", runtime.PollEmpty)
					c.ServiceCall(runtime.ServiceCall{Route: route, Code: 204})
				}
				metricsOf(t, c)
			})
		}
		workers.Wait()
		wantLines(t, metricsOf(t, c), `cmwa_polls_total{pool="prod",result="empty"} 800`)
	})
}
