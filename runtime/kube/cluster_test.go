package kube

import (
	"cmp"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/kube/kubetest"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
)

const (
	agentImage      = "cmwa-test/runner:1" // of the agent in all tests
	runnerDirectory = "/mnt/pulumi/runner" // of the runner in the Pods of tests
)

// newCluster returns the Cluster of an agent. The options need no log, and no image unless a test is about it.
func newCluster(t testing.TB, options Options) *Cluster {
	t.Helper()
	options.Image, options.RunnerDirectory = cmp.Or(options.Image, agentImage), runnerDirectory
	options.Log = cmp.Or(options.Log, slog.New(slog.DiscardHandler))
	cluster, err := New(options)
	if err != nil {
		t.Fatal(err)
	}
	return cluster
}

// executorOf returns an executor for the default namespace of a Cluster. The end of the test closes it.
func executorOf(t testing.TB, cluster *Cluster) *Executor {
	t.Helper()
	e := cluster.Executor("")
	t.Cleanup(e.Close)
	return e
}

// onCluster returns a namespace of the real cluster in which Pods of jobs can run.
func onCluster(t *testing.T) *kubetest.Namespace {
	t.Helper()
	n := kubetest.New(t)
	kubetest.RunnerImage(t)
	return n
}

// openExecutor returns an executor for the Pods of all agents, with the rights of the
// documented Role.
func openExecutor(t *testing.T, n *kubetest.Namespace) *Executor {
	t.Helper()
	return executorOf(t, newCluster(t, Options{Config: n.Agent, Namespace: n.Name}))
}

// useTestImages sets the image, the pull policies and the start timeout of a job on the
// cluster.
func useTestImages(job *runtime.Job) {
	job.Definition.Image.Reference = kubetest.BaseImage
	job.Tuning.Instance.Kubernetes.Image = agentImage // the agents in Pods have another image
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
			e := openExecutor(t, n)
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

// podsOfJob returns the names of a job's Pods.
func podsOfJob(t *testing.T, n *kubetest.Namespace, job *runtime.Job) []string {
	t.Helper()
	var list corev1.PodList
	if err := adminOf(t, n).get(pods).Do(t.Context()).Into(&list); err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, pod := range list.Items {
		if pod.Annotations[annotationJob] == job.ID {
			left = append(left, pod.Name)
		}
	}
	return left
}

// readableText returns everything about a running job that users with read access to the
// namespace can read, and the arguments and environments of the runners on the node.
func readableText(t *testing.T, n *kubetest.Namespace, id string) string {
	t.Helper()
	name, _, _ := parseID(id)
	a := adminOf(t, n)
	var text strings.Builder
	for _, resource := range []string{pods, configMaps, secrets, "events"} {
		raw, err := a.get(resource).Do(t.Context()).Raw()
		if err != nil {
			t.Fatal(err)
		}
		text.Write(raw)
	}
	raw, err := a.get(pods).Name(name).SubResource("log").Param("container", MainContainer).Do(t.Context()).Raw()
	if err != nil {
		t.Fatal(err)
	}
	text.Write(raw)
	processes, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, process := range processes {
		line, _ := os.ReadFile("/proc/" + process.Name() + "/cmdline")
		if strings.Contains(string(line), "--handoff") {
			environ, _ := os.ReadFile("/proc/" + process.Name() + "/environ")
			text.Write(line)
			text.Write(environ)
		}
	}
	return text.String()
}
