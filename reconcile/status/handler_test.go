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

// quietToken is a token that must not be told anywhere.
const quietToken = "pul-canary-0123456789"

// loaded makes a configuration of a text, under a name in no folder.
func loaded(t *testing.T, text string) *schema.Config {
	t.Helper()
	c, problems := schema.Load(schema.Source{Path: "/etc/cmwa/agent.yaml", Content: []byte(text)})
	if err := problems.Err(); err != nil {
		t.Fatal(err)
	}
	return c
}

// busyAgent is of an agent with two pools, of which one runs a job and one cannot be built; a
// change that was taken, and one that was refused.
func busyAgent(t *testing.T) Snapshots {
	t.Helper()
	before := loaded(t, "token: "+quietToken+"-a\ndeploy_target: process\npools:\n- {name: one}\n- {name: old, token: "+quietToken+"-b}\n")
	after := loaded(t, "token: "+quietToken+"-c\ndeploy_target: process\nlog_level: debug\npull_image: false\npools:\n- {name: one, polling_interval: 20s, env_forward_allowlist: [A]}\n- {name: two, token: "+quietToken+"-d}\n")
	_, problems := schema.Load(schema.Source{Path: "/etc/cmwa/agent.yaml", Content: []byte("token: " + quietToken + "-e\nhttp_server_port: many\n")})
	now := time.Now()
	view := reconcile.View{
		Config: after, Generation: 2, AcceptedAt: now.Add(-5 * time.Minute), Accepted: 2, Rejected: 3, RejectedAt: now.Add(-time.Minute),
		Rejection:  &reconcile.Rejection{At: now.Add(-time.Minute), Digest: "abc", Problems: problems},
		LastReload: reconcile.Preview(before, after), Seconds: 0.0125,
	}
	desired := reconcile.Want(after, 2)
	status := reconcile.Status{Desired: 2, Applied: 1, AppliedAt: now.Add(-time.Hour), Problems: map[string]string{}, Process: desired.Process}
	for key, spec := range desired.Pools {
		if spec.Name == "two" {
			status.Problems[key] = "reach the engine: connection refused"
			continue
		}
		status.Pools = append(status.Pools, runtime.PoolState{
			Spec: spec, Phase: runtime.PoolPaused, Until: now.Add(time.Minute), Why: "the service asks for it", Due: now, AnsweredAt: now,
			Jobs: []runtime.JobState{{ID: "job-1", Subject: "deployment-1", Phase: runtime.Started, Since: now.Add(-90 * time.Second)}},
		})
	}
	return newSnapshots(view, status)
}

func newSnapshots(view reconcile.View, status reconcile.Status) Snapshots {
	return Snapshots{
		Version:   "v1.2.3",
		StartedAt: time.Now().Add(-3 * time.Hour),
		Config:    func() reconcile.View { return view },
		Loop:      func() reconcile.Status { return status },
		WatchMode: func() watch.Mode { return watch.Events },
	}
}

// calmAgent is of an agent of which all is well.
func calmAgent(t *testing.T) Snapshots {
	t.Helper()
	c := loaded(t, "token: "+quietToken+"\ndeploy_target: process\n")
	desired := reconcile.Want(c, 1)
	now := time.Now()
	status := reconcile.Status{Desired: 1, Applied: 1, AppliedAt: now, Claiming: true, Problems: map[string]string{}, Process: desired.Process}
	for _, spec := range desired.Pools {
		status.Pools = append(status.Pools, runtime.PoolState{Spec: spec, Phase: runtime.PoolPolling, Begun: true, Due: now, AnsweredAt: now})
	}
	return newSnapshots(reconcile.View{Config: c, Generation: 1, AcceptedAt: now.Add(-time.Second), Accepted: 1}, status)
}

// get asks a handler as a client would.
func get(t *testing.T, h http.Handler, path string) *httptest.ResponseRecorder {
	t.Helper()
	answer := httptest.NewRecorder()
	h.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, path, nil))
	return answer
}

