package kube

import (
	"log/slog"
	"sync"
	"testing"

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

// openExecutor returns an executor for the Pods of all agents, with the rights of the
// documented Role.
func openExecutor(t *testing.T, config *rest.Config, namespace string) *Executor {
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

// useTestImages sets the image, the pull policies and the start timeout of a job on the
// cluster.
func useTestImages(job *runtime.Job) {
	job.Definition.Image.Reference = kubetest.BaseImage
	job.Tuning.Instance.Kubernetes.ImagePullPolicy = "Never"
	job.Tuning.Instance.Kubernetes.StartTimeout = clusterLimit
	job.Tuning.Instance.Kubernetes.Template = []byte(
		`{"spec": {"containers": [{"name": "pulumi-workflow", "imagePullPolicy": "Never"}]}}`)
}

// setLongGrace sets a Pod's own grace period to more than an hour, see runtimetest.Harness.
func setLongGrace(job *runtime.Job) {
	job.Tuning.Instance.Kubernetes.Template = []byte(`{"spec": {"terminationGracePeriodSeconds": 7200,
		"containers": [{"name": "pulumi-workflow", "imagePullPolicy": "Never"}]}}`)
}

func TestExecutorOnCluster(t *testing.T) {
	t.Parallel()
	n := onCluster(t)
	executors := sync.Map{} // by name of the test
	runtimetest.Conform(t, runtimetest.Harness{
		New: func(t *testing.T) runtime.Executor {
			e := openExecutor(t, n.Agent, n.Name)
			executors.Store(t.Name(), e)
			return e
		},
		Job: func(t *testing.T, job *runtime.Job, work runtimetest.Work) {
			useTestImages(job)
			setLongGrace(job)
			switch work {
			case runtimetest.BadJob:
				job.Definition.Image.Reference = "cmwa-test/missing:1"
				e, _ := executors.Load(t.Name())
				e.(*Executor).stuckLimit = 0 // the start fails as soon as the kubelet reports the missing image
			case runtimetest.Misconfigured:
				job.Tuning.Instance.Kubernetes.ServiceAccount = "missing"
			}
		},
		BadJobs:   true,
		Parallel:  true,
		Host:      n.HostAddress(t),
		Leftovers: func(t *testing.T, job *runtime.Job) []string { return podsOfJob(t, n, job) },
		Exposed:   func(t *testing.T, job *runtime.Job, id string) string { return readableText(t, n, id) },
	})
}
