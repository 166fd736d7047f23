package runner_test

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/runner"
)

// gate is a filter that passes calls on to the service until it has a status. It then answers all
// calls with this status, and counts them.
type gate struct{ status, refused atomic.Int64 }

func (g *gate) filter(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status := int(g.status.Load())
		if status == 0 {
			next.ServeHTTP(w, r)
			return
		}
		g.refused.Add(1)
		w.WriteHeader(status)
		fmt.Fprintf(w, `{"code":%d,"message":%q}`, status, http.StatusText(status))
	})
}

// every calls fault instead of the service for every n-th call, including the first.
func every(n int64, fault http.HandlerFunc) func(http.Handler) http.Handler {
	var calls atomic.Int64
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if (calls.Add(1)-1)%n == 0 {
				fault(w, r)
				return
			}
			next.ServeHTTP(w, r)
		})
	}
}

// reset resets the connection instead of sending a response.
func reset(w http.ResponseWriter, _ *http.Request) {
	conn, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		panic(err)
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}

// lost passes all calls on to the service, and resets the connection in place of the first
// and every third response after it.
func lost(next http.Handler) http.Handler {
	return every(3, func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(httptest.NewRecorder(), r)
		reset(w, r)
	})(next)
}

func TestRunServiceFaults(t *testing.T) {
	t.Parallel()
	t.Run("occasional errors of the service do not fail the job", func(t *testing.T) {
		for name, filter := range map[string]func(http.Handler) http.Handler{
			"500": every(3, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }),
			"429": every(3, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Retry-After", "0")
				w.WriteHeader(429)
			}),
			"resets":        every(3, reset),
			"lost response": lost,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				definition := steps("for i in 1 2 3 4 5 6 7 8; do echo line $i; sleep 0.3; done", "exit 5")
				w := newFixture(t, definition, filter)
				w.strict = true
				w.run(runtime.CodeFailed)
				w.wantSteps(runtime.Succeeded, runtime.Succeeded, runtime.Failed)
				want := "\nline 1\nline 2\nline 3\nline 4\nline 5\nline 6\nline 7\nline 8\n"
				if got := w.record().Text(1); !strings.HasSuffix(got, want) {
					t.Errorf("the log is\n%s\nwant each of the 8 lines once at its end", got)
				}
			})
		}
	})

	runner.InBubble(t, "rejected logs do not fail the job", func(t *testing.T) {
		code, record, _ := virtualJob{
			scripts: []string{"echo one", "echo two"},
			respond: func(r *http.Request) (int, error) {
				if strings.HasSuffix(r.URL.Path, "/logs") {
					return http.StatusForbidden, nil
				}
				return 0, nil
			},
		}.run(t.Context(), t)
		if code != runtime.CodeSucceeded || record.Steps[2].Status != runtime.Succeeded {
			t.Errorf("code %d, steps %v, want success", code, record.Statuses())
		}
	})

	runner.InBubble(t, "heartbeat without a response does not delay the job", func(t *testing.T) {
		heartbeats, sent := 0, make(chan struct{})
		code, record, took := virtualJob{
			scripts: []string{"echo one", "echo two"},
			respond: func(r *http.Request) (int, error) {
				switch {
				case strings.HasSuffix(r.URL.Path, "/heartbeat"):
					if heartbeats++; heartbeats == 1 {
						close(sent)
					}
					<-r.Context().Done()
					return 0, r.Context().Err()
				case isStatus(r, "1"):
					<-sent
				}
				return 0, nil
			},
		}.run(t.Context(), t)
		if code != runtime.CodeSucceeded || record.Steps[2].Status != runtime.Succeeded || heartbeats != 1 {
			t.Errorf("code %d, %d heartbeats, steps %v, want success and one heartbeat", code, heartbeats,
				record.Statuses())
		}
		if took > time.Second {
			t.Errorf("a heartbeat without a response delayed the job: it took %s, want at most 1s", took)
		}
	})
}
