package status

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/reconcile"
	"github.com/cmwa-project/cmwa/reconcile/watch"
	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/schema"
)

// canaryToken is a token that no page may contain.
const canaryToken = "pul-canary-0123456789"

// loaded returns the configuration that a text describes. Its file does not exist.
func loaded(t *testing.T, text string) *schema.Config {
	t.Helper()
	c, problems := schema.Load(schema.Source{Path: "/etc/cmwa/agent.yaml", Content: []byte(text)})
	if err := problems.Err(); err != nil {
		t.Fatal(err)
	}
	return c
}

// testAgent is an agent whose snapshots a test can change.
type testAgent struct {
	Snapshots
	view   reconcile.ConfigState
	status reconcile.Status
}

func newAgent(view reconcile.ConfigState, status reconcile.Status) *testAgent {
	a := &testAgent{view: view, status: status}
	a.Snapshots = Snapshots{
		Version:   "v1.2.3",
		StartedAt: time.Now().Add(-3 * time.Hour),
		Config:    func() reconcile.ConfigState { return a.view },
		Loop:      func() reconcile.Status { return a.status },
		WatchMode: func() watch.Mode { return watch.Events },
	}
	return a
}

// page returns a page of the agent.
func (a *testAgent) page(t *testing.T, path string) string {
	t.Helper()
	return get(t, Handler(a.Snapshots), path).Body.String()
}

// wantTexts checks that a page contains texts, such as the lines of metrics.
func wantTexts(t *testing.T, page string, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if !strings.Contains(page, text) {
			t.Errorf("%q is missing in\n%s", text, page)
		}
	}
}

// busyAgent returns an agent with two pools: one runs a job, and one cannot be built.
// One change of the file was accepted, and a later change was rejected.
func busyAgent(t *testing.T) *testAgent {
	t.Helper()
	before := loaded(t, "token: "+canaryToken+"-a\ndeploy_target: process\n"+
		"pools:\n- {name: one}\n- {name: old, token: "+canaryToken+"-b}\n")
	after := loaded(t, "token: "+canaryToken+"-c\ndeploy_target: process\nlog_level: debug\npull_image: false\n"+
		"pools:\n- {name: one, polling_interval: 20s, env_forward_allowlist: [A]}\n"+
		"- {name: two, token: "+canaryToken+"-d}\n")
	_, problems := schema.Load(schema.Source{Path: "/etc/cmwa/agent.yaml",
		Content: []byte("token: " + canaryToken + "-e\nhttp_server_port: many\n")})
	now := time.Now()
	view := reconcile.ConfigState{
		Config: after, Generation: 2, AcceptedAt: now.Add(-5 * time.Minute), Accepted: 2, Rejected: 3,
		RejectedAt: now.Add(-time.Minute),
		Rejection:  &reconcile.Rejection{At: now.Add(-time.Minute), Digest: "abc", Problems: problems},
		LastReload: reconcile.Preview(before, after), Seconds: 0.0125,
	}
	desired := reconcile.Want(after, 2)
	status := reconcile.Status{Desired: 2, Applied: 1, AppliedAt: now.Add(-time.Hour), Problems: map[string]string{},
		Process: desired.Process}
	for key, spec := range desired.Pools {
		if spec.Name == "two" {
			status.Problems[key] = "reach the engine: connection refused"
			continue
		}
		status.Pools = append(status.Pools, runtime.PoolState{
			Spec: spec, Phase: runtime.PoolBackoff, Until: now.Add(time.Minute), Reason: "the service asks for it",
			Due: now, AnsweredAt: now,
			Jobs: []runtime.JobState{{ID: "job-1", WorkflowID: "deployment-1", Work: runtime.Work{Stack: "prod"},
				Phase: runtime.Started, Since: now.Add(-90 * time.Second), Stages: []runtime.StageTime{
					{Stage: runtime.StagePull, Start: now.Add(-90 * time.Second), End: now.Add(-20 * time.Second)},
					{Stage: runtime.StageFirstLine, Start: now.Add(-250 * time.Millisecond), End: now},
				}}},
		})
	}
	return newAgent(view, status)
}

