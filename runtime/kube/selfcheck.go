package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cmwa-project/cmwa/runtime"
)

// Names of checks that others need.
const (
	apiCheck = "kubernetes-api"
	podCheck = "kubernetes-pod"
)

// SelfChecks returns the checks of what the Pods of a pool need: the API server, the
// rights in the namespace, and that the cluster accepts the Pod of a job. The last
// takes a create as a dry run, which creates nothing; reviews of the agent's own access
// are allowed to every user of a cluster by default. The context is that of the pool.
func SelfChecks(options Options, spec runtime.PoolSpec) []runtime.SelfCheck {
	options.Context = spec.Identity.Context
	c := &selfChecker{
		spec: spec,
		open: sync.OnceValues(func() (*Executor, error) {
			cluster, err := New(options)
			if err != nil {
				return nil, err
			}
			return cluster.unwatched(spec.Identity.Namespace), nil
		}),
	}
	checks := []runtime.SelfCheck{
		{Name: apiCheck, Run: c.with(checkVersion)},
		{Name: "kubernetes-namespace", Needs: apiCheck, Run: c.with(checkNamespace)},
	}
	for _, r := range rightsFor(spec.Tuning.Place.Kubernetes) {
		checks = append(checks, runtime.SelfCheck{
			Name: r.check, Needs: apiCheck,
			Run: c.with(func(ctx context.Context, e *Executor) runtime.CheckResult {
				return e.checkRight(ctx, r)
			}),
		})
	}
	if d := deliveryOf(spec.Tuning.Place.Kubernetes.Handoff, 0); d.resource != "" {
		checks = append(checks, runtime.SelfCheck{
			Name: "kubernetes-handoff", Needs: apiCheck,
			Run: c.with(func(ctx context.Context, e *Executor) runtime.CheckResult {
				return runtime.CheckError(e.checkDelivery(ctx, spec.Tuning), runtime.CheckPassed(
					"the cluster accepts the entry of %s that carries a handoff", d.resource))
			}),
		})
	}
	return append(checks,
		runtime.SelfCheck{Name: podCheck, Needs: apiCheck, Run: c.with(c.checkPod)},
		runtime.SelfCheck{Name: "kubernetes-pod-security", Needs: podCheck, Run: c.with(c.checkPodSecurity)},
		runtime.SelfCheck{Name: "kubernetes-service", Run: c.checkService},
	)
}

// selfChecker makes the checks of one pool.
type selfChecker struct {
	spec runtime.PoolSpec
	open func() (*Executor, error) // once; the executor watches nothing

	trial    sync.Once
	warnings []string // of the dry run
	refusal  error    // of the dry run
}

// with returns a check that needs the connection to the cluster.
func (c *selfChecker) with(
	check func(context.Context, *Executor) runtime.CheckResult,
) func(context.Context) runtime.CheckResult {
	return func(ctx context.Context) runtime.CheckResult {
		e, err := c.open()
		if err != nil {
			return runtime.CheckError(err, runtime.CheckResult{})
		}
		return check(ctx, e)
	}
}

// unwatched returns an executor that can create Pods as a dry run and nothing else.
func (c *Cluster) unwatched(namespace string) *Executor {
	if namespace == "" {
		namespace = c.namespace
	}
	return &Executor{cluster: c, client: c.client, namespace: namespace, log: c.options.Log}
}

// checkVersion requests the version of the API server, which every user may read.
func checkVersion(ctx context.Context, e *Executor) runtime.CheckResult {
	answer := e.client.rest.Get().AbsPath("/version").SetHeader("Accept", "application/json").Do(ctx)
	err := answer.Error()
	if apierrors.IsForbidden(err) && !fromProxy(err) {
		return runtime.CheckPassed("the API server at %s answers, and does not show its version", e.client.host)
	}
	if err != nil {
		return runtime.CheckError(e.explain("request the version", because(ctx, err)), runtime.CheckResult{})
	}
	text, _ := answer.Raw()
	var version struct {
		GitVersion string `json:"gitVersion"`
	}
	if json.Unmarshal(text, &version) != nil || version.GitVersion == "" {
		return runtime.CheckFailed("what answers at %s is not a Kubernetes API server", e.client.host).
			WithCure("correct the kubeconfig, or see whether a proxy answers in its place")
	}
	return runtime.CheckPassed("the API server at %s has version %s", e.client.host, version.GitVersion)
}

