package server

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/cloud/server/store"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// accessRows are the expected statuses of all routes, for the tokens in the order of accessTokens; 204 stands for a
// call that the handler gets. A new route needs to be in one of the rows.
var accessRows = []struct{ want, routes string }{
	{"204 204 204 204 204 204 204 204 204 204 204 204 204", `
		GET /api/status
		GET /healthz
		GET /api/capabilities
		GET /api/openapi/pulumi-spec.json
		GET /api/cli/version
		POST /api/oauth/token
		GET /oidc/.well-known/openid-configuration
		GET /oidc/.well-known/jwks
		/api/
	`},
	{"401 204 204 204 204 204 204 204 204 403 403 403 401", `
		GET /api/user
		GET /api/user/organizations/default
		GET /api/deployments/executor
	`},
	{"401 204 204 204 204 204 403 403 403 403 403 403 401", `
		GET /api/user/stacks
	`},
	{"401 204 204 404 404 204 403 403 403 403 403 403 401", `
		GET /api/orgs/{org}/agent-pools
		GET /api/orgs/{org}/agent-pools/{pool}
		GET /api/orgs/{org}/agent-pools/{pool}/activities
		GET /api/orgs/{org}/agent-pools/{pool}/activities/{id}
		GET /api/orgs/{org}/agent-pools/{pool}/activities/{id}/logs
		GET /api/orgs/{org}/deployments
		GET /api/orgs/{org}/deployments/metadata
		GET /api/stacks/{org}/{project}/{stack}/deployments/metadata
		POST /api/stacks/{org}/{project}/{stack}/deployments/pause
		POST /api/stacks/{org}/{project}/{stack}/deployments/resume
		POST /api/stacks/{org}/{project}
		GET /api/stacks/{org}/{project}
		GET /api/stacks/{org}/{project}/{stack}/deployments/settings
		POST /api/stacks/{org}/{project}/{stack}/deployments/settings
		PUT /api/stacks/{org}/{project}/{stack}/deployments/settings
		DELETE /api/stacks/{org}/{project}/{stack}/deployments/settings
		POST /api/stacks/{org}/{project}/{stack}/deployments/settings/encrypt
		POST /api/stacks/{org}/{project}/{stack}/deployments
		GET /api/stacks/{org}/{project}/{stack}/deployments
		GET /api/stacks/{org}/{project}/{stack}/deployments/{id}
		GET /api/stacks/{org}/{project}/{stack}/deployments/{id}/{part}
		POST /api/stacks/{org}/{project}/{stack}/deployments/{id}/cancel
	`},
	{"401 204 204 404 403 403 403 403 403 403 403 403 401", `
		PATCH /api/orgs/{org}
		GET /api/orgs/{org}/tokens
		POST /api/orgs/{org}/deployments/pause
		POST /api/orgs/{org}/deployments/resume
		POST /api/orgs/{org}/agent-pools
		PATCH /api/orgs/{org}/agent-pools/{pool}
		DELETE /api/orgs/{org}/agent-pools/{pool}
		POST /api/orgs/{org}/agent-pools/{pool}/tokens
		POST /api/orgs/{org}/agent-pools/{pool}/activities
		POST /api/orgs/{org}/agent-pools/{pool}/activities/{id}/cancel
	`},
	{"401 204 403 403 403 403 403 403 403 403 403 403 401", `
		GET /api/user/tokens
		POST /api/user/tokens
		DELETE /api/user/tokens/{id}
		POST /api/orgs/{org}/tokens
		DELETE /api/orgs/{org}/tokens/{id}
	`},
	{"401 204 204 404 404 204 204 204 404 403 403 403 401", `
		GET /api/stacks/{org}/{project}/{stack}
		GET /api/stacks/{org}/{project}/{stack}/config
		GET /api/stacks/{org}/{project}/{stack}/updates
		GET /api/stacks/{org}/{project}/{stack}/updates/latest
		GET /api/stacks/{org}/{project}/{stack}/updates/latest/previews
		GET /api/stacks/{org}/{project}/{stack}/updates/{version}
		GET /api/stacks/{org}/{project}/{stack}/updates/{version}/summary
		GET /api/stacks/{org}/{project}/{stack}/previews/{id}
		GET /api/stacks/{org}/{project}/{stack}/resources/count
		GET /api/stacks/{org}/{project}/{stack}/resources/{version}
		GET /api/stacks/{org}/{project}/{stack}/export
		GET /api/stacks/{org}/{project}/{stack}/export/{version}
		GET /api/stacks/{org}/{project}/{stack}/update/{update}
		GET /api/stacks/{org}/{project}/{stack}/update/{update}/events
		GET /api/stacks/{org}/{project}/{stack}/preview/{update}
		GET /api/stacks/{org}/{project}/{stack}/preview/{update}/events
		GET /api/stacks/{org}/{project}/{stack}/refresh/{update}
		GET /api/stacks/{org}/{project}/{stack}/refresh/{update}/events
		GET /api/stacks/{org}/{project}/{stack}/destroy/{update}
		GET /api/stacks/{org}/{project}/{stack}/destroy/{update}/events
		POST /api/stacks/{org}/{project}/{stack}/decrypt
		POST /api/stacks/{org}/{project}/{stack}/batch-decrypt
		POST /api/stacks/{org}/{project}/{stack}/decrypt/log-decryption
		POST /api/stacks/{org}/{project}/{stack}/decrypt/log-batch-decryption
	`},
	{"401 204 204 404 404 204 204 404 404 403 403 403 401", `
		DELETE /api/stacks/{org}/{project}/{stack}
		POST /api/stacks/{org}/{project}/{stack}/update
		POST /api/stacks/{org}/{project}/{stack}/update/{update}
		POST /api/stacks/{org}/{project}/{stack}/update/{update}/cancel
		POST /api/stacks/{org}/{project}/{stack}/preview
		POST /api/stacks/{org}/{project}/{stack}/preview/{update}
		POST /api/stacks/{org}/{project}/{stack}/preview/{update}/cancel
		POST /api/stacks/{org}/{project}/{stack}/refresh
		POST /api/stacks/{org}/{project}/{stack}/refresh/{update}
		POST /api/stacks/{org}/{project}/{stack}/refresh/{update}/cancel
		POST /api/stacks/{org}/{project}/{stack}/destroy
		POST /api/stacks/{org}/{project}/{stack}/destroy/{update}
		POST /api/stacks/{org}/{project}/{stack}/destroy/{update}/cancel
		POST /api/stacks/{org}/{project}/{stack}/import
		POST /api/stacks/{org}/{project}/{stack}/encrypt
		POST /api/stacks/{org}/{project}/{stack}/batch-encrypt
		POST /api/stacks/{org}/{project}/{stack}/rename
		PATCH /api/stacks/{org}/{project}/{stack}/tags
		POST /api/stacks/{org}/{project}/{stack}/tags
		PATCH /api/stacks/{org}/{project}/{stack}/tags/{tag}
		DELETE /api/stacks/{org}/{project}/{stack}/tags/{tag}
		PUT /api/stacks/{org}/{project}/{stack}/config
		DELETE /api/stacks/{org}/{project}/{stack}/config
	`},
	{"401 403 403 403 403 403 403 403 403 204 403 403 401", `
		GET /api/deployments/poll
		GET /api/deployments/{id}/status
		POST /api/agent-workflows/{type}
		POST /api/agent-workflows/{subject}/check
		GET /api/background-activities/token
		POST /api/background-activities/configuration
		POST /api/background-activities/worker/lease/acquire
	`},
	{"401 403 403 403 403 403 403 403 403 403 204 403 401", `
		GET /api/workflow/jobs/{job}
		PATCH /api/workflow/jobs/{job}/{step}/status
		POST /api/workflow/jobs/{job}/{step}/logs
		POST /api/workflow/jobs/{job}/heartbeat
	`},
	{"401 403 403 403 403 403 403 403 403 403 403 204 401", `
		POST /api/background-activities/worker/lease/{lease}/begin
		POST /api/background-activities/worker/lease/{lease}/renew
		POST /api/background-activities/worker/lease/{lease}/complete
	`},
	{"401 401 401 401 401 401 401 401 401 401 401 401 204", updateRoutes(`
		POST /renew_lease
		PATCH /checkpoint
		PATCH /journalentries
		POST /events/batch
		POST /complete
	`)},
}

