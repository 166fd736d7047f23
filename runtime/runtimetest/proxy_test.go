package runtimetest_test

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/runtime/runtimetest"
)

// proxied starts a service and a proxy in front of it. The service answers each poll with the
// same job, and each other call with its method and path in JSON. Served returns the calls
// that reached the service.
func proxied(t *testing.T, o runtimetest.ProxyOptions) (p *runtimetest.Proxy, client *http.Client,
	served func() []string) {
	t.Helper()
	var mu sync.Mutex
	var calls []string
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		calls = append(calls, r.Method+" "+r.URL.Path)
		mu.Unlock()
		if strings.HasSuffix(r.URL.Path, "/poll") {
			_, _ = io.WriteString(w, `{"jobID":"job-1","deploymentID":"deployment-1","jobToken":"t"}`)
			return
		}
		fmt.Fprintf(w, `{"call":%q}`, r.Method+" "+r.URL.Path)
	}))
	t.Cleanup(service.Close)
	o.Target = service.URL
	p = runtimetest.NewProxy(t, o)
	transport := &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{}}
	if o.TLS {
		transport.TLSClientConfig.RootCAs = x509.NewCertPool()
		transport.TLSClientConfig.RootCAs.AppendCertsFromPEM([]byte(p.Authority()))
	}
	t.Cleanup(transport.CloseIdleConnections)
	return p, &http.Client{Transport: transport, Timeout: 500 * time.Millisecond}, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return append([]string(nil), calls...)
	}
}

