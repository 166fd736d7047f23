package status

import (
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
)

func TestMetricsFollowTheConventions(t *testing.T) {
	for name, a := range map[string]Snapshots{"busy": busyAgent(t), "calm": calmAgent(t)} {
		answer := get(t, Handler(a), "/metrics")
		problems, err := promlint.New(answer.Body).Lint()
		if err != nil || answer.Code != http.StatusOK {
			t.Fatal(name, answer.Code, err)
		}
		for _, p := range problems {
			if strings.HasPrefix(p.Metric, "cmwa_") {
				t.Errorf("%s: %s: %s", name, p.Metric, p.Text)
			}
		}
	}
}

func TestMetricsTellOfEachPoolAndOfTheConfiguration(t *testing.T) {
	text := get(t, Handler(busyAgent(t)), "/metrics").Body.String()
	for _, line := range []string{
		"cmwa_config_generation_desired 2\n", "cmwa_config_generation_applied 1\n", "cmwa_config_rejected_total 3\n", "cmwa_config_accepted_total 2\n",
		"cmwa_config_problems 1\n", "cmwa_config_load_seconds 0.0125\n", `cmwa_config_watch_mode{mode="events"} 1`, `cmwa_config_watch_mode{mode="polling"} 0`,
		"cmwa_converged 0\n", "cmwa_healthy 1\n", "cmwa_ready 0\n", "cmwa_config_last_success_timestamp_seconds ", "cmwa_config_last_rejection_timestamp_seconds ",
		`pool="one"} 1`, `cmwa_config_info{digest="`, "\ngo_goroutines ", "\nprocess_open_fds ",
		`phase="paused",pool="one"} 1`, `phase="polling",pool="one"} 0`, `phase="missing",pool="two"} 1`, "cmwa_pool_progress_age_seconds{",
	} {
		if !strings.Contains(text, line) {
			t.Errorf("there is no %q", line)
		}
	}
	if strings.Contains(text, "cmwa_config_apply_seconds ") {
		t.Error("what is not applied has taken a time")
	}
	calm := get(t, Handler(calmAgent(t)), "/metrics").Body.String()
	if !strings.Contains(calm, "cmwa_config_apply_seconds 1\n") || strings.Contains(calm, "last_rejection") || !strings.Contains(calm, "cmwa_config_problems 0\n") || !strings.Contains(calm, "cmwa_ready 1\n") {
		t.Errorf("%s", calm)
	}
}
