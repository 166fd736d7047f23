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
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/selfcheck"
	"github.com/cmwa-project/cmwa/schema/printable"
)

// Names of checks that other checks need.
const (
	apiCheck    = "kubernetes-api"
	runnerCheck = "kubernetes-runner"
	podCheck    = "kubernetes-pod"
)

// SelfChecks returns the checks for the Pods of a pool: the API server, the namespace, the
// rights in it, whether the cluster accepts the Secret of a handoff and the Pod of a job,
// and whether Pods can reach the service. The checks create objects only as dry runs, which
// create nothing. By default, every user of a cluster may review its own access. The
// context of the pool overrides that of the options.
func SelfChecks(options Options, spec runtime.PoolSpec) []selfcheck.Check {
	options.Context = spec.Identity.Context
	c := &selfChecker{
		spec: spec,
		open: sync.OnceValues(func() (*Executor, error) {
			cluster, err := New(options)
			if err != nil {
				return nil, err
			}
			return &Executor{ // without a watch, so it can send requests, but cannot start jobs
				cluster: cluster, client: cluster.client, log: options.Log,
				namespace: cmp.Or(spec.Identity.Namespace, cluster.namespace),
			}, nil
		}),
	}

	checks := []selfcheck.Check{
		{Name: apiCheck, Run: c.with(checkVersion)},
		{Name: "kubernetes-namespace", Needs: apiCheck, Run: c.with(checkNamespace)},
	}
	for _, r := range rightsFor(spec.Tuning.Instance.Kubernetes) {
		checks = append(checks, selfcheck.Check{
			Name: r.check, Needs: apiCheck,
			Run: c.with(func(ctx context.Context, e *Executor) selfcheck.Result {
				return e.checkRight(ctx, r)
			}),
		})
	}
	if spec.Tuning.Instance.Kubernetes.Handoff == handoffSecret {
		checks = append(checks, selfcheck.Check{
			Name: "kubernetes-handoff", Needs: apiCheck,
			Run: c.with(func(ctx context.Context, e *Executor) selfcheck.Result {
				return selfcheck.Error(e.checkDelivery(ctx, spec.Tuning), selfcheck.Passed(
					"the cluster accepts the Secret that carries a handoff"))
			}),
		})
	}
	return append(checks,
		selfcheck.Check{Name: runnerCheck, Needs: apiCheck, Run: c.with(c.checkRunner)},
		selfcheck.Check{Name: podCheck, Needs: runnerCheck, Run: c.with(c.checkPod)},
		selfcheck.Check{Name: "kubernetes-pod-security", Needs: podCheck, Run: c.with(c.checkPodSecurity)},
		selfcheck.Check{Name: "kubernetes-pod-storage", Needs: podCheck, Run: c.with(c.checkPodStorage)},
		selfcheck.Check{Name: "kubernetes-service", Run: c.checkService},
	)
}

// selfChecker runs the checks of one pool.
type selfChecker struct {
	spec runtime.PoolSpec
	open func() (*Executor, error) // the same executor for all checks

	once      sync.Once
	asked     *corev1.Pod // in the dry run
	created   *corev1.Pod // by the dry run, with the changes of the cluster's admission
	warnings  []string    // of the dry run
	rejection error       // of the dry run
}

// with returns the Run function of a check that needs an executor.
func (c *selfChecker) with(
	check func(context.Context, *Executor) selfcheck.Result,
) func(context.Context) selfcheck.Result {
	return func(ctx context.Context) selfcheck.Result {
		e, err := c.open()
		if err != nil {
			return selfcheck.Error(err, selfcheck.Result{})
		}
		return check(ctx, e)
	}
}

// checkVersion gets the version of the API server, which every user may read.
func checkVersion(ctx context.Context, e *Executor) selfcheck.Result {
	response := e.client.api.Get().AbsPath("/version").SetHeader("Accept", "application/json").Do(ctx)
	err := response.Error()
	if isForbidden(err) {
		return selfcheck.Passed("the API server at %s answers, but does not report its version", e.client.host)
	}
	if err != nil {
		return selfcheck.Error(e.explain("request the version", withCause(ctx, err)), selfcheck.Result{})
	}
	text, _ := response.Raw()
	var version struct {
		GitVersion string `json:"gitVersion"`
	}
	if json.Unmarshal(text, &version) != nil || version.GitVersion == "" {
		return selfcheck.Failed("the server at %s is not a Kubernetes API server", e.client.host).
			WithHint("correct the kubeconfig, or check whether a proxy answers instead")
	}
	return selfcheck.Passed("the API server at %s has version %s", e.client.host, version.GitVersion)
}

