package kube

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/kube/kubetest"
	"github.com/cmwa-project/cmwa/runtime/selfcheck"
)

// selfCheck runs the checks of a pool, and returns the results by name. A check has no
// result if the check that it needs did not pass.
func selfCheck(
	t *testing.T, config *rest.Config, namespace string, edit func(*runtime.PoolSpec),
) map[string]selfcheck.Result {
	t.Helper()
	spec := runtime.PoolSpec{Identity: runtime.Identity{Service: "https://service.example", Target: target}}
	if edit != nil {
		edit(&spec)
	}
	results := map[string]selfcheck.Result{}
	for _, c := range SelfChecks(Options{
		RunnerDirectory: runnerDirectory, Config: config, Namespace: namespace, Image: agentImage,
		Log: slog.New(slog.DiscardHandler),
	}, spec) {
		if need := results[c.Needs]; c.Needs == "" || need.Level == selfcheck.LevelOK ||
			need.Level == selfcheck.LevelWarning {
			results[c.Name] = c.Run(t.Context())
		}
	}
	return results
}

// wantResult checks the level of a result, and a substring of its texts.
func wantResult(
	t *testing.T, results map[string]selfcheck.Result, name string, level selfcheck.Level, part string,
) {
	t.Helper()
	if got := results[name]; got.Level != level || !strings.Contains(got.Message+"; "+got.Hint, part) {
		t.Errorf("%s is %+v, want %s with %q; all: %+v", name, got, level, part, results)
	}
}

// wantFailed checks that a check has failed, and a substring of the texts of its result.
func wantFailed(t *testing.T, results map[string]selfcheck.Result, name, part string) {
	t.Helper()
	wantResult(t, results, name, selfcheck.LevelFailed, part)
}

