package server

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestDeployments(t *testing.T) {
	w := newWorld(t)
	p, at := w.pool("p"), w.stack("s")
	if w.claim(p) != nil {
		t.Fatal("a poll of an empty queue returned a job")
	}
	id := w.deploy(at, steps(2))
	w.shows(at, id, notStarted, notStarted, notStarted, notStarted)
	c := w.mustClaim(p)
	if c.job.TypeSpecificID != id || c.job.DeploymentID != id || c.job.JobID == "" || c.job.RunID == "" ||
		c.job.OIDCToken == "" {
		t.Errorf("claimed %+v for deployment %s", c.job, id)
	}
	w.shows(at, id, accepted, notStarted, notStarted, notStarted)
	if d := c.definition(); len(d.Steps) != 3 || d.Steps[0].Name != stepSetup || d.Steps[0].Run != "" ||
		d.Image.Reference != "pulumi/pulumi" {
		t.Errorf("the definition is %+v", d)
	}
	c.status(0, running)
	w.shows(at, id, running, running, notStarted, notStarted)
	c.status(0, succeeded)
	c.runs(1, 2)
	w.shows(at, id, succeeded, succeeded, succeeded, succeeded)
	if log, over := w.log(at, id); !over || log != "[Setup][step 1]line of 1\n[step 2]line of 2\n" {
		t.Errorf("the log is %q, complete: %t", log, over)
	}
	if got := c.heartbeat(); got != 200 {
		t.Errorf("a heartbeat just after the end of the job: got %d, want 200", got)
	}
	if got := c.status(2, succeeded); got != 200 {
		t.Errorf("the repeated last status: got %d, want 200", got)
	}
	if got := c.status(2, failed); got != 409 {
		t.Errorf("a failure reported after success: got %d, want 409", got)
	}
	if got := c.ask("GET", "", nil); got != 409 {
		t.Errorf("the definition of a job that has ended: got %d, want 409", got)
	}
}

func TestReportStatus(t *testing.T) {
	w := newWorld(t)
	p, at := w.pool("p"), w.stack("s")
	id := w.deploy(at, steps(2))
	c := w.mustClaim(p)
	c.runs(0, 0)
	c.status(1, running)
	if c.logs(1, 0, "Error: no\n") != 200 || c.status(1, failed) != 200 || c.status(1, failed) != 200 {
		t.Error("the line, the failure or its retry is refused, want 200 for each")
	}
	w.shows(at, id, failed, succeeded, failed, notStarted)
	for step, status := range map[int]string{1: succeeded, 2: running} {
		if got := c.status(step, status); got != 409 {
			t.Errorf("step %d %s after the failure: got %d, want 409", step, status, got)
		}
	}
	if log, over := w.log(at, id); !over || !strings.HasSuffix(log, "[step 1]Error: no\n") {
		t.Errorf("the log is %q, complete: %t", log, over)
	}
}

