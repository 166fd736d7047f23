package cloud

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// counter records the calls to a service.
type counter struct {
	runtime.NoMetrics

	mu    sync.Mutex
	calls []runtime.ServiceCall
}

// ServiceCall implements [runtime.Metrics].
func (c *counter) ServiceCall(call runtime.ServiceCall) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = append(c.calls, call)
}

// want checks the recorded routes and codes, and that each call has a duration.
func (c *counter) want(t *testing.T, want ...string) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	var got []string
	for _, call := range c.calls {
		got = append(got, fmt.Sprintf("%d %s", call.Code, call.Route))
		if !slices.Contains(Routes(), call.Route) {
			t.Errorf("Routes does not contain %s", call.Route)
		}
		if call.Took <= 0 || call.Took > time.Minute {
			t.Errorf("%s took %s", call.Route, call.Took)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("recorded\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestServiceCall(t *testing.T) {
	// recorded makes a client whose calls a counter records.
	recorded := func(t *testing.T, handler http.HandlerFunc) (*counter, *Client) {
		c := &counter{}
		return c, newScene(t, func(o *Options) { o.Metrics = c }, handler).client
	}
	job := &runtime.Job{ID: "job-1", Kind: runtime.Deployment, WorkflowID: "deployment-1", Token: secret.New("t")}
	t.Run("a poll is recorded", func(t *testing.T) {
		c, client := recorded(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
		if _, err := client.Claim(t.Context()); err != nil {
			t.Fatal(err)
		}
		c.want(t, "204 GET /api/deployments/poll")
	})
	t.Run("calls about leases are recorded", func(t *testing.T) {
		c := &counter{}
		client := newScene(t, func(o *Options) {
			leaseAll(runtime.LeasedAuto)(o)
			o.Metrics = c
		}, func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, "/begin") || strings.HasSuffix(r.URL.Path, "/renew") {
				fmt.Fprint(w, `{"cmwaLeaseSeconds":30}`)
				return
			}
			leaseService(capable, leaseText)(w, r)
		}).client
		claim, err := client.Acquire(t.Context(), leasedKinds)
		if err != nil || claim.Job == nil {
			t.Fatal(claim, err)
		}
		for _, begin := range []bool{true, false} {
			if _, err := client.Renew(t.Context(), claim.Job, begin); err != nil {
				t.Fatal(err)
			}
		}
		if err := client.Complete(t.Context(), claim.Job, runtime.LeaseSucceeded, ""); err != nil {
			t.Fatal(err)
		}
		const lease = "200 POST /api/background-activities/worker/lease/"
		c.want(t, "200 GET /api/capabilities", lease+"acquire", lease+"{lease}/begin", lease+"{lease}/renew",
			lease+"{lease}/complete")
	})
	t.Run("a call without a response has the code 0", func(t *testing.T) {
		c := &counter{}
		s := newScene(t, func(o *Options) {
			o.Identity.Service, o.Metrics = "http://127.0.0.1:1", c
		}, func(http.ResponseWriter, *http.Request) {})
		if _, err := s.client.Claim(t.Context()); err == nil {
			t.Fatal("a closed port answered")
		}
		c.want(t, "0 GET /api/deployments/poll")
	})
	t.Run("each attempt of a report is recorded", func(t *testing.T) {
		attempts := 0
		c, client := recorded(t, func(w http.ResponseWriter, _ *http.Request) {
			if attempts++; attempts == 1 {
				w.WriteHeader(http.StatusBadGateway)
			}
		})
		if err := client.Report(t.Context(), job, runtime.Report{Step: 3, Status: runtime.Failed}); err != nil {
			t.Fatal(err)
		}
		c.want(t, "502 PATCH /api/workflow/jobs/{job}/{step}/status",
			"200 PATCH /api/workflow/jobs/{job}/{step}/status")
	})
	t.Run("no route contains an id", func(t *testing.T) {
		c, client := recorded(t, func(w http.ResponseWriter, r *http.Request) {
			switch {
			case strings.HasSuffix(r.URL.Path, "/status") && r.Method == http.MethodGet:
				w.WriteHeader(http.StatusNotFound)
			case r.Method == http.MethodGet:
				fmt.Fprint(w, `{"steps":[{"name":"a"}]}`)
			}
		})
		if _, err := client.Definition(t.Context(), job); err != nil {
			t.Fatal(err)
		}
		report := runtime.Report{Status: runtime.Running, Lines: []runtime.Line{{Text: "a\n"}}}
		if err := client.Report(t.Context(), job, report); err != nil {
			t.Fatal(err)
		}
		if _, err := client.JobStatus(t.Context(), job); err != nil {
			t.Fatal(err)
		}
		c.want(t,
			"200 GET /api/workflow/jobs/{job}",
			"200 PATCH /api/workflow/jobs/{job}/{step}/status",
			"200 POST /api/workflow/jobs/{job}/heartbeat",
			"200 POST /api/workflow/jobs/{job}/{step}/logs",
			"404 GET /api/deployments/{id}/status",
			"200 POST /api/agent-workflows/{subject}/check")
	})
	t.Run("an exchange of an OIDC token is recorded", func(t *testing.T) {
		c := &counter{}
		s := newScene(t, func(o *Options) { withOIDC(t)(o); o.Metrics = c },
			issuer(t, func(string) bool { return true }))
		if _, err := s.client.Claim(t.Context()); err != nil {
			t.Fatal(err)
		}
		c.want(t, "200 POST /api/oauth/token", "204 GET /api/deployments/poll")
	})
}

func TestServiceHealth(t *testing.T) {
	t.Run("a static token has no expiry", func(t *testing.T) {
		s := newScene(t, nil, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
		if _, err := s.client.Claim(t.Context()); err != nil {
			t.Fatal(err)
		}
		if health := s.client.Health(); health != (runtime.ServiceHealth{}) {
			t.Errorf("got %+v, want the zero value", health)
		}
	})
	t.Run("an exchanged token has an expiry", func(t *testing.T) {
		s := newScene(t, withOIDC(t), issuer(t, func(string) bool { return true }))
		if health := s.client.Health(); !health.TokenExpiry.IsZero() {
			t.Errorf("before the exchange the token expires at %s", health.TokenExpiry)
		}
		if _, err := s.client.Claim(t.Context()); err != nil {
			t.Fatal(err)
		}
		if left := time.Until(s.client.Health().TokenExpiry); left <= 0 || left > 366*24*time.Hour {
			t.Errorf("the token expires in %s", left)
		}
	})
	t.Run("failed polls open the breaker, and a poll that succeeds closes it", func(t *testing.T) {
		status := http.StatusInternalServerError
		s := newScene(t, func(o *Options) {
			o.Tuning.RetryCount, o.Tuning.BreakerFailures, o.Tuning.BreakerTimeout = 0, 2, time.Nanosecond
		}, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
		for i, want := range []bool{false, true, true} {
			if _, err := s.client.Claim(t.Context()); err == nil {
				t.Fatal("a failed poll has no error")
			}
			if got := s.client.Health().BreakerOpen; got != want {
				t.Errorf("after %d failures the breaker is open: %v, want %v", i+1, got, want)
			}
		}
		status = http.StatusNoContent
		if _, err := s.client.Claim(t.Context()); err != nil || s.client.Health().BreakerOpen {
			t.Errorf("the poll after the failures returns %v, want nil and a closed breaker", err)
		}
	})
}