// awaitResult repeats the checks for up to a minute, until the one with this name has the
// result: controllers and authorizers of a cluster process a new object a moment later.
func awaitResult(
	t *testing.T, n *kubetest.Namespace, edit func(*runtime.PoolSpec), name string, level selfcheck.Level, part string,
) map[string]selfcheck.Result {
	t.Helper()
	for limit := time.Now().Add(time.Minute); ; {
		results := selfCheck(t, n.Agent, n.Name, edit)
		if got := results[name]; got.Level == level && strings.Contains(got.Message+"; "+got.Hint, part) ||
			time.Now().After(limit) {
			wantResult(t, results, name, level, part)
			return results
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// TestRightsFor compares the rights that the agent checks with those that the manifests grant.
func TestRightsFor(t *testing.T) {
	granted := func(rules []rbacv1.PolicyRule) map[string][]string {
		all := map[string][]string{}
		for _, rule := range rules {
			for _, resource := range rule.Resources {
				all[resource] = append(all[resource], rule.Verbs...)
			}
		}
		return all
	}
	roleIn := func(path, namespace string) map[string][]string {
		text, err := os.ReadFile(filepath.Join("..", "..", path))
		if err != nil {
			t.Fatal(err)
		}
		for document := range strings.SplitSeq(string(text), "\n---\n") {
			var role rbacv1.Role
			if err := yaml.Unmarshal([]byte(document), &role); err != nil {
				t.Fatal(err)
			}
			if role.Kind == "Role" && role.Namespace == namespace {
				return granted(role.Rules)
			}
		}
		return nil
	}

	sealed := map[string][]string{}
	for _, r := range rightsFor(runtime.Kubernetes{}) {
		sealed[strings.TrimSuffix(r.resource+"/"+r.subresource, "/")] = r.verbs
	}
	bySecret := maps.Clone(sealed) // for pools with each kind of handoff
	for _, r := range rightsFor(runtime.Kubernetes{Handoff: handoffSecret}) {
		bySecret[strings.TrimSuffix(r.resource+"/"+r.subresource, "/")] = r.verbs
	}
	const kustomize, goldens = "examples/kubernetes/", "cmd/cmwa/testdata/chart/"
	for name, c := range map[string]struct{ want, got map[string][]string }{
		"kubectl":                  {sealed, roleIn(kustomize+"base/role.yaml", "")},
		"kubectl, other namespace": {sealed, roleIn(kustomize+"overlays/jobs-namespace/jobs.yaml", "cmwa-jobs")},
		"chart":                    {sealed, roleIn(goldens+"plain.golden.yaml", "pulumi")},
		"chart, handoff by Secret": {bySecret, roleIn(goldens+"pools.golden.yaml", "pulumi-production")},
		"tests on a cluster":       {sealed, granted(kubetest.Rules())},
	} {
		if diff := cmp.Diff(c.want, c.got); diff != "" {
			t.Errorf("%s: the agent needs (-), the Role grants (+):\n%s", name, diff)
		}
	}
}

func TestSelfChecksOnCluster(t *testing.T) {
	t.Parallel()
	t.Run("documented Role is sufficient and no object is left", func(t *testing.T) {
		t.Parallel()
		n := kubetest.New(t)
		results := selfCheck(t, n.Agent, n.Name, nil)
		for name, got := range results {
			if got.Level != selfcheck.LevelOK {
				t.Errorf("%s is %+v, want %s", name, got, selfcheck.LevelOK)
			}
		}
		wantResult(t, results, apiCheck, selfcheck.LevelOK, "has version v1.")
		var left corev1.PodList
		err := adminOf(t, n).get(pods).Do(t.Context()).Into(&left)
		if err != nil || len(left.Items) > 0 || len(results) != 10 {
			t.Errorf("got %d Pods and %d results, %v, want no Pod and 10 results", len(left.Items), len(results), err)
		}

		// Other settings in the same namespace.
		template := func(text string) func(*runtime.PoolSpec) {
			return func(spec *runtime.PoolSpec) { spec.Tuning.Instance.Kubernetes.Template = []byte(text) }
		}
		inSecrets := func(spec *runtime.PoolSpec) { spec.Tuning.Instance.Kubernetes.Handoff = handoffSecret }
		account := func(spec *runtime.PoolSpec) { spec.Tuning.Instance.Kubernetes.ServiceAccount = "missing" }
		loopback := func(spec *runtime.PoolSpec) { spec.Identity.Service = "http://127.0.0.1" }
		for _, c := range []struct {
			edit        func(*runtime.PoolSpec)
			check, part string
		}{
			{account, podCheck, "change kubernetes.service_account"},
			{template(`{"spec": {"nodeSelector": {"a b": ""}}}`), podCheck, "pod_template"},
			{template(`{"spec": {"contaners": []}}`), podCheck, "contaners"},
			{loopback, "kubernetes-service", "the Pod itself"},
			{inSecrets, "kubernetes-access-secrets", "may not create, update, list, delete secrets"},
		} {
			wantFailed(t, selfCheck(t, n.Agent, n.Name, c.edit), c.check, c.part)
		}

		// Another namespace, and other credentials.
		elsewhere := func(spec *runtime.PoolSpec) { spec.Identity.Namespace = "cmwa-none" }
		results = selfCheck(t, n.Agent, n.Name, elsewhere)
		wantResult(t, results, "kubernetes-namespace", selfcheck.LevelSkipped, "RoleBinding")
		wantFailed(t, results, "kubernetes-access-pods", "may not create, get, list, watch, update, delete pods")
		wantFailed(t, results, podCheck, "lacks a right")
		results = selfCheck(t, n.Admin, n.Name, elsewhere)
		wantFailed(t, results, "kubernetes-namespace", "create it, or change kubernetes.namespace")
		wantResult(t, results, "kubernetes-access-pods", selfcheck.LevelOK, "")
		wantFailed(t, results, podCheck, "namespace cmwa-none does not exist")
		unknown := rest.CopyConfig(n.Agent)
		unknown.BearerToken = "wrong"
		wantFailed(t, selfCheck(t, unknown, n.Name, nil), apiCheck, "does not accept the agent's credentials")
	})
	t.Run("the agent's own Pod", func(t *testing.T) {
		t.Parallel()
		n := kubetest.New(t)
		check := func(config *rest.Config, pod string) map[string]selfcheck.Result {
			own, inside := SelfCheckOwnPod(Options{
				RunnerDirectory: runnerDirectory, Config: config, Namespace: n.Name, Pod: pod,
				Log: slog.New(slog.DiscardHandler),
			}, time.Hour, nil)
			if inside != (pod != "") {
				t.Fatalf("with the Pod name %q, SelfCheckOwnPod returns %v", pod, inside)
			}
			if !inside {
				return nil
			}
			return map[string]selfcheck.Result{own.Name: own.Run(t.Context())}
		}
		check(n.Agent, "")
		wantResult(t, check(n.Agent, "agent-1"), "kubernetes-agent-pod", selfcheck.LevelWarning,
			"set the variable POD_NAME")
		adminOf(t, n).add(pods, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "agent-1"},
			Spec: corev1.PodSpec{
				NodeSelector: map[string]string{"cmwa-none": ""},
				Containers:   []corev1.Container{{Name: "agent", Image: agentImage}},
			},
		})
		wantResult(t, check(n.Agent, "agent-1"), "kubernetes-agent-pod", selfcheck.LevelWarning,
			"terminationGracePeriodSeconds is 30, but the agent may need 3600 to end while jobs run: "+
				"otherwise the next agent adopts them")
		wantResult(t, check(rest.AnonymousClientConfig(n.Agent), "agent-1"), "kubernetes-agent-pod",
			selfcheck.LevelWarning, "no other agent adopts its jobs")
	})
	t.Run("Role lacks a verb", func(t *testing.T) {
		t.Parallel()
		n := kubetest.New(t)
		a := adminOf(t, n)
		a.do(http.MethodPatch, "/apis/rbac.authorization.k8s.io/v1/namespaces/"+n.Name+"/roles/"+kubetest.Account,
			values{"rules": []rbacv1.PolicyRule{{
				APIGroups: []string{""}, Resources: []string{pods},
				Verbs: []string{"create", "get", "list", "watch", "update"},
			}}})
		results := awaitResult(t, n, nil, "kubernetes-access-pods", selfcheck.LevelFailed,
			"may not delete pods in namespace "+n.Name)
		wantFailed(t, results, "kubernetes-access-pods",
			"resources [pods], verbs [create, get, list, watch, update, delete]")
		wantFailed(t, results, "kubernetes-access-logs", "may not get pods/log")
		wantResult(t, results, "kubernetes-access-configmaps", selfcheck.LevelWarning, "a handoff of more than 16 KiB")
		wantResult(t, results, podCheck, selfcheck.LevelOK, "")
	})
	t.Run("Pod Security level warns or refuses", func(t *testing.T) {
		t.Parallel()
		n := kubetest.New(t)
		adminOf(t, n).do(http.MethodPatch, "/api/v1/namespaces/"+n.Name,
			values{"metadata": values{"labels": values{"pod-security.kubernetes.io/warn": "restricted"}}})
		results := awaitResult(t, n, nil, "kubernetes-pod-security", selfcheck.LevelWarning, "runAsNonRoot")
		wantResult(t, results, podCheck, selfcheck.LevelOK, "")
		n.Enforce(t, "restricted")
		awaitResult(t, n, nil, podCheck, selfcheck.LevelFailed, "set security contexts in pod_template")
	})
	t.Run("quota or limit range refuses the Pod", func(t *testing.T) {
		t.Parallel()
		n := kubetest.New(t)
		a := adminOf(t, n)
		a.addLimits(corev1.LimitRangeItem{Max: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}})
		large := func(spec *runtime.PoolSpec) { spec.Tuning.Instance.Kubernetes.Requests.CPU = "2" }
		awaitResult(t, n, large, podCheck, selfcheck.LevelFailed, "cpu")
		a.addQuota()
		awaitResult(t, n, nil, podCheck, selfcheck.LevelFailed, "ResourceQuota")
	})
}