// checkNamespace checks that the namespace exists. The documented Role does not allow the
// agent to get the namespace. Then the check passes if the agent may list Pods in it.
func checkNamespace(ctx context.Context, e *Executor) selfcheck.Result {
	namespace := &corev1.Namespace{}
	err := e.client.api.Get().Resource("namespaces").Name(e.namespace).Do(ctx).Into(namespace)
	switch {
	case err == nil && namespace.DeletionTimestamp != nil:
		return selfcheck.Failed("namespace %s is being deleted", e.namespace).WithHint("change kubernetes.namespace")
	case err == nil:
		return selfcheck.Passed("namespace %s exists", e.namespace)
	case isNotFound(err):
		return selfcheck.Failed("namespace %s does not exist", e.namespace).
			WithHint("create it, or change kubernetes.namespace")
	case !isForbidden(err):
		return selfcheck.Error(e.explain("get the namespace", withCause(ctx, err)), selfcheck.Result{})
	}
	if _, err := e.client.list(ctx, e.namespace, metav1.ListOptions{Limit: 1}); err == nil {
		return selfcheck.Passed("the agent may list Pods in namespace %s", e.namespace)
	}
	return selfcheck.Skipped("the agent may neither get namespace %s nor list its Pods: "+
		"the namespace or its Role may be missing", e.namespace).
		WithHint("check that the namespace exists, " +
			"and that a RoleBinding grants the Role to the agent's service account")
}

// tryDryRun creates a job's Pod as a dry run, once.
func (c *selfChecker) tryDryRun(ctx context.Context, e *Executor) {
	c.once.Do(func() {
		pod, err := e.examplePod(c.spec.Tuning)
		if err != nil {
			c.rejection = err
			return
		}
		c.asked = pod
		c.created, err = e.dryRun(withWarnings(ctx, func(text string) {
			if text = printable.OneLine(text); !slices.Contains(c.warnings, text) {
				c.warnings = append(c.warnings, text)
			}
		}), pod)
		if err != nil {
			c.rejection = e.explain("create a Pod as a dry run", err)
		}
	})
}

func (c *selfChecker) checkPod(ctx context.Context, e *Executor) selfcheck.Result {
	c.tryDryRun(ctx, e)
	if c.rejection != nil {
		return selfcheck.Error(c.rejection, selfcheck.Result{})
	}
	others := slices.DeleteFunc(slices.Clone(c.warnings), isSecurityWarning)
	if len(others) > 0 {
		return selfcheck.Warned("the cluster accepts the Pod of a job with warnings: %s",
			strings.Join(others, "; ")).
			WithHint("check kubernetes.* and pod_template")
	}
	account := cmp.Or(c.spec.Tuning.Instance.Kubernetes.ServiceAccount, "default, without its token")
	return selfcheck.Passed("the cluster accepts the Pod of a job in namespace %s, with service account %s",
		e.namespace, account)
}

// checkPodSecurity reports warnings about the Pod Security level of the namespace. If the
// enforced level refuses the Pod, checkPod fails instead.
func (c *selfChecker) checkPodSecurity(ctx context.Context, e *Executor) selfcheck.Result {
	c.tryDryRun(ctx, e)
	if i := slices.IndexFunc(c.warnings, isSecurityWarning); i >= 0 {
		return selfcheck.Warned("the Pod of a job violates the warning level of Pod Security in namespace %s: %s",
			e.namespace, c.warnings[i]).
			WithHint("set security contexts in pod_template")
	}
	return selfcheck.Passed("the Pod of a job meets the Pod Security levels of namespace %s", e.namespace)
}

func isSecurityWarning(text string) bool { return strings.HasPrefix(text, "would violate PodSecurity") }

// enoughStorage is the space on the node's disk that suffices for most jobs: a Pulumi program
// with its plugins and packages takes 1.3 to 2.4 GiB, according to issue 1308 of
// pulumi/pulumi-kubernetes-operator.
var enoughStorage = resource.MustParse("4Gi")

// checkPodStorage warns if the settings request no ephemeral storage and the cluster sets less
// than a job may need, as a LimitRange and GKE Autopilot do.
func (c *selfChecker) checkPodStorage(ctx context.Context, e *Executor) selfcheck.Result {
	c.tryDryRun(ctx, e)
	if c.rejection != nil {
		return selfcheck.Error(c.rejection, selfcheck.Result{})
	}
	hint := "set kubernetes.ephemeral_storage to " + enoughStorage.String()
	asked, isSet := storageOf(c.asked)
	given, isGiven := storageOf(c.created)
	switch {
	case isSet:
		return selfcheck.Passed("the container of a job requests %s of ephemeral storage", asked.String())
	case isGiven && given.Cmp(enoughStorage) < 0:
		return selfcheck.Warned("the cluster gives the container of a job only %s of ephemeral storage: "+
			"a job that uses more may be evicted", given.String()).WithHint("%s", hint)
	case !isGiven && onAutopilot(c.created):
		return selfcheck.Warned("GKE Autopilot gives a container without a request only 1 GiB of ephemeral storage").
			WithHint("%s", hint)
	}
	return selfcheck.Passed("the cluster does not limit the ephemeral storage of a job to less than %s",
		enoughStorage.String())
}

