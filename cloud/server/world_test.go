package server

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/cloud"
	"github.com/cmwa-project/cmwa/cloud/server/idtoken"
	"github.com/cmwa-project/cmwa/cloud/server/servertest"
	"github.com/cmwa-project/cmwa/cloud/server/store"
)

// world is a service in a new directory, with its user.
type world struct {
	t         testing.TB
	server    *Server
	second    *Server // another instance; nil before addInstance
	handler   http.Handler
	directory string
	user      string // access token
}

func newWorld(t testing.TB, change ...func(*Options)) *world {
	t.Helper()
	w := &world{t: t, directory: servertest.DataDirectory(t)}
	if err := os.CopyFS(w.directory, os.DirFS(firstDirectory)); err != nil {
		t.Fatal(err)
	}
	return w.run(change...)
}

// newEmptyWorld is like newWorld, but the service creates its data directory.
func newEmptyWorld(t testing.TB, change ...func(*Options)) *world {
	t.Helper()
	w := &world{t: t, directory: servertest.DataDirectory(t)}
	return w.run(change...)
}

// run starts the service until the end of the test.
func (w *world) run(change ...func(*Options)) *world {
	w.t.Helper()
	w.open(change...)
	w.t.Cleanup(w.close)
	return w
}

// firstDirectory is a data directory after the first start of a service. Tests start with a copy of it, because the
// migration of a new database takes most of a second under the race detector.
var firstDirectory string

func TestMain(m *testing.M) {
	serveInstance()
	code := func() int {
		parent, err := os.MkdirTemp("", "cmwa-cloud-")
		if err != nil {
			panic(err)
		}
		defer os.RemoveAll(parent)
		firstDirectory = filepath.Join(parent, "data")
		s, err := Open(context.Background(), Options{Directory: firstDirectory})
		if err != nil {
			panic(err)
		}
		if err := s.Close(); err != nil {
			panic(err)
		}
		return m.Run()
	}()
	os.Exit(code)
}

func (w *world) open(change ...func(*Options)) {
	w.t.Helper()
	options := Options{Directory: w.directory}
	for _, c := range change {
		c(&options)
	}
	s, err := Open(context.Background(), options)
	if err != nil {
		w.t.Fatal(err)
	}
	token, err := os.ReadFile(filepath.Join(w.directory, AccessTokenFile))
	if err != nil {
		w.t.Fatal(err)
	}
	s.signs = sharedSigner() // a new key takes a quarter of a second
	s.db.Observe(w.examine)
	w.server, w.handler, w.user = s, s.Handler(), strings.TrimSpace(string(token))
}

// addInstance opens another instance of the service with the same database. From then on, the two get the calls in
// turn, as behind a load balancer.
func (w *world) addInstance() {
	w.t.Helper()
	s, err := open(context.Background(), Options{Directory: w.directory})
	if err != nil {
		w.t.Fatal(err)
	}
	s.signs = sharedSigner()
	s.db.Observe(w.examine)
	w.second = s
	handlers := []http.Handler{w.handler, s.Handler()}
	var calls atomic.Int64
	w.handler = http.HandlerFunc(func(response http.ResponseWriter, r *http.Request) {
		handlers[calls.Add(1)%2].ServeHTTP(response, r)
	})
}

// sharedSigner returns the signer of all services of the tests, except in TestJobOIDCToken.
var sharedSigner = sync.OnceValue(func() *idtoken.Signer {
	key, err := idtoken.NewKey()
	if err != nil {
		panic(err)
	}
	signer, err := idtoken.NewSigner(key)
	if err != nil {
		panic(err)
	}
	return signer
})

func (w *world) close() {
	if w.server == nil {
		return
	}
	if err := w.server.Close(); err != nil {
		w.t.Error(err)
	}
	if w.second != nil {
		if err := w.second.Close(); err != nil {
			w.t.Error(err)
		}
	}
	w.server, w.second = nil, nil
}

