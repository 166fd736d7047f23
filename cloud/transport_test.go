package cloud

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	goruntime "runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// lossyLink connects to a service in memory. Its connections can lose all packets.
type lossyLink struct {
	pipeListener
	dead atomic.Pointer[atomic.Bool] // of the connections that are made now
}

// blackhole drops what is sent over the present connections from now on. Later connections work.
func (l *lossyLink) blackhole() { l.dead.Swap(&atomic.Bool{}).Store(true) }

func (l *lossyLink) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := l.pipeListener.dial(ctx, network, address)
	return lossyConn{conn, l.dead.Load()}, err
}

// lossyConn is the client's end of a connection. When it is dead, it loses what is written to
// it. The service then has nothing to respond to.
type lossyConn struct {
	net.Conn
	dead *atomic.Bool
}

func (c lossyConn) Write(text []byte) (int, error) {
	if c.dead.Load() {
		return len(text), nil
	}
	return c.Conn.Write(text)
}

func TestTransports(t *testing.T) {
	t.Run("clients that trust the same certificates share connections", func(t *testing.T) {
		shared := NewTransports(nil)
		client := func(certificates string) *Client {
			return New(Options{
				Tuning: runtime.Tuning{CA: certificates}, Transports: shared, Log: slog.New(slog.DiscardHandler),
			})
		}
		first, second, other := client(""), client(""), client("other")
		if first.current().transports != second.current().transports {
			t.Error("two clients have two pairs of transports")
		}
		if first.current().transports == other.current().transports {
			t.Error("clients with different certificates have the same transports")
		}
		other.Tune(runtime.Tuning{})
		if first.current().transports != other.current().transports {
			t.Error("after a change to the same certificates, a client has transports of its own")
		}
	})
	t.Run("transports without a client are forgotten", func(t *testing.T) {
		shared := NewTransports(nil)
		for i := range 20 { // like a ca_file that is renewed again and again
			used := shared.trusting(fmt.Sprint("certificates ", i))
			goruntime.GC()
			goruntime.KeepAlive(used)
		}
		if n := len(shared.shared); n > 3 {
			t.Errorf("%d transports are kept, want at most 3", n)
		}
	})
}

func TestTransport(t *testing.T) {
	const beat = 30 * time.Second // between two heartbeats

	// lost runs in virtual time. It sends a heartbeat over a version of HTTP, and drops all
	// packets of that connection from then on. It returns how many heartbeats fail until one
	// arrives, and after what time.
	lost := func(t *testing.T, version int) (count int, took time.Duration) {
		t.Helper()
		l := &lossyLink{pipeListener: pipeListener{accepted: make(chan net.Conn), closed: make(chan struct{})}}
		l.dead.Store(&atomic.Bool{})
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.ProtoMajor != version {
				t.Errorf("the heartbeat came over %s, want HTTP/%d", r.Proto, version)
			}
		}))
		_ = server.Listener.Close()
		server.Listener = l
		server.EnableHTTP2 = version == 2
		server.StartTLS()
		defer server.Close()
		transport, err := Transport("")
		noError(t, err)
		transport.DialContext = l.dial
		// The certificate is for example.com.
		transport.TLSClientConfig = server.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
		defer transport.CloseIdleConnections()
		jobs := NewJobs(JobsOptions{
			Service: "https://example.com", JobID: "j", Token: secret.New("t"), Transport: transport,
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
		l.blackhole()
		begin := time.Now()
		for count < 20 && send() != nil {
			count++
		}
		return count, time.Since(begin)
	}
	inBubble(t, "a dead HTTP/2 connection costs two heartbeats at most", func(t *testing.T) {
		count, took := lost(t, 2)
		if count > 2 {
			t.Errorf("%d heartbeats in a row were lost, want at most 2", count)
		}
		if took >= beat {
			t.Errorf("the next heartbeat arrived after %s, want less than %s: pings close the connection", took, beat)
		}
	})
	inBubble(t, "a dead HTTP/1 connection costs two heartbeats at most", func(t *testing.T) {
		if count, _ := lost(t, 1); count > 2 {
			t.Errorf("%d heartbeats in a row were lost, want at most 2", count)
		}
	})
}