// updateRoutes returns routes below each kind of update.
func updateRoutes(routes string) string {
	var all strings.Builder
	for _, kind := range updateKinds() {
		all.WriteString("\n" + strings.ReplaceAll(strings.TrimSpace(routes), " /",
			" /api/stacks/{org}/{project}/{stack}/"+kind+"/{update}/"))
	}
	return all.String()
}

// saveToken makes a token without a call.
func (w *world) saveToken(of principal, end time.Time) string {
	w.t.Helper()
	token := of.kind.mint()
	if err := w.server.db.Write(w.t.Context(), func(t *store.Tx) error {
		return saveTokenUntil(t, token, of, end)
	}); err != nil {
		w.t.Fatal(err)
	}
	return token.Reveal()
}

// accessTokens returns the tokens of the columns of accessRows. The calls are about the stack s of the organization.
// Three tokens stand for all that the service does not know: none, an expired and a revoked one.
func accessTokens(w *world) (names []string, tokens [][]string) {
	w.t.Helper()
	w.write(`INSERT INTO organizations (name) VALUES ('foreign')`)
	p := w.pool("p")
	var jobs []*claimed
	var programs []string
	for _, name := range []string{"s", "t", "u"} {
		w.deploy(w.stack(name), steps(1))
		c := w.mustClaim(p)
		jobs, programs = append(jobs, c), append(programs, c.definition().Env["PULUMI_ACCESS_TOKEN"].Value.Reveal())
	}
	w.write(`UPDATE stacks SET organization = 'foreign' WHERE name = 'u'`)
	expired := w.saveToken(principal{userToken, "local"}, time.Now().Add(-time.Second))
	revoked := w.saveToken(principal{userToken, "local"}, time.Time{})
	w.write(`DELETE FROM tokens WHERE hash = ?`, hash(secret.New(revoked)))
	for _, column := range []struct {
		name   string
		tokens []string
	}{
		{"no valid token", []string{"", "cmwa-user-0", expired, revoked}},
		{"user", []string{w.user}},
		{"administrator", []string{w.saveToken(principal{administratorToken, "organization"}, time.Time{})}},
		{"administrator of another organization", []string{
			w.saveToken(principal{administratorToken, "foreign"}, time.Time{}),
		}},
		{"member of another organization", []string{w.saveToken(principal{memberToken, "foreign"}, time.Time{})}},
		{"member", []string{w.saveToken(principal{memberToken, "organization"}, time.Time{})}},
		{"program of the stack's job", programs[:1]},
		{"program of another stack's job", programs[1:2]},
		{"program of another organization's job", programs[2:]},
		{"pool", []string{p.Token}},
		{"job", []string{jobs[0].job.JobToken}},
		{"lease", []string{w.saveToken(principal{leaseToken, "1"}, time.Time{})}},
		{"update", []string{w.update("s", object{}).start().token}},
	} {
		names, tokens = append(names, column.name), append(tokens, column.tokens)
	}
	return names, tokens
}

