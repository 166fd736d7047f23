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
		"default":                 {"", 10_000, delivery{}},
		"sealed":                  {"sealed", largeHandoff, delivery{}},
		"sealed that is large":    {"sealed", largeHandoff + 1, delivery{resource: configMaps}},
		"Secret":                  {"secret", 10_000, delivery{secrets, true}},
		"ConfigMap":               {"configmap", largeHandoff + 1, delivery{configMaps, true}},
		"nothing of it is known ": {"", 0, delivery{}},
	} {
		if got := deliveryOf(c.setting, c.size); got != c.want {
			t.Errorf("%s: got %+v, want %+v", name, got, c.want)
		}
	}
}

// carriers are the ways of a handoff that need an object beside the Pod.
var carriers = map[string]struct {
	resource string
	change   func(*testing.T, *runtime.Job)
}{
	"Secret":    {secrets, func(_ *testing.T, job *runtime.Job) { job.Tuning.Place.Kubernetes.Handoff = handoffSecret }},
	"ConfigMap": {configMaps, func(_ *testing.T, job *runtime.Job) { job.Tuning.Place.Kubernetes.Handoff = handoffConfigMap }},
	"ConfigMap, for a runner in a volume": {configMaps, func(_ *testing.T, job *runtime.Job) {
		job.Tuning.Place.Kubernetes.Handoff, job.Tuning.Place.Kubernetes.Runner = handoffConfigMap, runnerImage
	}},
	"sealed, for a runner in a volume": {configMaps, func(_ *testing.T, job *runtime.Job) {
		job.Tuning.Place.Kubernetes.Runner = runnerImage
	}},
	"sealed handoff in a ConfigMap": {configMaps, func(t *testing.T, job *runtime.Job) {
		job.Definition.Raw = withPadding(t, job.Definition.Raw, 400<<10)
	}},
}