// fetch makes a GET and returns "status type: body", or the error.
func fetch(client *http.Client, url string) string {
	response, err := client.Get(url)
	if err != nil {
		return err.Error()
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%d %s: %s", response.StatusCode, response.Header.Get("Content-Type"), text)
}

func TestProxy(t *testing.T) {
	const good = `200 text/plain; charset=utf-8: {"call":"GET /api/x"}`
	everything := func(*http.Request) bool { return true }
	type fault = runtimetest.Fault
	for _, secure := range []bool{false, true} {
		for _, c := range []struct {
			fault  fault
			want   string // part of what the client gets
			served int    // calls that reach the service
		}{
			{fault{Kind: runtimetest.Latency, Delay: time.Millisecond}, good, 1},
			{fault{Kind: runtimetest.Reset}, "Get ", 0},
			{fault{Kind: runtimetest.Reset, After: true}, "Get ", 1},
			{fault{Kind: runtimetest.BlackHole}, "Client.Timeout", 0},
			{fault{Kind: runtimetest.BlackHole, After: true}, "Client.Timeout", 1},
			{fault{Kind: runtimetest.Stray, Status: 404, Body: "404 page not found\n"},
				"404 text/plain; charset=utf-8: 404 page", 0},
			{fault{Kind: runtimetest.Stray, Status: 502, After: true}, "502 ", 1},
			{fault{Kind: runtimetest.HTML}, "200 text/html; charset=utf-8: <!doctype html>", 0},
			{fault{Kind: runtimetest.HTML, After: true}, "200 text/html; charset=utf-8: <!doctype html>", 1},
			{fault{Kind: runtimetest.SlowBody, Delay: 4 * time.Millisecond}, good, 1},
			{fault{Kind: runtimetest.Truncated}, `200 text/plain; charset=utf-8: {"call":"G`, 1},
			{fault{Kind: runtimetest.Cut}, "", 1},
		} {
			t.Run(fmt.Sprintf("%s with TLS %t", c.fault, secure), func(t *testing.T) {
				p, client, served := proxied(t, runtimetest.ProxyOptions{TLS: secure})
				p.Inject(c.fault, 1, everything)
				got := fetch(client, p.URL()+"/api/x")
				if !strings.Contains(got, c.want) || c.want != good && got == good {
					t.Errorf("the client gets %q, want %q", got, c.want)
				}
				if calls := served(); len(calls) != c.served {
					t.Errorf("the service got %q, want %d calls", calls, c.served)
				}
				client.CloseIdleConnections()
				another := &http.Client{Transport: client.Transport.(*http.Transport).Clone()}
				defer another.CloseIdleConnections()
				if got := fetch(another, p.URL()+"/api/x"); got != good {
					t.Errorf("a new connection after the fault gets %q", got)
				}
				if injected := p.Injected(); injected[c.fault.String()] != 1 {
					t.Errorf("the proxy counts the faults %v", injected)
				}
			})
			t.Run(fmt.Sprintf("poll that reaches the service gets its response despite %s with TLS %t", c.fault, secure),
				func(t *testing.T) {
					p, client, served := proxied(t, runtimetest.ProxyOptions{TLS: secure})
					p.Inject(c.fault, 1, everything)
					first := fetch(client, p.URL()+"/api/deployments/poll")
					if got := strings.Contains(first, "job-1"); got != (len(served()) == 1) {
						t.Errorf("the client gets %q, and the service got the calls %q; want the job only if "+
							"there is a call", first, served())
					}
					if claims := p.Claims()["deployment-1"]; claims != len(served()) {
						t.Errorf("the proxy counts %d claims, want %d", claims, len(served()))
					}
				})
		}
		t.Run(fmt.Sprintf("connection of a poll is never broken with TLS %t", secure), func(t *testing.T) {
			p, client, _ := proxied(t, runtimetest.ProxyOptions{TLS: secure})
			for range 3 {
				if got := fetch(client, p.URL()+"/api/deployments/poll"); !strings.Contains(got, "job-1") {
					t.Fatalf("the poll gets %q", got)
				}
				if count := p.Blackhole() + p.Reset(); count != 0 {
					t.Errorf("%d connections of polls were broken", count)
				}
			}
		})
	}
	t.Run("the same seed gives a job the same faults", func(t *testing.T) {
		run := func() (got []string) {
			p, client, _ := proxied(t, runtimetest.ProxyOptions{Share: 0.2, Seed: 7})
			_ = fetch(client, p.URL()+"/api/deployments/poll")
			for range 50 {
				_ = fetch(&http.Client{Timeout: 200 * time.Millisecond}, p.URL()+"/api/workflow/jobs/job-1")
				got = append(got, fmt.Sprint(p.Injected()))
			}
			return got
		}
		first, second := run(), run()
		if strings.Join(first, "\n") != strings.Join(second, "\n") || len(first) == 0 ||
			!strings.Contains(first[49], ":") {
			t.Errorf("the faults of two runs with the same seed are %v and %v", first[49], second[49])
		}
	})
	t.Run("the seed selects one black hole at a time", func(t *testing.T) {
		p, _, _ := proxied(t, runtimetest.ProxyOptions{Share: 1, Seed: 7})
		for range 300 {
			client := &http.Client{Timeout: 50 * time.Millisecond, Transport: &http.Transport{DisableKeepAlives: true}}
			_ = fetch(client, p.URL()+"/api/x")
		}
		count := 0
		for name, times := range p.Injected() {
			if strings.HasPrefix(name, "black hole") || name == "all connections swallowed" {
				count += times
			}
		}
		if count != 1 {
			t.Errorf("%d black holes in a few seconds, want one: %v", count, p.Injected())
		}
	})
	t.Run("rates count per program", func(t *testing.T) {
		p, client, _ := proxied(t, runtimetest.ProxyOptions{})
		call := func(agent, path string, count int) {
			for range count {
				request, err := http.NewRequest(http.MethodPost, p.URL()+path, nil)
				if err != nil {
					t.Fatal(err)
				}
				request.Header.Set("User-Agent", agent)
				response, err := client.Do(request)
				if err != nil {
					t.Fatal(err)
				}
				_ = response.Body.Close()
			}
		}
		call("cmwa/1 (pid=1)", "/api/workflow/jobs/a/0/logs", 3)
		call("workflow-runner/1 (pid=1)", "/api/workflow/jobs/a/0/logs", 5)
		call("workflow-runner/1 (pid=1)", "/api/workflow/jobs/b/heartbeat", 2)
		var got []string
		for _, rate := range p.Rates() {
			got = append(got, fmt.Sprint(rate.Program, " ", rate.Calls))
		}
		want := "workflow-runner of job a 5, cmwa/1 (pid=1) 3, workflow-runner of job b 2"
		if strings.Join(got, ", ") != want {
			t.Errorf("the calls are %v, want %s", got, want)
		}
	})
}
