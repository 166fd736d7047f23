package kube

import (
	"context"
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// lackOfRight is part of a refusal by the cluster's authorizer.
const lackOfRight = " cannot "

// refusesAgent reports whether the cluster refuses the agent, and not the call.
func refusesAgent(err error) bool {
	return apierrors.IsUnauthorized(err) || apierrors.IsForbidden(err) && strings.Contains(err.Error(), lackOfRight)
}

// explain returns, in one line, why a call failed and what to do. The error that
// it wraps keeps its identity.
func (e *Executor) explain(doing string, err error) error {
	text := shortened(err.Error())
	var status apierrors.APIStatus
	answered := errors.As(err, &status)
	switch {
	case errors.Is(err, context.Canceled) && !answered:
		return fmt.Errorf("%s: %w", doing, err)
	case !answered:
		return fmt.Errorf("%s: the Kubernetes API server at %s cannot be reached: %s", doing, e.client.host, text)
	case fromProxy(err):
		return fmt.Errorf("%s: the answer from %s is not that of a Kubernetes API server: "+
			"check the proxies and load balancers before it (%s)", doing, e.client.host, text)
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("%s: the cluster does not accept the agent's credentials: "+
			"check its service account or KUBECONFIG (%s)", doing, text)
	case apierrors.IsForbidden(err) && strings.Contains(text, "error looking up service account"):
		return fmt.Errorf("%s: namespace %s has no such service account: "+
			"create it, or change kubernetes.service_account (%s)", doing, e.namespace, text)
	case apierrors.IsForbidden(err) && strings.Contains(text, "violates PodSecurity"):
		return fmt.Errorf("%s: the Pod Security level of namespace %s refuses the Pod: "+
			"set security contexts in pod_template (%s)", doing, e.namespace, text)
	case apierrors.IsForbidden(err) && strings.Contains(text, "quota"):
		return fmt.Errorf("%s: a ResourceQuota of namespace %s refuses the Pod: "+
			"raise it, or change kubernetes.cpu and kubernetes.memory (%s)", doing, e.namespace, text)
	case apierrors.IsForbidden(err) && strings.Contains(text, " usage per "):
		return fmt.Errorf("%s: a LimitRange of namespace %s refuses the Pod: "+
			"change kubernetes.cpu and kubernetes.memory, or resources in pod_template (%s)", doing, e.namespace, text)
	case apierrors.IsForbidden(err) && strings.Contains(text, lackOfRight):
		return fmt.Errorf("%s: the agent's service account lacks a right in namespace %s: "+
			"grant create, get, list, watch, update and delete on pods and pods/log (%s)", doing, e.namespace, text)
	case apierrors.IsNotFound(err) && strings.Contains(text, "namespaces"):
		return fmt.Errorf("%s: there is no namespace %s: create it, or change kubernetes.namespace", doing, e.namespace)
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
		return fmt.Errorf("%s: the cluster refuses the Pod: check kubernetes.* and pod_template (%s)", doing, text)
	default:
		return fmt.Errorf("%s: %s", doing, text)
	}
}