// TestAccess calls every route with every kind of token, with a handler that does nothing.
func TestAccess(t *testing.T) {
	w := newWorld(t)
	names, tokens := accessTokens(w)
	want := map[string][]string{}
	for _, row := range accessRows {
		for _, route := range strings.Split(strings.TrimSpace(row.routes), "\n") {
			want[strings.TrimSpace(route)] = strings.Fields(row.want)
		}
	}

	mux := http.NewServeMux()
	var patterns []string
	w.server.routes(func(pattern string, _ handler, do action) {
		mux.Handle(pattern, w.server.serve(func(*call) (reply, error) { return reply{}, nil }, do))
		patterns = append(patterns, pattern)
	})
	w.handler = mux
	values := strings.NewReplacer("{org}", "organization", "{project}", "project", "{stack}", "s")
	for _, pattern := range patterns {
		codes := want[pattern]
		delete(want, pattern)
		if len(codes) != len(tokens) {
			t.Errorf("no row of accessRows has the route %s: add it, with the expected statuses", pattern)
			continue
		}
		method, path, found := strings.Cut(values.Replace(pattern), " ")
		if !found {
			method, path = "GET", method
		}
		for i, column := range tokens {
			for j, token := range column {
				w.server.logins = newFailedLogins() // 401, not 429
				got := w.ask(token, method, path, nil)
				if names[i] == "update" {
					got = w.send("", method, path, "", "Authorization", updateScheme+" "+token)
				}
				if fmt.Sprint(got.code) != codes[i] {
					t.Errorf("%s: %s (%d): %d %s, want %s", pattern, names[i], j, got.code, got.body, codes[i])
				}
			}
		}
	}
	for pattern := range want {
		t.Errorf("accessRows has the route %s, which does not exist", pattern)
	}
}

