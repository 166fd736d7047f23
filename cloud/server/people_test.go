package server

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cmwa-project/cmwa/cloud/server/store"
)

const pools = "/api/orgs/organization/agent-pools"

func TestPools(t *testing.T) {
	w := newWorld(t)
	p := w.pool("a")
	if !strings.HasPrefix(p.Token, "pul-") || len(p.Token) < 64 {
		t.Errorf("the token begins with %.4q and has %d bytes", p.Token, len(p.Token))
	}
	w.want(409, w.user, "POST", pools, object{"name": "a"}, nil)
	for _, bad := range []object{{}, {"name": " "}, {"name": strings.Repeat("x", 101)}, {"name": 1}} {
		w.want(400, w.user, "POST", pools, bad, nil)
	}
	w.want(404, w.user, "POST", "/api/orgs/other/agent-pools", object{"name": "a"}, nil)
	w.want(401, "", "POST", pools, object{"name": "b"}, nil)
	w.want(403, p.Token, "POST", pools, object{"name": "b"}, nil)
	var edited object
	w.want(200, w.user, "PATCH", pools+"/"+p.ID, object{"description": "new"}, &edited)
	if diff := cmp.Diff(object{"name": "a", "description": "new"}, edited); diff != "" {
		t.Error(diff)
	}
	at := w.stack("s")
	w.want(200, w.user, "PUT", at+"/settings", object{"agentPoolID": p.ID}, nil)
	queued := w.deploy(at, steps(1))
	w.want(400, w.user, "DELETE", pools+"/"+p.ID, nil, nil)
	w.want(204, w.user, "DELETE", pools+"/"+p.ID+"?force=true", nil, nil)
	w.want(404, w.user, "DELETE", pools+"/"+p.ID, nil, nil)
	w.want(404, w.user, "GET", pools+"/"+p.ID, nil, nil)
	w.want(401, p.Token, "GET", "/api/deployments/poll", nil, nil)
	w.shows(at, queued, skipped, notStarted, notStarted)
}

func TestListAgents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.close()
		p := w.pool("a")
		get := func() (detail poolDetail, status string) {
			t.Helper()
			w.want(200, w.user, "GET", pools+"/"+p.ID, nil, &detail)
			var all struct {
				Pools   []poolView `json:"agentPools"`
				Default string     `json:"defaultAgentPoolID"`
			}
			w.want(200, w.user, "GET", pools, nil, &all)
			return detail, all.Pools[0].Status
		}
		if detail, status := get(); len(detail.Agents) != 0 || status != "offline" {
			t.Errorf("before any agent: %+v, %s", detail, status)
		}
		for range 5 {
			w.claim(p)
			time.Sleep(time.Minute)
		}
		want := []agentView{{Hostname: "box", IP: "192.0.2.1", PID: "42", Platform: "linux/amd64", Version: "1.2.3",
			Status: "online", LastSeen: time.Now().Unix() - 60}}
		if detail, status := get(); status != "online" || !cmp.Equal(want, detail.Agents) {
			t.Errorf("with an agent: status %s: %s", status, cmp.Diff(want, detail.Agents))
		}
		time.Sleep(10 * time.Minute)
		if detail, status := get(); status != "offline" || len(detail.Agents) != 1 ||
			detail.Agents[0].Status != "offline" {
			t.Errorf("after ten minutes: %+v, %s", detail, status)
		}
		time.Sleep(time.Hour)
		if detail, _ := get(); len(detail.Agents) != 0 {
			t.Errorf("after an hour: %+v", detail)
		}
	})
}

func TestParseUserAgent(t *testing.T) {
	for text, want := range map[string]store.Agent{
		"cmwa/1.0 (linux/amd64; host=a b; pid=7)": {
			Hostname: "a b", IP: "10.0.0.1", PID: "7", Version: "1.0", Platform: "linux/amd64",
		},
		"pulumi-workflow-agent/v2.2.0 (linux)": {IP: "10.0.0.1", Version: "v2.2.0", Platform: "linux"},
		"curl/8":                               {IP: "10.0.0.1", Version: "8"},
		"":                                     {IP: "10.0.0.1"},
	} {
		if got := parseUserAgent(text, "10.0.0.1:99"); got != want {
			t.Errorf("parseUserAgent(%q) = %+v, want %+v", text, got, want)
		}
	}
	if got := parseUserAgent("a/"+strings.Repeat("é", 500), "x"); len(got.Version) > maxAgent {
		t.Errorf("the version has %d bytes, want at most %d", len(got.Version), maxAgent)
	}
}

