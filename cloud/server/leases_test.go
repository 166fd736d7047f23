package server

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cmwa-project/cmwa/cloud"
)

const leasePath = "/api/background-activities/worker/lease"

// scan queues a scan with one step, and returns its API path.
func (w *world) scan(p pool, more ...object) string {
	w.t.Helper()
	request := object{"kind": "insights_scan", "steps": []object{{"run": "true"}}}
	for _, m := range more {
		for name, value := range m {
			request[name] = value
		}
	}
	var answer struct{ ID string }
	w.want(201, w.user, "POST", pools+"/"+p.ID+"/activities", request, &answer)
	return pools + "/" + p.ID + "/activities/" + answer.ID
}

// leased is a lease with its claimed job.
type leased struct {
	claimed
	lease cloud.Lease
}

// acquire leases work of these kinds, and returns nil if there is no such work.
func (w *world) acquire(p pool, kinds ...string) *leased {
	w.t.Helper()
	got := w.ask(p.Token, "POST", leasePath+"/acquire", cloud.AcquireRequest{Kinds: kinds})
	if got.code == 204 && got.body == "" {
		return nil
	}
	l := &leased{}
	if got.code != 200 || json.Unmarshal([]byte(got.body), &l.lease) != nil {
		w.t.Fatalf("acquire: %d %s", got.code, got.body)
	}
	l.claimed = claimed{w: w, job: pollView{JobID: l.lease.JobID, JobToken: l.lease.JobToken}}
	return l
}

func (w *world) mustAcquire(p pool) *leased {
	w.t.Helper()
	l := w.acquire(p, ActivityKinds()...)
	if l == nil {
		w.t.Fatal("there is no work to lease")
	}
	return l
}

// call makes a call with the token of the lease, and returns the status.
func (l *leased) call(name string, body any) int {
	l.w.t.Helper()
	return l.w.ask(l.lease.LeaseToken, "POST", leasePath+"/"+l.lease.LeaseID+"/"+name, body).code
}

func (l *leased) complete(result string) int {
	l.w.t.Helper()
	return l.call("complete", cloud.LeaseResult{Result: result, Reason: "a\nreason"})
}

// isLost checks that every call of the holder of a lost lease is refused.
func (l *leased) isLost() {
	l.w.t.Helper()
	for name, code := range map[string]int{
		"begin": l.call("begin", nil), "renew": l.call("renew", nil), "failed": l.complete("failed"),
		"retry": l.complete("retry"), "heartbeat": l.heartbeat(), "status": l.status(0, running),
		"success": l.status(1, succeeded), "lines": l.logs(0, 0, "x\n"), "definition": l.ask("GET", "", nil),
	} {
		if code != 409 {
			l.w.t.Errorf("%s after the lease is lost: %d, want 409", name, code)
		}
	}
}

// activity returns the view of the activity at a path, and checks its status.
func (w *world) activity(at, status string) (view activityView) {
	w.t.Helper()
	w.want(200, w.user, "GET", at, nil, &view)
	if view.Status != status {
		w.t.Errorf("the activity is %s (%s), want %s", view.Status, view.Reason, status)
	}
	return view
}

