package cloud

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/schema/secret"
)

const (
	capable   = `{"capabilities":[{"capability":"delta","version":7},{"capability":"cmwa-leases","version":1}]}`
	leaseText = `{"jobID":"j","runID":"l","typeSpecificID":"scan","jobToken":"` + canary + `","oidcToken":"",` +
		`"cmwaKind":"insights_scan","cmwaLeaseID":"l","cmwaLeaseToken":"lease-secret","cmwaLeaseSeconds":30}`

	acquireCall = "POST " + leasesPath + "/acquire token pul-pool"
	capableCall = "GET /api/capabilities "
)

var leasedKinds = []runtime.Kind{runtime.InsightsScan, runtime.PolicyEvaluation}

// leaseAll enables every kind, with this mode of leased_work.
func leaseAll(mode runtime.LeasedWork) func(*Options) {
	return func(o *Options) {
		o.Tuning.Kinds = []runtime.Kind{runtime.Deployment, runtime.InsightsScan, runtime.PolicyEvaluation}
		o.Tuning.LeasedWork, o.Tuning.MaxLeased = mode, 1
	}
}

// leaseService answers a POST with lease, and any other call with capabilities. An empty text
// is a 404.
func leaseService(capabilities, lease string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		text := capabilities
		if r.Method == http.MethodPost {
			text = lease
		}
		if text == "" {
			http.NotFound(w, r)
			return
		}
		fmt.Fprint(w, text)
	}
}