func TestStacks(t *testing.T) {
	w := newWorld(t)
	p, at := w.pool("p"), w.stack("s")
	const stack = "/api/stacks/organization/project/s"
	w.want(409, w.user, "POST", "/api/stacks/organization/project", object{"stackName": "s"}, nil)
	for _, name := range []string{"", "-a", "a/b", "a b", "..", strings.Repeat("x", 101)} {
		w.want(400, w.user, "POST", "/api/stacks/organization/project", object{"stackName": name}, nil)
	}
	w.want(404, w.user, "POST", "/api/stacks/other/project", object{"stackName": "s"}, nil)
	w.want(200, w.user, "HEAD", "/api/stacks/organization/project", nil, nil)
	w.want(404, w.user, "HEAD", "/api/stacks/organization/none", nil, nil)
	w.want(404, w.user, "GET", "/api/stacks/organization/project/none", nil, nil)
	w.want(404, w.user, "POST", fmt.Sprintf(deployments, "none"), steps(1), nil)
	w.want(200, w.user, "POST", "/api/stacks/organization/project", object{"stackName": "t", "tags": object{"k": "v"}},
		nil)
	for query, want := range map[string]int{"": 2, "?project=project": 2, "?project=x": 0, "?tagName=k": 1,
		"?tagName=k&tagValue=v": 1, "?tagName=k&tagValue=x": 0, "?organization=organization": 2} {
		var all struct{ Stacks []stackSummary }
		w.want(200, w.user, "GET", "/api/user/stacks"+query, nil, &all)
		if len(all.Stacks) != want {
			t.Errorf("%q lists %d stacks, want %d", query, len(all.Stacks), want)
		}
	}
	w.deploy(at, steps(1))
	c := w.mustClaim(p)
	programToken := c.definition().Env["PULUMI_ACCESS_TOKEN"].Value.Reveal()
	var view stackView
	w.want(200, programToken, "GET", stack, nil, &view)
	if view.Organization != "organization" || view.Project != "project" || view.Name != "s" {
		t.Errorf("the stack is %+v", view)
	}
	w.want(200, programToken, "GET", "/api/stacks/organization/project/t", nil, nil)
	w.want(404, programToken, "DELETE", "/api/stacks/organization/project/t", nil, nil)
	w.want(409, w.user, "DELETE", stack, nil, nil)
	c.runs(0, 1)
	w.want(204, w.user, "DELETE", stack, nil, nil)
	w.want(404, w.user, "GET", stack, nil, nil)
	if got := c.heartbeat(); got != 401 {
		t.Errorf("after the deletion of the stack, a heartbeat of the job gets %d, want 401", got)
	}
}

func TestListDeployments(t *testing.T) {
	w := newWorld(t)
	at := w.stack("s")
	for range 12 {
		w.deploy(at, steps(1))
	}
	for query, want := range map[string]string{"": "12 11 10 9 8 7 6 5 4 3", "?page=2&pageSize=10": "2 1",
		"?page=3": "", "?asc=true&pageSize=3": "1 2 3"} {
		var page struct {
			Deployments  []deploymentView
			ItemsPerPage int
			Total        int
		}
		w.want(200, w.user, "GET", at+query, nil, &page)
		var got []string
		for _, d := range page.Deployments {
			got = append(got, fmt.Sprint(d.Version))
		}
		if strings.Join(got, " ") != want || page.Total != 12 {
			t.Errorf("%q lists %v of %d, want %s", query, got, page.Total, want)
		}
	}
	var one deploymentView
	w.want(200, w.user, "GET", at+"/version/5", nil, &one)
	if one.Version != 5 || one.Requester.GitHubLogin != "local" || one.Initiator != "api" {
		t.Errorf("version 5 is %+v", one)
	}
	if got := w.want(200, w.user, "GET", at+"/"+one.ID+"/updates", nil, nil); got.body != "[]" {
		t.Errorf("the updates are %s", got.body)
	}
	for _, path := range []string{"/version/13", "/none", "/" + one.ID + "/none", "/none/logs"} {
		w.want(404, w.user, "GET", at+path, nil, nil)
	}
	for _, path := range []string{"/version/x", "?page=0", "?pageSize=101"} {
		w.want(400, w.user, "GET", at+path, nil, nil)
	}
}

func TestUser(t *testing.T) {
	w := newWorld(t)
	var user userView
	w.want(200, w.user, "GET", "/api/user", nil, &user)
	if user.GitHubLogin != "local" || len(user.Organizations) != 2 ||
		user.Organizations[1].GitHubLogin != "organization" {
		t.Errorf("the user is %+v", user)
	}
	var standard struct{ GitHubLogin string }
	w.want(200, w.user, "GET", "/api/user/organizations/default", nil, &standard)
	if standard.GitHubLogin != "organization" {
		t.Errorf("the default organization is %+v", standard)
	}
	const capabilities = `{"capabilities":[{"capability":"cmwa-leases","version":1},` +
		`{"capability":"batch-encrypt","version":1},` +
		`{"capability":"deployment-schema-version","version":1,"configuration":{"version":4}}]}`
	if got := w.want(200, "", "GET", "/api/capabilities", nil, nil); got.body != capabilities {
		t.Errorf("the capabilities are %s", got.body)
	}
}

func TestBackground(t *testing.T) {
	w := newWorld(t)
	p := w.pool("p")
	var token struct {
		Token      string
		Expiration time.Time
	}
	w.want(200, p.Token, "GET", "/api/background-activities/token", nil, &token)
	if token.Token == "" || !token.Expiration.After(time.Now()) {
		t.Errorf("the worker's token is %+v", token)
	}
	if got := w.want(200, p.Token, "POST", "/api/background-activities/configuration", "{}", nil); got.body != "[]" {
		t.Errorf("the configuration is %s", got.body)
	}
	w.want(204, p.Token, "POST", "/api/background-activities/worker/lease/acquire", "{}", nil)
	w.want(200, p.Token, "POST", "/api/agent-workflows/deployment", nil, nil)
	w.want(404, p.Token, "POST", "/api/agent-workflows/scan:x/check", nil, nil)
	w.want(401, "", "GET", "/api/background-activities/token", nil, nil)
}

func TestExpireTokens(t *testing.T) {
	w := newWorld(t)
	p := w.pool("p")
	w.deploy(w.stack("s"), steps(1))
	c := w.mustClaim(p)
	c.runs(0, 1)
	w.expireAfter(23 * time.Hour)
	if c.status(1, succeeded) != 200 {
		t.Error("the token of a job that ended 23 hours ago is rejected")
	}
	w.expireAfter(25 * time.Hour)
	if c.status(1, succeeded) != 401 {
		t.Error("the token of a job that ended 25 hours ago is accepted")
	}
}