func TestStatusTellsWhatTheAgentDoesAndWhatItRefuses(t *testing.T) {
	answer := get(t, Handler(busyAgent(t)), "/status")
	var d Document
	if err := json.Unmarshal(answer.Body.Bytes(), &d); err != nil || answer.Code != http.StatusOK {
		t.Fatal(answer.Code, err)
	}
	c := d.Config
	if d.Version != Version || d.Agent.PID != os.Getpid() || d.Converged || !d.Healthy || c.Desired != 2 || c.Applied != 1 || c.Path != "/etc/cmwa/agent.yaml" || len(c.Digest) != 64 || c.Watch != "events" || c.Rejected != 3 {
		t.Errorf("%+v", d)
	}
	if c.Rejection == nil || len(c.Rejection.Problems) != 1 {
		t.Fatalf("the rejection is %+v", c.Rejection)
	}
	if p := c.Rejection.Problems[0]; p.Line != 2 || p.Column != 19 || p.Path != "http_server_port" || p.Message == "" {
		t.Errorf("the problem is %+v", p)
	}
	if len(d.Pools) != 2 || d.Pools[0].Name != "one" || d.Pools[0].Phase != "paused" || len(d.Pools[0].Jobs) != 1 || d.Pools[0].Jobs[0].Subject != "deployment-1" {
		t.Fatalf("the pools are %+v", d.Pools)
	}
	if p := d.Pools[1]; p.Name != "two" || p.Phase != PhaseMissing || !strings.Contains(p.Problem, "engine") || p.Target != "process" {
		t.Errorf("the pool that cannot be built is %+v", p)
	}
	r := d.Reload
	if r == nil || !slices.Contains(r.Now, Key{"", "log_level"}) || !slices.Contains(r.Now, Key{"one", "polling_interval"}) || !slices.Contains(r.NextJob, Key{"one", "env_forward_allowlist"}) ||
		strings.Join(r.Started, " ") != "two" || strings.Join(r.Drained, " ") != "old" || len(r.Replaced) != 0 {
		t.Errorf("the last reload is %+v", r)
	}
}

func TestAPoolWhoseSuccessorIsNotThereIsToldBesideIt(t *testing.T) {
	a := calmAgent(t)
	next := loaded(t, "token: "+quietToken+"\ndeploy_target: docker\n")
	view := a.Config()
	view.Config, view.Generation = next, 2
	a.Config = func() reconcile.View { return view }
	d := a.Document(time.Now())
	if d.Converged || len(d.Pools) != 2 || d.Pools[0].Name != d.Pools[1].Name || d.Pools[0].Key == d.Pools[1].Key || d.Pools[1].Phase != PhaseMissing {
		t.Errorf("%+v", d)
	}
}

func TestAPoolThatDiedTellsOfWhat(t *testing.T) {
	a := calmAgent(t)
	status := a.Loop()
	status.Pools[0].Phase, status.Pools[0].Err = runtime.PoolStopped, errors.New("the engine is gone")
	if d := a.Document(time.Now()); d.Pools[0].Problem != "the engine is gone" {
		t.Errorf("%+v", d.Pools[0])
	}
}

func TestHealth(t *testing.T) {
	for name, c := range map[string]struct {
		change         func(*runtime.PoolState)
		healthz        int
		readyz         int
		words, metrics []string
	}{
		"all is well": {func(*runtime.PoolState) {}, 200, 200, []string{`"status":"ready"`}, []string{"cmwa_healthy 1\n", "cmwa_ready 1\n"}},
		"a refused token": {func(p *runtime.PoolState) {
			p.Failing, p.FailingSince = "the service refuses the token", time.Now().Add(-time.Hour)
		}, 200, 503, []string{`"status":"not ready"`, `"pool":"default","reason":"no poll has succeeded since`, `"problem":"the service refuses the token"`},
			[]string{"cmwa_healthy 1\n", "cmwa_ready 0\n", `pool="default"} 3600.`}},
		"a service that has never answered": {func(p *runtime.PoolState) {
			p.Failing, p.FailingSince, p.AnsweredAt = "connection refused", time.Now(), time.Time{}
		}, 200, 503, []string{`"reason":"the service has not answered yet"`}, []string{"cmwa_healthy 1\n", "cmwa_ready 0\n"}},
		"an executor that cannot work": {func(p *runtime.PoolState) {
			p.ExecutorProblem = "the engine does not answer: start it"
		}, 200, 503, []string{`"reason":"the engine does not answer: start it"`, `"problem":"the engine does not answer: start it"`}, []string{"cmwa_healthy 1\n", "cmwa_ready 0\n"}},
		"a loop that stands still": {func(p *runtime.PoolState) {
			p.Due = time.Now().Add(-time.Hour)
		}, 503, 200, []string{`"stuck":true`}, []string{"cmwa_healthy 0\n", "cmwa_ready 1\n"}},
	} {
		t.Run(name, func(t *testing.T) {
			a := calmAgent(t)
			c.change(&a.Loop().Pools[0])
			if code := get(t, Handler(a), "/healthz").Code; code != c.healthz {
				t.Errorf("/healthz is %d, want %d", code, c.healthz)
			}
			ready := get(t, Handler(a), "/readyz")
			if ready.Code != c.readyz {
				t.Errorf("/readyz is %d, want %d", ready.Code, c.readyz)
			}
			for _, want := range c.words {
				if !strings.Contains(ready.Body.String(), want) {
					t.Errorf("/readyz does not say %s:\n%s", want, ready.Body)
				}
			}
			metrics := get(t, Handler(a), "/metrics").Body.String()
			for _, want := range c.metrics {
				if !strings.Contains(metrics, want) {
					t.Errorf("there is no %q in\n%s", want, metrics)
				}
			}
			d := a.Document(time.Now())
			if well := c.healthz == 200 && c.readyz == 200; d.OK() != well || d.Healthy != (c.healthz == 200) || d.Ready != (c.readyz == 200) || d.Ready != (len(d.NotReady) == 0) {
				t.Errorf("the document is healthy %v, ready %v because of %v, good %v", d.Healthy, d.Ready, d.NotReady, d.OK())
			}
		})
	}
}