func TestAcquire(t *testing.T) {
	t.Run("a lease has the data of the response", func(t *testing.T) {
		var body string
		s := newScene(t, leaseAll(runtime.LeasedAuto), func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPost {
				text, _ := io.ReadAll(r.Body)
				body = string(text)
			}
			leaseService(capable, leaseText)(w, r)
		})
		claim, err := s.client.Acquire(t.Context(), leasedKinds)
		if err != nil || claim.Job == nil {
			t.Fatal(claim, err)
		}
		job := claim.Job
		if job.ID != "j" || job.Kind != runtime.InsightsScan || job.WorkflowID != "scan" ||
			job.Token.Reveal() != canary || job.Lease.ID != "l" || job.Lease.Token.Reveal() != "lease-secret" ||
			time.Until(job.Lease.Until) > 30*time.Second || time.Until(job.Lease.Until) < 25*time.Second {
			t.Errorf("leased %+v", job)
		}
		if body != `{"cmwaKinds":["insights_scan","policy_evaluation"]}` || left(claim.Next) > 0 {
			t.Errorf("the request is %s, and the next call is delayed by %s", body, left(claim.Next))
		}
		s.wantCalls(t, capableCall, acquireCall)
		if strings.Contains(s.log.String()+fmt.Sprintf("%+v", job), canary) {
			t.Errorf("a token is shown: %s %+v", s.log, job)
		}
	})

	t.Run("only kinds that the pool can start are requested", func(t *testing.T) {
		var body string
		s := newScene(t, leaseAll(runtime.LeasedAlways), func(w http.ResponseWriter, r *http.Request) {
			text, _ := io.ReadAll(r.Body)
			body = string(text)
			w.WriteHeader(http.StatusNoContent)
		})
		_, err := s.client.Acquire(t.Context(), []runtime.Kind{runtime.PolicyEvaluation})
		if err != nil || body != `{"cmwaKinds":["policy_evaluation"]}` {
			t.Errorf("%v, the request is %s", err, body)
		}
	})

	t.Run("a service that does not report the capability gets no call about leases", func(t *testing.T) {
		for name, capabilities := range map[string]string{
			"with other capabilities": `{"capabilities":[{"capability":"x","version":1}]}`,
			"with another version":    strings.Replace(capable, `"version":1`, `"version":2`, 1),
			"with nulls":              `{"capabilities":[null,{"capability":null}]}`, "with an array": `[]`,
		} {
			t.Run(name, func(t *testing.T) {
				s := newScene(t, leaseAll(runtime.LeasedAuto), leaseService(capabilities, leaseText))
				for range 3 {
					claim, err := s.client.Acquire(t.Context(), leasedKinds)
					if err != nil || claim.Job != nil {
						t.Errorf("leased %v, %v", claim.Job, err)
					}
					if wait := left(s.client.NextLease()); wait < 59*time.Minute {
						t.Errorf("the next call is delayed by %s, want an hour", wait)
					}
				}
				s.mu.Lock()
				defer s.mu.Unlock()
				if slices.Contains(s.calls, acquireCall) {
					t.Errorf("the service received %v", s.calls)
				}
			})
		}
	})

	inBubble(t, "a pool without deployments is warned of such a service once", func(t *testing.T) {
		capabilities := "{}"
		s := newInMemoryScene(t, func(w http.ResponseWriter, r *http.Request) {
			leaseService(capabilities, leaseText)(w, r)
		}, leaseAll(runtime.LeasedAuto), func(o *Options) { o.Tuning.Kinds = leasedKinds })
		for range 3 {
			if claim, err := s.client.Acquire(t.Context(), leasedKinds); err != nil || claim.Job != nil {
				t.Errorf("leased %v, %v", claim.Job, err)
			}
			time.Sleep(left(s.client.NextLease()))
		}
		log := s.log.String()
		if strings.Count(log, "level=WARN") != 1 || !strings.Contains(log, "the pool gets no work") ||
			!s.client.Health().LeasesNone {
			t.Errorf("Health is %+v, the log is\n%s", s.client.Health(), log)
		}
		capabilities = capable // the service was upgraded
		claim, err := s.client.Acquire(t.Context(), leasedKinds)
		if err != nil || claim.Job == nil || s.client.Health().LeasesNone {
			t.Errorf("leased %v, %v, Health is %+v", claim.Job, err, s.client.Health())
		}
	})

	t.Run("no call if no leased kind is enabled, or leased_work is never", func(t *testing.T) {
		for _, edit := range []func(*Options){nil, leaseAll(runtime.LeasedNever)} {
			s := newScene(t, edit, leaseService(capable, leaseText))
			if claim, err := s.client.Acquire(t.Context(), leasedKinds); err != nil || claim.Job != nil {
				t.Errorf("leased %v, %v", claim.Job, err)
			}
			s.wantCalls(t)
		}
	})

	t.Run("with leased_work always, any service is polled and an unusable lease is ignored", func(t *testing.T) {
		for name, lease := range map[string]string{
			"without an extension": `{"jobID":"j","jobToken":"` + canary + `","leaseToken":"` + canary + `"}`,
			"of another kind":      strings.Replace(leaseText, "insights_scan", "deployment", 1),
			"without a time":       strings.Replace(leaseText, ":30}", ":0}", 1),
			"not an object":        `["` + canary + `"]`,
		} {
			t.Run(name, func(t *testing.T) {
				s := newScene(t, leaseAll(runtime.LeasedAlways), leaseService("", lease))
				if claim, err := s.client.Acquire(t.Context(), leasedKinds); err != nil || claim.Job != nil {
					t.Errorf("leased %v, %v", claim.Job, err)
				}
				s.wantCalls(t, acquireCall)
				log := s.log.String()
				if strings.Contains(log, canary) || !strings.Contains(log, "fields=") ||
					left(s.client.NextLease()) < 59*time.Minute {
					t.Errorf("the next call is delayed by %s; the log: %s", left(s.client.NextLease()), log)
				}
			})
		}
	})

	t.Run("a page of a proxy is no response about capabilities", func(t *testing.T) {
		s := newScene(t, leaseAll(runtime.LeasedAuto), leaseService("<html>", leaseText))
		if claim, err := s.client.Acquire(t.Context(), leasedKinds); err == nil || claim.Job != nil ||
			left(s.client.NextLease()) > time.Minute {
			t.Errorf("leased %v, %v, next call delayed by %s", claim.Job, err, left(s.client.NextLease()))
		}
		s.wantCalls(t, capableCall)
	})

	t.Run("a failed poll for leased work delays only polls for leased work", func(t *testing.T) {
		s := newScene(t, leaseAll(runtime.LeasedAlways), func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "300")
			http.Error(w, "busy", http.StatusServiceUnavailable)
		})
		_, err := s.client.Acquire(t.Context(), leasedKinds)
		if err == nil || left(s.client.NextLease()) < 4*time.Minute {
			t.Errorf("error %v, next call delayed by %s", err, left(s.client.NextLease()))
		}
		if left(s.client.Tune(s.client.settings())) > 0 {
			t.Error("a failed poll for leased work delays the poll for deployments")
		}
	})
}

// leasedJob is a job with a lease.
func leasedJob() *runtime.Job {
	return &runtime.Job{ID: "j", Kind: runtime.InsightsScan, WorkflowID: "scan", Token: secret.New(canary),
		Lease: runtime.Lease{ID: "l", Token: secret.New("lease-secret"), Until: time.Now().Add(time.Minute)}}
}

