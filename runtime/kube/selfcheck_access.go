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
}

// needed are the rights that every job needs, which the documented Role grants.
var needed = []right{
	{"kubernetes-access-pods", pods, "", []string{"create", "get", "list", "watch", "update", "delete"}},
	{"kubernetes-access-logs", pods, "log", []string{"get"}},
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
	text, err := e.client.rest.Post().AbsPath("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews").
		SetHeader("Content-Type", "application/json").SetHeader("Accept", "application/json").
		Body(body).Do(ctx).Raw()
	if err != nil {
		return false, because(ctx, err)
	}
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
			return runtime.CheckResult{
				Level:   runtime.CheckSkipped,
				Message: "the cluster does not tell the agent what it may do; the dry run of a Pod shows the right to create one: " + shortened(err.Error()),
			}
		case err != nil:
			return runtime.CheckError(e.explain("review the access to "+resource, err), runtime.CheckResult{})
		case !allowed:
			missing = append(missing, verb)
		}
	}
	if len(missing) > 0 {
		return runtime.CheckResult{
			Level:   runtime.CheckFailed,
			Message: fmt.Sprintf("the agent may not %s %s in namespace %s", strings.Join(missing, ", "), resource, e.namespace),
			Cure: fmt.Sprintf("grant them in its Role: apiGroups [\"\"], resources [%s], verbs [%s]",
				resource, strings.Join(r.verbs, ", ")),
		}
	}
	return runtime.CheckPassed("the agent may %s %s in namespace %s", strings.Join(r.verbs, ", "), resource, e.namespace)
}