func TestCancelDeploymentEffects(t *testing.T) {
	w := newWorld(t)
	p, at := w.pool("p"), w.stack("s")
	first := w.deploy(at, steps(1))
	w.want(200, w.user, "POST", at+"/"+first+"/cancel", nil, nil)
	w.shows(at, first, skipped, notStarted, notStarted)
	if w.claim(p) != nil {
		t.Error("a skipped deployment was claimed")
	}
	second := w.deploy(at, steps(1))
	c := w.mustClaim(p)
	definition := c.definition()
	if url, set := definition.Env["PULUMI_CI_BUILD_URL"]; set {
		t.Errorf("the job has the page %s, but the service has no pages", url.Value.Reveal())
	}
	programs := definition.Env["PULUMI_ACCESS_TOKEN"].Value.Reveal()
	w.want(200, programs, "GET", "/api/user", nil, nil)
	c.status(0, running)
	w.want(200, w.user, "POST", at+"/"+second+"/cancel", nil, nil)
	w.shows(at, second, failed, failed, notStarted)
	w.want(409, w.user, "POST", at+"/"+second+"/cancel", nil, nil)
	for what, got := range map[string]int{"heartbeat": c.heartbeat(), "status": c.status(0, succeeded),
		"lines of another step": c.logs(1, 0, "a\n"), "definition": c.ask("GET", "", nil)} {
		if got != 409 {
			t.Errorf("%s after the cancel: got %d, want 409", what, got)
		}
	}
	w.want(401, programs, "GET", "/api/user", nil, nil)
	var status string
	w.want(200, p.Token, "GET", "/api/deployments/"+second+"/status", nil, &status)
	var check checkView
	w.want(200, p.Token, "POST", "/api/agent-workflows/deployment:"+second+"/check", nil, &check)
	if status != failed || check != (checkView{second, failed, true}) {
		t.Errorf("the agent gets the status %q and the check %+v, want failed and complete", status, check)
	}
	if got := c.logs(0, 0, "pulumi has ended cleanly\n"); got != 200 {
		t.Errorf("lines of the interrupted step: got %d, want 200", got)
	}
	if text, over := w.log(at, second); !over || !strings.Contains(text, "pulumi has ended cleanly\n") {
		t.Errorf("the log of the cancelled job is %q, complete: %t", text, over)
	}
}

func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		ctx, stop := context.WithCancel(context.Background())
		var background sync.WaitGroup
		background.Go(func() { _ = w.server.Run(ctx) })
		defer func() {
			stop()
			background.Wait()
			w.close()
		}()
		p := w.pool("p")
		quiet, loud := w.stack("quiet"), w.stack("loud")
		quietID, loudID := w.deploy(quiet, steps(1)), w.deploy(loud, steps(1))
		a, b := w.mustClaim(p), w.mustClaim(p)
		a.status(0, running)
		for range 19 {
			time.Sleep(30 * time.Second)
			if b.heartbeat() != 200 {
				t.Fatal("a heartbeat is refused")
			}
		}
		w.shows(quiet, quietID, running, running, notStarted)
		for range 3 {
			time.Sleep(30 * time.Second)
			b.heartbeat()
		}
		w.shows(quiet, quietID, failed, failed, notStarted)
		w.shows(loud, loudID, accepted, notStarted, notStarted)
		if a.heartbeat() != 409 || a.status(0, succeeded) != 409 {
			t.Error("the reports of a job that failed without heartbeats are accepted, want 409")
		}
		if w.claim(p) != nil {
			t.Error("a job that failed without heartbeats was claimed again")
		}
	})
}

func TestOpenAgain(t *testing.T) {
	w := newWorld(t)
	p, at := w.pool("p"), w.stack("s")
	w.want(200, w.user, "PUT", at+"/settings",
		object{"operationContext": object{"environmentVariables": object{"A": object{"secret": "plain"}}}}, nil)
	id := w.deploy(at, steps(2))
	c := w.mustClaim(p)
	c.runs(0, 1)
	user := w.user
	w.restart()
	if w.user != user {
		t.Error("the access token has changed")
	}
	w.shows(at, id, running, succeeded, succeeded, notStarted)
	if got := c.definition().Env["A"].Value.Reveal(); got != "plain" {
		t.Errorf("the variable A is %q, want plain", got)
	}
	w.expireAfter(9 * time.Minute)
	c.runs(2, 2)
	w.shows(at, id, succeeded, succeeded, succeeded, succeeded)
	if log, over := w.log(at, id); !over || log != "[Setup]line of 0\n[step 1]line of 1\n[step 2]line of 2\n" {
		t.Errorf("the log is %q, complete: %t", log, over)
	}
}

func TestLockDirectory(t *testing.T) {
	w := newWorld(t)
	if _, err := Open(context.Background(), Options{Directory: w.directory}); err == nil ||
		!strings.Contains(err.Error(), "another process serves") {
		t.Errorf("the second Open of one directory returns %v, want an error", err)
	}
}