// TestAccessHidesStacks compares the refusals for stacks and organizations that exist and that do not.
func TestAccessHidesStacks(t *testing.T) {
	w := newWorld(t)
	names, tokens := accessTokens(w)
	for i, name := range names {
		if !strings.Contains(name, " another ") {
			continue
		}
		for _, token := range tokens[i] {
			there := w.ask(token, "DELETE", "/api/stacks/organization/project/s", nil)
			missing := w.ask(token, "DELETE", "/api/stacks/organization/project/x", nil)
			if there.code != 404 || strings.ReplaceAll(there.body, "/s ", "/x ") != missing.body {
				t.Errorf("%s: %d %s, and for a missing stack %s", name, there.code, there.body, missing.body)
			}
		}
	}
}

// TestListStacksOfOrganization lists only the stacks of the token's organization.
func TestListStacksOfOrganization(t *testing.T) {
	w := newWorld(t)
	_, tokens := accessTokens(w)
	for query, want := range map[string]string{
		"": "u", "?organization=foreign": "u", "?organization=organization": "",
	} {
		var all struct{ Stacks []stackSummary }
		w.want(200, tokens[3][0], "GET", "/api/user/stacks"+query, nil, &all)
		var got []string
		for _, one := range all.Stacks {
			got = append(got, one.Name)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%q lists %q, want %q", query, got, want)
		}
	}
}

// TestStackTokenEnds ends a job in every way. From then on the token of its programs is unknown.
func TestStackTokenEnds(t *testing.T) {
	for name, end := range map[string]func(w *world, at string, c *claimed){
		"by success": func(_ *world, _ string, c *claimed) { c.runs(0, 1) },
		"by failure": func(_ *world, _ string, c *claimed) {
			c.status(0, running)
			c.status(0, failed)
		},
		"by a cancel": func(w *world, at string, c *claimed) {
			w.want(200, w.user, "POST", at+"/"+c.job.DeploymentID+"/cancel", nil, nil)
		},
		"by silence": func(w *world, _ string, _ *claimed) {
			w.expireAfter(time.Hour)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			p, at := w.pool("p"), w.stack("s")
			w.deploy(at, steps(1))
			c := w.mustClaim(p)
			var tokens []string
			for range 2 { // a repeated fetch of the definition makes a second token
				tokens = append(tokens, c.definition().Env["PULUMI_ACCESS_TOKEN"].Value.Reveal())
			}
			for _, token := range tokens {
				w.want(200, token, "GET", "/api/stacks/organization/project/s", nil, nil)
			}
			end(w, at, c)
			for i, token := range tokens {
				if got := w.ask(token, "GET", "/api/user", nil); got.code != 401 {
					t.Errorf("token %d after the end: %d %s, want 401", i, got.code, got.body)
				}
			}
		})
	}
}

// TestAccessOfAnother calls the routes of jobs, leases and updates with the token of another job, lease or update.
func TestAccessOfAnother(t *testing.T) {
	w := newWorld(t)
	p := w.pool("p")
	tokens := map[action][]string{holdLease: {"", w.saveToken(principal{leaseToken, "1"}, time.Time{})}}
	values := []string{"{lease}", "2", "{step}", "0", "{org}", "organization", "{project}", "project", "{stack}", "s"}
	for _, name := range []string{"s", "t"} {
		w.deploy(w.stack(name), steps(1))
		c, u := w.mustClaim(p), w.update(name, object{}).start()
		tokens[reportJob] = append(tokens[reportJob], c.job.JobToken)
		tokens[holdUpdate] = append(tokens[holdUpdate], u.token)
		if name == "s" {
			values = append(values, "{job}", c.job.JobID, "{update}", u.id)
		}
	}
	count := 0
	w.server.routes(func(pattern string, _ handler, do action) {
		if tokens[do] == nil {
			return
		}
		count++
		method, path, _ := strings.Cut(strings.NewReplacer(values...).Replace(pattern), " ")
		scheme := "token "
		if do == holdUpdate {
			scheme = updateScheme + " "
		}
		got := w.send("", method, path, `{"status":"failed","offset":0,"lines":[]}`,
			"Authorization", scheme+tokens[do][1])
		if got.code != 403 && got.code != 404 {
			t.Errorf("%s with the token of another: %d %s, want 403 or 404", pattern, got.code, got.body)
		}
	})
	if count < 10 {
		t.Errorf("only %d routes were called", count)
	}
}