func TestRenew(t *testing.T) {
	refuse := func(code int, final bool) http.HandlerFunc {
		if final {
			return respond(code, fmt.Sprintf(`{"code":%d,"message":"lost"}`, code))
		}
		return respond(code, "")
	}
	t.Run("the response contains the duration of the lease", func(t *testing.T) {
		s := newScene(t, leaseAll(runtime.LeasedAuto), respond(http.StatusOK, `{"cmwaLeaseSeconds":12.5}`))
		for _, begin := range []bool{true, false} {
			span, err := s.client.Renew(t.Context(), leasedJob(), begin)
			if err != nil || span != 12500*time.Millisecond {
				t.Errorf("renewed for %s, %v", span, err)
			}
		}
		s.wantCalls(t, "POST "+leasesPath+"/l/begin token lease-secret",
			"POST "+leasesPath+"/l/renew token lease-secret")
	})

	t.Run("one Renew loses the lease only if two requests get 409 or 410 with a JSON error", func(t *testing.T) {
		for _, c := range []struct {
			handler http.HandlerFunc
			lost    bool
		}{
			{refuse(409, true), true}, {refuse(410, true), true}, {refuse(409, false), false},
			{refuse(404, true), false}, {refuse(404, false), false}, {refuse(412, false), false},
			{refuse(401, false), false}, {refuse(500, true), false},
			{respond(200, "{}"), false}, {respond(200, `{"cmwaLeaseSeconds":-1}`), false},
			{respond(200, `{"cmwaLeaseSeconds":"x"}`), false}, {respond(200, "<html>"), false},
		} {
			s := newScene(t, leaseAll(runtime.LeasedAuto), c.handler)
			_, err := s.client.Renew(t.Context(), leasedJob(), false)
			if err == nil || errors.Is(err, runtime.ErrLeaseLost) != c.lost {
				t.Errorf("got %v, want lost: %v", err, c.lost)
			}
			checkError(t, err)
		}
	})

	t.Run("a 409 that the second request does not confirm does not lose the lease", func(t *testing.T) {
		renewed := respond(http.StatusOK, `{"cmwaLeaseSeconds":30}`)
		s := newScene(t, leaseAll(runtime.LeasedAuto), inTurn(refuse(409, true), renewed))
		_, err := s.client.Renew(t.Context(), leasedJob(), false)
		if errors.Is(err, runtime.ErrLeaseLost) || err == nil {
			t.Errorf("got %v, want a temporary error", err)
		}
	})
}

// TestAcquireRefusals checks services that answer 404 to the call for capabilities, to
// acquire, or once to each of them.
func TestAcquireRefusals(t *testing.T) {
	for name, capabilities := range map[string]string{"capabilities": "", "acquire": capable} {
		inBubble(t, name, func(t *testing.T) {
			s := newInMemoryScene(t, leaseService(capabilities, ""), leaseAll(runtime.LeasedAuto))

			// One refusal does not delay the next call for an hour; repeated refusals do.
			started := time.Now()
			for left(s.client.NextLease()) < 59*time.Minute {
				if time.Since(started) > 2*time.Minute {
					t.Fatalf("after two minutes of refusals the next call is not delayed by an hour:\n%s", s.log)
				}
				time.Sleep(max(time.Second, left(s.client.NextLease())))
				if s.client.Health().LeasesNone {
					t.Fatalf("a single refusal counts after %s", time.Since(started))
				}
				if claim, _ := s.client.Acquire(t.Context(), leasedKinds); claim.Job != nil {
					t.Fatalf("leased %v", claim.Job)
				}
			}
			if took := time.Since(started); took < refusalMinDuration {
				t.Errorf("the client took the refusals as final after %s, want at least %s", took, refusalMinDuration)
			}
			if next := s.client.NextLease(); !s.client.Health().LeasesNone || next.Reason == "" {
				t.Errorf("after repeated refusals, Health does not report that the service leases nothing: %+v", next)
			}

			// An edit of leased_work ends the hour in which no calls are made.
			tuning := s.client.settings()
			tuning.LeasedWork = runtime.LeasedAlways
			s.client.Tune(tuning)
			if wait := left(s.client.NextLease()); wait > 2*time.Minute {
				t.Errorf("after the edit the next call is delayed by %s", wait)
			}
		})
	}
	inBubble(t, "one refusal of each call does not prevent a lease", func(t *testing.T) {
		lease := leaseService(capable, leaseText)
		s := newInMemoryScene(t, inTurn(http.NotFound, lease, http.NotFound, lease), leaseAll(runtime.LeasedAuto))
		for range 3 {
			claim, _ := s.client.Acquire(t.Context(), leasedKinds)
			if claim.Job != nil {
				return
			}
			time.Sleep(2 * time.Minute)
		}
		t.Error("nothing is leased after three polls")
	})
}

func TestRenewRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newInMemoryScene(t, http.NotFound)
		job, started := leasedJob(), time.Now()
		for {
			_, err := s.client.Renew(t.Context(), job, false)
			if errors.Is(err, runtime.ErrLeaseLost) {
				break
			}
			if time.Since(started) > time.Minute {
				t.Fatalf("the lease is not lost after a minute: %v", err)
			}
			time.Sleep(5 * time.Second)
		}
		if took := time.Since(started); took < refusalMinDuration {
			t.Errorf("the lease is lost after %s, want at least %s", took, refusalMinDuration)
		}
	})
}

func TestComplete(t *testing.T) {
	t.Run("a failed call is retried until it succeeds", func(t *testing.T) {
		var bodies []string
		s := newScene(t, leaseAll(runtime.LeasedAuto), func(w http.ResponseWriter, r *http.Request) {
			text, _ := io.ReadAll(r.Body)
			if bodies = append(bodies, string(text)); len(bodies) < 3 {
				http.Error(w, "busy", http.StatusBadGateway)
			}
		})
		err := s.client.Complete(t.Context(), leasedJob(), runtime.LeaseRetry, "the agent stops")
		if err != nil || len(bodies) != 3 || bodies[2] != `{"result":"retry","reason":"the agent stops"}` {
			t.Errorf("%v, bodies %q", err, bodies)
		}
	})
	t.Run("a refusal of the service is final", func(t *testing.T) {
		lost := respond(http.StatusConflict, `{"code":409,"message":"the lease is lost"}`)
		s := newScene(t, leaseAll(runtime.LeasedAuto), lost)
		if err := s.client.Complete(t.Context(), leasedJob(), runtime.LeaseFailed, ""); err == nil {
			t.Error("no error")
		}
		s.wantCalls(t, "POST "+leasesPath+"/l/complete token lease-secret")
	})
	t.Run("the end of the context ends the retries", func(t *testing.T) {
		s := newScene(t, leaseAll(runtime.LeasedAuto), respond(http.StatusBadGateway, "busy"))
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		err := s.client.Complete(ctx, leasedJob(), runtime.LeaseFailed, "")
		wantError(t, err)
		checkError(t, err)
	})
}

func FuzzReadLease(f *testing.F) {
	for _, seed := range []string{leaseText, `{}`, `[]`, `null`, `<html>`, ``, `{"cmwaLeaseSeconds":1e400}`,
		`{"jobID":5,"jobToken":"` + canary + `"}`, strings.Replace(leaseText, ":30}", ":1e300}", 1)} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		started := time.Now()
		job, err := parseLease(text, leasedKinds, started)
		var unusable *unusableLeaseError
		switch {
		case err != nil && (job != nil || !errors.As(err, &unusable)):
			t.Fatalf("got %v and %v", job, err)
		case err != nil:
			var object map[string]json.RawMessage
			_ = json.Unmarshal(text, &object)
			for name := range object {
				if strings.Contains(name, canary) {
					return // field names may be logged, and this one is the canary
				}
			}
			checkError(t, err)
			if strings.Contains(unusable.fields, canary) || len(unusable.fields) > 2*maxFieldNames {
				t.Fatalf("the fields are %q", unusable.fields)
			}
		case job.ID == "" || job.Token.Empty() || job.Lease.ID == "" || job.Lease.Token.Empty() ||
			job.WorkflowID == "" || !job.Kind.Leased() || !job.Lease.Until.After(started) ||
			job.Lease.Until.After(started.Add(maxLease)):
			t.Fatalf("leased %+v", job)
		}
	})
}

func FuzzReadRenewal(f *testing.F) {
	for _, seed := range []string{`{"cmwaLeaseSeconds":30}`, `{"cmwaLeaseSeconds":-1}`, `{}`, `null`,
		`"` + canary, ``} {
		f.Add([]byte(seed))
	}
	var answer []byte
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(answer)
	}))
	f.Cleanup(server.Close)
	s := &scene{log: &strings.Builder{}}
	s.at(server.URL, leaseAll(runtime.LeasedAuto))
	f.Fuzz(func(t *testing.T, text []byte) {
		answer = text
		span, err := s.client.Renew(t.Context(), leasedJob(), false)
		switch {
		case err != nil && span == 0:
			checkError(t, err)
		case err != nil || span <= 0 || span > maxLease:
			t.Fatalf("renewed for %s, %v", span, err)
		}
	})
}