// withPadding returns a definition with a field of random text.
func withPadding(t *testing.T, raw json.RawMessage, size int) json.RawMessage {
	t.Helper()
	fields := map[string]json.RawMessage{}
	if err := json.Unmarshal(raw, &fields); err != nil {
		t.Fatal(err)
	}
	fields["padding"] = random(t, size)
	text, err := json.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// through runs a job to its end, and checks that nobody can read the handoff once
// the runner has it. Objects returns the objects of a resource that are there.
func through(
	t *testing.T, service *runtimetest.Service, e *Executor, job *runtime.Job, objects func() []string,
) {
	t.Helper()
	id, err := e.Start(t.Context(), job, runtime.NewSetup(job, service, runtimetest.Offer(job)))
	if err != nil {
		t.Fatal(err)
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
		t.Errorf("the runner has the handoff, and there still is %v", left)
	}
	if exit := waitFor(t, e, id); exit.Code != runtime.CodeSucceeded {
		t.Errorf("the job ended with %+v", exit)
	}
	if text := service.Record(job.ID).Text(1); !strings.Contains(text, "hello") {
		t.Errorf("step 1 printed %q", text)
	}
	if err := e.Remove(t.Context(), id, 0); err != nil {
		t.Error(err)
	}
}

// jobOf makes a job with one script, and the service that it reports to.
func jobOf(t *testing.T, host, script string) (*runtimetest.Service, *runtime.Job) {
	t.Helper()
	service, job := runtimetest.NewService(), testJob()
	job.ID, job.Definition = "job-"+newName()[len(namePrefix):], runtimetest.Definition(script)
	job.Service = serve(t, host, service)
	place(job)
	return service, job
}

func TestDeliveryThatFails(t *testing.T) {
	forbidden := func(resource string) func(kubetest.Request) *kubetest.Fault {
		return func(r kubetest.Request) *kubetest.Fault {
			if r.Resource != resource {
				return nil
			}
			return &kubetest.Fault{Status: http.StatusForbidden, Message: resource + ` is forbidden: User "u" cannot ` + r.Verb + ` resource "` + resource + `"`}
		}
	}
	t.Run("right that is missing is named with the key", func(t *testing.T) {
		s := newScripted(t, succeed)
		s.Inject(forbidden(secrets))
		e, job := s.executor(t), s.job("job-1")
		e.stuckLimit = 100 * time.Millisecond
		job.Tuning.Place.Kubernetes.Handoff = handoffSecret
		_, log, err := s.start(t, e, job)
		want := "grant create, update, list and delete on secrets, or set kubernetes.handoff to sealed"
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(log, want) {
			t.Errorf("got %v; step 0 says\n%s", err, log)
		}
		s.none(t)
		if err := e.Check(t.Context(), job.Tuning); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the check returns %v", err)
		}
		s.Inject(nil)
		if err := e.Check(t.Context(), job.Tuning); err != nil || len(s.Objects(secrets, testNamespace)) > 0 {
			t.Errorf("the check returns %v, and there are %d Secrets", err, len(s.Objects(secrets, testNamespace)))
		}
	})
	t.Run("Pod that is refused leaves no object", func(t *testing.T) {
		s := newScripted(t, succeed)
		s.Inject(func(r kubetest.Request) *kubetest.Fault {
			if r.Verb == "create" && r.Resource == "pods" {
				return &kubetest.Fault{Status: http.StatusUnprocessableEntity, Message: "invalid"}
			}
			return nil
		})
		e, job := s.executor(t), s.job("job-1")
		job.Tuning.Place.Kubernetes.Handoff = handoffConfigMap
		if _, log, err := s.start(t, e, job); err == nil || !strings.Contains(log, "Error: create the Pod") {
			t.Errorf("got %v; step 0 says\n%s", err, log)
		}
		if left := s.Objects(configMaps, testNamespace); len(left) > 0 {
			t.Errorf("%s is left", left[0].GetName())
		}
	})
	t.Run("Pod that does not start leaves no object", func(t *testing.T) {
		s := newScripted(t, succeed)
		s.kubelet.Hold = func(*corev1.Pod) *corev1.PodStatus { return &seenPod().Status }
		e, job := s.executor(t), s.job("job-1")
		job.Tuning.Place.Kubernetes.Handoff, job.Tuning.Place.Kubernetes.StartTimeout = handoffConfigMap, 300*time.Millisecond
		if _, _, err := s.start(t, e, job); err == nil {
			t.Error("the job started")
		}
		if left := s.Objects(configMaps, testNamespace); len(left) > 0 {
			t.Errorf("%s is left", left[0].GetName())
		}
		s.none(t)
	})
	t.Run("handoff that fits nowhere", func(t *testing.T) {
		for _, setting := range []string{"", handoffSecret, handoffConfigMap} {
			s := newScripted(t, succeed)
			e, job := s.executor(t), s.job("job-1")
			job.Definition.Raw, job.Tuning.Place.Kubernetes.Handoff = random(t, 2<<20), setting
			_, _, err := s.start(t, e, job)
			if !errors.Is(err, runtime.ErrJob) || !errors.Is(err, handoff.ErrTooLarge) || !strings.Contains(err.Error(), "shorten") {
				t.Errorf("%s: got %v", setting, err)
			}
			s.none(t)
		}
	})
}

func TestSweepObjects(t *testing.T) {
	s := newScripted(t, succeed)
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
		t.Errorf("removed %v, %v", removed, err)
	}
	if left := s.Objects(configMaps, testNamespace); len(left) != 3 {
		t.Errorf("%d ConfigMaps are left, want 3", len(left))
	}

	t.Run("without the right to list Secrets", func(t *testing.T) {
		put("left", nil, time.Now().Add(-time.Hour))
		s.Inject(func(r kubetest.Request) *kubetest.Fault {
			if r.Resource != secrets {
				return nil
			}
			return &kubetest.Fault{Status: http.StatusForbidden}
		})
		if removed, err := e.Sweep(t.Context(), nil); err != nil || !slices.Equal(removed, []string{"configmap/left"}) {
			t.Errorf("removed %v, %v", removed, err)
		}
	})
}