func TestAPoolThatIsStuckTellsSinceWhenAndWhy(t *testing.T) {
	a := calmAgent(t)
	status := a.Loop()
	status.Pools[0].Failing, status.Pools[0].Due = "the service refuses the token", time.Now().Add(-time.Hour)
	d := a.Document(time.Now())
	if p := d.Pools[0]; d.Healthy || !p.Stuck || p.Problem != "the service refuses the token" {
		t.Errorf("%+v", p)
	}
	if health := get(t, Handler(a), "/healthz"); health.Code != http.StatusServiceUnavailable || !strings.Contains(health.Body.String(), `"stuck":true,"problem":"the service refuses the token"`) {
		t.Errorf("%d %s", health.Code, health.Body)
	}
	metrics := get(t, Handler(a), "/metrics").Body.String()
	for _, want := range []string{"cmwa_pool_stuck{", "cmwa_pool_failing{"} {
		if _, value, _ := strings.Cut(metrics, want); !strings.HasPrefix(value[strings.Index(value, "}"):], "} 1\n") {
			t.Errorf("%s is not 1 in\n%s", want, metrics)
		}
	}
}

func TestWarningsOfWhatIsInForceAreTold(t *testing.T) {
	a := calmAgent(t)
	view := a.Config()
	_, view.Warnings = schema.Load(schema.Source{Path: "agent.yaml", Content: []byte("token: " + quietToken + "\nowner: platform\n")})
	a.Config = func() reconcile.View { return view }
	d := a.Document(time.Now())
	if w := d.Config.Warnings; len(w) != 1 || w[0].Line != 2 || w[0].Message != "unknown key" || !d.OK() {
		t.Errorf("%+v", w)
	}
	if metrics := get(t, Handler(a), "/metrics").Body.String(); !strings.Contains(metrics, "cmwa_config_warnings 1\n") {
		t.Errorf("the metrics are\n%s", metrics)
	}
}

func TestTheServerTellsNoSecretAndNoSetting(t *testing.T) {
	for name, a := range map[string]Snapshots{"busy": busyAgent(t), "calm": calmAgent(t)} {
		for _, path := range []string{"/status", "/metrics", "/healthz", "/readyz"} {
			answer := get(t, Handler(a), path)
			if body := answer.Body.String(); strings.Contains(body, "canary") || strings.Contains(body, "20s") || len(body) < 50 {
				t.Errorf("%s, %s tells\n%s", name, path, body)
			}
		}
	}
}

func TestTheServerAnswersQuestionsOnly(t *testing.T) {
	h := Handler(calmAgent(t))
	for _, path := range []string{"/status", "/metrics", "/healthz"} {
		answer := httptest.NewRecorder()
		h.ServeHTTP(answer, httptest.NewRequest(http.MethodPost, path, strings.NewReader("x")))
		if answer.Code/100 != 4 {
			t.Errorf("POST %s is answered with %d", path, answer.Code)
		}
	}
	if code := get(t, h, "/nothing").Code; code != http.StatusNotFound {
		t.Errorf("/nothing is answered with %d", code)
	}
}

func TestConvergedIsToldOfTheLastGoodConfigurationWhileTheFileIsRefused(t *testing.T) {
	a := calmAgent(t)
	view, loop := a.Config(), a.Loop()
	loop.Claiming = true
	view.Rejection, view.Rejected = &reconcile.Rejection{At: time.Now(), Reason: "it cannot be read"}, 1
	a.Config, a.Loop = func() reconcile.View { return view }, func() reconcile.Status { return loop }
	if d := a.Document(time.Now()); !d.Converged || d.Config.Rejection == nil || d.OK() {
		t.Errorf("%+v", d)
	}
	text := get(t, Handler(a), "/metrics").Body.String()
	for _, want := range []string{"# HELP cmwa_converged Whether what the last good configuration says ", "\ncmwa_converged 1\n", "\ncmwa_config_problems 1\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("the metrics do not hold %q:\n%s", want, text)
		}
	}
}

func TestTheStatusTellsOfFrozenFiles(t *testing.T) {
	a := calmAgent(t)
	view := a.Config()
	a.Config = func() reconcile.View { return view }
	if d := a.Document(time.Now()); len(d.Config.Frozen) > 0 {
		t.Fatalf("%v", d.Config.Frozen)
	}
	view.Frozen = []string{"/proc"}
	if d := a.Document(time.Now()); !slices.Equal(d.Config.Frozen, view.Frozen) {
		t.Errorf("these are told to be frozen: %v", d.Config.Frozen)
	}
	if metrics := get(t, Handler(a), "/metrics").Body.String(); !strings.Contains(metrics, "\ncmwa_config_frozen_files 1\n") {
		t.Errorf("the metrics are\n%s", metrics)
	}
}
