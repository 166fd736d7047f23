package kube

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const namespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace" // of a Pod's own namespace

// connection returns the configuration of the client, and the default namespace:
//
//   - those of the Pod's service account, if the agent runs in a Pod and neither a context
//     nor KUBECONFIG is set.
//   - otherwise those of this context of the kubeconfig; if context is empty, those of its
//     current context. The kubeconfig consists of the files in KUBECONFIG, or is
//     ~/.kube/config.
//
// Home is the configuration of the cluster of the agent's Pod, which is config itself in the first
// case. It is nil if the agent runs in no Pod, or in one without a service account.
func connection(
	lookup func(string) (string, bool), context string,
) (config *rest.Config, namespace string, home *rest.Config, _ error) {
	kubeconfig, _ := lookup("KUBECONFIG")
	home, err := rest.InClusterConfig()
	if kubeconfig == "" && context == "" {
		if err == nil {
			namespace, err := ownNamespace(lookup)
			return home, namespace, home, err
		}
		if !errors.Is(err, rest.ErrNotInCluster) {
			return nil, "", nil, fmt.Errorf("use the service account of this Pod: %w", err)
		}
	}
	config, namespace, err = fromKubeconfig(lookup, kubeconfig, context)
	return config, namespace, home, err
}

// clusterID returns a text that distinguishes a cluster from others: a digest of the address of its API
// server, which is the same in many clusters, and of its CA certificates.
func clusterID(config *rest.Config) string {
	config = rest.CopyConfig(config)
	_ = rest.LoadTLSFiles(config) // the client reports an error
	sum := sha256.Sum256(append([]byte(config.Host+"\n"), config.CAData...))
	return hex.EncodeToString(sum[:5])
}

// fromKubeconfig returns the configuration and the namespace of a context; the empty string
// selects the current context. The argument kubeconfig is the value of KUBECONFIG: a list
// of files that are merged.
func fromKubeconfig(
	lookup func(string) (string, bool), kubeconfig, context string,
) (*rest.Config, string, error) {
	// Find the files. Like kubectl, ignore missing ones.
	home, _ := lookup("HOME")
	files := []string{filepath.Join(home, ".kube", "config")}
	if kubeconfig != "" {
		files = slices.DeleteFunc(filepath.SplitList(kubeconfig), func(file string) bool { return file == "" })
	}
	exists := func(file string) bool {
		_, err := os.Stat(file)
		return err == nil
	}
	fileNames := strings.Join(files, ", ")
	if !slices.ContainsFunc(files, exists) {
		missing := fileNames + " does not exist"
		if len(files) > 1 {
			missing = "none of these files exists: " + fileNames
		}
		return nil, "", fmt.Errorf("find a Kubernetes cluster: %s: "+
			"run the agent in a Pod with a service account, or set KUBECONFIG", missing)
	}
	raw, err := (&clientcmd.ClientConfigLoadingRules{Precedence: files}).Load()
	if err != nil {
		return nil, "", fmt.Errorf("read the kubeconfig: %w", err)
	}

	context = cmp.Or(context, raw.CurrentContext)
	contexts := "it has no contexts"
	if names := slices.Sorted(maps.Keys(raw.Contexts)); len(names) > 0 {
		contexts = "its contexts are " + strings.Join(names, ", ")
	}
	if context == "" {
		return nil, "", fmt.Errorf("%s names no current context: set kubernetes.context; %s", fileNames, contexts)
	}
	if raw.Contexts[context] == nil {
		return nil, "", fmt.Errorf("%s has no context %s: change kubernetes.context; %s", fileNames, context, contexts)
	}

	loader := clientcmd.NewNonInteractiveClientConfig(*raw, context, &clientcmd.ConfigOverrides{}, nil)
	config, err := loader.ClientConfig()
	if err != nil {
		return nil, "", fmt.Errorf("use the context %s of %s: %w", context, fileNames, err)
	}
	if config.AuthProvider != nil { // only older clients contained these providers
		return nil, "", fmt.Errorf("use the context %s of %s: its user has the auth-provider %q, "+
			"which this program does not support: use a credential plugin (exec), a token or a client certificate",
			context, fileNames, config.AuthProvider.Name)
	}
	namespace, _, err := loader.Namespace()
	if err != nil {
		return nil, "", fmt.Errorf("find the namespace of the context %s of %s: %w", context, fileNames, err)
	}
	return config, namespace, nil
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
