package kube

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// namespaceFile is where a Pod finds the name of its own namespace.
const namespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// connection returns how to reach the API server, and the namespace that is meant
// when none is named. Without a context and KUBECONFIG, a Pod uses its own service
// account and namespace. Otherwise it is the context, or the current one, of the
// kubeconfig that KUBECONFIG or ~/.kube/config names. InPod is whether it is the
// cluster of the Pod that the agent runs in.
func connection(
	lookup func(string) (string, bool), context string,
) (_ *rest.Config, namespace string, inPod bool, _ error) {
	variable, _ := lookup("KUBECONFIG")
	if variable == "" && context == "" {
		config, err := rest.InClusterConfig()
		if err == nil {
			namespace, err := ownNamespace(lookup)
			return config, namespace, true, err
		}
		if !errors.Is(err, rest.ErrNotInCluster) {
			return nil, "", false, fmt.Errorf("use the service account of this Pod: %w", err)
		}
	}
	config, namespace, err := fromKubeconfig(lookup, variable, context)
	return config, namespace, false, err
}

// fromKubeconfig returns how to reach the API server of a context, empty is the
// current one, and the namespace of that. Variable is the value of KUBECONFIG: files
// that are merged.
func fromKubeconfig(
	lookup func(string) (string, bool), variable, context string,
) (*rest.Config, string, error) {
	// Find the files. A missing one is ignored, as kubectl does.
	home, _ := lookup("HOME")
	files := []string{filepath.Join(home, ".kube", "config")}
	if variable != "" {
		files = slices.DeleteFunc(filepath.SplitList(variable), func(file string) bool { return file == "" })
	}
	there := slices.ContainsFunc(files, func(file string) bool {
		_, err := os.Stat(file)
		return err == nil
	})
	named := strings.Join(files, ", ")
	if !there {
		return nil, "", fmt.Errorf("find a Kubernetes cluster: there is no file %s: "+
			"run the agent in a Pod with a service account, or set KUBECONFIG", named)
	}
	raw, err := (&clientcmd.ClientConfigLoadingRules{Precedence: files}).Load()
	if err != nil {
		return nil, "", fmt.Errorf("read the kubeconfig: %w", err)
	}

	// Find the context.
	if context == "" {
		context = raw.CurrentContext
	}
	known := "it has none"
	if names := slices.Sorted(maps.Keys(raw.Contexts)); len(names) > 0 {
		known = "it has " + strings.Join(names, ", ")
	}
	if context == "" {
		return nil, "", fmt.Errorf("%s names no current context: set kubernetes.context; %s", named, known)
	}
	if raw.Contexts[context] == nil {
		return nil, "", fmt.Errorf("%s has no context %s: change kubernetes.context; %s", named, context, known)
	}

	// Use it.
	loader := clientcmd.NewNonInteractiveClientConfig(*raw, context, &clientcmd.ConfigOverrides{}, nil)
	config, err := loader.ClientConfig()
	if err != nil {
		return nil, "", fmt.Errorf("use the context %s of %s: %w", context, named, err)
	}
	if err := usable(config.AuthProvider); err != nil {
		return nil, "", fmt.Errorf("use the context %s of %s: %w", context, named, err)
	}
	namespace, _, err := loader.Namespace()
	if err != nil {
		return nil, "", fmt.Errorf("find the namespace of the context %s of %s: %w", context, named, err)
	}
	return config, namespace, nil
}

// usable returns an error for credentials of a provider that was once compiled into
// clients. Programs that a kubeconfig names in exec, their successors, are called by
// package rest.
func usable(provider *clientcmdapi.AuthProviderConfig) error {
	if provider == nil {
		return nil
	}
	return fmt.Errorf("its user has the auth-provider %q, which is not in this program: "+
		"use a credential plugin (exec), a token or a client certificate", provider.Name)
}

// ownNamespace returns the namespace of the Pod that the agent runs in.
func ownNamespace(lookup func(string) (string, bool)) (string, error) {
	if namespace, _ := lookup("POD_NAMESPACE"); namespace != "" {
		return namespace, nil
	}
	namespace, err := os.ReadFile(namespaceFile)
	if err != nil {
		return "", fmt.Errorf("read the namespace of this Pod: %w", err)
	}
	return strings.TrimSpace(string(namespace)), nil
}