// database opens the database beside the service, for the statements of tests.
func (w *world) database() *sql.DB {
	w.t.Helper()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(w.directory, store.File)+
		"?_pragma=busy_timeout(10000)&_pragma=foreign_keys(ON)")
	if err != nil {
		w.t.Fatal(err)
	}
	return db
}

// write changes the database directly.
func (w *world) write(statement string, args ...any) {
	w.t.Helper()
	db := w.database()
	defer db.Close()
	if _, err := db.ExecContext(context.Background(), statement, args...); err != nil {
		w.t.Fatal(err)
	}
}

// read scans the only row of a query.
func (w *world) read(dest []any, query string, args ...any) {
	w.t.Helper()
	db := w.database()
	defer db.Close()
	if err := db.QueryRowContext(context.Background(), query, args...).Scan(dest...); err != nil {
		w.t.Fatal(err)
	}
}

// restart closes the service, and opens a new one with the same directory.
func (w *world) restart() {
	w.t.Helper()
	w.close()
	w.open()
}

// answer is the response to a call.
type answer struct {
	code   int
	header http.Header
	body   string
}

// ask makes one call. Body may be nil, a string that is sent without change, or a
// value that is sent as JSON.
func (w *world) ask(token, method, path string, body any) answer {
	w.t.Helper()
	var content string
	switch body := body.(type) {
	case nil:
	case string:
		content = body
	default:
		text, err := json.Marshal(body)
		if err != nil {
			w.t.Fatal(err)
		}
		content = string(text)
	}
	return w.send(token, method, path, content)
}

