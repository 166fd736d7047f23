package server

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/cloud"
)

// hostile is a service whose database is watched for changes, with a token for each action.
type hostile struct {
	*world
	watch  *sql.DB // one connection, beside those of the service
	tokens map[action]string
	values map[string]string // of the parameters in paths
}

func newHostile(t *testing.T) *hostile {
	t.Helper()
	h := &hostile{world: newWorld(t)}
	watch, err := sql.Open("sqlite", filepath.Join(h.directory, "cloud.db"))
	if err != nil {
		t.Fatal(err)
	}
	watch.SetMaxOpenConns(1)
	t.Cleanup(func() { _ = watch.Close() })
	h.watch = watch

	p, at := h.pool("p"), h.stack("s")
	id := h.deploy(at, steps(1))
	job, update := h.mustClaim(p), h.update("s", object{}).start()
	h.tokens = map[action]string{
		answerAnyone: "", serveAgent: p.Token, reportJob: job.job.JobToken, holdUpdate: update.token,
		holdLease: h.saveToken(principal{leaseToken, "1"}, time.Time{}),
	}
	h.values = map[string]string{
		"org": "organization", "project": "project", "stack": "s", "pool": p.ID, "id": id,
		"job": job.job.JobID, "step": "0", "update": update.id, "lease": "1", "version": "1", "part": "logs",
		"tag": "t", "type": "deployment", "subject": "x",
	}
	return h
}

// version changes with each transaction of the service that writes.
func (h *hostile) version() (v int64) {
	h.t.Helper()
	if err := h.watch.QueryRow(`PRAGMA data_version`).Scan(&v); err != nil {
		h.t.Fatal(err)
	}
	return v
}

// try makes a call that must not fail the service. A refusal has the documented body, and writes nothing.
func (h *hostile) try(do action, method, path, body string, header ...string) (code int) {
	h.t.Helper()
	token, special := h.tokens[do]
	if !special {
		token = h.user
	}
	if do == holdUpdate {
		header, token = append(header, "Authorization", updateScheme+" "+token), ""
	}
	// Without this, the last use of valid tokens is recorded.
	h.write(`UPDATE access_tokens SET last_used = ?`, time.Now().Add(time.Hour).UnixNano())
	before := h.version()
	got := h.send(token, method, path, body, header...)
	what := fmt.Sprintf("%s %.200s with %.100q %v", method, path, body, header)
	if got.code >= 500 {
		h.t.Errorf("%s: %d %s", what, got.code, got.body)
	}
	if got.code < 400 {
		return got.code
	}
	if do != serveAgent && h.version() != before {
		h.t.Errorf("%s: %d, but the database was changed", what, got.code)
	}
	var refusal cloud.ErrorBody
	if err := json.Unmarshal([]byte(got.body), &refusal); err != nil || refusal.Code != got.code ||
		!strings.HasPrefix(refusal.Message, http.StatusText(got.code)+": ") {
		h.t.Errorf("%s: %d with the body %.300s", what, got.code, got.body)
	}
	return got.code
}

// path returns the path of a route, with one parameter replaced.
func (h *hostile) path(pattern, parameter, value string) string {
	for name, usual := range h.values {
		if name == parameter {
			usual = value
		}
		pattern = strings.ReplaceAll(pattern, "{"+name+"}", usual)
	}
	return pattern
}

// eachRoute calls do for each route of the API. Of the four kinds of updates, which have the same handlers, it
// takes one.
func (h *hostile) eachRoute(do func(method, path string, of action)) {
	h.server.routes(func(pattern string, _ handler, of action) {
		method, path, found := strings.Cut(pattern, " ")
		if found && !slices.ContainsFunc([]string{"/preview", "/refresh", "/destroy"}, func(kind string) bool {
			return strings.HasSuffix(path, kind) || strings.Contains(path, kind+"/{update}")
		}) {
			do(method, path, of)
		}
	})
}

// ignoresBody are the routes that read no body, or that accept any text.
const ignoresBody = " cancel pause resume heartbeat check agent-workflows/{type} configuration acquire renew begin "

// TestServerHostileBodies sends malformed bodies to all routes that take a body.
func TestServerHostileBodies(t *testing.T) {
	bomb := packed(strings.Repeat(" ", 70<<20))
	malformed := map[string][]string{ // with headers
		"{": nil, "[]": nil, `"x"`: nil, "1": nil, `{"a":1}}`: nil, "\xff\xfe": nil, `{"a":"` + "\xff" + `"}`: nil,
		`{"a":` + strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000) + `}`: nil,
		"no gzip":         {"Content-Encoding", "gzip"},
		bomb:              {"Content-Encoding", "gzip"},
		packed("{}")[:15]: {"Content-Encoding", "gzip"},
		"{}":              {"Content-Encoding", "br"},
	}
	h := newHostile(t)
	h.eachRoute(func(method, path string, do action) {
		if method != "POST" && method != "PUT" && method != "PATCH" {
			return
		}
		last := path[strings.LastIndex(path, "/")+1:]
		for body, header := range malformed {
			code := h.try(do, method, h.path(path, "", ""), body, header...)
			if code < 400 && !strings.Contains(ignoresBody, " "+last+" ") && !strings.HasSuffix(path, "{type}") {
				t.Errorf("%s %s accepts %.100q: %d", method, path, body, code)
			}
		}
	})
}

