package kubetest

import (
	"fmt"
	"os"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	variable    = "CMWA_TEST_KUBECONFIG"
	contextName = "cmwa-test" // context of the kubeconfig that kube-up writes
	hint        = `start a cluster, as root: testdata/toolchain/kube-up; then: eval "$(testdata/toolchain/environment)"`
)

// scheme contains the types that clients of this package encode and decode.
var scheme = func() *runtime.Scheme {
	scheme := runtime.NewScheme()
	utilruntime.Must(corev1.AddToScheme(scheme))
	utilruntime.Must(appsv1.AddToScheme(scheme))
	utilruntime.Must(rbacv1.AddToScheme(scheme))
	utilruntime.Must(authenticationv1.AddToScheme(scheme))
	metav1.AddToGroupVersion(scheme, corev1.SchemeGroupVersion)
	return scheme
}()

// Admin returns the client configuration of the cluster's administrator. If
// CMWA_TEST_KUBECONFIG is not set, it skips the test, or fails it if the variable CI is
// true.
func Admin(t testing.TB) *rest.Config {
	t.Helper()
	path := os.Getenv(variable)
	if path == "" {
		const text = variable + " is not set: this test needs a Kubernetes cluster; " + hint
		if os.Getenv("CI") == "true" {
			t.Fatal(text)
		}
		t.Skip(text)
	}
	config, err := load(path)
	if err != nil {
		t.Fatalf("%v; %s", err, hint)
	}
	return config
}

// load reads a kubeconfig. It returns an error if kube-up has not written it.
func load(path string) (*rest.Config, error) {
	kubeconfig, err := clientcmd.LoadFromFile(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", variable, err)
	}
	if kubeconfig.CurrentContext != contextName {
		return nil, fmt.Errorf("%s: the current context of %s is %q, not %q: tests use only the cluster of kube-up",
			variable, path, kubeconfig.CurrentContext, contextName)
	}
	config, err := clientcmd.NewDefaultClientConfig(*kubeconfig, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", variable, err)
	}
	config.QPS = -1 // no rate limit
	return config, nil
}

// Client returns a client for the core, apps, rbac.authorization.k8s.io or
// authentication.k8s.io group in version v1, for example Client(t, namespace.Agent,
// corev1.SchemeGroupVersion). It copies the configuration.
func Client(t testing.TB, config *rest.Config, group schema.GroupVersion) *rest.RESTClient {
	t.Helper()
	config = rest.CopyConfig(config)
	config.GroupVersion = &group
	config.APIPath = "/apis"
	if group.Group == "" {
		config.APIPath = "/api"
	}
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	client, err := rest.RESTClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}
