package kube

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/kube/kubetest"
	"github.com/cmwa-project/cmwa/runtime/selfcheck"
)

func TestIdentify(t *testing.T) {
	t.Run("agent in a Pod", func(t *testing.T) {
		a, all := newAgents(t, "agent-x")
		got, group := all[0].self, testNamespace+".deployment.agent"
		if got.owner.Name != "agent-x" || got.owner.UID == "" || got.group != group {
			t.Errorf("got %+v", got)
		}
		for range 3 {
			if err := all[0].cluster.Identify(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if n := a.Requests()["get"]; n != 1 {
			t.Errorf("%d requests for the agent's own Pod, want 1", n)
		}
		if !all[0].Owned() || !all[0].LeavesJobs() || strings.Contains(a.log.String(), "WARN") {
			t.Errorf("owned: %v, leaves jobs: %v; the log:\n%s", all[0].Owned(), all[0].LeavesJobs(), &a.log)
		}
	})
	t.Run("many pools at once", func(t *testing.T) {
		a, _ := newAgents(t)
		a.put("agent-x", "agent")
		cluster := a.cluster(t, "agent-x")
		var group sync.WaitGroup
		for range 20 {
			group.Go(func() {
				if err := cluster.Identify(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		group.Wait()
		if n := a.Requests()["get"]; n != 1 {
			t.Errorf("%d requests for the agent's own Pod, want 1", n)
		}
	})
	t.Run("agent outside of a cluster", func(t *testing.T) {
		a, _ := newAgents(t)
		cluster := a.cluster(t, "")
		if err := cluster.Identify(t.Context()); err != nil || a.Requests()["get"] > 0 || a.log.String() != "" {
			t.Errorf("got %v after %v; the log:\n%s", err, a.Requests(), &a.log)
		}
		e := cluster.Executor("")
		defer e.Close()
		if e.Owned() || e.LeavesJobs() {
			t.Error("Owned or LeavesJobs is true, want false outside of a Pod")
		}
	})
}

func TestIdentifyRefusalRetry(t *testing.T) {
	refusal := kubetest.Fault{
		Status: http.StatusForbidden, Message: `pods "agent-x" is forbidden: User "agent" cannot get resource "pods"`,
	}
	simulateIdentify(t, "Role is not loaded yet", func(t *testing.T, a *agents, cluster *Cluster) {
		a.Inject(failFirst(5, "get", refusal))
		if err := cluster.Identify(t.Context()); err != nil || !cluster.currentSelf().known() {
			t.Errorf("got %+v, %v", cluster.currentSelf(), err)
		}
		if log := a.log.String(); strings.Contains(log, "level=WARN") {
			t.Errorf("want no warning; the log:\n%s", log)
		}
	})
	simulateIdentify(t, "right is missing", func(t *testing.T, a *agents, cluster *Cluster) {
		a.Inject(failAll("get", refusal))
		for i, limits := range [][2]time.Duration{{refusalLimit, refusalLimit + identifyRetry}, {0, time.Second}} {
			started := time.Now()
			if err := cluster.Identify(t.Context()); err != nil || cluster.currentSelf().known() {
				t.Errorf("call %d: got %+v, %v, want no known Pod and no error", i, cluster.currentSelf(), err)
			}
			if took := time.Since(started); took < limits[0] || took > limits[1] {
				t.Errorf("call %d took %s", i, took)
			}
		}
		if log := a.log.String(); strings.Count(log, "level=WARN") != 1 {
			t.Errorf("want one warning; the log:\n%s", log)
		}
	})
	simulateIdentify(t, "context ends", func(t *testing.T, a *agents, cluster *Cluster) {
		a.Inject(failAll("get", refusal))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := cluster.Identify(ctx); err == nil || strings.Contains(a.log.String(), "level=WARN") {
			t.Errorf("got %v; the log:\n%s", err, &a.log)
		}
	})
}

// simulateIdentify runs a scenario with an agent in a Pod as a subtest in simulated time.
func simulateIdentify(t *testing.T, name string, scenario func(t *testing.T, a *agents, cluster *Cluster)) {
	inBubble(t, name, func(t *testing.T) {
		a := &agents{API: kubetest.NewAPIWithoutNetwork(t)}
		a.put("agent-x", "agent")
		scenario(t, a, a.cluster(t, "agent-x"))
	})
}

func TestIdentifyRefused(t *testing.T) {
	for name, c := range map[string]struct {
		fault kubetest.Fault
		hint  string
	}{
		"right is missing": {
			kubetest.Fault{Status: http.StatusForbidden, Message: `pods "agent-x" is forbidden`}, "grant get on pods",
		},
		"host name is not the name of the Pod": {
			kubetest.Fault{Status: http.StatusNotFound, Message: `pods "agent-x" not found`},
			"POD_NAME from metadata.name",
		},
	} {
		t.Run(name, func(t *testing.T) {
			a, _ := newAgents(t)
			a.put("agent-x", "agent")
			a.Inject(failFirst(2, "get", c.fault))
			cluster := a.cluster(t, "agent-x")
			for range 2 {
				if err := cluster.Identify(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			e := cluster.Executor("")
			defer e.Close()
			if log := a.log.String(); strings.Count(log, "level=WARN") != 1 || !strings.Contains(log, c.hint) {
				t.Errorf("want one warning with the hint %q; the log:\n%s", c.hint, log)
			}
			if e.Owned() || !e.LeavesJobs() || e.pods.selector != watchedSelector(self{}, "id-of-agent-x") {
				t.Errorf("owned: %v, leaves jobs: %v, selector %s", e.Owned(), e.LeavesJobs(), e.pods.selector)
			}
			wantAdopted(t, e)
			if err := cluster.Identify(t.Context()); err != nil || !cluster.currentSelf().known() {
				t.Errorf("after the fault: %+v, %v, want a known Pod", cluster.currentSelf(), err)
			}
		})
	}
}

func TestIdentifyUnanswered(t *testing.T) {
	for name, fault := range map[string]kubetest.Fault{
		"API server answers with 500": {Status: http.StatusInternalServerError, Message: "etcd is slow"},
		"API server is down":          {},
		"credentials are refused":     {Status: http.StatusUnauthorized},
	} {
		t.Run(name, func(t *testing.T) {
			a, _ := newAgents(t)
			a.put("agent-x", "agent")
			a.Inject(failFirst(1, "get", fault))
			if fault.Status == 0 { // client-go retries a broken connection
				a.Inject(func(kubetest.Request) *kubetest.Fault { return &fault })
			}
			cluster := a.cluster(t, "agent-x")
			if err := cluster.Identify(t.Context()); err == nil {
				t.Error("got no error, want one: without it, the agent would use its id until it ends")
			}
			a.Inject(nil)
			if err := cluster.Identify(t.Context()); err != nil || !cluster.currentSelf().known() {
				t.Errorf("second call: %+v, %v, want a known Pod", cluster.currentSelf(), err)
			}
		})
	}
}

func TestRunnerImage(t *testing.T) {
	const vendor, own = "pulumi/customer-managed-workflow-agent:v2.3.0", "registry.example.com/cmwa:1"
	agent, mesh := corev1.Container{Name: "agent", Image: own}, corev1.Container{Name: "mesh", Image: "mesh:1"}
	for name, c := range map[string]struct {
		containers    []corev1.Container // of the agent's Pod; none if the agent runs in no Pod
		variable, key string
		want          string // empty for an error
		warns         bool
	}{
		"only the image of an installation has changed": {[]corev1.Container{agent}, vendor, "", own, true},
		"variable has an earlier release":               {[]corev1.Container{agent}, own + "-rc", "", own, true},
		"variable is the image of the agent":            {[]corev1.Container{agent}, own, "", own, false},
		"no variable and no key":                        {[]corev1.Container{agent}, "", "", own, false},
		"key of a mirror": {
			[]corev1.Container{agent}, "", "mirror/cmwa:1", "mirror/cmwa:1", false,
		},
		"sidecar": {[]corev1.Container{mesh, agent}, vendor, "", own, true},
		"container with another name": {
			[]corev1.Container{{Name: "cmwa", Image: own}}, vendor, "", own, true,
		},
		"several containers, none of them the agent": {[]corev1.Container{mesh, mesh}, own, "", own, false},
		"agent outside of a cluster":                 {nil, own, "", own, false},
		"agent outside of a cluster without image":   {nil, "", "", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			a, _ := newAgents(t)
			pod := ""
			if c.containers != nil {
				pod = "agent-x"
				a.put(pod, "agent")
				a.Change(testNamespace, pod, func(pod *corev1.Pod) { pod.Spec.Containers = c.containers })
			}
			cluster, err := New(Options{
				Config: a.Config(), Namespace: testNamespace, Pod: pod, RunnerDirectory: runnerDirectory,
				Image: c.variable, Log: slog.New(slog.NewTextHandler(&a.log, nil)),
			})
			if err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if err := cluster.Identify(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			e := executorOf(t, cluster)
			job := testJob()
			job.Tuning.Instance.Kubernetes.Image = c.key
			built, err := podOf(job, "name", e.podSettings())
			switch {
			case c.want == "":
				if err == nil || !strings.Contains(err.Error(), "set kubernetes.image") {
					t.Errorf("got the error %v", err)
				}
				if err := e.Check(t.Context(), job.Tuning); err == nil {
					t.Error("the agent claims jobs that cannot start")
				}
			case err != nil || built.Spec.InitContainers[0].Image != c.want:
				t.Errorf("got %+v, %v; want the image %s", built, err, c.want)
			}

			warnings, check := strings.Count(a.log.String(), "level=WARN"), cluster.runnerCheck(t, job.Tuning)
			if c.warns != (warnings == 1) || !c.warns && warnings > 0 ||
				c.warns && (!strings.Contains(a.log.String(), c.variable) || !strings.Contains(a.log.String(), own)) {
				t.Errorf("the log:\n%s", &a.log)
			}
			level := selfcheck.LevelOK
			switch {
			case c.want == "":
				level = selfcheck.LevelFailed
			case c.warns:
				level = selfcheck.LevelWarning
			}
			if check.Level != level || !strings.Contains(check.Message, c.want) {
				t.Errorf("cmwa doctor reports %+v, want %s with %s", check, level, c.want)
			}
		})
	}
}

// runnerCheck returns the result of the check of the runner for a pool with these settings.
func (c *Cluster) runnerCheck(t *testing.T, tuning runtime.Tuning) selfcheck.Result {
	t.Helper()
	for _, check := range SelfChecks(c.options, runtime.PoolSpec{Tuning: tuning}) {
		if check.Name == runnerCheck {
			return check.Run(t.Context())
		}
	}
	t.Fatal("there is no check " + runnerCheck)
	return selfcheck.Result{}
}
