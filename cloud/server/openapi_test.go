package server

import (
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
)

// TestOpenAPI compares the description with the routes, in both directions.
func TestOpenAPI(t *testing.T) {
	w := newWorld(t)
	var document struct {
		OpenAPI string
		Paths   map[string]map[string]struct {
			OperationID string
			Parameters  []struct {
				Name, In string
				Required bool
			}
			Tags     []string
			Security *[]any
		}
	}
	w.want(200, "", "GET", "/api/openapi/pulumi-spec.json", nil, &document)
	if !strings.HasPrefix(document.OpenAPI, "3.0.") {
		t.Errorf("the version is %q", document.OpenAPI)
	}

	mux := http.NewServeMux()
	actions := map[string]action{}
	w.server.routes(func(pattern string, _ handler, do action) {
		mux.HandleFunc(pattern, func(http.ResponseWriter, *http.Request) {})
		actions[pattern] = do
	})
	described, ids := map[string]bool{"/api/": true}, map[string]bool{}
	for path, operations := range document.Paths {
		for method, o := range operations {
			filled := regexp.MustCompile(`[{}]`).ReplaceAllString(path, "")
			r := httptest.NewRequest(strings.ToUpper(method), filled, nil)
			_, pattern := mux.Handler(r)
			described[pattern] = true
			if regexp.MustCompile(`\{.*?\}`).ReplaceAllString(pattern, "{}") !=
				strings.ToUpper(method)+" "+regexp.MustCompile(`\{.*?\}`).ReplaceAllString(path, "{}") {
				t.Errorf("%s %s is described, but the route is %q", method, path, pattern)
			}
			if !regexp.MustCompile(`^[A-Z][A-Za-z0-9_]+$`).MatchString(o.OperationID) || ids[o.OperationID] {
				t.Errorf("%s %s has the operation id %q", method, path, o.OperationID)
			}
			ids[o.OperationID] = true
			var names []string
			for _, p := range o.Parameters {
				if p.In == "path" {
					names = append(names, "{"+p.Name+"}")
				}
				if p.Required != (p.In == "path") {
					t.Errorf("%s %s has the parameter %+v", method, path, p)
				}
			}
			want := regexp.MustCompile(`\{.*?\}`).FindAllString(path, -1)
			if strings.Join(names, " ") != strings.Join(want, " ") {
				t.Errorf("%s %s has the parameters %v, want %v", method, path, names, want)
			}
			if (o.Security != nil) != (actions[pattern] == answerAnyone) || len(o.Tags) != 1 || o.Tags[0] == "" {
				t.Errorf("%s %s is described as %+v", method, path, o)
			}
		}
	}
	for pattern := range actions {
		if !described[pattern] {
			t.Errorf("%s is not described", pattern)
		}
	}
	for pattern := range queryParameters {
		if _, ok := actions[pattern]; !ok {
			t.Errorf("queryParameters contains %q, which is no route", pattern)
		}
	}
	for _, id := range []string{"GetStack", "CreateStack", "ListUserStacks", "AddStackTag", "UpdateStackTags"} {
		if !ids[id] {
			t.Errorf("the documented operation %s is missing", id)
		}
	}
}

func TestCLIVersion(t *testing.T) {
	w := newWorld(t)
	const want = `{"latestVersion":"3.0.0","oldestWithoutWarning":"3.0.0"}`
	if got := w.want(200, "", "GET", "/api/cli/version", nil, nil); got.body != want {
		t.Errorf("the version is %s, want %s", got.body, want)
	}
}

func TestUnknown(t *testing.T) {
	w := newWorld(t)
	for call, want := range map[string]string{
		"GET /api/esc/environments/organization":            "environments",
		"GET /api/orgs/organization/search/resourcesv2":     "search",
		"GET /api/stacks/organization/search/s/policypacks": "policy packs",
		"POST /api/stacks/organization/p/s/hooks":           "webhooks",
		"GET /api/orgs/organization/auditlogs":              "audit logs",
		"GET /api/preview/insights/organization/accounts":   "Insights",
		"GET /api/stacks/organization/search/hooks/none":    "unknown path or method",
		"PUT /api/user":   "unknown path or method",
		"GET /api/":       "unknown path or method",
		"GET /api/stacks": "unknown path or method",
		"GET /api/orgs":   "unknown path or method",
		"POST /api/stacks/organization/p/s/deployments/schedules": "schedules",
	} {
		method, path, _ := strings.Cut(call, " ")
		if got := w.ask(w.user, method, path, nil); got.code != 404 || !strings.Contains(got.body, want) {
			t.Errorf("%s: %d %s, want 404 and %q", call, got.code, got.body, want)
		}
	}
}