// TestServerHostileValues sends every field that the API knows with values that no field expects.
func TestServerHostileValues(t *testing.T) {
	fields := strings.Fields(`name description stackName tags status entries events deployment version config options
		metadata plaintext ciphertext plaintexts ciphertexts newName newProject expires admin roleID operation
		agentPoolID cmwaSteps cmwaTimeout offset lines token duration isInvalid untypedDeployment
		features journalVersion value
		inheritSettings executorContext sourceContext operationContext setDefaultAgentPoolID revokeOthers kind
		result cmwaKinds message environment runtime main state force image steps`)
	for _, value := range []string{
		`1`, `-1`, `1e400`, `99999999999999999999`, `true`, `null`, `[]`, `{}`, `[null]`, `{"":null}`, `""`, `"\u0000"`,
		`"'; DROP TABLE stacks; --"`, `"../../../etc/passwd"`, `"${jndi:x}"`, `{"secret":1}`, `{"ciphertext":"AAAA"}`,
		`[{"name":1,"run":2}]`, `"` + strings.Repeat("x", 3<<20) + `"`,
	} {
		t.Run(fmt.Sprintf("%.20s", value), func(t *testing.T) {
			h := newHostile(t)
			var body strings.Builder
			for i, field := range fields {
				body.WriteString(map[bool]string{true: "{", false: ","}[i == 0] + `"` + field + `":` + value)
				if len(value) > 1000 {
					break
				}
			}
			body.WriteString("}")
			h.eachRoute(func(method, path string, do action) {
				if method == "POST" || method == "PUT" || method == "PATCH" {
					h.try(do, method, h.path(path, "", ""), body.String())
				}
			})
		})
	}
}

// TestServerHostilePaths replaces each parameter of each path, and the parameters of queries.
func TestServerHostilePaths(t *testing.T) {
	h := newHostile(t)
	values := []string{
		"%2e%2e", "..%2f..%2f..%2fetc%2fpasswd", "%00", "a%2fb",
		"%27%3B%20DROP%20TABLE%20stacks%3B%20--", "%ff%fe", "%20", "%C3%A9",
		"-1", "99999999999999999999", "%7Bid%7D", strings.Repeat("x", 20_000),
	}
	query := url.Values{}
	for name, value := range map[string]string{
		"page": "-1", "pageSize": "99999999999999999999", "continuationToken": "../../x", "job": "x",
		"step": "-1", "offset": "-1", "count": "0", "filter": "'", "asc": "perhaps", "sort": "; DROP",
		"organization": "\x00", "project": "..", "tagName": "'", "tagValue": "\xff", "force": "perhaps", "type": "\xff",
		"urn": "\x00", "output-type": "'",
	} {
		query.Set(name, value)
	}
	h.eachRoute(func(method, path string, do action) {
		for name := range h.values {
			if !strings.Contains(path, "{"+name+"}") {
				continue
			}
			for _, value := range values {
				code := h.try(do, method, h.path(path, name, value), "{}")
				if code < 400 && name != "type" && name != "subject" {
					t.Errorf("%s %s with %s=%.60s: %d", method, path, name, value, code)
				}
			}
		}
		if method == "GET" {
			h.try(do, method, h.path(path, "", "")+"?"+query.Encode(), "")
			for name := range query {
				h.try(do, method, h.path(path, "", "")+"?"+url.Values{name: query[name]}.Encode(), "")
			}
		}
	})
}

// TestServerHostileFiles asks for files outside of those that the web page serves.
func TestServerHostileFiles(t *testing.T) {
	w := newWorld(t)
	for _, path := range []string{
		"/static/../../../../etc/passwd", "/static/%2e%2e/%2e%2e/%2e%2e/etc/passwd", "/..%2f..%2f..%2fetc%2fpasswd",
		"//etc/passwd",
		"/static/..%5c..%5cdoc.go", "/api/stacks/../../../etc/passwd", "/static/", "/static/\x00",
	} {
		r := &http.Request{Method: "GET", Header: http.Header{}, URL: &url.URL{}, Body: http.NoBody}
		if unescaped, err := url.PathUnescape(path); err == nil {
			r.URL.Path, r.URL.RawPath = unescaped, path
		}
		rec := httptest.NewRecorder()
		w.handler.ServeHTTP(rec, r)
		location := rec.Header().Get("Location")
		elsewhere := location != "" && (location[0] != '/' || strings.HasPrefix(location, "//"))
		if rec.Code < 300 || rec.Code >= 500 || elsewhere {
			t.Errorf("%q: %d, Location %q, %.100s", path, rec.Code, location, rec.Body)
		}
	}
}
