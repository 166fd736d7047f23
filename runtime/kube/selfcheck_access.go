package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/cmwa-project/cmwa/runtime"
)

// right is what the agent does with one resource of a namespace.
type right struct {
	check                 string // name of its check
	resource, subresource string
	verbs                 []string
	only                  string // what needs it, if not every job does
}

// rightsFor returns the rights that the agent needs under these settings. The
// documented Role grants those on Pods, their logs and ConfigMaps, and those alone.
func rightsFor(place runtime.Kubernetes) []right {
	rights := []right{
		{
			check: "kubernetes-access-pods", resource: pods,
			verbs: []string{"create", "get", "list", "watch", "update", "delete"},
		},
		{check: "kubernetes-access-logs", resource: pods, subresource: "log", verbs: []string{"get"}},
	}
	object := right{
		check: "kubernetes-access-configmaps", resource: configMaps,
		verbs: []string{"create", "update", "list", "delete"},
	}
	switch place.Handoff {
	case handoffConfigMap:
	case handoffSecret:
		object.check, object.resource = "kubernetes-access-secrets", secrets
	default:
		object.only = fmt.Sprintf("jobs with a handoff of more than %d KiB", largeHandoff>>10)
	}
	return append(rights, object)
}

// accessReview is a SelfSubjectAccessReview of authorization.k8s.io/v1. It is a type
// of our own because the client knows core/v1 alone, which keeps the program small.
type accessReview struct {
	APIVersion string           `json:"apiVersion"`
	Kind       string           `json:"kind"`
	Spec       accessReviewSpec `json:"spec"`
	Status     struct {
		Allowed bool `json:"allowed"`
	} `json:"status"`
}

type accessReviewSpec struct {
	Attributes resourceAttributes `json:"resourceAttributes"`
}

type resourceAttributes struct {
	Namespace   string `json:"namespace"`
	Verb        string `json:"verb"`
	Resource    string `json:"resource"`
	Subresource string `json:"subresource,omitempty"`
}

// review asks the API server whether the agent may do something.
func (e *Executor) review(ctx context.Context, attributes resourceAttributes) (allowed bool, err error) {
	review := accessReview{
		APIVersion: "authorization.k8s.io/v1", Kind: "SelfSubjectAccessReview", Spec: accessReviewSpec{attributes},
	}
	body, err := json.Marshal(review)
	if err != nil {
		return false, err
	}
	const path, form = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", "application/json"
	answer := e.client.rest.Post().AbsPath(path).SetHeader("Content-Type", form).SetHeader("Accept", form).
		Body(body).Do(ctx)
	if err := answer.Error(); err != nil { // decodes it, as Raw does not
		return false, because(ctx, err)
	}
	text, _ := answer.Raw()
	if err := json.Unmarshal(text, &review); err != nil {
		return false, fmt.Errorf("read the review: %w", err)
	}
	return review.Status.Allowed, nil
}

// checkRight asks about each verb of a right.
func (e *Executor) checkRight(ctx context.Context, r right) runtime.CheckResult {
	resource := strings.TrimSuffix(r.resource+"/"+r.subresource, "/")
	var missing []string
	for _, verb := range r.verbs {
		allowed, err := e.review(ctx, resourceAttributes{e.namespace, verb, r.resource, r.subresource})
		switch {
		case apierrors.IsForbidden(err), apierrors.IsNotFound(err), apierrors.IsMethodNotSupported(err):
			return runtime.CheckSkipped("the cluster does not tell the agent what it may do; "+
				"the dry run of a Pod shows the right to create one: %s", shortened(err.Error()))
		case err != nil:
			return runtime.CheckError(e.explain("review the access to "+resource, err), runtime.CheckResult{})
		case !allowed:
			missing = append(missing, verb)
		}
	}
	all := strings.Join(r.verbs, ", ")
	if len(missing) == 0 {
		return runtime.CheckPassed("the agent may %s %s in namespace %s", all, resource, e.namespace)
	}
	result := runtime.CheckFailed("the agent may not %s %s in namespace %s",
		strings.Join(missing, ", "), resource, e.namespace)
	if r.only != "" {
		result.Level = runtime.LevelWarning
		result.Message += ", which " + r.only + " need"
	}
	return result.WithCure("grant them in its Role: apiGroups [\"\"], resources [%s], verbs [%s]", resource, all)
}
