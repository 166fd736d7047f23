package status

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/cmwa-project/cmwa/runtime"
)

func TestMetrics(t *testing.T) {
	t.Run("names follow the conventions", func(t *testing.T) {
		for name, a := range map[string]*testAgent{"busy": busyAgent(t), "calm": calmAgent(t)} {
			response := get(t, Handler(a.Snapshots), "/metrics")
			problems, err := promlint.New(response.Body).Lint()
			if err != nil || response.Code != http.StatusOK {
				t.Fatal(name, response.Code, err)
			}
			for _, p := range problems {
				if strings.HasPrefix(p.Metric, "cmwa_") {
					t.Errorf("in the metrics of the agent %s, %s breaks a convention: %s", name, p.Metric, p.Text)
				}
			}
		}
	})

	t.Run("pools and configuration have series", func(t *testing.T) {
		text := busyAgent(t).page(t, "/metrics")
		wantTexts(t, text,
			"cmwa_config_generation_desired 2\n", "cmwa_config_generation_applied 1\n",
			"cmwa_config_rejected_total 3\n", "cmwa_config_accepted_total 2\n",
			"cmwa_config_problems 1\n", "cmwa_config_load_duration_seconds 0.0125\n",
			`cmwa_config_watch_mode{mode="events"} 1`, `cmwa_config_watch_mode{mode="polling"} 0`,
			"cmwa_converged 0\n", "cmwa_healthy 1\n", "cmwa_ready 0\n",
			"cmwa_config_last_accepted_timestamp_seconds ", "cmwa_config_last_rejected_timestamp_seconds ",
			`pool="one"} 1`, `cmwa_config_info{digest="`, "\ngo_goroutines ", "\nprocess_open_fds ",
			`phase="backoff",pool="one"} 1`, `phase="polling",pool="one"} 0`, `phase="missing",pool="two"} 1`,
			"cmwa_pool_overdue_seconds{",
		)
		if strings.Contains(text, "cmwa_config_apply_duration_seconds ") {
			t.Error("cmwa_config_apply_duration_seconds exists before the configuration is in force")
		}
		calm := calmAgent(t).page(t, "/metrics")
		wantTexts(t, calm, "cmwa_config_apply_duration_seconds 1\n", "cmwa_config_problems 0\n", "cmwa_ready 1\n")
		if strings.Contains(calm, "last_rejected") {
			t.Errorf("the metrics of an agent without a rejection are\n%s", calm)
		}
	})

	t.Run("jobs have no series", func(t *testing.T) {
		a := busyAgent(t) // with a job-1, which runs the deployment-1 of the stack prod
		if text := a.page(t, "/status"); !strings.Contains(text, `"job-1"`) || !strings.Contains(text, `"prod"`) {
			t.Fatalf("the agent runs no job:\n%s", text)
		}
		for _, name := range []string{"job-1", "deployment-1", "prod"} {
			if text := a.page(t, "/metrics"); strings.Contains(text, `"`+name+`"`) {
				t.Errorf("a label has the value %s:\n%s", name, text)
			}
		}
	})

	t.Run("phases of Pods have series if a pool uses a cluster", func(t *testing.T) {
		a := calmAgent(t)
		var phases map[string]int
		a.PodPhases = func() map[string]int { return phases }
		if text := a.page(t, "/metrics"); strings.Contains(text, "cmwa_kubernetes_pods") {
			t.Errorf("without a cluster the metrics are\n%s", text)
		}
		phases = map[string]int{"Running": 3}
		wantTexts(t, a.page(t, "/metrics"),
			`cmwa_kubernetes_pods{phase="Running"} 3`, `cmwa_kubernetes_pods{phase="Pending"} 0`)
	})

	t.Run("breaker, token expiry and the limit of all pools", func(t *testing.T) {
		a := calmAgent(t)
		p := &a.status.Pools[0]
		page := func() string { return a.page(t, "/metrics") }
		if text := page(); !strings.Contains(text, `cmwa_pool_circuit_breaker_open{key="`+p.Spec.Key()+
			`",pool="default"} 0`) || strings.Contains(text, "token_expiry") {
			t.Errorf("with a closed breaker and a static token the metrics are\n%s", text)
		}
		p.Service = runtime.ServiceHealth{BreakerOpen: true, TokenExpiry: time.Unix(1790000000, 0)}
		for name, value := range map[string]string{
			"cmwa_pool_circuit_breaker_open{": "1", "cmwa_pool_token_expiry_timestamp_seconds{": "1.79e+09",
		} {
			if lines := series(page(), name); len(lines) != 1 || !strings.HasSuffix(lines[0], "} "+value) {
				t.Errorf("the series are %v, want one with the value %s", lines, value)
			}
		}

		// The limit of all pools.
		if text := page(); strings.Contains(text, "cmwa_max_jobs") {
			t.Errorf("cmwa_max_jobs exists without a limit:\n%s", text)
		}
		a.status.Process.MaxJobs = 7
		wantTexts(t, page(), "\ncmwa_max_jobs 7\n")
	})
}
