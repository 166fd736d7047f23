package kubetest

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

const (
	timeout       = 3 * time.Minute // for each operation; long, because Pods of other tests use the cluster too
	interval      = 20 * time.Millisecond
	tokenLifetime = 2 * time.Hour // longer than any test
)

// Account is the service account of a [Namespace] with the rights of the documented Role.
const Account = "workflow-agent"

// Rules returns the rules of the documented Role. Each caller gets its own, because the response to a
// request is decoded into the object of the request.
func Rules() []rbacv1.PolicyRule {
	rule := func(resource string, verbs ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{resource}, Verbs: verbs}
	}
	return []rbacv1.PolicyRule{
		rule("pods", "create", "get", "list", "watch", "update", "delete"),
		rule("pods/log", "get"),
		rule("configmaps", "create", "update", "list", "delete"),
	}
}

// Namespace is the namespace of one test.
type Namespace struct {
	Name string

	// Admin has all rights in the cluster.
	Admin *rest.Config

	// Agent is the service account [Account].
	Agent *rest.Config
}

// New creates a namespace in which Pods can be created at once. The namespace is removed at
// the end of the test; if the test fails, the Pods and events are logged first. If
// CMWA_TEST_KUBECONFIG is not set, New skips the test, or fails it if the variable CI is
// true.
func New(t testing.TB) *Namespace {
	t.Helper()
	admin := Admin(t)
	core := Client(t, admin, corev1.SchemeGroupVersion)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "cmwa-test-"}}
	if err := create(core.Post().Resource("namespaces"), namespace, namespace); err != nil {
		t.Fatalf("create a namespace: %v; %s", err, hint)
	}
	n := &Namespace{Name: namespace.Name, Admin: admin}
	t.Cleanup(func() { n.remove(t) })
	n.create(t, core, "serviceaccounts", &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: Account}})
	n.grant(t, Account, Rules()...)

	lifetime := int64(tokenLifetime / time.Second)
	token := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &lifetime}}
	request := core.Post().Namespace(n.Name).Resource("serviceaccounts").Name(Account).SubResource("token")
	if err := create(request, token, token); err != nil {
		t.Fatalf("create a token: %v", err)
	}
	n.Agent = rest.AnonymousClientConfig(admin)
	n.Agent.BearerToken = token.Status.Token
	n.Agent.QPS, n.Agent.Burst = 0, 0

	// Wait for the default service account and the ConfigMap of the cluster's certificate, which
	// controllers create and which Pods need: a test may compare all objects of the namespace
	// before and after it runs. Wait for the authorizer too, which loads the Role a moment later.
	n.await(t, core, "serviceaccounts", "default")
	n.await(t, core, "configmaps", "kube-root-ca.crt")
	n.await(t, Client(t, n.Agent, corev1.SchemeGroupVersion), "pods")
	return n
}

// Enforce sets the Pod Security level that the namespace enforces, such as restricted.
func (n *Namespace) Enforce(t testing.TB, level string) {
	t.Helper()
	patch := fmt.Sprintf(`{"metadata": {"labels": {"pod-security.kubernetes.io/enforce": %q}}}`, level)
	err := Client(t, n.Admin, corev1.SchemeGroupVersion).
		Patch(types.MergePatchType).Resource("namespaces").Name(n.Name).Body([]byte(patch)).Do(t.Context()).Error()
	if err != nil {
		t.Fatalf("set the Pod Security level: %v", err)
	}
}

// Grant gives the agent more rights, and waits until they are effective.
// The rule must include list.
func (n *Namespace) Grant(t testing.TB, rule rbacv1.PolicyRule) {
	t.Helper()
	n.grant(t, Account+"-more", rule)
	n.await(t, Client(t, n.Agent, corev1.SchemeGroupVersion), rule.Resources[0])
}

// grant binds a Role with these rules to the agent's service account.
func (n *Namespace) grant(t testing.TB, name string, rules ...rbacv1.PolicyRule) {
	t.Helper()
	rbac := Client(t, n.Admin, rbacv1.SchemeGroupVersion)
	n.create(t, rbac, "roles", &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules,
	})
	n.create(t, rbac, "rolebindings", &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: Account, Namespace: n.Name}},
	})
}

