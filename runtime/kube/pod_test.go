package kube

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/schema/secret"
)

var update = flag.Bool("update", false, "write the golden files")

// testJob returns a job with all fields that a Pod shows.
func testJob() *runtime.Job {
	return &runtime.Job{
		ID: "job-1", Kind: runtime.Deployment, WorkflowID: "deployment-1", Token: secret.New("the-token-of-the-job"),
		Pool: "main-0123abcd", PoolName: "main", Agent: "agent-1", Generation: 7, Service: "https://api.example.com",
		Identity: runtime.Identity{
			Service: "https://api.example.com", Organization: "acme", PoolID: "p1",
			Credentials: "token", Target: "kubernetes", Namespace: "jobs",
		},
		Definition: runtime.Definition{
			Image: runtime.Image{Reference: "pulumi/pulumi:3"}, OS: "linux", Timeout: time.Hour, Steps: 2,
			Raw: json.RawMessage(`{"the":"definition"}`),
		},
	}
}

// settingsOf returns the settings of Pods whose runner is copied from an image.
func settingsOf(image string) podSettings {
	return podSettings{image: image, runnerDirectory: runnerDirectory, sender: exampleName}
}

// newPod returns the Pod of a job.
func newPod(t testing.TB, job *runtime.Job) *corev1.Pod {
	t.Helper()
	pod, err := podOf(job, namePrefix+"abc", settingsOf("cmwa/cmwa:1"))
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

// golden compares the JSON of a value with a file.
func golden(t *testing.T, name string, value any) {
	t.Helper()
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	text = append(text, '\n')
	path := filepath.Join("testdata", name+".json")
	if *update {
		if err := os.WriteFile(path, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(text, want) {
		t.Errorf("%s differs (-want +got):\n%s", path, cmp.Diff(string(want), string(text)))
	}
}

func TestPodOf(t *testing.T) {
	t.Run("default settings", func(t *testing.T) { golden(t, "pod-default", newPod(t, testJob())) })
	t.Run("all settings", func(t *testing.T) {
		job := testJob()
		job.Tuning.Instance.OverrideImage = "registry.example.com/other:2"
		job.Tuning.Instance.Kubernetes = runtime.Kubernetes{
			Image: "registry.example.com/cmwa:2", ImagePullPolicy: "Always", ServiceAccount: "worker",
			Requests: runtime.Resources{CPU: "500m", Memory: "4Gi", EphemeralStorage: "4Gi"},
			Limits:   runtime.Resources{CPU: "2", Memory: "8Gi", EphemeralStorage: "10Gi"}, KeepPods: "failed",
			Template: []byte(`{"metadata": {"labels": {"team": "platform"}},
				"spec": {"nodeSelector": {"disk": "ssd"}}}`),
		}
		golden(t, "pod-settings", newPod(t, job))
	})
	t.Run("labels and annotations name the work of the job", func(t *testing.T) {
		job := testJob()
		job.Definition.Work = runtime.Work{
			Organization: "acme", Project: "web site", Stack: strings.Repeat("long-", 40), Operation: "update",
			Version: "12", URL: "https://app.pulumi.com/acme/web/1",
		}
		pod := newPod(t, job)
		if got := instanceOf(pod).Work; got != job.Definition.Work {
			t.Errorf("the Pod yields the work %+v, want %+v", got, job.Definition.Work)
		}
		if pod.Labels["cmwa.organization"] != "acme" || pod.Labels["cmwa.operation"] != "update" {
			t.Errorf("the labels are %v, want the names", pod.Labels)
		}
		for _, key := range []string{"cmwa.project", "cmwa.stack"} {
			if got := pod.Labels[key]; len(got) != 32 || len(validation.IsValidLabelValue(got)) > 0 {
				t.Errorf("label %s is %q, want a digest", key, got)
			}
		}
		want := map[string]string{
			"cmwa.organization": "acme", "cmwa.project": "web site", "cmwa.stack": strings.Repeat("long-", 40),
			"cmwa.operation": "update", "cmwa.version": "12", "cmwa.url": "https://app.pulumi.com/acme/web/1",
		}
		for key, text := range want {
			if got := pod.Annotations[key]; got != text {
				t.Errorf("annotation %s is %q, want %q", key, got, text)
			}
		}
		job.Tuning.Instance.Kubernetes.Template = []byte(`{"metadata": {"labels": {"cmwa.stack": "other", "a": "b"},
			"annotations": {"cmwa.url": "https://other.example.com"}}}`)
		templated := newPod(t, job)
		if templated.Labels["cmwa.stack"] != pod.Labels["cmwa.stack"] || templated.Labels["a"] != "b" ||
			templated.Annotations["cmwa.url"] != want["cmwa.url"] {
			t.Errorf("a template changes the labels to %v, and the annotations to %v",
				templated.Labels, templated.Annotations)
		}
	})
	t.Run("invalid label value becomes a digest", func(t *testing.T) {
		job := testJob()
		job.ID = "a job/with a long name " + strings.Repeat("x", 100)
		pod := newPod(t, job)
		if value := pod.Labels[labelJob]; len(value) != 32 || pod.Annotations[annotationJob] != job.ID {
			t.Errorf("the label is %q, the annotation %q, want digest and id", value, pod.Annotations[annotationJob])
		}
		if got := instanceOf(pod).Job; got != job.ID {
			t.Errorf("found job %q, want %q", got, job.ID)
		}
	})
	t.Run("deadline is later than start and job timeouts, and has at most 32 bits", func(t *testing.T) {
		const other = 2*time.Hour + deadlineMargin
		for timeout, want := range map[time.Duration]int64{
			0:         int64((runtime.LeftoverAge + other) / time.Second),
			time.Hour: int64((time.Hour + other) / time.Second),
			1<<63 - 1: 1<<31 - 1,
		} {
			job := testJob()
			job.Definition.Timeout, job.Tuning.Instance.Kubernetes.StartTimeout = timeout, 2*time.Hour
			if pod := newPod(t, job); *pod.Spec.ActiveDeadlineSeconds != want {
				t.Errorf("timeout %s: the deadline is %d, want %d", timeout, *pod.Spec.ActiveDeadlineSeconds, want)
			}
		}
	})
	t.Run("invalid amount is an error", func(t *testing.T) {
		for _, text := range []string{"many", "-1", "0"} {
			job := testJob()
			job.Tuning.Instance.Kubernetes.Requests.CPU = text
			_, err := podOf(job, "name", settingsOf("image"))
			if err == nil || !strings.Contains(err.Error(), "kubernetes.cpu:") {
				t.Errorf("cpu %s: got %v", text, err)
			}
			job = testJob()
			job.Tuning.Instance.Kubernetes.Limits.EphemeralStorage = text
			_, err = podOf(job, "name", settingsOf("image"))
			if err == nil || !strings.Contains(err.Error(), "kubernetes.ephemeral_storage_limit:") {
				t.Errorf("limit %s: got %v", text, err)
			}
		}
	})
}

func TestNewName(t *testing.T) {
	for range 100 {
		if name := newName(); !strings.HasPrefix(name, namePrefix) || len(name) > 63 {
			t.Errorf("%q is not the name of a Pod", name)
		}
	}
}

func TestParseID(t *testing.T) {
	for id, ok := range map[string]bool{
		"pulumi-workflow-runner-a/uid": true, "": false, "name": false, "name/": false, "/uid": false,
		"../../etc": false, "Name/uid": false, "no-such-environment": false,
	} {
		if _, _, got := parseID(id); got != ok {
			t.Errorf("%q: got %v, want %v", id, got, ok)
		}
	}
}