func TestSelfChecksWithoutCluster(t *testing.T) {
	t.Run("server is down", func(t *testing.T) {
		results := selfCheck(t, &rest.Config{Host: "http://127.0.0.1:1"}, "jobs", nil)
		wantFailed(t, results, apiCheck, "cannot be reached")
		if len(results) != 2 {
			t.Errorf("got results of checks that need the API server, want only the other two: %+v", results)
		}
	})
	t.Run("context is missing", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "kubeconfig")
		text := `{"apiVersion": "v1", "kind": "Config", "contexts": [{"name": "ours", "context": {"cluster": "a"}}]}`
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		checks := SelfChecks(Options{
			RunnerDirectory: runnerDirectory, Log: slog.New(slog.DiscardHandler),
			Environ: environ(map[string]string{"KUBECONFIG": file}),
		}, runtime.PoolSpec{Identity: runtime.Identity{Target: target, Context: "theirs"}})
		results := map[string]selfcheck.Result{apiCheck: checks[0].Run(t.Context())}
		wantFailed(t, results, apiCheck, "theirs")
	})
	t.Run("another server answers", func(t *testing.T) {
		config := serverConfig(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") })
		wantFailed(t, selfCheck(t, config, "jobs", nil), apiCheck, "not a Kubernetes API server")
	})
	t.Run("quota refuses the object with the handoff", func(t *testing.T) {
		s := newFakeCluster(t, succeed)
		s.Inject(failResource(secrets, kubetest.Fault{
			Status: http.StatusForbidden, Message: "exceeded quota: q, requested: count/secrets=1",
		}))
		check := func(setting string) map[string]selfcheck.Result {
			spec := runtime.PoolSpec{Identity: runtime.Identity{Target: target}}
			spec.Tuning.Instance.Kubernetes.Handoff = setting
			results := map[string]selfcheck.Result{}
			for _, c := range SelfChecks(Options{
				RunnerDirectory: runnerDirectory, Config: s.Config(), Namespace: testNamespace, Image: agentImage,
			}, spec) {
				if c.Name == "kubernetes-handoff" {
					results[c.Name] = c.Run(t.Context())
				}
			}
			return results
		}
		if results := check(""); len(results) > 0 {
			t.Errorf("got checks %+v for a sealed handoff, want none", results)
		}
		wantFailed(t, check(handoffSecret), "kubernetes-handoff", "exceeded quota")
		s.Inject(nil)
		wantResult(t, check(handoffSecret), "kubernetes-handoff", selfcheck.LevelOK, "accepts the Secret")
		s.wantNoSecrets(t)
	})
	t.Run("proxy refuses a request", func(t *testing.T) {
		for path, name := range map[string]string{
			"/version": apiCheck, "/api/v1/namespaces/jobs": "kubernetes-namespace",
			"/apis/authorization.k8s.io/": "kubernetes-access-pods",
		} {
			for _, status := range []int{http.StatusForbidden, http.StatusNotFound} {
				if status == http.StatusNotFound && name == "kubernetes-access-pods" {
					continue // a 404 here means that the API server does not have this API
				}
				config := serverConfig(t, func(w http.ResponseWriter, r *http.Request) {
					if strings.HasPrefix(r.URL.Path, path) {
						w.Header().Set("Content-Type", "text/html")
						w.WriteHeader(status)
						fmt.Fprint(w, "<html>Please log in</html>")
						return
					}
					w.Header().Set("Content-Type", "application/json")
					fmt.Fprint(w, `{"gitVersion": "v1.99.0"}`)
				})
				wantFailed(t, selfCheck(t, config, "jobs", nil), name, "is not from a Kubernetes API server")
			}
		}
	})
	t.Run("access reviews are refused, and the dry run has a warning", func(t *testing.T) {
		answer := func(w http.ResponseWriter, code int, object any) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(code)
			_ = json.NewEncoder(w).Encode(object)
		}
		config := serverConfig(t, func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.URL.Path == "/version":
				answer(w, http.StatusOK, map[string]string{"gitVersion": "v1.99.0"})
			case r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/pods") &&
				r.URL.Query().Get("dryRun") == "All":
				w.Header().Add("Warning", `299 - "spec.nodeSelector[beta]: deprecated"`)
				pod := &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}}
				pod.Labels = labels(&runtime.Job{ID: "check", Pool: "check", Agent: "check"})
				answer(w, http.StatusCreated, pod)
			case r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/pods"):
				answer(w, http.StatusOK, &corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}})
			default:
				answer(w, http.StatusForbidden, metav1.Status{
					TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure,
					Reason: metav1.StatusReasonForbidden, Code: http.StatusForbidden, Message: "not for you",
				})
			}
		})
		results := selfCheck(t, config, "jobs", nil)
		wantResult(t, results, apiCheck, selfcheck.LevelOK, "v1.99.0")
		wantResult(t, results, "kubernetes-namespace", selfcheck.LevelOK, "jobs")
		wantResult(t, results, "kubernetes-access-pods", selfcheck.LevelSkipped, "dry run of a Pod checks")
		wantResult(t, results, podCheck, selfcheck.LevelWarning, "deprecated")
		wantResult(t, results, "kubernetes-pod-security", selfcheck.LevelOK, "")
	})
}

