package server

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// inJob returns the world of the programs in a job, whose token is valid for their stack.
func (c *claimed) inJob() *world {
	c.w.t.Helper()
	inside := *c.w
	inside.user = c.definition().Env["PULUMI_ACCESS_TOKEN"].Value.Reveal()
	return &inside
}

// expireAfter does the regular work of the service as if some time had passed.
func (w *world) expireAfter(d time.Duration) {
	w.t.Helper()
	if err := w.server.expire(w.t.Context(), time.Now().Add(d), time.Time{}); err != nil {
		w.t.Fatal(err)
	}
}

// TestReadUpdates follows the updates of a job, as pulumi deployment run does.
func TestReadUpdates(t *testing.T) {
	w := newWorld(t)
	p, at := w.pool("p"), w.stack("s")
	id := w.deploy(at, steps(1))
	job := w.mustClaim(p).inJob()
	listed := func() (versions []int64, ids []string) {
		t.Helper()
		var all []updateView
		w.want(200, w.user, "GET", at+"/"+id+"/updates", nil, &all)
		for _, u := range all {
			versions, ids = append(versions, u.Version), append(ids, u.UpdateID)
		}
		return versions, ids
	}
	if _, ids := listed(); ids != nil {
		t.Errorf("updates before the first: %v", ids)
	}
	u := job.update("s", object{})
	if _, ids := listed(); ids != nil {
		t.Errorf("an update that has not started is listed: %v", ids)
	}
	u.start()
	if versions, ids := listed(); !cmp.Equal(ids, []string{u.id}) || !cmp.Equal(versions, []int64{1}) {
		t.Errorf("the running update is listed as %v, versions %v", ids, versions)
	}
	if got := u.complete(succeeded); got != 204 {
		t.Fatalf("complete: %d", got)
	}
	w.update("s", object{}).start() // of a user, not of the job
	var view deploymentView
	w.want(200, w.user, "GET", at+"/"+id, nil, &view)
	if len(view.Updates) != 1 || view.Updates[0].UpdateID != u.id || view.Updates[0].Result != succeeded ||
		view.Updates[0].Version != 1 || view.Updates[0].EndTime == 0 {
		t.Errorf("the deployment shows the updates %+v", view.Updates)
	}
}

// TestGetUpdatesOfDeploymentWaits asks for the updates while the step of pulumi runs, before pulumi starts one.
func TestGetUpdatesOfDeploymentWaits(t *testing.T) {
	w := newWorld(t)
	p, at := w.pool("p"), w.stack("s")
	id := w.deploy(at, object{"operation": "update"})
	c := w.mustClaim(p)
	job := c.inJob()
	c.runs(0, 1)
	if got := c.status(2, running); got != 200 {
		t.Fatalf("the step of pulumi: %d", got)
	}
	answered := make(chan answer, 1)
	go func() { answered <- w.ask(w.user, "GET", at+"/"+id+"/updates", nil) }()
	u := job.update("s", object{}).start()
	var all []updateView
	if got := <-answered; json.Unmarshal([]byte(got.body), &all) != nil || len(all) != 1 || all[0].UpdateID != u.id {
		t.Errorf("the response is %d %s, want update %s", got.code, got.body, u.id)
	}
}

// TestStopUpdate ends the job of a running update. The state that the update has written stays, and the lock does not.
func TestStopUpdate(t *testing.T) {
	t.Run("a job that fails frees the lock at once", func(t *testing.T) {
		w := newWorld(t)
		p, at := w.pool("p"), w.stack("s")
		w.deploy(at, steps(1))
		next := w.deploy(at, steps(1))
		c := w.mustClaim(p)
		u := c.inJob().update("s", object{}).start()
		u.checkpoint(resources("a"))
		c.runs(0, 0)
		c.status(1, running)
		if got := c.status(1, failed); got != 200 { // pulumi was killed
			t.Fatalf("the end of the step: %d", got)
		}
		if w.claim(p) != nil {
			t.Error("the next deployment is claimed while the stack is locked")
		}
		w.expireAfter(0)
		if got := u.checkpoint(resources("a", "b")); got != 403 {
			t.Errorf("a late checkpoint: %d, want 403", got)
		}
		w.holds("s", "", "a")
		if c := w.mustClaim(p); c.job.DeploymentID != next {
			t.Errorf("claimed %s, want %s", c.job.DeploymentID, next)
		}
		w.update("s", object{}).start()
	})

	t.Run("after a cancel pulumi has time to write what exists", func(t *testing.T) {
		w := newWorld(t)
		p, at := w.pool("p"), w.stack("s")
		id := w.deploy(at, steps(1))
		next := w.deploy(at, steps(1))
		job := w.mustClaim(p).inJob()
		u := job.update("s", object{}).start()
		w.want(200, w.user, "POST", at+"/"+id+"/cancel", nil, nil)
		w.expireAfter(0)
		job.want(200, job.user, "POST", stackPath+"s/encrypt", object{"plaintext": "YQ=="}, nil)
		if got := u.checkpoint(resources("a")); got != 204 {
			t.Errorf("the checkpoint of an interrupted update: %d, want 204", got)
		}
		if w.claim(p) != nil {
			t.Error("the next deployment is claimed while the stack is locked")
		}
		if got := u.complete(failed); got != 204 {
			t.Errorf("the end of an interrupted update: %d, want 204", got)
		}
		w.holds("s", "", "a")
		if c := w.mustClaim(p); c.job.DeploymentID != next {
			t.Errorf("claimed %s, want %s", c.job.DeploymentID, next)
		}
	})

	t.Run("after a cancel the lock is free at the latest when the agent has killed pulumi", func(t *testing.T) {
		w := newWorld(t)
		p, at := w.pool("p"), w.stack("s")
		id := w.deploy(at, steps(1))
		job := w.mustClaim(p).inJob()
		u := job.update("s", object{}).start()
		u.checkpoint(resources("a"))
		w.want(200, w.user, "POST", at+"/"+id+"/cancel", nil, nil)
		w.expireAfter(stopTime + time.Second)
		w.want(401, job.user, "GET", stackPath+"s", nil, nil)
		if got := u.checkpoint(resources("b")); got != 403 {
			t.Errorf("a late checkpoint: %d, want 403", got)
		}
		w.holds("s", "", "a")
		w.update("s", object{}).start()
	})
}
