package kube

import (
	"context"
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/cmwa-project/cmwa/runtime"
)

// denied is an error that matches [runtime.ErrDenied].
type denied struct{ error }

func (denied) Is(target error) bool { return target == runtime.ErrDenied }

// explain returns an error that describes, in one line, why a request failed, and the hint.
// It wraps err only if err is a cancellation.
func (e *Executor) explain(operation string, err error) error {
	text := tail(err.Error())
	answered := errors.As(err, new(apierrors.APIStatus))
	switch {
	case errors.Is(err, errRelabeled):
		return fmt.Errorf("%s: %s", operation, text)

	// No response of the API server.
	case errors.Is(err, errThrottled):
		return fmt.Errorf("%s: more than %d requests a second to the Kubernetes API server at %s: raise kubernetes.qps",
			operation, e.client.limits.current(), e.client.host)
	case errors.Is(err, context.Canceled) && !answered:
		return fmt.Errorf("%s: %w", operation, err)
	case !answered:
		return runtime.FailureConnection.Wrap(fmt.Errorf("%s: the Kubernetes API server at %s cannot be reached: %s",
			operation, e.client.host, text))
	case fromProxy(err):
		return fmt.Errorf("%s: the response from %s is not from a Kubernetes API server: "+
			"check the proxies and load balancers in front of it (%s)", operation, e.client.host, text)

	// Refused credentials.
	case apierrors.IsUnauthorized(err):
		return denied{fmt.Errorf("%s: the cluster does not accept the agent's credentials: "+
			"check its service account or KUBECONFIG (%s)", operation, text)}

	// Refused by admission, or because of a missing right.
	case apierrors.IsForbidden(err) && strings.Contains(text, "error looking up service account"):
		return fmt.Errorf("%s: namespace %s has no such service account: "+
			"create it, or change kubernetes.service_account (%s)", operation, e.namespace, text)
	case apierrors.IsForbidden(err) && strings.Contains(text, "violates PodSecurity"):
		return fmt.Errorf("%s: the Pod Security level of namespace %s refuses the Pod: "+
			"set security contexts in pod_template (%s)", operation, e.namespace, text)
	case apierrors.IsForbidden(err) && strings.Contains(text, "quota"):
		return fmt.Errorf("%s: a ResourceQuota of namespace %s refuses the Pod: "+
			"raise it, or change kubernetes.cpu and kubernetes.memory (%s)", operation, e.namespace, text)
	case apierrors.IsForbidden(err) && strings.Contains(text, " usage per "):
		return fmt.Errorf("%s: a LimitRange of namespace %s refuses the Pod: "+
			"change kubernetes.cpu and kubernetes.memory, or resources in pod_template (%s)",
			operation, e.namespace, text)
	case lacksRight(err):
		return denied{fmt.Errorf("%s: the agent's service account lacks a right in namespace %s: "+
			"grant create, get, list, watch, update and delete on pods and pods/log (%s)",
			operation, e.namespace, text)}

	// Refused requests.
	case apierrors.IsNotFound(err) && strings.Contains(text, "namespaces"):
		return fmt.Errorf("%s: namespace %s does not exist: create it, or change kubernetes.namespace", operation,
			e.namespace)
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
		return fmt.Errorf("%s: the cluster refuses the Pod: check kubernetes.* and pod_template (%s)", operation, text)
	default:
		return fmt.Errorf("%s: %s", operation, text)
	}
}