// storageOf returns the limit of the job's container for ephemeral storage, or without a limit
// its request, and whether it has one of them.
func storageOf(pod *corev1.Pod) (resource.Quantity, bool) {
	i := slices.IndexFunc(pod.Spec.Containers, hasName(MainContainer))
	if i < 0 {
		return resource.Quantity{}, false
	}
	resources := pod.Spec.Containers[i].Resources
	amount, ok := resources.Limits[corev1.ResourceEphemeralStorage]
	if !ok {
		amount, ok = resources.Requests[corev1.ResourceEphemeralStorage]
	}
	return amount, ok
}

// onAutopilot reports whether GKE Autopilot has admitted a Pod: it adds its annotations.
func onAutopilot(pod *corev1.Pod) bool {
	for key := range pod.Annotations {
		if strings.HasPrefix(key, "autopilot.gke.io/") {
			return true
		}
	}
	return false
}

// checkService checks that Pods can reach the service at the address that the agent uses.
func (c *selfChecker) checkService(context.Context) selfcheck.Result {
	service := c.spec.Identity.Service
	if selfcheck.OnLoopback(service) {
		return selfcheck.Failed("%s is a loopback address: in a Pod, it is the Pod itself", service).
			WithHint("set service_url to an address that Pods can reach, such as that of a Service")
	}
	return selfcheck.Passed("Pods use the same address of the service, %s", service)
}

// right is a set of verbs that the agent needs for one resource of a namespace.
type right struct {
	check                 string // name of its check
	resource, subresource string
	verbs                 []string
	only                  string // purpose of the right, if only some jobs need it
}

// rightsFor returns the rights that the agent needs with these settings in the namespace of the
// jobs. The documented Role grants exactly those for the default settings.
func rightsFor(place runtime.Kubernetes) []right {
	rights := []right{
		{
			check: "kubernetes-access-pods", resource: pods,
			verbs: []string{"create", "get", "list", "watch", "update", "delete"},
		},
		{check: "kubernetes-access-logs", resource: pods, subresource: "log", verbs: []string{"get"}},
	}
	object := right{
		check: "kubernetes-access-secrets", resource: secrets,
		verbs: []string{"create", "update", "list", "delete"},
	}
	if place.Handoff != handoffSecret {
		object.check, object.resource = "kubernetes-access-configmaps", configMaps
		object.only = fmt.Sprintf("jobs with a handoff of more than %d KiB, and for records of claimed jobs, "+
			"without which a job is lost if its agent is killed before it starts the job", largeHandoff>>10)
	}
	return append(rights, object)
}

// review reports whether the agent may use a verb on a resource. It sends a SelfSubjectAccessReview
// as JSON, because the client contains only core/v1, which keeps the program small.
func (e *Executor) review(ctx context.Context, verb string, r right) (allowed bool, err error) {
	type object = map[string]any
	body, err := json.Marshal(object{
		"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
		"spec": object{"resourceAttributes": object{
			"namespace": e.namespace, "verb": verb, "resource": r.resource, "subresource": r.subresource,
		}},
	})
	if err != nil {
		return false, err
	}
	const path, form = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", "application/json"
	response := e.client.api.Post().AbsPath(path).SetHeader("Content-Type", form).SetHeader("Accept", form).
		Body(body).Do(ctx)
	if err := response.Error(); err != nil { // decodes the error, unlike Raw
		return false, withCause(ctx, err)
	}
	text, _ := response.Raw()
	var review struct{ Status struct{ Allowed bool } }
	if err := json.Unmarshal(text, &review); err != nil {
		return false, fmt.Errorf("read the review: %w", err)
	}
	return review.Status.Allowed, nil
}

func (e *Executor) checkRight(ctx context.Context, r right) selfcheck.Result {
	resource := strings.TrimSuffix(r.resource+"/"+r.subresource, "/")
	var missing []string
	for _, verb := range r.verbs {
		allowed, err := e.review(ctx, verb, r)
		switch {
		case isForbidden(err), apierrors.IsNotFound(err), apierrors.IsMethodNotSupported(err):
			return selfcheck.Skipped("the cluster does not allow the agent to review its access; "+
				"the dry run of a Pod checks the right to create one: %s", tail(err.Error()))
		case err != nil:
			return selfcheck.Error(e.explain("review the access to "+resource, err), selfcheck.Result{})
		case !allowed:
			missing = append(missing, verb)
		}
	}

	all := strings.Join(r.verbs, ", ")
	if len(missing) == 0 {
		return selfcheck.Passed("the agent may %s %s in namespace %s", all, resource, e.namespace)
	}
	result := selfcheck.Failed("the agent may not %s %s in namespace %s",
		strings.Join(missing, ", "), resource, e.namespace)
	if r.only != "" {
		result.Level = selfcheck.LevelWarning
		result.Message += ", which is needed for " + r.only
	}
	return result.WithHint("grant them in its Role: apiGroups [\"\"], resources [%s], verbs [%s]", resource, all)
}
