package kube

import (
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/kube/kubetest"
)

// runnerDirectory is the directory of the runner in the Pods of tests.
const runnerDirectory = "/mnt/pulumi/workflow"

// settingsOf returns the settings of Pods whose runner is copied from an image.
func settingsOf(image string) podSettings {
	return podSettings{image: image, runnerDirectory: runnerDirectory}
}

// podsOfJob returns the names of a job's Pods.
func podsOfJob(t *testing.T, n *kubetest.Namespace, job *runtime.Job) []string {
	t.Helper()
	core := kubetest.Client(t, n.Admin, corev1.SchemeGroupVersion)
	var list corev1.PodList
	if err := core.Get().Namespace(n.Name).Resource("pods").Do(t.Context()).Into(&list); err != nil {
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
	core := kubetest.Client(t, n.Admin, corev1.SchemeGroupVersion)
	var text strings.Builder
	for _, resource := range []string{"pods", "configmaps", "secrets", "events"} {
		raw, err := core.Get().Namespace(n.Name).Resource(resource).Do(t.Context()).Raw()
		if err != nil {
			t.Fatal(err)
		}
		text.Write(raw)
	}
	raw, err := core.Get().Namespace(n.Name).Resource("pods").Name(name).SubResource("log").
		Param("container", mainContainer).Do(t.Context()).Raw()
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
