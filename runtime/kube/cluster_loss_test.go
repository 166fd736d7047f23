package kube

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	machinery "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/kube/kubetest"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
)

// clusterLimit is the timeout for all operations on the real cluster, which other tests use
// too.
const clusterLimit = 3 * time.Minute

// admin sends requests as the administrator of the real cluster.
type admin struct {
	t    *testing.T
	n    *kubetest.Namespace
	core *rest.RESTClient
}

func adminOf(t *testing.T, n *kubetest.Namespace) *admin {
	return &admin{t, n, kubetest.Client(t, n.Admin, corev1.SchemeGroupVersion)}
}

// do sends a request with an object in JSON, of any API group.
func (a *admin) do(method, path string, object any) {
	a.t.Helper()
	request := a.core.Verb(method).AbsPath(path)
	if method == http.MethodPatch {
		request = a.core.Patch(types.MergePatchType).AbsPath(path)
	} else {
		request.SetHeader("Content-Type", "application/json")
	}
	if object != nil {
		text, err := json.Marshal(object)
		if err != nil {
			a.t.Fatal(err)
		}
		request.Body(text)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(a.t.Context()), clusterLimit)
	defer cancel()
	answer, err := request.SetHeader("Accept", "application/json").Do(ctx).Raw()
	if err != nil && !(method == http.MethodDelete && apierrors.IsNotFound(err)) {
		a.t.Fatalf("%s %s: %v: %s", method, path, err, answer)
	}
}

// get returns a request that reads a resource of the namespace.
func (a *admin) get(resource string) *rest.Request {
	return a.core.Get().Namespace(a.n.Name).Resource(resource)
}

// add creates an object in the namespace.
func (a *admin) add(resource string, object machinery.Object) {
	a.t.Helper()
	if err := a.core.Post().Namespace(a.n.Name).Resource(resource).Body(object).Do(a.t.Context()).Error(); err != nil {
		a.t.Fatal(err)
	}
}

// addQuota creates a ResourceQuota that allows no Pod.
func (a *admin) addQuota() {
	a.t.Helper()
	a.add("resourcequotas", &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "quota"},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("0")}},
	})
}

// addLimits creates a LimitRange for containers.
func (a *admin) addLimits(item corev1.LimitRangeItem) {
	a.t.Helper()
	item.Type = corev1.LimitTypeContainer
	a.add("limitranges", &corev1.LimitRange{
		ObjectMeta: metav1.ObjectMeta{Name: "limits"},
		Spec:       corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{item}},
	})
}

// delete removes a Pod at once.
func (a *admin) delete(pod string) {
	a.t.Helper()
	options := &metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}
	err := a.core.Delete().Namespace(a.n.Name).Resource(pods).Name(pod).Body(options).Do(a.t.Context()).Error()
	if err != nil {
		a.t.Fatal(err)
	}
}

// path returns the path of an object in the namespace.
func (a *admin) path(parts ...string) string {
	return "/api/v1/namespaces/" + a.n.Name + "/" + strings.Join(parts, "/")
}

// create creates an object outside of the namespace. The object is deleted at the end of
// the test.
func (a *admin) create(path, name string, object any) {
	a.t.Helper()
	a.do(http.MethodPost, path, object)
	a.t.Cleanup(func() { a.do(http.MethodDelete, path+"/"+name, nil) })
}

// pod blocks until a Pod meets the condition.
func (a *admin) pod(name, what string, wanted func(*corev1.Pod) bool) {
	a.t.Helper()
	await(a.t, "Pod "+name+" that "+what, func(ctx context.Context) (bool, error) {
		var pod corev1.Pod
		err := a.get(pods).Name(name).Do(ctx).Into(&pod)
		return wanted(&pod), err
	})
}

// await calls done until it returns true or an error.
func await(t testing.TB, what string, done func(context.Context) (bool, error)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), clusterLimit)
	defer cancel()
	for {
		ok, err := done(ctx)
		if err != nil {
			t.Fatalf("wait for %s: %v", what, err)
		}
		if ok {
			return
		}
		runtime.Sleep(ctx, nil, 100*time.Millisecond)
	}
}

// values is a JSON object.
type values = map[string]any

// finish waits for the end of a job and removes its Pod.
func finish(t *testing.T, e *Executor, id string, ended <-chan runtime.Exit) runtime.Exit {
	t.Helper()
	exit := awaitExit(t, ended)
	if err := e.Remove(t.Context(), id, 0); err != nil {
		t.Error(err)
	}
	return exit
}