func TestLeases(t *testing.T) {
	t.Run("work is leased, started, renewed and completed", func(t *testing.T) {
		w := newWorld(t)
		p, other := w.pool("p"), w.pool("q")
		at := w.scan(p, object{"name": "nightly", "timeout": "1h", "image": "scanner", "environmentVariables": object{
			"A": "1", "B": object{"secret": "hidden"}}})
		w.activity(at, activityReady)
		for name, l := range map[string]*leased{"no kinds": w.acquire(p),
			"another kind": w.acquire(p, "policy_evaluation"), "an unknown kind": w.acquire(p, "insights"),
			"another pool": w.acquire(other, "insights_scan")} {
			if l != nil {
				t.Errorf("an agent with %s got a lease", name)
			}
		}
		l := w.mustAcquire(p)
		if l.lease.Kind != "insights_scan" || l.lease.LeaseSeconds != 60 ||
			!strings.HasSuffix(at, l.lease.TypeSpecificID) ||
			strings.Contains(fmt.Sprintf("%+v %#v", l.lease, l.lease), l.lease.LeaseToken) {
			t.Errorf("the lease is %+v", l.lease)
		}
		w.activity(at, activityPending)
		if w.acquire(p, "insights_scan") != nil {
			t.Error("work was leased twice")
		}
		if code := l.call("begin", nil); code != 200 {
			t.Errorf("begin: %d", code)
		}
		w.activity(at, activityExecuting)
		d := l.definition()
		if d.Image.Reference != "scanner" || d.Env["B"].Value.Reveal() != "hidden" || len(d.SecretVariables) != 1 ||
			d.Env["PULUMI_SERVICE_URL"].Value.Empty() || time.Duration(d.Timeout) != time.Hour || len(d.Steps) != 2 {
			t.Errorf("the definition is %+v", d)
		}
		if code := l.call("renew", "{}"); code != 200 {
			t.Errorf("renew: %d", code)
		}
		if code := l.complete("succeeded"); code != 409 {
			t.Errorf("the result \"succeeded\" before the steps have run: %d, want 409", code)
		}
		l.runs(0, 1)
		w.activity(at, activityCompleted)
		for _, code := range []int{l.call("renew", nil), l.complete("succeeded"), l.complete("succeeded"),
			l.heartbeat()} {
			if code != 200 {
				t.Errorf("after the last step: %d, want 200", code)
			}
		}
		if code := l.complete("failed"); code != 409 {
			t.Errorf("the result \"failed\" after the steps have succeeded: %d, want 409", code)
		}
		view := w.activity(at, activityCompleted)
		if len(view.Leases) != 1 || view.Leases[0].Agent != "box 42" || view.Leases[0].Steps[1].Status != succeeded {
			t.Errorf("the activity is %+v", view)
		}
		if text, over := w.logOf(at); text != "[Setup]line of 0\n[Step 1]line of 1\n" || !over {
			t.Errorf("the log is %q, complete: %v", text, over)
		}
	})

	t.Run("a failed step ends the job, and the agent decides whether the work is retried", func(t *testing.T) {
		w := newWorld(t)
		p := w.pool("p")
		at := w.scan(p, object{"retryDelay": "0s", "retries": 1})
		l := w.mustAcquire(p)
		l.runs(0, 0)
		l.status(1, running)
		if code := l.status(1, failed); code != 200 {
			t.Errorf("the report of step 1 as failed: %d, want 200", code)
		}
		w.activity(at, activityPending)
		if code := l.complete("retry"); code != 200 {
			t.Errorf("retry: %d", code)
		}
		if view := w.activity(at, activityReady); view.Reason != "a reason" || view.Retries != 0 {
			t.Errorf("the activity is %+v", view)
		}
		if code := l.complete("retry"); code != 200 {
			t.Errorf("the same result once more: %d, want 200", code)
		}
		second := w.mustAcquire(p)
		l.isLostTo(second)
		for _, result := range []string{"nonsense", ""} {
			if code := second.complete(result); code != 400 {
				t.Errorf("the result %q, which does not exist: %d", result, code)
			}
		}
		if code := second.complete("failed"); code != 200 {
			t.Errorf("failed: %d", code)
		}
		w.activity(at, activityFailed)
		if w.acquire(p, "insights_scan") != nil {
			t.Error("failed work was leased again")
		}
	})

	t.Run("a lease token is valid only for its own lease", func(t *testing.T) {
		w := newWorld(t)
		p := w.pool("p")
		w.scan(p)
		w.scan(p)
		a, b := w.mustAcquire(p), w.mustAcquire(p)
		w.want(404, a.lease.LeaseToken, "POST", leasePath+"/"+b.lease.LeaseID+"/renew", nil, nil)
		w.want(404, a.lease.JobToken, "GET", "/api/workflow/jobs/"+b.lease.JobID, nil, nil)
		w.want(403, a.lease.JobToken, "POST", leasePath+"/"+a.lease.LeaseID+"/renew", nil, nil)
		w.want(403, p.Token, "POST", leasePath+"/"+a.lease.LeaseID+"/renew", nil, nil)
		w.want(401, "", "POST", leasePath+"/"+a.lease.LeaseID+"/renew", nil, nil)
	})

	t.Run("each activity is leased once", func(t *testing.T) {
		w := newWorld(t)
		p := w.pool("p")
		for range 5 {
			w.scan(p)
		}
		var mu sync.Mutex
		seen, all := map[string]int{}, sync.WaitGroup{}
		for range 20 {
			all.Go(func() {
				got := w.ask(p.Token, "POST", leasePath+"/acquire", cloud.AcquireRequest{Kinds: ActivityKinds()})
				var lease cloud.Lease
				if got.code == 200 && json.Unmarshal([]byte(got.body), &lease) == nil {
					mu.Lock()
					defer mu.Unlock()
					seen[lease.TypeSpecificID]++
				}
			})
		}
		all.Wait()
		for id, times := range seen {
			if times != 1 {
				t.Errorf("activity %s was leased %d times", id, times)
			}
		}
		if len(seen) != 5 {
			t.Errorf("%d activities were leased, want 5", len(seen))
		}
	})
}

