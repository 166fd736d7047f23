package cloud_test

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/cloud"
	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// trusting makes a client for a service behind TLS.
func trusting(url, authority string, log *strings.Builder) (*cloud.Client, runtime.Tuning) {
	tuning := runtime.Tuning{
		Token: secret.New("pul-pool"), Kinds: []runtime.Kind{runtime.Deployment}, CA: authority,
		RequestTimeout: 10 * time.Second, BreakerFailures: 100, BreakerTimeout: time.Minute,
	}
	return cloud.New(cloud.Options{
		Identity: runtime.Identity{Service: url}, Tuning: tuning, UserAgent: "test/1", Log: slog.New(slog.NewTextHandler(log, nil)),
	}), tuning
}

func queue(w http.ResponseWriter, r *http.Request) {
	if strings.HasSuffix(r.URL.Path, "/poll") {
		w.WriteHeader(http.StatusNoContent)
	}
}

func TestACertificateThatCAFileVouchesForIsTrusted(t *testing.T) {
	url, authority := runtimetest.ServeTLS(t, "127.0.0.1", http.HandlerFunc(queue))
	_, other := runtimetest.ServeTLS(t, "127.0.0.1", http.HandlerFunc(queue))
	client, _ := trusting(url, other+authority, &strings.Builder{})
	if _, err := client.Claim(t.Context()); err != nil {
		t.Error(err)
	}
	for _, wrong := range []string{"", other} {
		client, _ := trusting(url, wrong, &strings.Builder{})
		_, err := client.Claim(t.Context())
		if err == nil || !strings.Contains(err.Error(), "ca_file") || !strings.Contains(err.Error(), url) {
			t.Errorf("the error is %v, want ca_file named", err)
		}
	}
}

func TestACAFileWithoutACertificateIsSaidAndChangesNothing(t *testing.T) {
	var log strings.Builder
	url, _ := runtimetest.ServeTLS(t, "127.0.0.1", http.HandlerFunc(queue))
	client, _ := trusting(url, "this is not a certificate", &log)
	if _, err := client.Claim(t.Context()); err == nil || !strings.Contains(log.String(), "ca_file holds no certificate") || strings.Contains(log.String(), "this is not") {
		t.Errorf("the error is %v and the log is %s", err, log.String())
	}
}

func TestAChangedCAFileAppliesAtOnceAndNotToJobs(t *testing.T) {
	url, authority := runtimetest.ServeTLS(t, "127.0.0.1", http.HandlerFunc(queue))
	_, other := runtimetest.ServeTLS(t, "127.0.0.1", http.HandlerFunc(queue))
	client, tuning := trusting(url, other, &strings.Builder{})
	early := &runtime.Job{ID: "early", Token: secret.New("job"), Tuning: tuning}
	if _, err := client.Claim(t.Context()); err == nil {
		t.Error("a service that nobody vouches for is trusted")
	}
	tuning.CA = authority
	client.Tune(tuning)
	if _, err := client.Claim(t.Context()); err != nil {
		t.Errorf("after the change: %v", err)
	}
	late := &runtime.Job{ID: "late", Token: secret.New("job"), Tuning: tuning}
	if err := client.Report(t.Context(), late, runtime.Report{Status: runtime.Running}); err != nil {
		t.Errorf("a job claimed after the change: %v", err)
	}
	tuning.CA = other
	client.Tune(tuning)
	if err := client.Report(t.Context(), late, runtime.Report{Status: runtime.Running}); err != nil {
		t.Errorf("a job claimed before the next change: %v", err)
	}
	limited, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond) // an error of a certificate is retried until then
	defer cancel()
	if _, err := client.Definition(limited, early); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("a job trusts more than at its claim: %v", err)
	}
}
