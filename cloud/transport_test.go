package cloud_test

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/cloud"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
	"github.com/cmwa-project/cmwa/schema/secret"
)

func TestTransport(t *testing.T) {
	// The time between two heartbeats and the limits of HTTP/2 pings are scaled down by
	// the same factor.
	const scale = 50
	const beat = 30 * time.Second / scale

	// lost sends a heartbeat over a version of HTTP, drops all packets of that connection
	// from then on, and returns how many heartbeats fail until one arrives.
	lost := func(t *testing.T, transport *http.Transport, version int) (count int) {
		t.Helper()
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.ProtoMajor != version {
				t.Errorf("the heartbeat came over %s, want HTTP/%d", r.Proto, version)
			}
		}))
		server.EnableHTTP2 = version == 2
		server.StartTLS()
		t.Cleanup(server.Close)
		link := runtimetest.NewLink(t, server.Listener.Addr().String())
		transport.TLSClientConfig = server.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
		t.Cleanup(transport.CloseIdleConnections)
		jobs := cloud.NewJobs(cloud.JobsOptions{
			Service: "https://" + link.Address(), JobID: "j", Token: secret.New("t"), Transport: transport,
			Log: slog.New(slog.DiscardHandler),
		})
		send := func() error {
			ctx, cancel := context.WithTimeout(t.Context(), beat)
			defer cancel()
			return jobs.Heartbeat(ctx)
		}
		if err := send(); err != nil {
			t.Fatalf("the first heartbeat: %v", err)
		}
		for link.Blackhole(); count < 20 && send() != nil; count++ {
		}
		return count
	}
	t.Run("a dead HTTP/2 connection costs two heartbeats at most", func(t *testing.T) {
		transport := defaultTransport(t)
		transport.HTTP2.SendPingTimeout /= scale
		transport.HTTP2.PingTimeout /= scale
		if count := lost(t, transport, 2); count > 2 {
			t.Errorf("%d heartbeats in a row were lost, want at most 2", count)
		}
	})
	t.Run("a dead HTTP/1 connection costs two heartbeats at most", func(t *testing.T) {
		if count := lost(t, defaultTransport(t), 1); count > 2 {
			t.Errorf("%d heartbeats in a row were lost, want at most 2", count)
		}
	})
	t.Run("HTTP/2 closes a dead connection within the time between two heartbeats", func(t *testing.T) {
		transport := defaultTransport(t)
		if limit := transport.HTTP2.SendPingTimeout + transport.HTTP2.PingTimeout; limit >= 30*time.Second ||
			limit == 0 {
			t.Errorf("HTTP/2 closes a silent connection after %s, want less than 30s", limit)
		}
	})
}

func defaultTransport(t *testing.T) *http.Transport {
	t.Helper()
	transport, err := cloud.Transport("")
	if err != nil {
		t.Fatal(err)
	}
	return transport
}