// isLostTo checks that the lease is lost, and that other is a valid lease of its activity.
func (l *leased) isLostTo(other *leased) {
	l.w.t.Helper()
	if code := l.call("renew", nil); code != 409 {
		l.w.t.Errorf("renew of the first lease: %d, want 409", code)
	}
	if code := l.heartbeat(); code != 409 {
		l.w.t.Errorf("heartbeat of the first lease: %d, want 409", code)
	}
	if l.lease.TypeSpecificID != other.lease.TypeSpecificID || l.lease.JobID == other.lease.JobID {
		l.w.t.Errorf("the second lease is %+v, the first %+v", other.lease, l.lease)
	}
	if code := other.call("renew", nil); code != 200 {
		l.w.t.Errorf("renew of the second lease: %d, want 200", code)
	}
}

// logOf returns the present log of an activity, and whether it is complete.
func (w *world) logOf(at string) (text string, over bool) {
	w.t.Helper()
	var page logPage
	w.want(200, w.user, "GET", at+"/logs", nil, &page)
	for _, line := range page.Lines {
		if line.Header != "" {
			text += "[" + line.Header + "]"
		}
		text += line.Line
	}
	return text, page.NextToken == ""
}

func TestLeaseExpiry(t *testing.T) {
	for name, story := range map[string]func(*testing.T, *world, pool){
		"renewals keep a lease": func(t *testing.T, w *world, p pool) {
			at := w.scan(p)
			l := w.mustAcquire(p)
			for range 10 {
				time.Sleep(50 * time.Second)
				if code := l.call("renew", nil); code != 200 {
					t.Fatalf("renew: %d", code)
				}
			}
			l.runs(0, 1)
			w.activity(at, activityCompleted)
		},
		"an expired lease is lost, even before another agent has the work": func(t *testing.T, w *world, p pool) {
			at := w.scan(p, object{"retries": 1})
			l := w.mustAcquire(p)
			l.status(0, running)
			time.Sleep(61 * time.Second)
			l.isLost()
			second := w.mustAcquire(p)
			l.isLost()
			l.isLostTo(second)
			if view := w.activity(at, activityPending); len(view.Leases) != 2 || view.Leases[0].Ended != endedByLease ||
				view.Leases[0].Steps[0].Status != failed {
				t.Errorf("the activity is %+v", view)
			}
			second.runs(0, 1)
			w.activity(at, activityCompleted)
			l.isLost()
		},
		"expired leases use up the retries": func(t *testing.T, w *world, p pool) {
			at := w.scan(p, object{"retries": 2})
			for range 3 {
				w.mustAcquire(p)
				time.Sleep(time.Minute)
			}
			if w.acquire(p, "insights_scan") != nil {
				t.Error("work was leased after its last retry")
			}
			if view := w.activity(at, activityFailed); !strings.Contains(view.Reason, "no retries are left") {
				t.Errorf("the reason is %q", view.Reason)
			}
		},
		"work that had started waits until its runner has stopped": func(t *testing.T, w *world, p pool) {
			at := w.scan(p)
			l := w.mustAcquire(p)
			if code := l.call("begin", nil); code != 200 {
				t.Fatalf("begin: %d", code)
			}
			time.Sleep(time.Minute)
			if w.acquire(p, "insights_scan") != nil {
				t.Error("the work was leased again while its runner may continue")
			}
			w.activity(at, activityRestarting)
			time.Sleep(69 * time.Second)
			if w.acquire(p, "insights_scan") != nil {
				t.Error("the work was leased again while its runner may continue")
			}
			l.isLost()
			time.Sleep(time.Second)
			w.mustAcquire(p).runs(0, 1)
			w.activity(at, activityCompleted)
		},
		"work that no agent leases is cancelled after a week": func(t *testing.T, w *world, p pool) {
			at := w.scan(p)
			time.Sleep(queueLimit)
			w.expireAfter(0)
			w.activity(at, activityReady)
			time.Sleep(time.Second)
			w.expireAfter(0)
			if view := w.activity(at, activityCanceled); view.Reason != "no agent leased it within 7 days" {
				t.Errorf("the reason is %q", view.Reason)
			}
			if w.acquire(p, "insights_scan") != nil {
				t.Error("cancelled work was leased")
			}
		},
		"the service ends expired leases by itself": func(t *testing.T, w *world, p pool) {
			at := w.scan(p)
			w.mustAcquire(p)
			w.expireAfter(59 * time.Second)
			w.activity(at, activityPending)
			w.expireAfter(60 * time.Second)
			w.activity(at, activityRestarting)
			if text, over := w.logOf(at); !strings.Contains(text, "its lease expired") || !over {
				t.Errorf("the log is %q", text)
			}
		},
		"succeeded steps complete the work without a call of the agent": func(t *testing.T, w *world, p pool) {
			at := w.scan(p)
			w.mustAcquire(p).runs(0, 1)
			time.Sleep(time.Hour)
			if w.acquire(p, "insights_scan") != nil {
				t.Error("work was repeated after its success")
			}
			w.activity(at, activityCompleted)
		},
		"work that an agent gives back waits": func(t *testing.T, w *world, p pool) {
			w.scan(p, object{"retryDelay": "5m"})
			w.mustAcquire(p).complete("retry")
			time.Sleep(4 * time.Minute)
			if w.acquire(p, "insights_scan") != nil {
				t.Error("the work was leased before its delay was over")
			}
			time.Sleep(time.Minute)
			w.mustAcquire(p)
		},
		"a lease and its end survive a restart of the service": func(t *testing.T, w *world, p pool) {
			at := w.scan(p)
			l := w.mustAcquire(p)
			w.restart()
			if code := l.call("begin", nil); code != 200 {
				t.Errorf("begin after a restart: %d", code)
			}
			time.Sleep(61 * time.Second)
			w.restart()
			l.isLost()
			w.expireAfter(0)
			w.activity(at, activityRestarting)
		},
		"tokens and activities are deleted long after the end": func(t *testing.T, w *world, p pool) {
			at := w.scan(p)
			l := w.mustAcquire(p)
			l.runs(0, 1)
			time.Sleep(tokenRetention + time.Minute)
			w.expireAfter(0)
			if code := l.call("renew", nil); code != 401 {
				t.Errorf("renew a day later: %d, want 401", code)
			}
			w.activity(at, activityCompleted)
			time.Sleep(activityRetention)
			w.expireAfter(0)
			w.want(404, w.user, "GET", at, nil, nil)
			var left int
			w.read([]any{&left}, `SELECT (SELECT count(*) FROM leases) + (SELECT count(*) FROM lease_steps)
				+ (SELECT count(*) FROM lease_batches)`)
			if left != 0 {
				t.Errorf("%d rows are left", left)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				defer w.close()
				story(t, w, w.pool("p"))
			})
		})
	}
}

