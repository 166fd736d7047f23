package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cmwa-project/cmwa/schema/secret"
)

// TestFollowRetries checks that a failed call does not end a command that follows a deployment, also
// when the call is the last one, and that no line is printed twice.
func TestFollowRetries(t *testing.T) {
	calls := map[string]int{}
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		what, answer := "status", `{"id":"d","version":1,"status":"succeeded"}`
		if strings.HasSuffix(r.URL.Path, "/logs") {
			what, answer = "logs", `{"lines":[{"header":"a step"},{"line":"one line"}]}`
		}
		if calls[what]++; calls[what] == 1 {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		fmt.Fprint(w, answer)
	}))
	defer service.Close()
	c := &client{url: service.URL, token: secret.New("pul-secret"), http: service.Client()}
	var out bytes.Buffer
	if err := c.follow(t.Context(), "/api/stacks/o/p/s/deployments/d", stdio{nil, &out, &out}); err != nil {
		t.Error(err)
	}
	if want := "== a step\none line\n== the deployment succeeded\n"; out.String() != want {
		t.Errorf("printed %q, want %q", out.String(), want)
	}
	if calls["logs"] != 2 || calls["status"] != 2 {
		t.Errorf("calls: %v, want 2 of the log and 2 of the status", calls)
	}
}

// roundTrip is an HTTP transport without a network.
type roundTrip func(*http.Request) *http.Response

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r), nil }

// TestFollowNotice checks that a command that follows queued work prints once what the work waits for,
// as soon as nothing has started for agentNotice.
func TestFollowNotice(t *testing.T) {
	for name, c := range map[string]struct {
		follow func(*client, context.Context, string, stdio) error
		want   string
	}{
		"deployment": {(*client).follow, "waiting for an agent of the pool mine, which polls once per "},
		"activity":   {(*client).followActivity, "waiting for an agent of the pool that leases insights_scan"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				service := roundTrip(func(r *http.Request) *http.Response {
					text := `{"status":"Ready","kind":"insights_scan","agentPool":{"name":"mine"}}`
					if strings.HasSuffix(r.URL.Path, "/logs") {
						text = `{"lines":[],"nextToken":"0"}`
					}
					body := io.NopCloser(strings.NewReader(text))
					return &http.Response{StatusCode: http.StatusOK, Body: body, Request: r}
				})
				followed := &client{
					url: "http://service", token: secret.New("pul-secret"), http: &http.Client{Transport: service},
				}
				var out lockedBuffer
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- c.follow(followed, ctx, "/work", stdio{nil, &out, &out}) }()
				for _, step := range []struct {
					after time.Duration
					count int
				}{{agentNotice - time.Second, 0}, {2 * time.Second, 1}, {time.Hour, 1}} {
					time.Sleep(step.after)
					synctest.Wait()
					if n := strings.Count(out.String(), c.want); n != step.count {
						t.Errorf("%q is printed %d times, want %d:\n%s", c.want, n, step.count, out.String())
					}
				}
				cancel()
				<-ended
			})
		})
	}
}

// lockedBuffer is a buffer that goroutines share.
type lockedBuffer struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.String()
}

// TestFollowActivityOnce checks that no line is printed twice while an activity whose job has
// ended is not completed yet, and that the log of the next lease is printed from its start.
func TestFollowActivityOnce(t *testing.T) {
	reads := 0
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		second := reads >= 4
		if strings.HasSuffix(r.URL.Path, "/logs") {
			line := "first"
			if second {
				line = "second"
			}
			fmt.Fprintf(w, `{"lines":[{"line":%q}]}`, line)
			return
		}
		reads++
		status, leases := "Executing", `{"agent":"a"}`
		if second {
			leases += `,{"agent":"b"}`
		}
		if reads > 6 {
			status = "Completed"
		}
		fmt.Fprintf(w, `{"status":%q,"kind":"insights_scan","leases":[%s]}`, status, leases)
	}))
	defer service.Close()
	c := &client{url: service.URL, token: secret.New("pul-secret"), http: service.Client()}
	var out bytes.Buffer
	if err := c.followActivity(t.Context(), "/activity", stdio{nil, &out, &out}); err != nil {
		t.Error(err)
	}
	const want = "== lease 1, of agent a\nfirst\n== lease 2, of agent b\nsecond\n== Completed\n"
	if out.String() != want {
		t.Errorf("printed %q, want %q", out.String(), want)
	}
}
