package kube

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/handoff"
	"github.com/cmwa-project/cmwa/runtime/kube/kubetest"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
	"github.com/cmwa-project/cmwa/schema/secret"
)

func TestDeliveryOf(t *testing.T) {
	for name, c := range map[string]struct {
		setting string
		size    int
		want    delivery
	}{
		"default":              {"", 10_000, inAnnotation},
		"sealed":               {"sealed", largeHandoff, inAnnotation},
		"sealed that is large": {"sealed", largeHandoff + 1, inConfigMap},
		"Secret":               {"secret", 10_000, inSecret},
		"Secret that is large": {"secret", largeHandoff + 1, inSecret},
		"unknown size":         {"", 0, inAnnotation},
		"20,000 bytes":         {"", 20_000, inConfigMap},
	} {
		if got := deliveryOf(c.setting, c.size); got != c.want {
			t.Errorf("%s: got %+v, want %+v", name, got, c.want)
		}
	}
}

// TestDeliverySize checks what each event of a Pod carries, and the requests of a job.
func TestDeliverySize(t *testing.T) {
	for name, c := range map[string]struct{ size, annotation, requests int }{
		"small handoff": {10 << 10, 20 << 10, 3},
		"large handoff": {20 << 10, 100, 4},
	} {
		t.Run(name, func(t *testing.T) {
			s := newFakeCluster(t, succeed)
			e, job := s.executor(t), s.job("job-1")
			job.Definition.Raw = randomJSON(t, c.size)
			if err := e.pods.ready(t.Context()); err != nil {
				t.Fatal(err)
			}
			before, requests := s.Requests(), 0
			id := s.mustStart(t, e, job)
			for _, n := range difference(s.Requests(), before) {
				requests += n
			}
			if requests > c.requests {
				t.Errorf("%d requests for the start, want at most %d", requests, c.requests)
			}
			size := len(s.Pods(testNamespace)[0].Annotations[annotationHandoff])
			if size > c.annotation {
				t.Errorf("the annotation has %d bytes, want at most %d", size, c.annotation)
			}
			waitFor(t, e, id)
			if received := s.handoffs(); len(received) != 1 || len(received[0].Definition) < c.size {
				t.Errorf("the job has received %d handoffs, want one with its definition", len(received))
			}
		})
	}
}