// send makes one call with pairs of names and values of headers.
func (w *world) send(token, method, path, body string, header ...string) answer {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Header.Set("User-Agent", "cmwa/1.2.3 (linux/amd64; host=box; pid=42)")
	if token != "" {
		r.Header.Set("Authorization", "token "+token)
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	rec := httptest.NewRecorder()
	w.handler.ServeHTTP(rec, r)
	return answer{rec.Code, rec.Header(), rec.Body.String()}
}

// want makes a call, checks the status of the response, and decodes it.
func (w *world) want(code int, token, method, path string, body, into any) answer {
	w.t.Helper()
	got := w.ask(token, method, path, body)
	if got.code != code {
		w.t.Fatalf("%s %s: %d %s, want %d", method, path, got.code, got.body, code)
	}
	if into != nil {
		if err := json.Unmarshal([]byte(got.body), into); err != nil {
			w.t.Fatalf("%s %s: %v: %s", method, path, err, got.body)
		}
	}
	return got
}

// pool is an agent pool, and the token of its agents.
type pool struct {
	ID    string
	Token string `json:"tokenValue"`
}

func (w *world) pool(name string) (p pool) {
	w.t.Helper()
	w.want(200, w.user, "POST", "/api/orgs/organization/agent-pools", map[string]string{"name": name,
		"description": "d"}, &p)
	return p
}

const deployments = "/api/stacks/organization/project/%s/deployments"

func (w *world) stack(name string) string {
	w.t.Helper()
	w.want(200, w.user, "POST", "/api/stacks/organization/project", map[string]string{"stackName": name}, nil)
	return fmt.Sprintf(deployments, name)
}

type object = map[string]any

// steps returns a deployment request with n steps in addition to Setup, and with the
// fields of more.
func steps(n int, more ...object) object {
	var all []object
	for i := range n {
		all = append(all, object{"name": fmt.Sprintf("step %d", i+1), "run": "true"})
	}
	request := object{"cmwaSteps": all}
	for _, m := range more {
		for k, v := range m {
			request[k] = v
		}
	}
	return request
}

func (w *world) deploy(at string, request object) (id string) {
	w.t.Helper()
	var queued struct {
		ID      string
		Version int
		Console string `json:"consoleUrl"`
	}
	w.want(202, w.user, "POST", at, request, &queued)
	if queued.ID == "" || queued.Version < 1 || queued.Console == "" {
		w.t.Fatalf("queued as %+v", queued)
	}
	return queued.ID
}

// claimed is a claimed job.
type claimed struct {
	w   *world
	job pollView
}

// claim polls for a job, and returns nil if the service has none.
func (w *world) claim(p pool) *claimed {
	w.t.Helper()
	got := w.ask(p.Token, "GET", "/api/deployments/poll", nil)
	if got.code == 204 && got.body == "" {
		return nil
	}
	c := &claimed{w: w}
	if got.code != 200 || json.Unmarshal([]byte(got.body), &c.job) != nil {
		w.t.Fatalf("poll: %d %s", got.code, got.body)
	}
	return c
}

func (w *world) mustClaim(p pool) *claimed {
	w.t.Helper()
	c := w.claim(p)
	if c == nil {
		w.t.Fatal("there is no job to claim")
	}
	return c
}

func (c *claimed) ask(method, path string, body any) int {
	c.w.t.Helper()
	return c.w.ask(c.job.JobToken, method, "/api/workflow/jobs/"+c.job.JobID+path, body).code
}

func (c *claimed) status(step int, status string) int {
	c.w.t.Helper()
	return c.ask("PATCH", fmt.Sprintf("/%d/status", step), cloud.StepStatus{Status: status})
}

func (c *claimed) logs(step, offset int, lines ...string) int {
	c.w.t.Helper()
	batch := cloud.LogBatch{Offset: offset, Lines: []cloud.LogLine{}}
	for i, line := range lines {
		batch.Lines = append(batch.Lines, cloud.LogLine{Time: time.Unix(1_700_000_000, int64(i)), Text: line})
	}
	return c.ask("POST", fmt.Sprintf("/%d/logs", step), batch)
}

func (c *claimed) heartbeat() int { c.w.t.Helper(); return c.ask("POST", "/heartbeat", nil) }

func (c *claimed) definition() (d cloud.Definition) {
	c.w.t.Helper()
	c.w.want(200, c.job.JobToken, "GET", "/api/workflow/jobs/"+c.job.JobID, nil, &d)
	return d
}

// runs reports each of the steps as running and then as succeeded, with one line of log.
func (c *claimed) runs(from, to int) {
	c.w.t.Helper()
	for i := from; i <= to; i++ {
		if got := c.status(i, running); got != 200 {
			c.w.t.Fatalf("step %d, status running: got %d, want 200", i, got)
		}
		if got := c.logs(i, 0, fmt.Sprintf("line of %d\n", i)); got != 200 {
			c.w.t.Fatalf("step %d, line of the log: got %d, want 200", i, got)
		}
		if got := c.status(i, succeeded); got != 200 {
			c.w.t.Fatalf("step %d, status succeeded: got %d, want 200", i, got)
		}
	}
}

// shows checks the status of a deployment and of its steps.
func (w *world) shows(at, id, status string, steps ...string) {
	w.t.Helper()
	var view deploymentView
	w.want(200, w.user, "GET", at+"/"+id, nil, &view)
	var got []string
	for _, s := range view.Jobs[0].Steps {
		got = append(got, s.Status)
	}
	if view.Status != status || strings.Join(got, " ") != strings.Join(steps, " ") {
		w.t.Errorf("deployment shows %s %v, want %s %v", view.Status, got, status, steps)
	}
}

// log returns the lines that are stored so far, with headers in brackets. Over reports
// whether the log is complete.
func (w *world) log(at, id string) (text string, over bool) {
	w.t.Helper()
	var b strings.Builder
	for token := ""; ; {
		var page logPage
		w.want(200, w.user, "GET", at+"/"+id+"/logs?continuationToken="+token, nil, &page)
		for _, line := range page.Lines {
			if line.Header != "" {
				b.WriteString("[" + line.Header + "]")
			}
			b.WriteString(line.Line)
		}
		if page.NextToken == "" || page.NextToken == token {
			return b.String(), page.NextToken == ""
		}
		token = page.NextToken
	}
}