func TestCheckPodStorage(t *testing.T) {
	const name = "kubernetes-pod-storage"
	storage := func(amount string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceEphemeralStorage: resource.MustParse(amount)}
	}
	limitRange := func(amount string) func(*corev1.Pod) {
		return func(pod *corev1.Pod) {
			resources := &pod.Spec.Containers[0].Resources
			if _, set := resources.Requests[corev1.ResourceEphemeralStorage]; !set {
				resources.Requests, resources.Limits = storage(amount), storage(amount)
			}
		}
	}
	autopilot := func(pod *corev1.Pod) { pod.Annotations["autopilot.gke.io/resource-adjustment"] = "{}" }
	for title, c := range map[string]struct {
		setting, template string
		cluster           func(*corev1.Pod)
		level             selfcheck.Level
		part              string
	}{
		"no default": {level: selfcheck.LevelOK, part: "does not limit"},
		"small default": {
			cluster: limitRange("1Gi"), level: selfcheck.LevelWarning,
			part: "only 1Gi of ephemeral storage: a job that uses more may be evicted; " +
				"set kubernetes.ephemeral_storage to 4Gi",
		},
		"small default request": {
			cluster: func(pod *corev1.Pod) { pod.Spec.Containers[0].Resources.Requests = storage("500Mi") },
			level:   selfcheck.LevelWarning, part: "only 500Mi",
		},
		"large default": {cluster: limitRange("10Gi"), level: selfcheck.LevelOK, part: "does not limit"},
		"Autopilot":     {cluster: autopilot, level: selfcheck.LevelWarning, part: "GKE Autopilot"},
		"set in the configuration": {
			setting: "2Gi", cluster: limitRange("1Gi"), level: selfcheck.LevelOK, part: "requests 2Gi",
		},
		"set in the template": {
			template: `{"spec": {"containers": [{"name": "pulumi-workflow",
				"resources": {"requests": {"ephemeral-storage": "3Gi"}}}]}}`,
			cluster: autopilot, level: selfcheck.LevelOK, part: "requests 3Gi",
		},
	} {
		t.Run(title, func(t *testing.T) {
			api := kubetest.NewAPI(t)
			api.Mutate(c.cluster)
			spec := runtime.PoolSpec{}
			spec.Tuning.Instance.Kubernetes.Requests.EphemeralStorage = c.setting
			spec.Tuning.Instance.Kubernetes.Template = []byte(c.template)
			results := map[string]selfcheck.Result{}
			for _, check := range SelfChecks(Options{
				RunnerDirectory: runnerDirectory, Config: api.Config(), Namespace: "jobs", Image: agentImage,
				Log: slog.New(slog.DiscardHandler),
			}, spec) {
				if check.Name == podCheck || check.Name == name {
					results[check.Name] = check.Run(t.Context())
				}
			}
			wantResult(t, results, podCheck, selfcheck.LevelOK, "")
			wantResult(t, results, name, c.level, c.part)
		})
	}
}