func TestCancelActivity(t *testing.T) {
	w := newWorld(t)
	p := w.pool("p")
	waiting, held := w.scan(p), w.scan(p, object{"kind": "policy_evaluation"})
	l := w.acquire(p, "policy_evaluation")
	l.call("begin", nil)
	for _, at := range []string{waiting, held} {
		w.want(200, w.user, "POST", at+"/cancel", nil, nil)
		w.want(409, w.user, "POST", at+"/cancel", nil, nil)
		w.activity(at, activityCanceled)
	}
	l.isLost()
	if text, _ := w.logOf(held); !strings.Contains(text, "run cancelled at ") {
		t.Errorf("the log is %q", text)
	}
	if w.acquire(p, ActivityKinds()...) != nil {
		t.Error("cancelled work was leased")
	}

	t.Run("deleting a pool cancels its work", func(t *testing.T) {
		w.scan(p)
		l := w.mustAcquire(p)
		w.scan(p)
		w.want(400, w.user, "DELETE", pools+"/"+p.ID, nil, nil)
		l.call("renew", nil)
		w.want(204, w.user, "DELETE", pools+"/"+p.ID+"?force=true", nil, nil)
		l.isLost()
		w.want(401, p.Token, "POST", leasePath+"/acquire", cloud.AcquireRequest{Kinds: ActivityKinds()}, nil)
	})
}