// calmAgent returns an agent without problems.
func calmAgent(t *testing.T) *testAgent {
	t.Helper()
	c := loaded(t, "token: "+canaryToken+"\ndeploy_target: process\n")
	desired := reconcile.Want(c, 1)
	now := time.Now()
	status := reconcile.Status{Desired: 1, Applied: 1, AppliedAt: now, Claiming: true, Problems: map[string]string{},
		Process: desired.Process}
	for _, spec := range desired.Pools {
		status.Pools = append(status.Pools, runtime.PoolState{Spec: spec, Phase: runtime.PoolPolling, Ready: true,
			Due: now, AnsweredAt: now})
	}
	return newAgent(reconcile.ConfigState{Config: c, Generation: 1, AcceptedAt: now.Add(-time.Second), Accepted: 1},
		status)
}

// get requests a page.
func get(t *testing.T, h http.Handler, path string) *httptest.ResponseRecorder {
	t.Helper()
	response := httptest.NewRecorder()
	h.ServeHTTP(response, httptest.NewRequest(http.MethodGet, path, nil))
	return response
}

func TestHandler(t *testing.T) {
	t.Run("status reports pools, the last reload and the rejection", func(t *testing.T) {
		response := get(t, Handler(busyAgent(t).Snapshots), "/status")
		var d Document
		if err := json.Unmarshal(response.Body.Bytes(), &d); err != nil || response.Code != http.StatusOK {
			t.Fatal(response.Code, err)
		}
		c := d.Config
		if d.Version != Version || d.Agent.PID != os.Getpid() || d.Converged || !d.Healthy || c.Desired != 2 ||
			c.Applied != 1 || c.Path != "/etc/cmwa/agent.yaml" || len(c.Digest) != 64 || c.Watch != "events" ||
			c.Rejected != 3 {
			t.Errorf("the document of a busy agent is %+v", d)
		}
		if c.Rejection == nil || len(c.Rejection.Problems) != 1 {
			t.Fatalf("the rejection is %+v", c.Rejection)
		}
		if p := c.Rejection.Problems[0]; p.Line != 2 || p.Column != 19 || p.Path != "http_server_port" ||
			p.Message == "" {
			t.Errorf("the problem is %+v", p)
		}
		if len(d.Pools) != 2 || d.Pools[0].Name != "one" || d.Pools[0].Phase != "backoff" ||
			len(d.Pools[0].Jobs) != 1 || d.Pools[0].Jobs[0].Deployment != "deployment-1" ||
			d.Pools[0].Jobs[0].Stack != "prod" {
			t.Fatalf("the pools are %+v", d.Pools)
		}
		if p := d.Pools[1]; p.Name != "two" || p.Phase != PhaseMissing || !strings.Contains(p.Problem, "engine") ||
			p.Target != "process" {
			t.Errorf("the pool that cannot be built is %+v", p)
		}
		r := d.Reload
		if r == nil || !slices.Contains(r.Changes, Change{"", "log_level", "info", "debug", "live"}) ||
			!slices.Contains(r.Changes, Change{"one", "polling_interval", "1m", "20s", "live"}) ||
			!slices.Contains(r.Changes, Change{"one", "env_forward_allowlist", "[]", "[A]", "next job"}) ||
			!slices.Contains(r.Changes, Change{"one", "token", "[secret]", "[secret]", "live"}) ||
			strings.Join(r.Started, " ") != "two" || strings.Join(r.Drained, " ") != "old" || len(r.Replaced) != 0 {
			t.Errorf("the last reload is %+v", r)
		}
	})

	t.Run("no page contains a secret", func(t *testing.T) {
		for name, a := range map[string]*testAgent{"busy": busyAgent(t), "calm": calmAgent(t)} {
			for _, path := range []string{"/", "/status", "/metrics", "/healthz", "/readyz"} {
				body := a.page(t, path)
				if strings.Contains(body, "canary") || len(body) < 50 {
					t.Errorf("%s, %s contains a secret, or less than 50 bytes:\n%s", name, path, body)
				}
				changed := (path == "/" || path == "/status") && name == "busy"
				if strings.Contains(body, "20s") != changed {
					t.Errorf("%s, %s contains a changed setting: %v; want one only in / and /status of busy:\n%s",
						name, path, !changed, body)
				}
			}
		}
	})

	t.Run("the first page is the text of the status", func(t *testing.T) {
		response := get(t, Handler(calmAgent(t).Snapshots), "/")
		if text := response.Body.String(); response.Code != http.StatusOK || !strings.HasPrefix(text, "agent ") ||
			response.Header().Get("Content-Type") != "text/plain; charset=utf-8" {
			t.Errorf("got code %d, %v, %s", response.Code, response.Header(), text)
		}
	})

	t.Run("POST and unknown paths are rejected", func(t *testing.T) {
		h := Handler(calmAgent(t).Snapshots)
		for _, path := range []string{"/status", "/metrics", "/healthz"} {
			response := httptest.NewRecorder()
			h.ServeHTTP(response, httptest.NewRequest(http.MethodPost, path, strings.NewReader("x")))
			if response.Code/100 != 4 {
				t.Errorf("POST %s: got code %d, want 4xx", path, response.Code)
			}
		}
		if code := get(t, h, "/nothing").Code; code != http.StatusNotFound {
			t.Errorf("/nothing: got code %d, want 404", code)
		}
	})
}

