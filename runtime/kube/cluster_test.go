package kube

import (
	"log/slog"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/kube/kubetest"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
)

// agentImage is the image of the agent in all tests.
const agentImage = "cmwa-test/runner:1"

// onCluster returns a namespace of the real cluster in which Pods of jobs can run.
func onCluster(t *testing.T) *kubetest.Namespace {
	t.Helper()
	n := kubetest.New(t)
	kubetest.RunnerImage(t)
	return n
}

// open makes an executor for Pods of every agent, with the rights of the
// documented Role.
func open(t *testing.T, config *rest.Config, namespace string) *Executor {
	t.Helper()
	cluster, err := New(Options{
		RunnerDirectory: runnerDirectory,
		Config:          config, Namespace: namespace, Image: agentImage,
		Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	e := cluster.Executor("")
	t.Cleanup(e.Close)
	return e
}

// place sets what every job of the cluster needs.
func place(job *runtime.Job) {
	job.Definition.Image.Reference = kubetest.BaseImage
	job.Tuning.Place.Kubernetes.ImagePullPolicy = "Never"
	job.Tuning.Place.Kubernetes.StartTimeout = clusterLimit
	job.Tuning.Place.Kubernetes.Template = []byte(`{"spec": {"containers": [{"name": "pulumi-workflow", "imagePullPolicy": "Never"}]}}`)
}

func TestConformanceOnACluster(t *testing.T) {
	n := onCluster(t)
	runtimetest.Conform(t, runtimetest.Harness{
		New: func(t *testing.T) runtime.Executor { return open(t, n.Agent, n.Name) },
		Job: func(_ *testing.T, job *runtime.Job, work runtimetest.Work) {
			place(job)
			switch work {
			case runtimetest.Hopeless:
				job.Definition.Image.Reference = "cmwa-test/missing:1"
				job.Tuning.Place.Kubernetes.StartTimeout = 10 * time.Second
			case runtimetest.Misset:
				job.Tuning.Place.Kubernetes.ServiceAccount = "missing"
			}
		},
		Own:     true,
		Host:    n.HostAddress(t),
		Left:    func(t *testing.T, job *runtime.Job) []string { return leftIn(t, n, job) },
		Exposed: func(t *testing.T, job *runtime.Job, id string) string { return exposedIn(t, n, id) },
	})
}
