package runtimetest_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/runtime/runtimetest"
)

// linked starts a server for HTTP/2 over TLS, and a link to this server. It returns the link, a
// client that trusts the server, the URL of the link, and the number of requests that the
// server got.
func linked(t *testing.T) (link *runtimetest.Link, client *http.Client, base string, served *atomic.Int32) {
	t.Helper()
	served = new(atomic.Int32)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		served.Add(1)
		_, _ = io.WriteString(w, r.Proto)
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	link = runtimetest.NewLink(t, server.Listener.Addr().String())
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	transport := &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{RootCAs: roots}}
	t.Cleanup(transport.CloseIdleConnections)
	return link, &http.Client{Transport: transport}, "https://" + link.Address(), served
}

// protocol makes a request and returns the protocol that the server reports.
func protocol(ctx context.Context, client *http.Client, base string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, base, nil)
	if err != nil {
		return "", err
	}
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return string(text), err
}

func TestLink(t *testing.T) {
	t.Run("black hole stays open and silent, and a new HTTP/2 connection works", func(t *testing.T) {
		link, client, base, served := linked(t)
		if got, err := protocol(t.Context(), client, base); got != "HTTP/2.0" || err != nil {
			t.Fatalf("the first request used %q, %v", got, err)
		}
		if count := link.Blackhole(); count != 1 || link.Connections() != 0 {
			t.Fatalf("%d connections became black holes and %d others are open, want 1 and 0",
				count, link.Connections())
		}
		limited, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		if _, err := protocol(limited, client, base); limited.Err() == nil || err == nil {
			t.Errorf("a request on a black hole ended before its time limit: %v", err)
		}
		if count := served.Load(); count != 1 {
			t.Errorf("the server got %d requests, want 1", count)
		}
		client.CloseIdleConnections()
		another := &http.Client{Transport: client.Transport.(*http.Transport).Clone()}
		defer another.CloseIdleConnections()
		if got, err := protocol(t.Context(), another, base); got != "HTTP/2.0" || err != nil {
			t.Errorf("a request on a new connection used %q, %v", got, err)
		}
	})
	t.Run("black hole hides the end of either side", func(t *testing.T) {
		server, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer server.Close()
		link := runtimetest.NewLink(t, server.Addr().String())
		client, err := net.Dial("tcp", link.Address())
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		accepted, err := server.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := client.Write([]byte("before")); err != nil {
			t.Fatal(err)
		}
		text := make([]byte, 6)
		if _, err := io.ReadFull(accepted, text); string(text) != "before" || err != nil {
			t.Fatalf("%q arrived, %v", text, err)
		}
		link.Blackhole()
		if _, err := accepted.Write([]byte("after")); err != nil {
			t.Errorf("the write was not accepted: %v", err)
		}
		_ = accepted.Close()
		_ = client.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
		if n, err := client.Read(text); n > 0 || !isTimeout(err) {
			t.Errorf("the read returned %d bytes and the error %v, want no bytes and a timeout", n, err)
		}
		link.Reset()
		_ = client.SetReadDeadline(time.Now().Add(10 * time.Second))
		if _, err := client.Read(text); err == nil || isTimeout(err) || !strings.Contains(err.Error(), "reset") {
			t.Errorf("a read after a reset returns %v, want a reset connection", err)
		}
	})
	t.Run("reset connection fails and a new one works", func(t *testing.T) {
		link, client, base, _ := linked(t)
		if _, err := protocol(t.Context(), client, base); err != nil {
			t.Fatal(err)
		}
		if count := link.Reset(); count != 1 {
			t.Errorf("%d connections were reset, want 1", count)
		}
		another := &http.Client{Transport: client.Transport.(*http.Transport).Clone()} // has no reset connection
		defer another.CloseIdleConnections()
		if got, err := protocol(t.Context(), another, base); got != "HTTP/2.0" || err != nil {
			t.Errorf("a request after the reset used %q, %v", got, err)
		}
	})
}

func isTimeout(err error) bool {
	var failure net.Error
	return errors.As(err, &failure) && failure.Timeout()
}