// Kubeconfig writes a kubeconfig with the agent's credentials and this namespace as the
// default. It returns its path.
func (n *Namespace) Kubeconfig(t testing.TB) string {
	t.Helper()
	type object = map[string]any
	text, err := json.Marshal(object{
		"apiVersion": "v1", "kind": "Config", "current-context": contextName,
		"clusters": []object{{"name": contextName, "cluster": object{
			"server": n.Agent.Host, "certificate-authority-data": n.Agent.CAData,
		}}},
		"users": []object{{"name": Account, "user": object{"token": n.Agent.BearerToken}}},
		"contexts": []object{{"name": contextName, "context": object{
			"cluster": contextName, "user": Account, "namespace": n.Name,
		}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// HostAddress returns the address at which Pods reach this machine.
func (n *Namespace) HostAddress(t testing.TB) string {
	t.Helper()
	var nodes corev1.NodeList
	err := Client(t, n.Admin, corev1.SchemeGroupVersion).Get().Resource("nodes").Do(t.Context()).Into(&nodes)
	if err != nil {
		t.Fatal(err)
	}
	for _, node := range nodes.Items {
		for _, address := range node.Status.Addresses {
			if address.Type == corev1.NodeInternalIP {
				return address.Address
			}
		}
	}
	t.Fatal("the node has no address")
	return ""
}

// create sends a request with an object and a timeout, and decodes the response.
func create(request *rest.Request, object, answer runtime.Object) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return request.Body(object).Do(ctx).Into(answer)
}

func (n *Namespace) create(t testing.TB, client *rest.RESTClient, resource string, object runtime.Object) {
	t.Helper()
	if err := create(client.Post().Namespace(n.Name).Resource(resource), object, object); err != nil {
		t.Fatalf("create %s: %v", resource, err)
	}
}

// await waits until the client can list a resource or get an object, which path names. It fails
// the test at the timeout, and at an error other than a missing object or right.
func (n *Namespace) await(t testing.TB, client *rest.RESTClient, path ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	for {
		err := client.Get().Namespace(n.Name).Suffix(path...).Do(ctx).Error()
		if err == nil {
			return
		}
		if !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err) {
			t.Fatalf("wait for %s: %v", path, err)
		}
		select {
		case <-ctx.Done():
			t.Fatalf("wait for %s: %v", path, err)
		case <-time.After(interval):
		}
	}
}

// remove ends all Pods at once and deletes the namespace. The cluster deletes its content
// some seconds later.
func (n *Namespace) remove(t testing.TB) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	core := Client(t, n.Admin, corev1.SchemeGroupVersion)
	if t.Failed() {
		t.Log(n.describe(ctx, core))
	}
	atOnce := metav1.NewDeleteOptions(0)
	if err := core.Delete().Namespace(n.Name).Resource("pods").Body(atOnce).Do(ctx).Error(); err != nil {
		t.Errorf("delete the Pods of %s: %v", n.Name, err)
	}
	if err := core.Delete().Resource("namespaces").Name(n.Name).Do(ctx).Error(); err != nil {
		t.Errorf("delete namespace %s: %v", n.Name, err)
	}
}

func (n *Namespace) describe(ctx context.Context, core *rest.RESTClient) string {
	var text strings.Builder
	var pods corev1.PodList
	if err := core.Get().Namespace(n.Name).Resource("pods").Do(ctx).Into(&pods); err != nil {
		return err.Error()
	}
	for _, pod := range pods.Items {
		status, _ := json.Marshal(pod.Status)
		fmt.Fprintf(&text, "Pod %s: %s\n", pod.Name, status)
	}
	var events corev1.EventList
	if err := core.Get().Namespace(n.Name).Resource("events").Do(ctx).Into(&events); err != nil {
		return text.String() + err.Error()
	}
	for _, event := range events.Items {
		about := event.InvolvedObject
		fmt.Fprintf(&text, "event of %s %s: %s: %s\n", about.Kind, about.Name, event.Reason, event.Message)
	}
	return text.String()
}