func TestSnapshots(t *testing.T) {
	t.Run("missing replacement is listed with the old pool", func(t *testing.T) {
		a := calmAgent(t)
		a.view.Config = loaded(t, "token: "+canaryToken+"\ndeploy_target: docker\n")
		a.view.Generation = 2
		d := a.Document(time.Now())
		if d.Converged || len(d.Pools) != 2 || d.Pools[0].Name != d.Pools[1].Name ||
			d.Pools[0].Key == d.Pools[1].Key || d.Pools[1].Phase != PhaseMissing {
			t.Errorf("the document is %+v, want the old pool and its missing replacement", d)
		}
	})

	t.Run("stopped pool has its error", func(t *testing.T) {
		a := calmAgent(t)
		p := &a.status.Pools[0]
		p.Phase, p.Err = runtime.PoolStopped, errors.New("the engine is gone")
		if d := a.Document(time.Now()); d.Pools[0].Problem != "the engine is gone" {
			t.Errorf("the stopped pool is %+v, want its error as the problem", d.Pools[0])
		}
	})

	t.Run("stuck pool has its problem", func(t *testing.T) {
		a := calmAgent(t)
		p := &a.status.Pools[0]
		p.PollError, p.Due = "the service rejected the token", time.Now().Add(-time.Hour)
		d := a.Document(time.Now())
		if p := d.Pools[0]; d.Healthy || !p.Stuck || p.Problem != "the service rejected the token" {
			t.Errorf("the stuck pool is %+v, want its last poll error as the problem", p)
		}
		if health := get(t, Handler(a.Snapshots), "/healthz"); health.Code != http.StatusServiceUnavailable ||
			!strings.Contains(health.Body.String(), `"stuck":true,"problem":"the service rejected the token"`) {
			t.Errorf("/healthz returned %d and %s, want 503 and the problem", health.Code, health.Body)
		}
		for _, name := range []string{"cmwa_pool_stuck{", "cmwa_pool_failing{"} {
			if lines := series(a.page(t, "/metrics"), name); len(lines) == 0 || !strings.HasSuffix(lines[0], "} 1") {
				t.Errorf("the series %s are %v, want the value 1", name, lines)
			}
		}
	})

	t.Run("warnings are those of the configuration in force", func(t *testing.T) {
		a := calmAgent(t)
		_, a.view.Warnings = schema.Load(schema.Source{Path: "agent.yaml",
			Content: []byte("token: " + canaryToken + "\nowner: platform\n")})
		d := a.Document(time.Now())
		if w := d.Config.Warnings; len(w) != 1 || w[0].Line != 2 || w[0].Message != "unknown key" || !d.OK() {
			t.Errorf("the warnings are %+v, want one about line 2", w)
		}
		wantTexts(t, a.page(t, "/metrics"), "cmwa_config_warnings 1\n")
	})

	t.Run("agent can be converged while the present file is rejected", func(t *testing.T) {
		a := calmAgent(t)
		a.view.Rejection, a.view.Rejected = &reconcile.Rejection{At: time.Now(), Reason: "it cannot be read"}, 1
		if d := a.Document(time.Now()); !d.Converged || d.Config.Rejection == nil || d.OK() {
			t.Errorf("the document is %+v, want converged with a rejection, and not OK", d)
		}
		wantTexts(t, a.page(t, "/metrics"),
			"# HELP cmwa_converged Whether the last accepted configuration is fully in force",
			"\ncmwa_converged 1\n", "\ncmwa_config_problems 1\n")
	})

	t.Run("frozen files are listed", func(t *testing.T) {
		a := calmAgent(t)
		if d := a.Document(time.Now()); len(d.Config.Frozen) > 0 {
			t.Fatalf("the frozen files are %v, want none", d.Config.Frozen)
		}
		a.view.Frozen = []string{"/proc"}
		if d := a.Document(time.Now()); !slices.Equal(d.Config.Frozen, a.view.Frozen) {
			t.Errorf("the frozen files are %v, want %v", d.Config.Frozen, a.view.Frozen)
		}
		wantTexts(t, a.page(t, "/metrics"), "\ncmwa_config_frozen_files 1\n")
	})
}