func TestEvaluateOwnPod(t *testing.T) {
	pod := func(grace int64, mounts ...corev1.VolumeMount) *corev1.Pod {
		pod := &corev1.Pod{}
		pod.Name = "agent-1"
		pod.Spec.TerminationGracePeriodSeconds = &grace
		pod.Spec.Containers = []corev1.Container{{VolumeMounts: mounts}}
		return pod
	}
	files := []string{"/etc/cmwa/pulumi-workflow-agent.yaml", "/mnt/worker-pod.json"}
	for name, c := range map[string]struct {
		pod   *corev1.Pod
		level selfcheck.Level
		part  string
	}{
		"directory mounted whole, and sufficient grace period": {
			pod(3700, corev1.VolumeMount{MountPath: "/etc/cmwa"}), selfcheck.LevelOK, "agent-1",
		},
		"grace period too short": {pod(30), selfcheck.LevelWarning,
			"terminationGracePeriodSeconds is 30, but the agent may need 3630"},
		"template mounted with subPath": {
			pod(3700, corev1.VolumeMount{MountPath: "/mnt/worker-pod.json", SubPath: "worker-pod.json"}),
			selfcheck.LevelWarning, "/mnt/worker-pod.json",
		},
		"directory mounted with subPath": {
			pod(3700, corev1.VolumeMount{MountPath: "/etc/cmwa", SubPath: "config"}), selfcheck.LevelWarning,
			"without subPath",
		},
		"directory with a final slash mounted with subPath": {
			pod(3700, corev1.VolumeMount{MountPath: "/etc/cmwa/", SubPath: "config"}), selfcheck.LevelWarning,
			"without subPath",
		},
		"another file mounted with subPath": {
			pod(3700, corev1.VolumeMount{MountPath: "/etc/ssl/ca.crt", SubPath: "ca.crt"}), selfcheck.LevelOK, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := evaluateOwnPod(c.pod, 3630*time.Second, files)
			if got.Level != c.level || !strings.Contains(got.Message+"; "+got.Hint, c.part) {
				t.Errorf("got %+v, want %s with %q", got, c.level, c.part)
			}
		})
	}
}
