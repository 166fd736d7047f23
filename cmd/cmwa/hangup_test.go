package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// TestHangUp sends HUP to an agent whose service has failed. The circuit breaker waits for
// an hour, so only the signal can cause a poll within the limit of the tests.
func TestHangUp(t *testing.T) {
	t.Parallel()

	// failing starts an agent whose circuit breaker is open, after one poll whose response
	// had status 503 and these headers.
	failing := func(t *testing.T, header ...string) (agent *program, polls *atomic.Int32, up *atomic.Bool) {
		polls, up = new(atomic.Int32), new(atomic.Bool)
		service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !isPoll(r) {
				http.NotFound(w, r)
				return
			}
			polls.Add(1)
			if up.Load() {
				w.WriteHeader(http.StatusNoContent)
				return
			}
			for i := 0; i+1 < len(header); i += 2 {
				w.Header().Set(header[i], header[i+1])
			}
			http.Error(w, "down", http.StatusServiceUnavailable)
		}))
		t.Cleanup(service.Close)
		w := newWorld(t, "process")
		w.url = service.URL
		agent = w.follow(nil, "token: "+w.pool, "circuit_breaker_failures: 1", "circuit_breaker_timeout: 1h",
			"request_retry_count: 0")
		agent.waitFor("circuit breaker opened")
		return agent, polls, up
	}

	// opened blocks until the log has reported the open breaker that many times.
	opened := func(agent *program, times int) {
		agent.w.t.Helper()
		agent.w.eventually("the breaker has opened the expected number of times", func() bool {
			return strings.Count(agent.output(), "circuit breaker opened") == times
		})
	}

	t.Run("HUP ends the wait of an open circuit breaker with one poll", func(t *testing.T) {
		t.Parallel()
		agent, polls, up := failing(t)
		for trial := range int32(2) {
			agent.signal(syscall.SIGHUP)
			opened(agent, int(trial)+2)
			if made := polls.Load(); made != trial+2 {
				t.Fatalf("%d polls after %d signals, want %d", made, trial+1, trial+2)
			}
		}
		up.Store(true)
		agent.signal(syscall.SIGHUP)
		agent.waitFor("polling resumed")
		agent.w.eventually("polling goes on", func() bool { return polls.Load() > 6 })
	})

	t.Run("HUP does not shorten a Retry-After of the service", func(t *testing.T) {
		t.Parallel()
		agent, polls, up := failing(t, "Retry-After", "1800")
		up.Store(true)
		for range 3 {
			agent.signal(syscall.SIGHUP)
			agent.ends(100 * time.Millisecond) // signals that arrive together count as one
		}
		agent.waitFor("configuration checked: no change")
		agent.ends(time.Second) // time for an unwanted poll
		if made := polls.Load(); made != 1 {
			t.Errorf("%d polls, want only the first one", made)
		}
	})

	t.Run("HUP is logged when the configuration has not changed", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, "process")
		agent := w.follow(nil, "token: "+w.pool)
		agent.signal(syscall.SIGHUP)
		agent.waitFor(`configuration checked: no change component=config generation=1`)
		w.save("token: "+w.pool, "polling_interval: soon")
		agent.waitFor("configuration rejected")
		agent.signal(syscall.SIGHUP)
		agent.waitFor("configuration checked: file is still rejected, no change")
	})
}
