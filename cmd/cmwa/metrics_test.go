package main

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// promtoolVariable is the variable with the path of promtool, a program of Prometheus.
const promtoolVariable = "CMWA_TEST_PROMTOOL"

func TestMetrics(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "process")
	port := agentPort(freePort(t))
	w.agent(port.setting(), "max_concurrent_workflows: 2")
	page := ""
	has := func(lines ...string) func() bool {
		return func() bool {
			page = string(bodyOf(port.url("/metrics")))
			return !slices.ContainsFunc(lines, func(line string) bool { return !strings.Contains(page, "\n"+line) })
		}
	}
	defer func() {
		if t.Failed() {
			t.Logf("the last page:\n%s", page)
		}
	}()

	w.eventually("series of the pool start at 0", has(
		`cmwa_jobs_total{kind="deployment",outcome="succeeded",pool="default"} 0`,
		`cmwa_jobs_claimed_total{kind="deployment",pool="default"} 0`))
	w.runShort("good", w.poolID)
	w.queue("bad", oneStep("exit 3"))
	w.await("bad", "failed")
	w.eventually("the work is counted", has(
		`cmwa_polls_total{pool="default",result="job"} 2`,
		`cmwa_service_requests_total{code="200",route="GET /api/deployments/poll"} 2`,
		`cmwa_jobs_claimed_total{kind="deployment",pool="default"} 2`,
		`cmwa_jobs_total{kind="deployment",outcome="succeeded",pool="default"} 1`,
		`cmwa_jobs_total{kind="deployment",outcome="failed",pool="default"} 1`,
		`cmwa_job_stage_duration_seconds_count{stage="run",target="process"} 2`,
		`cmwa_pool_circuit_breaker_open{`,
		`cmwa_pool_max_jobs{`))

	t.Run("promtool", func(t *testing.T) { checkMetrics(t, page) })
}

// checkMetrics checks a page of metrics with promtool.
func checkMetrics(t *testing.T, page string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), tool(t, promtoolVariable), "check", "metrics")
	cmd.Stdin, cmd.Env = strings.NewReader(page), os.Environ()
	if output, err := cmd.CombinedOutput(); err != nil || len(output) > 0 {
		t.Errorf("%v:\n%s", err, output)
	}
}
