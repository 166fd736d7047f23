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
	// recorded makes a client whose calls a counter records. The edits are applied to its options.
	recorded := func(t *testing.T, handler http.HandlerFunc, edits ...func(*Options)) (*counter, *scene) {
		c := &counter{}
		return c, newScene(t, func(o *Options) {
			o.Metrics = c
			for _, edit := range edits {
				edit(o)
			}
		}, handler)
	}
	job := &runtime.Job{ID: "job-1", Kind: runtime.Deployment, WorkflowID: "deployment-1", Token: secret.New("t")}
	t.Run("calls about leases are recorded", func(t *testing.T) {
		c, s := recorded(t, func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, "/begin") || strings.HasSuffix(r.URL.Path, "/renew") {
				fmt.Fprint(w, `{"cmwaLeaseSeconds":30}`)
				return
			}
			leaseService(capable, leaseText)(w, r)
		}, leaseAll(runtime.LeasedAuto))
		claim, err := s.client.Acquire(t.Context(), leasedKinds)
		if err != nil || claim.Job == nil {
			t.Fatal(claim, err)
		}
		for _, begin := range []bool{true, false} {
			if _, err := s.client.Renew(t.Context(), claim.Job, begin); err != nil {
				t.Fatal(err)
			}
		}
		noError(t, s.client.Complete(t.Context(), claim.Job, runtime.LeaseSucceeded, ""))
		const lease = "200 POST /api/background-activities/worker/lease/"
		c.want(t, "200 GET /api/capabilities", lease+"acquire", lease+"{lease}/begin", lease+"{lease}/renew",
			lease+"{lease}/complete")
	})
	t.Run("a call without a response has the code 0", func(t *testing.T) {
		c, s := recorded(t, respond(http.StatusOK, ""), func(o *Options) { o.Identity.Service = "http://127.0.0.1:1" })
		if _, err := s.client.Claim(t.Context()); err == nil {
			t.Fatal("a closed port answered")
		}
		c.want(t, "0 GET /api/deployments/poll")
	})
	t.Run("each attempt of a report is recorded", func(t *testing.T) {
		c, s := recorded(t, inTurn(respond(http.StatusBadGateway, ""), respond(http.StatusOK, "")))
		if err := s.client.Report(t.Context(), job, runtime.Report{Step: 3, Status: runtime.Failed}); err != nil {
			t.Fatal(err)
		}
		c.want(t, "502 PATCH /api/workflow/jobs/{job}/{step}/status",
			"200 PATCH /api/workflow/jobs/{job}/{step}/status")
	})
	t.Run("no route contains an id", func(t *testing.T) {
		c, s := recorded(t, func(w http.ResponseWriter, r *http.Request) {
			switch {
			case strings.HasSuffix(r.URL.Path, "/status") && r.Method == http.MethodGet:
				w.WriteHeader(http.StatusNotFound)
			case r.Method == http.MethodGet:
				fmt.Fprint(w, `{"steps":[{"name":"a"}]}`)
			}
		})
		_, err := s.client.Definition(t.Context(), job)
		noError(t, err)
		report := runtime.Report{Status: runtime.Running, Lines: []runtime.Line{{Text: "a\n"}}}
		noError(t, s.client.Report(t.Context(), job, report))
		_, err = s.client.JobStatus(t.Context(), job)
		noError(t, err)
		c.want(t,
			"200 GET /api/workflow/jobs/{job}",
			"200 PATCH /api/workflow/jobs/{job}/{step}/status",
			"200 POST /api/workflow/jobs/{job}/heartbeat",
			"200 POST /api/workflow/jobs/{job}/{step}/logs",
			"404 GET /api/deployments/{id}/status",
			"200 POST /api/agent-workflows/{subject}/check")
	})
	t.Run("an exchange of an OIDC token is recorded", func(t *testing.T) {
		c, s := recorded(t, issuer(t, &sync.Map{}), withOIDC(t))
		s.claim(t)
		c.want(t, "200 POST /api/oauth/token", "204 GET /api/deployments/poll")
	})
}

func TestServiceHealth(t *testing.T) {
	t.Run("a static token has no expiry", func(t *testing.T) {
		s := newScene(t, nil, respond(http.StatusNoContent, ""))
		s.claim(t)
		if health := s.client.Health(); health != (runtime.ServiceHealth{}) {
			t.Errorf("got %+v, want the zero value", health)
		}
	})
	t.Run("an exchanged token has an expiry", func(t *testing.T) {
		s := newScene(t, withOIDC(t), issuer(t, &sync.Map{}))
		if health := s.client.Health(); !health.TokenExpiry.IsZero() {
			t.Errorf("before the exchange the token expires at %s", health.TokenExpiry)
		}
		s.claim(t)
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