func TestHealthLastActivity(t *testing.T) {
	read := func(a *testAgent) (p struct{ CurrentTime, LastActivity time.Time }) {
		t.Helper()
		if err := json.Unmarshal(get(t, Handler(a.Snapshots), "/healthz").Body.Bytes(), &p); err != nil {
			t.Fatal(err)
		}
		return p
	}
	a := calmAgent(t)
	if p := read(a); p.LastActivity.IsZero() || !p.LastActivity.Equal(p.CurrentTime) {
		t.Errorf("before a pool has started, the last activity was at %s, want the present time %s", p.LastActivity,
			p.CurrentTime)
	}
	last := time.Now().Add(-time.Minute)
	for _, ago := range []time.Duration{time.Hour, 0, 2 * time.Hour} {
		pool := a.status.Pools[0]
		pool.ActiveAt = last.Add(-ago)
		a.status.Pools = append(a.status.Pools, pool)
	}
	if p := read(a); !p.LastActivity.Equal(last) {
		t.Errorf("the last activity was at %s, want that of the pool that was active last, %s", p.LastActivity, last)
	}
}

func TestHealth(t *testing.T) {
	for name, c := range map[string]struct {
		change         func(*runtime.PoolState)
		healthz        int
		readyz         int
		texts, metrics []string
	}{
		"no problem": {func(*runtime.PoolState) {}, 200, 200, []string{`"status":"ready"`},
			[]string{"cmwa_healthy 1\n", "cmwa_ready 1\n"}},
		"a refused token": {func(p *runtime.PoolState) {
			p.PollError, p.FailingSince = "the service rejected the token", time.Now().Add(-time.Hour)
		}, 200, 503, []string{`"status":"not ready"`, `"pool":"default","reason":"no poll has succeeded since`,
			`"problem":"the service rejected the token"`},
			[]string{"cmwa_healthy 1\n", "cmwa_ready 0\n", `pool="default"} 3600.`}},
		"a service that has never responded": {func(p *runtime.PoolState) {
			p.PollError, p.FailingSince, p.AnsweredAt = "connection refused", time.Now(), time.Time{}
		}, 200, 503, []string{`"reason":"no poll has succeeded yet"`},
			[]string{"cmwa_healthy 1\n", "cmwa_ready 0\n"}},
		"an executor that cannot work": {func(p *runtime.PoolState) {
			p.ExecutorProblem = "the engine does not respond: start it"
		}, 200, 503, []string{`"reason":"the engine does not respond: start it"`,
			`"problem":"the engine does not respond: start it"`}, []string{"cmwa_healthy 1\n", "cmwa_ready 0\n"}},
		"a stuck loop": {func(p *runtime.PoolState) {
			p.Due = time.Now().Add(-time.Hour)
		}, 503, 200, []string{`"stuck":true`}, []string{"cmwa_healthy 0\n", "cmwa_ready 1\n"}},
	} {
		t.Run(name, func(t *testing.T) {
			a := calmAgent(t)
			c.change(&a.status.Pools[0])
			if code := get(t, Handler(a.Snapshots), "/healthz").Code; code != c.healthz {
				t.Errorf("/healthz is %d, want %d", code, c.healthz)
			}
			ready := get(t, Handler(a.Snapshots), "/readyz")
			if ready.Code != c.readyz {
				t.Errorf("/readyz is %d, want %d", ready.Code, c.readyz)
			}
			wantTexts(t, ready.Body.String(), c.texts...)
			wantTexts(t, a.page(t, "/metrics"), c.metrics...)
			d := a.Document(time.Now())
			if well := c.healthz == 200 && c.readyz == 200; d.OK() != well || d.Healthy != (c.healthz == 200) ||
				d.Ready != (c.readyz == 200) || d.Ready != (len(d.NotReady) == 0) {
				t.Errorf("in the document Healthy is %v, Ready %v, NotReady %v and OK %v", d.Healthy, d.Ready,
					d.NotReady, d.OK())
			}
		})
	}
}
