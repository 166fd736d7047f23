package kube

import (
	"encoding/json"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/kube/kubetest"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
)

func TestExecutorOnFakeCluster(t *testing.T) {
	roots := t.TempDir()
	api := kubetest.NewAPI(t)
	program := filepath.Join(runtimetest.Runner(t), "workflow-runner")
	kubelet := kubetest.NewKubelet(t, api, kubetest.Processes(t, map[string]string{programImagePath: program}))
	kubelet.Hold = func(pod *corev1.Pod) *corev1.PodStatus {
		if pod.Spec.Containers[0].Image != "missing" {
			return nil
		}
		return &corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{
			Name: mainContainer,
			State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{
				Reason:  "ErrImageNeverPull",
				Message: `Container image "missing" is not present with pull policy of Never`,
			}},
		}}}
	}
	api.Inject(func(r kubetest.Request) *kubetest.Fault {
		if r.Verb == "create" && strings.Contains(string(r.Body), "missing-account") {
			return &kubetest.Fault{
				Status: http.StatusForbidden,
				Message: `error looking up service account jobs/missing-account: ` +
					`serviceaccount "missing-account" not found`,
			}
		}
		return nil
	})
	runtimetest.Conform(t, runtimetest.Harness{
		New: func(t *testing.T) runtime.Executor {
			e := openExecutor(t, api.Config(), testNamespace)
			e.stuckLimit = 0
			e.root = func(pod string) string { return filepath.Join(roots, pod) }
			return e
		},
		Job: func(_ *testing.T, job *runtime.Job, work runtimetest.Work) {
			useTestImages(job)
			setLongGrace(job)
			switch work {
			case runtimetest.BadJob:
				job.Definition.Image.Reference = "missing"
			case runtimetest.Misconfigured:
				job.Tuning.Instance.Kubernetes.ServiceAccount = "missing-account"
			}
		},
		BadJobs: true,
		Host:    "127.0.0.1",
		Leftovers: func(_ *testing.T, job *runtime.Job) (left []string) {
			for _, pod := range api.Pods(testNamespace) {
				if pod.Annotations[annotationJob] == job.ID {
					left = append(left, pod.Name)
				}
			}
			return left
		},
		Exposed: func(t *testing.T, _ *runtime.Job, _ string) string {
			text, err := json.Marshal(api.Pods(testNamespace))
			if err != nil {
				t.Fatal(err)
			}
			return string(text)
		},
	})
}

func TestDelivery(t *testing.T) {
	for name, c := range carriers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			api, roots := kubetest.NewAPI(t), t.TempDir()
			program := filepath.Join(runtimetest.Runner(t), "workflow-runner")
			kubetest.NewKubelet(t, api, kubetest.Processes(t, map[string]string{programImagePath: program}))
			e := openExecutor(t, api.Config(), testNamespace)
			e.root = func(pod string) string { return filepath.Join(roots, pod) }
			service, job := newScriptJob(t, "127.0.0.1", "echo hello")
			c.change(t, job)
			service.Add(job)
			runToEnd(t, service, e, job, func() (names []string) {
				for _, o := range api.Objects(c.resource, testNamespace) {
					names = append(names, o.GetName())
				}
				return names
			})
		})
	}
}
