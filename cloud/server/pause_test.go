package server

import (
	"strings"
	"testing"
)

// TestPauseOrganization pauses and resumes the queue of an organization and of a stack.
func TestPauseOrganization(t *testing.T) {
	const queue = "/api/orgs/organization/deployments"
	w := newWorld(t)
	p, a, b := w.pool("p"), w.stack("a"), w.stack("b")
	counts := func(want queueView) {
		t.Helper()
		var got queueView
		if w.want(200, w.user, "GET", queue+"/metadata", nil, &got); got != want {
			t.Errorf("the queue is %+v, want %+v", got, want)
		}
	}
	paused := func(at, want string) {
		t.Helper()
		if got := w.want(200, w.user, "GET", at+"/metadata", nil, nil).body; got != want {
			t.Errorf("%s: got %s, want %s", at, got, want)
		}
	}
	counts(queueView{})

	w.want(200, w.user, "POST", queue+"/pause", nil, nil)
	first := w.deploy(a, steps(1))
	if w.claim(p) != nil {
		t.Error("a paused organization handed out a deployment")
	}
	counts(queueView{Paused: true, Counts: deploymentCounts{NotStarted: 1, Total: 1}})
	paused(a, `{"paused":true,"stackPaused":false,"organizationPaused":true,"hasSchedules":false}`)
	w.want(200, w.user, "POST", queue+"/resume", nil, nil)

	w.want(200, w.user, "POST", a+"/pause", nil, nil)
	paused(a, `{"paused":true,"stackPaused":true,"organizationPaused":false,"hasSchedules":false}`)
	paused(b, `{"paused":false,"stackPaused":false,"organizationPaused":false,"hasSchedules":false}`)
	second := w.deploy(b, steps(1))
	if got := w.mustClaim(p); got.job.DeploymentID != second {
		t.Errorf("claimed %s, want %s of the other stack", got.job.DeploymentID, second)
	}
	if w.claim(p) != nil {
		t.Error("a paused stack handed out a deployment")
	}
	w.want(200, w.user, "POST", a+"/resume", nil, nil)
	if got := w.mustClaim(p); got.job.DeploymentID != first {
		t.Errorf("claimed %s, want %s", got.job.DeploymentID, first)
	}
	counts(queueView{Counts: deploymentCounts{Accepted: 2, Total: 2}})
}

func TestListQueue(t *testing.T) {
	const queue = "/api/orgs/organization/deployments"
	w := newWorld(t)
	p := w.pool("p")
	w.deploy(w.stack("a"), steps(1))
	w.mustClaim(p)
	w.deploy(w.stack("b"), steps(1))
	var page struct {
		Deployments         []deploymentView
		ItemsPerPage, Total int
	}
	w.want(200, w.user, "GET", queue+"?pageSize=1", nil, &page)
	if page.Total != 2 || page.ItemsPerPage != 1 || len(page.Deployments) != 1 || page.Deployments[0].Stack != "b" ||
		page.Deployments[0].Agent != "" {
		t.Errorf("the first page is %+v", page)
	}
	for _, query := range []string{"?pageSize=1&page=2", "?pageSize=1&asc=true"} {
		w.want(200, w.user, "GET", queue+query, nil, &page)
		if d := page.Deployments; len(d) != 1 || d[0].Stack != "a" || d[0].Agent != "box (pid 42)" {
			t.Errorf("%s: %+v", query, page)
		}
	}
	w.want(404, w.user, "GET", "/api/orgs/none/deployments", nil, nil)
	if got := w.want(400, w.user, "GET", queue+"?page=0", nil, nil); !strings.Contains(got.body, "page must be") {
		t.Errorf("page 0: %s", got.body)
	}
}