func TestPullSecret(t *testing.T) {
	start := func(t *testing.T, s *scripted, change func(*runtime.Job)) (id, log string) {
		t.Helper()
		e, job := s.executor(t), s.job("job-1")
		job.Definition.Image = runtime.Image{
			Reference: "registry.example.com/team/image:1", Username: "robot", Password: secret.New("registry-password"),
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
		s := newScripted(t, succeed)
		id, log := start(t, s, func(*runtime.Job) {})
		pod := s.Pods(testNamespace)[0]
		all := s.Objects(secrets, testNamespace)
		if len(all) != 1 || len(pod.Spec.ImagePullSecrets) != 1 || pod.Spec.ImagePullSecrets[0].Name != all[0].GetName() {
			t.Fatalf("there are %d Secrets, and the Pod names %v", len(all), pod.Spec.ImagePullSecrets)
		}
		var config struct {
			Auths map[string]struct{ Username, Password, Auth string }
		}
		made := all[0].(*corev1.Secret)
		if err := json.Unmarshal(made.Data[corev1.DockerConfigJsonKey], &config); err != nil {
			t.Fatal(err)
		}
		login := config.Auths["registry.example.com"]
		if login.Username != "robot" || login.Password != "registry-password" || made.Type != corev1.SecretTypeDockerConfigJson {
			t.Errorf("the Secret is of type %s with the user %q", made.Type, login.Username)
		}
		if !strings.Contains(log, "credentials for registry.example.com") {
			t.Errorf("step 0 says\n%s", log)
		}
		if err := s.executor(t).Remove(t.Context(), id, 0); err != nil {
			t.Fatal(err)
		}
		if left := s.Objects(secrets, testNamespace); len(left) > 0 {
			t.Errorf("%s is left", left[0].GetName())
		}
	})
	t.Run("right that is missing does not fail the job", func(t *testing.T) {
		s := newScripted(t, succeed)
		s.Inject(func(r kubetest.Request) *kubetest.Fault {
			if r.Resource != secrets {
				return nil
			}
			return &kubetest.Fault{Status: http.StatusForbidden, Message: `secrets is forbidden: User "u" cannot create resource "secrets"`}
		})
		if _, log := start(t, s, func(*runtime.Job) {}); !strings.Contains(log, "set imagePullSecrets in pod_template") {
			t.Errorf("step 0 says\n%s", log)
		}
	})
	t.Run("image that the agent puts in place of the job's", func(t *testing.T) {
		s := newScripted(t, succeed)
		start(t, s, func(job *runtime.Job) { job.Tuning.Place.OverrideImage = "other.example.com/image:1" })
		if all := s.Objects(secrets, testNamespace); len(all) > 0 || len(s.Pods(testNamespace)[0].Spec.ImagePullSecrets) > 0 {
			t.Error("the credentials are sent for another image")
		}
	})
	t.Run("template keeps its own pull secrets", func(t *testing.T) {
		s := newScripted(t, succeed)
		start(t, s, func(job *runtime.Job) {
			job.Tuning.Place.Kubernetes.Template = []byte(`{"spec": {"imagePullSecrets": [{"name": "team"}, {"$patch": "replace"}]}}`)
		})
		if names := s.Pods(testNamespace)[0].Spec.ImagePullSecrets; len(names) != 2 || names[1].Name != "team" {
			t.Errorf("the Pod names %v", names)
		}
	})
	t.Run("image of Docker Hub", func(t *testing.T) {
		config, registry, err := dockerConfig(runtime.Image{Reference: "acme/job", Username: "robot"})
		if err != nil || registry != "docker.io" || !strings.Contains(string(config), `"`+hub+`"`) {
			t.Errorf("got %s for %s, %v", config, registry, err)
		}
	})
}

func TestDeliveryOnACluster(t *testing.T) {
	n := onCluster(t)
	n.Grant(t, rbacv1.PolicyRule{
		APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"create", "update", "list", "delete"},
	})
	core := kubetest.Client(t, n.Admin, corev1.SchemeGroupVersion)
	for name, c := range carriers {
		if strings.Contains(name, "volume") {
			continue // its runtime has none: see TestImageVolumeOnACluster
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			service, job := jobOf(t, n.HostAddress(t), "echo hello; sleep 2")
			c.change(t, job)
			job.Definition.Image.Username, job.Definition.Image.Password = "robot", secret.New("registry-password")
			service.Add(job)
			left := func() (names []string) {
				text, err := core.Get().Namespace(n.Name).Resource(c.resource).
					Param("labelSelector", labelJob+"="+labelValue(job.ID)).Do(t.Context()).Raw()
				var list metav1.PartialObjectMetadataList
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
			through(t, service, open(t, n.Agent, n.Name), job, left)
		})
	}
}