func TestCreateActivity(t *testing.T) {
	w := newWorld(t)
	p := w.pool("p")
	at := pools + "/" + p.ID + "/activities"
	good := func(more object) object {
		request := object{"kind": "insights_scan", "steps": []object{{"run": "true"}}}
		for name, value := range more {
			request[name] = value
		}
		return request
	}
	for name, bad := range map[string]object{
		"kind": {"kind": "deployment"}, "no steps": {"steps": nil}, "empty steps": {"steps": []object{}},
		"retries": {"retries": 101}, "negative retries": {"retries": -1}, "delay": {"retryDelay": "25h"},
		"timeout": {"timeout": "1000h"}, "name": {"name": strings.Repeat("x", 101)}, "variable": {
			"environmentVariables": object{"A=": "1"}}, "ciphertext": {"environmentVariables": object{"A": object{
			"ciphertext": "x"}}}, "zero byte": {"shell": "a\x00"}, "form": {"retries": "many"},
	} {
		if got := w.ask(w.user, "POST", at, good(bad)); got.code != 400 {
			t.Errorf("%s: %d %s, want 400", name, got.code, got.body)
		}
	}
	w.want(404, w.user, "POST", pools+"/none/activities", good(nil), nil)
	w.want(403, p.Token, "POST", at, good(nil), nil)
	w.want(404, w.user, "GET", at+"/none", nil, nil)
	w.want(404, w.user, "GET", at+"/none/logs", nil, nil)
	w.want(404, w.user, "POST", at+"/none/cancel", nil, nil)
	first, second := w.scan(p), w.scan(p)
	var all struct{ Activities []activityView }
	w.want(200, w.user, "GET", at, nil, &all)
	if len(all.Activities) != 2 || at+"/"+all.Activities[0].ID != second || at+"/"+all.Activities[1].ID != first {
		t.Errorf("the activities are %+v", all.Activities)
	}
	if text, _ := w.logOf(first); text != "" {
		t.Errorf("the log of waiting work is %q", text)
	}
}

// FuzzLeaseCalls checks that no body causes a status of 500 or higher, and that no lease is
// given for a body without a known kind.
func FuzzLeaseCalls(f *testing.F) {
	w := newWorld(f)
	p := w.pool("p")
	w.scan(p)
	l := w.mustAcquire(p)
	for _, seed := range []string{`{}`, `{"cmwaKinds":["x"]}`, `{"result":"retry"}`, `{"result":1}`, `[`, "\xff",
		`{"cmwaKinds":{}}`, `null`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, body string) {
		if strings.Contains(body, "insights") || strings.Contains(body, "policy") || strings.Contains(body, `\u`) {
			return // it may be a valid request
		}
		w.t, l.w = t, w
		if got := w.ask(p.Token, "POST", leasePath+"/acquire", body); got.code >= 500 || got.code == 200 {
			t.Errorf("acquire with %q: %d %s", body, got.code, got.body)
		}
		for _, name := range []string{"begin", "renew", "complete"} {
			if got := w.ask(l.lease.LeaseToken, "POST", leasePath+"/"+l.lease.LeaseID+"/"+name, body); got.code >= 500 {
				t.Errorf("%s with %q: %d %s", name, body, got.code, got.body)
			}
		}
	})
}