// checkNamespace finds out whether the namespace exists. The documented Role does not
// allow to read it, but it exists where that Role is bound.
func checkNamespace(ctx context.Context, e *Executor) runtime.CheckResult {
	namespace := &corev1.Namespace{}
	err := e.client.rest.Get().Resource("namespaces").Name(e.namespace).Do(ctx).Into(namespace)
	switch {
	case err == nil && namespace.DeletionTimestamp != nil:
		return runtime.CheckFailed("namespace %s is being deleted", e.namespace).WithCure("change kubernetes.namespace")
	case err == nil:
		return runtime.CheckPassed("namespace %s exists", e.namespace)
	case absent(err):
		return runtime.CheckFailed("there is no namespace %s", e.namespace).
			WithCure("create it, or change kubernetes.namespace")
	case !apierrors.IsForbidden(err) || fromProxy(err):
		return runtime.CheckError(e.explain("look for the namespace", because(ctx, err)), runtime.CheckResult{})
	}
	if _, err := e.client.list(ctx, e.namespace, metav1.ListOptions{Limit: 1}); err == nil {
		return runtime.CheckPassed("namespace %s is one in which the agent may list Pods", e.namespace)
	}
	return runtime.CheckSkipped("the agent may not read namespace %s, nor list its Pods: "+
		"it may be missing, or its Role", e.namespace).
		WithCure("see that the namespace exists, and has the Role with a RoleBinding to the agent's service account")
}

// securityWarning begins the warnings of a Pod Security level that warns.
const securityWarning = "would violate PodSecurity"

// tryPod creates a job's Pod as a dry run, once.
func (c *selfChecker) tryPod(ctx context.Context, e *Executor) {
	c.trial.Do(func() {
		pod, err := e.checkPod(c.spec.Tuning)
		if err != nil {
			c.refusal = err
			return
		}
		err = e.dryRun(withWarnings(ctx, func(text string) {
			if text = oneLine(text); !slices.Contains(c.warnings, text) {
				c.warnings = append(c.warnings, text)
			}
		}), pod)
		if err != nil {
			c.refusal = e.explain("create a Pod as a dry run", err)
		}
	})
}

// checkPod finds out whether the cluster accepts the Pod of a job.
func (c *selfChecker) checkPod(ctx context.Context, e *Executor) runtime.CheckResult {
	c.tryPod(ctx, e)
	if c.refusal != nil {
		return runtime.CheckError(c.refusal, runtime.CheckResult{})
	}
	others := slices.DeleteFunc(slices.Clone(c.warnings), isSecurityWarning)
	if len(others) > 0 {
		return runtime.CheckWarned("the cluster accepts the Pod of a job and warns: %s", strings.Join(others, "; ")).
			WithCure("check kubernetes.* and pod_template")
	}
	account := cmp.Or(c.spec.Tuning.Place.Kubernetes.ServiceAccount, "default, without its token")
	return runtime.CheckPassed("the cluster accepts the Pod of a job in namespace %s, with service account %s",
		e.namespace, account)
}

// checkPodSecurity reports what the Pod Security level of the namespace warns of. One
// that refuses the Pod fails the check before.
func (c *selfChecker) checkPodSecurity(ctx context.Context, e *Executor) runtime.CheckResult {
	c.tryPod(ctx, e)
	if i := slices.IndexFunc(c.warnings, isSecurityWarning); i >= 0 {
		return runtime.CheckWarned("the Pod Security level of namespace %s warns: the Pod of a job %s",
			e.namespace, c.warnings[i]).
			WithCure("set security contexts in pod_template")
	}
	return runtime.CheckPassed("no Pod Security level of namespace %s refuses the Pod of a job, or warns of it",
		e.namespace)
}

func isSecurityWarning(text string) bool { return strings.HasPrefix(text, securityWarning) }

// checkService decides whether Pods can reach the service by the address that the
// agent uses.
func (c *selfChecker) checkService(context.Context) runtime.CheckResult {
	service := c.spec.Identity.Service
	if runtime.OnLoopback(service) {
		return runtime.CheckFailed("in a Pod, the host of %s is the Pod itself", service).
			WithCure("set service_url to an address that Pods reach, such as that of a Service")
	}
	return runtime.CheckPassed("Pods reach the service at the same address, %s", service)
}

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

// review requests a review of whether the agent may do something.
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

// checkRight requests a review of each verb of a right.
func (e *Executor) checkRight(ctx context.Context, r right) runtime.CheckResult {
	resource := strings.TrimSuffix(r.resource+"/"+r.subresource, "/")
	var missing []string
	for _, verb := range r.verbs {
		allowed, err := e.review(ctx, resourceAttributes{e.namespace, verb, r.resource, r.subresource})
		switch {
		case apierrors.IsForbidden(err) && !fromProxy(err), apierrors.IsNotFound(err), apierrors.IsMethodNotSupported(err):
			return runtime.CheckSkipped("the cluster does not let the agent review its access; "+
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
