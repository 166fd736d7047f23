package server

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestCancelDeployment(t *testing.T) {
	// show returns the statuses of a deployment and of its first step, with the outcomes
	// in parentheses.
	show := func(w *world, at, id string) string {
		var view deploymentView
		w.want(200, w.user, "GET", at+"/"+id, nil, &view)
		first := view.Jobs[0].Steps[0]
		return view.Status + " (" + view.Outcome + "), " + first.Status + " (" + first.Outcome + ")"
	}
	t.Run("a queued deployment has the outcome cancelled", func(t *testing.T) {
		w := newWorld(t)
		at := w.stack("s")
		id := w.deploy(at, steps(1))
		w.want(200, w.user, "POST", at+"/"+id+"/cancel", nil, nil)
		if got := show(w, at, id); got != "skipped (cancelled), not-started (not-started)" {
			t.Errorf("got %s", got)
		}
	})
	t.Run("a running deployment and its step have the outcome cancelled", func(t *testing.T) {
		w := newWorld(t)
		p, at := w.pool("p"), w.stack("s")
		id := w.deploy(at, steps(1))
		w.mustClaim(p).status(0, running)
		if got := show(w, at, id); got != "running (running), running (running)" {
			t.Errorf("before: got %s", got)
		}
		w.want(200, w.user, "POST", at+"/"+id+"/cancel", nil, nil)
		if got := show(w, at, id); got != "failed (cancelled), failed (cancelled)" {
			t.Errorf("after: got %s", got)
		}
	})
	t.Run("agents get the documented status", func(t *testing.T) {
		w := newWorld(t)
		p, at := w.pool("p"), w.stack("s")
		id := w.deploy(at, steps(1))
		w.mustClaim(p)
		w.want(200, w.user, "POST", at+"/"+id+"/cancel", nil, nil)
		if got := w.want(200, p.Token, "GET", "/api/deployments/"+id+"/status", nil, nil); got.body != `"failed"` {
			t.Errorf("got %s, want \"failed\"", got.body)
		}
	})
	t.Run("a second cancel names the time of the first", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			defer w.close()
			at := w.stack("s")
			id := w.deploy(at, steps(1))
			cancelledAt := time.Now().UTC().Format(time.RFC3339)
			w.want(200, w.user, "POST", at+"/"+id+"/cancel", nil, nil)
			time.Sleep(time.Hour)
			got := w.want(409, w.user, "POST", at+"/"+id+"/cancel", nil, nil)
			if want := "deployment 1 was cancelled at " + cancelledAt; !strings.Contains(got.body, want) {
				t.Errorf("got %s, want %s", got.body, want)
			}
		})
	})
	t.Run("a deployment that failed is not cancelled afterwards", func(t *testing.T) {
		w := newWorld(t)
		p, at := w.pool("p"), w.stack("s")
		id := w.deploy(at, steps(1))
		c := w.mustClaim(p)
		c.status(0, running)
		c.status(0, failed)
		got := w.want(409, w.user, "POST", at+"/"+id+"/cancel", nil, nil)
		if want := "the deployment has already ended: failed"; !strings.Contains(got.body, want) {
			t.Errorf("got %s, want %s", got.body, want)
		}
		if got := show(w, at, id); got != "failed (failed), failed (failed)" {
			t.Errorf("got %s", got)
		}
	})
}

func TestDescribeEnd(t *testing.T) {
	w := newWorld(t)
	// ends checks that the log of a deployment is complete and ends with a header.
	ends := func(t *testing.T, at, id, want string) {
		t.Helper()
		if log, over := w.log(at, id); !over || !strings.Contains(log, "["+want) || !strings.HasSuffix(log, "]") {
			t.Errorf("got log %q, complete %v, want it to end with [%s]", log, over, want)
		}
	}
	t.Run("cancel of a running job", func(t *testing.T) {
		p, at := w.pool("a"), w.stack("a")
		id := w.deploy(at, steps(1, object{"agentPoolID": p.ID}))
		c := w.mustClaim(p)
		c.status(0, running)
		c.logs(0, 0, "line\n")
		w.want(200, w.user, "POST", at+"/"+id+"/cancel", nil, nil)
		ends(t, at, id, "deployment cancelled at 2")
		if log, _ := w.log(at, id); !strings.Contains(log, "line\n[deployment cancelled at") {
			t.Errorf("the log is %q, want the header about the cancel after the lines", log)
		}
	})
	t.Run("a job without heartbeats", func(t *testing.T) {
		p, at := w.pool("b"), w.stack("b")
		id := w.deploy(at, steps(1, object{"agentPoolID": p.ID}))
		w.mustClaim(p).status(0, running)
		w.expireAfter(time.Hour)
		ends(t, at, id, "deployment failed: no heartbeat for 10m0s")
	})
	t.Run("a week in the queue", func(t *testing.T) {
		p, at := w.pool("c"), w.stack("c")
		id := w.deploy(at, steps(1, object{"agentPoolID": p.ID}))
		w.expireAfter(8 * 24 * time.Hour)
		ends(t, at, id, "deployment skipped: no agent claimed it within 7 days")
	})
	t.Run("a newer deployment that skips intermediate ones", func(t *testing.T) {
		p, at := w.pool("d"), w.stack("d")
		request := steps(1, object{"agentPoolID": p.ID,
			"operationContext": object{"options": object{"skipIntermediateDeployments": true}}})
		id := w.deploy(at, request)
		w.deploy(at, request)
		ends(t, at, id, "deployment skipped: a newer deployment superseded it")
	})
	t.Run("deletion of the pool", func(t *testing.T) {
		p, at := w.pool("e"), w.stack("e")
		id := w.deploy(at, steps(1, object{"agentPoolID": p.ID}))
		w.want(204, w.user, "DELETE", pools+"/"+p.ID, nil, nil)
		ends(t, at, id, "deployment skipped: its pool was deleted")
	})
}
