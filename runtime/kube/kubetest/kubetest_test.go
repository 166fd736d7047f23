package kubetest

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// newPod returns a Pod that runs one command of busybox.
func newPod(name string, command ...string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever,
			Containers: []corev1.Container{{
				Name: "main", Image: "cmwa-test/base:latest", ImagePullPolicy: corev1.PullNever, Command: command,
			}},
		},
	}
}

// awaitEnd watches a Pod until its phase is Succeeded or Failed, and returns it.
func awaitEnd(t *testing.T, client *rest.RESTClient, namespace, name string) *corev1.Pod {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	selector := fields.OneTermEqualSelector("metadata.name", name).String()
	events, err := client.Get().Namespace(namespace).Resource("pods").
		Param("watch", "true").Param("fieldSelector", selector).Watch(ctx)
	if err != nil {
		t.Fatalf("watch: %v", err)
	}
	defer events.Stop()
	for event := range events.ResultChan() {
		found, ok := event.Object.(*corev1.Pod)
		if !ok || event.Type == watch.Deleted {
			t.Fatalf("the watch returned %s %v", event.Type, event.Object)
		}
		if found.Status.Phase == corev1.PodSucceeded || found.Status.Phase == corev1.PodFailed {
			return found
		}
	}
	t.Fatalf("Pod %s did not end: %v", name, ctx.Err())
	return nil
}

func TestNamespace(t *testing.T) {
	n := New(t)
	agent := Client(t, n.Agent, corev1.SchemeGroupVersion)

	t.Run("the agent runs a Pod to completion and deletes it", func(t *testing.T) {
		pods := func(request *rest.Request) *rest.Request { return request.Namespace(n.Name).Resource("pods") }
		if err := pods(agent.Post()).Body(newPod("works", "true")).Do(t.Context()).Error(); err != nil {
			t.Fatal(err)
		}
		found := awaitEnd(t, agent, n.Name, "works")
		if found.Status.Phase != corev1.PodSucceeded {
			t.Errorf("the Pod's status is %+v", found.Status)
		}
		for _, status := range found.Status.ContainerStatuses {
			if status.State.Terminated == nil || status.State.Terminated.ExitCode != 0 {
				t.Errorf("the container's state is %+v", status.State)
			}
		}
		if err := pods(agent.Delete()).Name("works").Do(t.Context()).Error(); err != nil {
			t.Error(err)
		}
	})

	t.Run("the agent reads the log of a Pod that fails", func(t *testing.T) {
		pods := func(request *rest.Request) *rest.Request { return request.Namespace(n.Name).Resource("pods") }
		failing := newPod("fails", "sh", "-c", "echo started; exit 3")
		if err := pods(agent.Post()).Body(failing).Do(t.Context()).Error(); err != nil {
			t.Fatal(err)
		}
		found := awaitEnd(t, agent, n.Name, "fails")
		state := found.Status.ContainerStatuses[0].State
		if found.Status.Phase != corev1.PodFailed || state.Terminated == nil || state.Terminated.ExitCode != 3 {
			t.Errorf("the Pod's status is %+v", found.Status)
		}
		log, err := pods(agent.Get()).Name("fails").SubResource("log").Do(t.Context()).Raw()
		if err != nil || string(log) != "started\n" {
			t.Errorf("the log is %q, %v", log, err)
		}
	})

	t.Run("a Pod reaches a server of the test at HostAddress", func(t *testing.T) {
		listener, err := net.Listen("tcp", net.JoinHostPort(n.HostAddress(t), "0"))
		if err != nil {
			t.Fatal(err)
		}
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		_ = server.Listener.Close()
		server.Listener = listener
		server.Start()
		defer server.Close()
		client := newPod("calls", "wget", "-q", "-O", "-", server.URL)
		if err := agent.Post().Namespace(n.Name).Resource("pods").Body(client).Do(t.Context()).Error(); err != nil {
			t.Fatal(err)
		}
		if found := awaitEnd(t, agent, n.Name, "calls"); found.Status.Phase != corev1.PodSucceeded {
			t.Errorf("the Pod's status is %+v", found.Status)
		}
	})

	t.Run("the agent has no right beyond its Role", func(t *testing.T) {
		core := func(verb *rest.Request, resource string) *rest.Request {
			return verb.Namespace(n.Name).Resource(resource)
		}
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "one"}}
		patch := []byte(`{"metadata":{"labels":{"a":"b"}}}`)
		for what, request := range map[string]*rest.Request{
			"list secrets":                   core(agent.Get(), "secrets"),
			"list events":                    core(agent.Get(), "events"),
			"create a secret":                core(agent.Post(), "secrets").Body(secret),
			"patch a Pod":                    core(agent.Patch(types.MergePatchType), "pods").Name("fails").Body(patch),
			"delete all Pods":                core(agent.Delete(), "pods"),
			"list Pods of another namespace": agent.Get().Namespace("default").Resource("pods"),
			"list nodes":                     agent.Get().Resource("nodes"),
			"list namespaces":                agent.Get().Resource("namespaces"),
		} {
			if err := request.Do(t.Context()).Error(); !apierrors.IsForbidden(err) {
				t.Errorf("%s: got %v, want %d", what, err, http.StatusForbidden)
			}
		}
	})

	t.Run("Kubeconfig has the agent's identity and the namespace", func(t *testing.T) {
		loaded := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
			&clientcmd.ClientConfigLoadingRules{ExplicitPath: n.Kubeconfig(t)}, nil)
		name, _, err := loaded.Namespace()
		if err != nil || name != n.Name {
			t.Errorf("the namespace is %q, %v, want %q", name, err, n.Name)
		}
		config, err := loaded.ClientConfig()
		if err != nil {
			t.Fatal(err)
		}
		core := Client(t, config, corev1.SchemeGroupVersion)
		if err := core.Get().Namespace(n.Name).Resource("pods").Do(t.Context()).Error(); err != nil {
			t.Error(err)
		}
		if err := core.Get().Resource("nodes").Do(t.Context()).Error(); !apierrors.IsForbidden(err) {
			t.Errorf("list nodes: got %v, want %d", err, http.StatusForbidden)
		}
	})
}

func TestLoad(t *testing.T) {
	t.Run("a kubeconfig of another cluster is refused", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "config")
		text := `{"apiVersion": "v1", "kind": "Config", "current-context": "production",
			"clusters": [{"name": "c", "cluster": {"server": "https://production.invalid"}}],
			"contexts": [{"name": "production", "context": {"cluster": "c"}}]}`
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := load(path); err == nil || !strings.Contains(err.Error(), `"production"`) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("a missing kubeconfig is an error", func(t *testing.T) {
		if _, err := load(filepath.Join(t.TempDir(), "missing")); err == nil {
			t.Error("got no error")
		}
	})
}
