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

// trusting returns a client for the service at an https URL, and its settings. Authority
// is the content of ca_file.
func trusting(url, authority string, log *strings.Builder) (*cloud.Client, runtime.Tuning) {
	tuning := runtime.Tuning{
		Token: secret.New("pul-pool"), Kinds: []runtime.Kind{runtime.Deployment}, CA: authority,
		RequestTimeout: 10 * time.Second, BreakerFailures: 100, BreakerTimeout: time.Minute,
	}
	return cloud.New(cloud.Options{
		Identity: runtime.Identity{Service: url}, Tuning: tuning, UserAgent: "test/1",
		Log: slog.New(slog.NewTextHandler(log, nil)),
	}), tuning
}

// queue is a service without queued jobs.
func queue(w http.ResponseWriter, r *http.Request) {
	if strings.HasSuffix(r.URL.Path, "/poll") {
		w.WriteHeader(http.StatusNoContent)
	}
}

func TestTrust(t *testing.T) {
	t.Run("only a certificate from an authority in ca_file is trusted", func(t *testing.T) {
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
				t.Errorf("the error is %v, want one with ca_file and %s", err, url)
			}
		}
	})

	t.Run("a ca_file without a certificate is logged and changes nothing", func(t *testing.T) {
		var log strings.Builder
		url, _ := runtimetest.ServeTLS(t, "127.0.0.1", http.HandlerFunc(queue))
		client, _ := trusting(url, "this is not a certificate", &log)
		if _, err := client.Claim(t.Context()); err == nil ||
			!strings.Contains(log.String(), "ca_file contains no certificate") ||
			strings.Contains(log.String(), "this is not") {
			t.Errorf("the error is %v and the log is %s", err, log.String())
		}
	})

	t.Run("a changed ca_file applies at once but not to claimed jobs", func(t *testing.T) {
		url, authority := runtimetest.ServeTLS(t, "127.0.0.1", http.HandlerFunc(queue))
		_, other := runtimetest.ServeTLS(t, "127.0.0.1", http.HandlerFunc(queue))
		client, tuning := trusting(url, other, &strings.Builder{})
		early := &runtime.Job{ID: "early", Token: secret.New("job"), Tuning: tuning}
		if _, err := client.Claim(t.Context()); err == nil {
			t.Error("a certificate is trusted whose authority is not in ca_file")
		}
		tuning.CA = authority
		client.Tune(tuning)
		if _, err := client.Claim(t.Context()); err != nil {
			t.Errorf("a claim after the change: %v", err)
		}
		late := &runtime.Job{ID: "late", Token: secret.New("job"), Tuning: tuning}
		if err := client.Report(t.Context(), late, runtime.Report{Status: runtime.Running}); err != nil {
			t.Errorf("a report of a job claimed after the change: %v", err)
		}
		tuning.CA = other
		client.Tune(tuning)
		if err := client.Report(t.Context(), late, runtime.Report{Status: runtime.Running}); err != nil {
			t.Errorf("a report of the same job after the next change: %v", err)
		}
		// A certificate error is retried until the context ends.
		limited, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		if _, err := client.Definition(limited, early); err == nil || !strings.Contains(err.Error(), "certificate") {
			t.Errorf("a job claimed before both changes: the error is %v, want a certificate error", err)
		}
	})
}
