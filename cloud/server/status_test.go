package server

import (
	"errors"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cmwa-project/cmwa/schema/secret"
)

func TestStatus(t *testing.T) {
	var log strings.Builder
	w := newWorld(t, func(o *Options) {
		o.Version, o.Log = "v1.2.3", slog.New(slog.NewTextHandler(&log, nil))
	})
	var got statusView
	w.want(200, "", "GET", "/api/status", nil, &got)
	if got.Status != "ok" || got.Version != "v1.2.3" || got.Schema < 2 || got.Checks["database"] != "ok" ||
		got.Checks["keys"] != "ok" || got.Checks["objects"] != "ok" {
		t.Errorf("the status of a new service is %+v", got)
	}
	w.want(200, "", "GET", "/healthz", nil, nil)

	// A database that cannot be read makes the service unready, but not unhealthy.
	rename := func(from, to string) {
		t.Helper()
		w.write(`ALTER TABLE ` + from + ` RENAME TO ` + to)
	}
	rename("goose_db_version", "away")
	for range 2 {
		answer := w.want(503, "", "GET", "/api/status", nil, &got)
		if got.Status != "failed" || got.Checks["database"] != "failed" || strings.Contains(answer.body, w.directory) {
			t.Errorf("the status without a database is %s", answer.body)
		}
	}
	w.want(200, "", "GET", "/healthz", nil, nil)
	rename("away", "goose_db_version")
	w.want(200, "", "GET", "/api/status", nil, &got)

	// A file in place of the directory of objects.
	bucket := filepath.Join(w.directory, objectsDirectory)
	if err := errors.Join(os.RemoveAll(bucket), os.WriteFile(bucket, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	w.want(503, "", "GET", "/api/status", nil, &got)
	if got.Checks["objects"] != "failed" || got.Checks["database"] != "ok" {
		t.Errorf("the status without objects is %+v", got)
	}
	if failures := strings.Count(log.String(), "check failed"); failures != 2 ||
		!strings.Contains(log.String(), "check succeeded again") {
		t.Errorf("the log has %d failures, want 2, and the recovery:\n%s", failures, &log)
	}
}

func TestMetrics(t *testing.T) {
	scrape := func(w *world, authorization string) answer {
		r := httptest.NewRequest("GET", "/metrics", nil)
		r.Header.Set("Authorization", authorization)
		rec := httptest.NewRecorder()
		w.handler.ServeHTTP(rec, r)
		return answer{rec.Code, rec.Header(), rec.Body.String()}
	}

	t.Run("without a secret every scrape is refused", func(t *testing.T) {
		w := newWorld(t)
		for _, authorization := range []string{"", "webhook-token ", "webhook-token x"} {
			got := scrape(w, authorization)
			if got.code != 401 || !strings.Contains(got.body, "METRICS_WEBHOOK_SECRET") {
				t.Errorf("%q: %d %s", authorization, got.code, got.body)
			}
		}
	})

	t.Run("the secret and its scheme are required", func(t *testing.T) {
		w := newWorld(t, func(o *Options) { o.Version, o.MetricsSecret = "v1.2.3", secret.New("s3cret") })
		for _, authorization := range []string{
			"", "webhook-token", "webhook-token s3cre", "webhook-token s3cret ", "Bearer s3cret", "token " + w.user,
		} {
			if got := scrape(w, authorization); got.code != 401 || strings.Contains(got.body, "s3cret") {
				t.Errorf("%q: %d %s", authorization, got.code, got.body)
			}
		}
		w.want(200, w.user, "GET", "/api/user", nil, nil)
		w.want(404, w.user, "GET", "/no/such", nil, nil)
		got := scrape(w, "webhook-token s3cret")
		for _, series := range []string{
			`cmwa_cloud_build_info{version="v1.2.3"} 1`,
			`cmwa_cloud_http_requests_total{code="200",route="GET /api/user"} 1`,
			`cmwa_cloud_http_requests_total{code="404",route="/"} 1`,
			`cmwa_cloud_http_request_duration_seconds_count{route="GET /api/user"} 1`,
			`cmwa_cloud_check{check="database"} 1`, `cmwa_cloud_deployments{status="not-started"} 0`,
			"\ngo_goroutines ", "\nprocess_resident_memory_bytes ",
		} {
			if got.code != 200 || !strings.Contains(got.body, series) {
				t.Errorf("%d, %s is missing in\n%s", got.code, series, got.body)
			}
		}
	})
}