// TestWaitPreemptionOnCluster runs a job until a Pod of higher priority preempts it.
func TestWaitPreemptionOnCluster(t *testing.T) {
	t.Parallel()
	n := onCluster(t)
	a, e := adminOf(t, n), openExecutor(t, n)

	// Give the node one unit of an extended resource that no other Pod uses. The job uses
	// the unit until a Pod of higher priority needs it.
	what := "cmwa.test/" + n.Name
	nodes := corev1.NodeList{}
	if err := a.core.Get().Resource("nodes").Do(t.Context()).Into(&nodes); err != nil {
		t.Fatal(err)
	}
	node := ""
	for _, one := range nodes.Items {
		if len(one.Status.Addresses) > 0 { // it has a kubelet
			node = one.Name
		}
	}
	offer := func(amount any) {
		offered := values{"status": values{"capacity": values{what: amount}, "allocatable": values{what: amount}}}
		a.do(http.MethodPatch, "/api/v1/nodes/"+node+"/status", offered)
	}
	offer("1")
	t.Cleanup(func() { offer(nil) })
	uses := values{"limits": values{what: "1"}}
	a.createPriorityClass()
	id := mustStartJob(t, n, e, mainWith(`"resources": {"limits": {"`+what+`": "1"}}`))
	ended := startWait(t, e, id)
	a.do(http.MethodPost, a.path("pods"), values{
		"apiVersion": "v1", "kind": "Pod", "metadata": values{"name": "important"},
		"spec": values{"priorityClassName": n.Name, "restartPolicy": "Never", "containers": []values{{
			"name": "main", "image": kubetest.BaseImage, "imagePullPolicy": "Never",
			"command": []string{"true"}, "resources": uses,
		}}},
	})
	exit := finish(t, e, id, ended)
	if !strings.HasPrefix(exit.Reason, "PreemptionByScheduler: ") {
		t.Errorf("got exit %+v, want the preemption as the reason", exit)
	}
}

// createPriorityClass creates a PriorityClass with the name of the namespace, and blocks until the
// API server accepts a Pod with it: the admission reads classes from a cache.
func (a *admin) createPriorityClass() {
	a.t.Helper()
	a.create("/apis/scheduling.k8s.io/v1/priorityclasses", a.n.Name, values{
		"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
		"metadata": values{"name": a.n.Name}, "value": 1000,
	})
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "priority"},
		Spec: corev1.PodSpec{
			PriorityClassName: a.n.Name, Containers: []corev1.Container{{Name: "main", Image: kubetest.BaseImage}},
		},
	}
	await(a.t, "the PriorityClass", func(ctx context.Context) (bool, error) {
		err := a.core.Post().Namespace(a.n.Name).Resource(pods).Param("dryRun", "All").Body(pod).Do(ctx).Error()
		if apierrors.IsForbidden(err) {
			return false, nil
		}
		return err == nil, err
	})
}

// awaitRejection blocks until the cluster refuses the Pod of a job, and returns the error
// of Check.
func awaitRejection(t *testing.T, e *Executor, change func(*runtime.Job)) (rejection error) {
	t.Helper()
	job := testJob()
	useTestImages(job)
	change(job)
	await(t, "the cluster to refuse the Pod", func(ctx context.Context) (bool, error) {
		e.dryRuns.validUntil = time.Time{} // otherwise the last result stays valid for a minute
		rejection = e.Check(ctx, job.Tuning)
		return rejection != nil, nil
	})
	return rejection
}

// TestCheckAdmissionOnCluster tests rejections by admission.
func TestCheckAdmissionOnCluster(t *testing.T) {
	quantities := func(cpu string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
	}
	for name, c := range map[string]struct {
		set    func(*admin)
		change func(*runtime.Job)
		want   []string
	}{
		"Pod Security": {
			func(a *admin) { a.n.Enforce(a.t, "restricted") },
			mainWith(`"securityContext": {"privileged": true}`),
			[]string{`violates PodSecurity "restricted:latest": privileged`, "set security contexts in pod_template"},
		},
		"LimitRange with a default limit": {
			func(a *admin) {
				a.addLimits(corev1.LimitRangeItem{Default: quantities("100m"), DefaultRequest: quantities("50m")})
			},
			func(job *runtime.Job) { job.Tuning.Instance.Kubernetes.Requests.CPU = "500m" },
			[]string{"must be less than or equal to cpu limit", "check kubernetes.* and pod_template"},
		},
		"LimitRange with a minimum": {
			func(a *admin) { a.addLimits(corev1.LimitRangeItem{Min: quantities("200m")}) },
			func(job *runtime.Job) { job.Tuning.Instance.Kubernetes.Requests.CPU = "100m" },
			[]string{
				"minimum cpu usage per Container is 200m", "a LimitRange of namespace",
				"change kubernetes.cpu and kubernetes.memory",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := onCluster(t)
			e, a := openExecutor(t, n), adminOf(t, n)
			c.set(a)

			if err := awaitRejection(t, e, c.change); !strings.Contains(err.Error(), c.want[0]) {
				t.Errorf("Check: got %v", err)
			}
			_, log, err := startJob(t, n, e, c.change)
			for _, want := range c.want {
				wantStartError(t, log, err, want, false)
			}
		})
	}
}

// TestNewestWarningOnCluster grants the agent the right to list events. Then the error of a
// failed start contains the newest warning event of the Pod.
func TestNewestWarningOnCluster(t *testing.T) {
	t.Parallel()
	n := onCluster(t)
	n.Grant(t, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"events"}, Verbs: []string{"list"}})
	e := openExecutor(t, n)
	const event = `MountVolume.SetUp failed for volume "none" : configmap "none" not found`
	log, err := startUntil(t, n, e, withMissingVolume, func(job *runtime.Job, _ *runtimetest.Service) {
		adminOf(t, n).awaitEvent(job, event)
	})
	wantStartError(t, log, err, "FailedMount: "+event, false)
}