// withPadding returns a definition with an additional field of random text.
func withPadding(t *testing.T, raw json.RawMessage, size int) json.RawMessage {
	t.Helper()
	fields := map[string]json.RawMessage{}
	if err := json.Unmarshal(raw, &fields); err != nil {
		t.Fatal(err)
	}
	fields["padding"] = randomJSON(t, size)
	text, err := json.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// runToEnd runs a job to its end, and checks that no object contains the handoff once the
// runner has read the handoff. Objects returns the names of the existing objects that may
// contain it.
func runToEnd(
	t *testing.T, service *runtimetest.Service, e *Executor, job *runtime.Job, objects func() []string,
) {
	t.Helper()
	id, log, err := startWith(t.Context(), t, e, job, service)
	if err != nil {
		t.Fatalf("%v\n%s", err, log)
	}
	stream, err := e.Follow(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	if _, err := stream.Read(make([]byte, 1000)); err != nil {
		t.Fatalf("read the progress: %v", err)
	}
	if left := objects(); len(left) > 0 {
		t.Errorf("got objects %v after the runner has read the handoff", left)
	}
	if exit := waitFor(t, e, id); exit.Code != runtime.CodeSucceeded {
		t.Errorf("got exit %+v", exit)
	}
	if text := service.Record(job.ID).Text(1); !strings.Contains(text, "hello") {
		t.Errorf("step 1 printed %q", text)
	}
	if err := e.Remove(t.Context(), id, 0); err != nil {
		t.Error(err)
	}
}

// newScriptJob returns a job with one script, and its service.
func newScriptJob(t *testing.T, host, script string) (*runtimetest.Service, *runtime.Job) {
	t.Helper()
	service, job := runtimetest.NewService(), testJob()
	job.ID, job.Definition = "job-"+newName()[len(namePrefix):], runtimetest.Definition(script)
	job.Service = serve(t, host, service)
	useTestImages(job)
	return service, job
}

// refusedSecrets is the response to an agent without a right on Secrets.
var refusedSecrets = kubetest.Fault{
	Status: http.StatusForbidden, Message: `secrets is forbidden: User "u" cannot create resource "secrets"`,
}

func TestDeliveryFailure(t *testing.T) {
	t.Run("error of a missing right names kubernetes.handoff", func(t *testing.T) {
		s := newFakeCluster(t, succeed)
		s.Inject(failResource(secrets, refusedSecrets))
		e, job := s.executor(t), s.job("job-1")
		e.stuckLimit = 100 * time.Millisecond
		job.Tuning.Instance.Kubernetes.Handoff = handoffSecret
		_, log, err := s.start(t, e, job)
		want := "grant create, update, list and delete on secrets, or set kubernetes.handoff to sealed"
		wantStartError(t, log, err, want, false)
		s.wantNoPods(t)
		if err := e.Check(t.Context(), job.Tuning); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Check: got %v", err)
		}
		s.Inject(nil)
		e.dryRuns.validUntil = time.Time{} // otherwise the refusal stays valid for two seconds
		if err := e.Check(t.Context(), job.Tuning); err != nil {
			t.Errorf("Check: got %v", err)
		}
		s.wantNoSecrets(t)
	})
	t.Run("refused Pod leaves no object, although its first deletion fails", func(t *testing.T) {
		s := newFakeCluster(t, succeed)
		remove := failFirst(1, "delete", kubetest.Fault{Status: http.StatusInternalServerError})
		s.Inject(func(r kubetest.Request) *kubetest.Fault {
			switch {
			case r.Verb == "create" && r.Resource == pods:
				return &kubetest.Fault{Status: http.StatusUnprocessableEntity, Message: "invalid"}
			case r.Resource == secrets:
				return remove(r)
			}
			return nil
		})
		e, job := s.executor(t), s.job("job-1")
		job.Tuning.Instance.Kubernetes.Handoff = handoffSecret
		if _, log, err := s.start(t, e, job); err == nil || !strings.Contains(log, "Error: create the Pod") {
			t.Errorf("got %v; log of step 0:\n%s", err, log)
		}
		s.wantNoSecrets(t)
	})
	t.Run("failed start leaves no object", func(t *testing.T) {
		s := newFakeCluster(t, succeed)
		s.kubelet.Hold = held()
		e, job := s.executor(t), s.job("job-1")
		job.Tuning.Instance.Kubernetes.Handoff = handoffSecret
		job.Tuning.Instance.Kubernetes.StartTimeout = 300 * time.Millisecond
		if _, log, err := s.start(t, e, job); err == nil || !strings.Contains(log, "Pod created") {
			t.Errorf("got %v, want an error after the Pod was created; log of step 0:\n%s", err, log)
		}
		s.wantNoSecrets(t)
		s.wantNoPods(t)
	})
	t.Run("handoff is too large", func(t *testing.T) {
		for _, setting := range []string{"", handoffSecret} {
			s := newFakeCluster(t, succeed)
			e, job := s.executor(t), s.job("job-1")
			job.Definition.Raw, job.Tuning.Instance.Kubernetes.Handoff = randomJSON(t, 2<<20), setting
			_, _, err := s.start(t, e, job)
			if !errors.Is(err, runtime.ErrJobFault) || !errors.Is(err, handoff.ErrTooLarge) ||
				!strings.Contains(err.Error(), "shorten") {
				t.Errorf("%s: got %v", setting, err)
			}
			s.wantNoPods(t)
		}
	})
}

func TestSweepObjects(t *testing.T) {
	s := newFakeCluster(t, succeed)
	e := s.executor(t)
	put := func(name string, labels map[string]string, needed time.Time) {
		meta := e.objectMeta(testJob(), name, needed)
		if labels != nil {
			meta.Labels = labels
		}
		s.PutObject(configMaps, &corev1.ConfigMap{ObjectMeta: meta})
		s.PutObject(secrets, &corev1.Secret{ObjectMeta: meta})
	}
	put("left", nil, time.Now().Add(-time.Hour))
	put("in-use", nil, time.Now())
	put("of-others", map[string]string{"app": "other"}, time.Now().Add(-time.Hour))
	other := e.objectMeta(testJob(), "of-the-chart", time.Time{})
	other.Annotations = nil
	s.PutObject(configMaps, &corev1.ConfigMap{ObjectMeta: other})

	removed, err := e.Sweep(t.Context(), nil)
	if slices.Sort(removed); err != nil || !slices.Equal(removed, []string{"configmap/left", "secret/left"}) {
		t.Errorf("removed %v, %v, want configmap/left and secret/left", removed, err)
	}
	if left := s.Objects(configMaps, testNamespace); len(left) != 3 {
		t.Errorf("%d ConfigMaps are left, want 3", len(left))
	}

	t.Run("without the right to list Secrets", func(t *testing.T) {
		put("left", nil, time.Now().Add(-time.Hour))
		s.Inject(failResource(secrets, kubetest.Fault{Status: http.StatusForbidden}))
		if removed, err := e.Sweep(t.Context(), nil); err != nil ||
			!slices.Equal(removed, []string{"configmap/left"}) {
			t.Errorf("removed %v, %v, want only the ConfigMap", removed, err)
		}
	})
}

func TestPullSecret(t *testing.T) {
	start := func(t *testing.T, s *fakeCluster, change func(*runtime.Job)) (id, log string) {
		t.Helper()
		e, job := s.executor(t), s.job("job-1")
		job.Definition.Image = runtime.Image{
			Reference: "registry.example.com/team/image:1", Username: "robot",
			Password: secret.New("registry-password"),
		}
		change(job)
		id, log, err := s.start(t, e, job)
		if err != nil {
			t.Fatal(err)
		}
		waitFor(t, e, id)
		if text, _ := json.Marshal(s.Pods(testNamespace)); strings.Contains(string(text)+log, "registry-password") {
			t.Error("the password can be read in the Pod or the log")
		}
		return id, log
	}
	t.Run("job with credentials", func(t *testing.T) {
		s := newFakeCluster(t, succeed)
		id, log := start(t, s, func(*runtime.Job) {})
		pod := s.Pods(testNamespace)[0]
		all := s.Objects(secrets, testNamespace)
		if len(all) != 1 || len(pod.Spec.ImagePullSecrets) != 1 ||
			pod.Spec.ImagePullSecrets[0].Name != all[0].GetName() {
			t.Fatalf("there are %d Secrets; imagePullSecrets is %v", len(all), pod.Spec.ImagePullSecrets)
		}
		var config struct {
			Auths map[string]struct{ Username, Password, Auth string }
		}
		made := all[0].(*corev1.Secret)
		if err := json.Unmarshal(made.Data[corev1.DockerConfigJsonKey], &config); err != nil {
			t.Fatal(err)
		}
		login := config.Auths["registry.example.com"]
		if login.Username != "robot" || login.Password != "registry-password" ||
			made.Type != corev1.SecretTypeDockerConfigJson {
			t.Errorf("the Secret is of type %s with the user %q", made.Type, login.Username)
		}
		if !strings.Contains(log, "credentials for registry.example.com") {
			t.Errorf("log of step 0:\n%s", log)
		}
		if err := s.executor(t).Remove(t.Context(), id, 0); err != nil {
			t.Fatal(err)
		}
		s.wantNoSecrets(t)
	})
	t.Run("job continues without the right", func(t *testing.T) {
		s := newFakeCluster(t, succeed)
		s.Inject(failResource(secrets, refusedSecrets))
		_, log := start(t, s, func(*runtime.Job) {})
		if !strings.Contains(log, "set imagePullSecrets in pod_template") {
			t.Errorf("log of step 0:\n%s", log)
		}
	})
	t.Run("image overridden by the agent", func(t *testing.T) {
		s := newFakeCluster(t, succeed)
		start(t, s, func(job *runtime.Job) { job.Tuning.Instance.OverrideImage = "other.example.com/image:1" })
		if all := s.Objects(secrets, testNamespace); len(all) > 0 ||
			len(s.Pods(testNamespace)[0].Spec.ImagePullSecrets) > 0 {
			t.Error("there is an image pull secret, although another image is used")
		}
	})
	t.Run("template keeps its own pull secrets", func(t *testing.T) {
		s := newFakeCluster(t, succeed)
		start(t, s, func(job *runtime.Job) {
			job.Tuning.Instance.Kubernetes.Template = []byte(
				`{"spec": {"imagePullSecrets": [{"name": "team"}, {"$patch": "replace"}]}}`)
		})
		if names := s.Pods(testNamespace)[0].Spec.ImagePullSecrets; len(names) != 2 || names[1].Name != "team" {
			t.Errorf("the imagePullSecrets of the Pod are %v", names)
		}
	})
	t.Run("image of Docker Hub", func(t *testing.T) {
		config, registry, err := dockerConfig(runtime.Image{Reference: "acme/job", Username: "robot"})
		if err != nil || registry != "docker.io" || !strings.Contains(string(config), `"`+dockerHubKey+`"`) {
			t.Errorf("got %s for %s, %v", config, registry, err)
		}
	})
}

func TestDeliveryOnCluster(t *testing.T) {
	t.Parallel()
	n := onCluster(t)
	n.Grant(t, rbacv1.PolicyRule{
		APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"create", "update", "list", "delete"},
	})
	for resource, change := range map[string]func(*testing.T, *runtime.Job){
		secrets: func(_ *testing.T, job *runtime.Job) { job.Tuning.Instance.Kubernetes.Handoff = handoffSecret },
		configMaps: func(t *testing.T, job *runtime.Job) {
			job.Definition.Raw = withPadding(t, job.Definition.Raw, 400<<10)
		},
	} {
		t.Run("handoff in "+resource, func(t *testing.T) {
			t.Parallel()
			service, job := newScriptJob(t, n.HostAddress(t), "echo hello; sleep 2")
			change(t, job)
			job.Definition.Image.Username, job.Definition.Image.Password = "robot", secret.New("registry-password")
			service.Add(job)
			left := func() (names []string) {
				var list metav1.PartialObjectMetadataList
				text, err := adminOf(t, n).get(resource).Param("labelSelector", labelJob+"="+labelValue(job.ID)).
					Do(t.Context()).Raw()
				if err := errors.Join(err, json.Unmarshal(text, &list)); err != nil {
					t.Fatal(err)
				}
				for _, o := range list.Items {
					if !strings.HasSuffix(o.Name, "-pull") {
						names = append(names, o.Name)
					}
				}
				return names
			}
			runToEnd(t, service, openExecutor(t, n), job, left)
		})
	}
}
