package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// do sends a request with an object in JSON, of any API group, and returns the response.
func (a *admin) do(method, path string, object any) []byte {
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
	return answer
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

// pod blocks until a Pod meets the condition, and returns it.
func (a *admin) pod(name, what string, wanted func(*corev1.Pod) bool) *corev1.Pod {
	a.t.Helper()
	ctx, cancel := context.WithTimeout(a.t.Context(), clusterLimit)
	defer cancel()
	for {
		var pod corev1.Pod
		err := a.core.Get().Namespace(a.n.Name).Resource("pods").Name(name).Do(ctx).Into(&pod)
		if err != nil {
			a.t.Fatalf("wait until Pod %s %s: %v", name, what, err)
		}
		if wanted(&pod) {
			return &pod
		}
		runtime.Sleep(ctx, nil, 100*time.Millisecond)
	}
}

// values is a JSON object.
type values = map[string]any

// finish waits for the end of a job and removes its Pod.
func finish(t *testing.T, e *Executor, id string, ended <-chan runtime.Exit) runtime.Exit {
	t.Helper()
	var exit runtime.Exit
	select {
	case exit = <-ended:
	case <-time.After(clusterLimit):
		t.Fatal("Wait has not returned")
	}
	if err := e.Remove(t.Context(), id, 0); err != nil {
		t.Error(err)
	}
	return exit
}

// TestWaitPreemptionOnCluster runs a job until a Pod of higher priority preempts it.
func TestWaitPreemptionOnCluster(t *testing.T) {
	t.Parallel()
	n := onCluster(t)
	a, e := adminOf(t, n), openExecutor(t, n.Agent, n.Name)

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
	id, log, err := startJob(t, n, e, func(job *runtime.Job) {
		main := values{"name": mainContainer, "imagePullPolicy": "Never", "resources": uses}
		job.Tuning.Instance.Kubernetes.Template, _ = json.Marshal(values{"spec": values{"containers": []values{main}}})
	})
	if err != nil {
		t.Fatalf("%v\n%s", err, log)
	}
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
	ctx, cancel := context.WithTimeout(a.t.Context(), clusterLimit)
	defer cancel()
	for {
		err := a.core.Post().Namespace(a.n.Name).Resource("pods").Param("dryRun", "All").Body(pod).Do(ctx).Error()
		if err == nil {
			return
		}
		if !apierrors.IsForbidden(err) || !runtime.Sleep(ctx, nil, 100*time.Millisecond) {
			a.t.Fatalf("wait for the PriorityClass: %v", err)
		}
	}
}

// awaitRejection blocks until the cluster refuses the Pod of a job, and returns the error
// of Check.
func awaitRejection(t *testing.T, e *Executor, change func(*runtime.Job)) error {
	t.Helper()
	job := testJob()
	useTestImages(job)
	change(job)
	ctx, cancel := context.WithTimeout(t.Context(), clusterLimit)
	defer cancel()
	for {
		if err := e.Check(ctx, job.Tuning); err != nil {
			return err
		}
		e.dryRuns.checkedAt = time.Time{} // otherwise the result stays valid for a minute
		runtime.Sleep(ctx, nil, 100*time.Millisecond)
	}
}

// TestCheckAdmissionOnCluster tests rejections by admission.
func TestCheckAdmissionOnCluster(t *testing.T) {
	quantities := func(cpu string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
	}
	limitRange := func(item corev1.LimitRangeItem) func(*admin) {
		item.Type = corev1.LimitTypeContainer
		return func(a *admin) {
			a.do(http.MethodPost, a.path("limitranges"), &corev1.LimitRange{
				TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "LimitRange"},
				ObjectMeta: metav1.ObjectMeta{Name: "limits"},
				Spec:       corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{item}},
			})
		}
	}
	for name, c := range map[string]struct {
		set    func(*admin)
		change func(*runtime.Job)
		want   []string
	}{
		"Pod Security": {
			func(a *admin) {
				a.do(http.MethodPatch, "/api/v1/namespaces/"+a.n.Name, values{"metadata": values{"labels": values{
					"pod-security.kubernetes.io/enforce": "restricted",
				}}})
			},
			template(`{"spec": {"containers": [
				{"name": "pulumi-workflow", "securityContext": {"privileged": true}}]}}`),
			[]string{`violates PodSecurity "restricted:latest": privileged`, "set security contexts in pod_template"},
		},
		"LimitRange with a default limit": {
			limitRange(corev1.LimitRangeItem{Default: quantities("100m"), DefaultRequest: quantities("50m")}),
			func(job *runtime.Job) { job.Tuning.Instance.Kubernetes.CPU = "500m" },
			[]string{"must be less than or equal to cpu limit", "check kubernetes.* and pod_template"},
		},
		"LimitRange with a minimum": {
			limitRange(corev1.LimitRangeItem{Min: quantities("200m")}),
			func(job *runtime.Job) { job.Tuning.Instance.Kubernetes.CPU = "100m" },
			[]string{
				"minimum cpu usage per Container is 200m", "a LimitRange of namespace",
				"change kubernetes.cpu and kubernetes.memory",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := onCluster(t)
			e, a := openExecutor(t, n.Agent, n.Name), adminOf(t, n)
			c.set(a)

			if err := awaitRejection(t, e, c.change); !strings.Contains(err.Error(), c.want[0]) {
				t.Errorf("Check: got %v", err)
			}
			_, log, err := startJob(t, n, e, c.change)
			for _, want := range c.want {
				if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(log, want) {
					t.Errorf("got %v, want %q; log of step 0:\n%s", err, want, log)
				}
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
	e := openExecutor(t, n.Agent, n.Name)
	const event = `MountVolume.SetUp failed for volume "none" : configmap "none" not found`
	const want = "FailedMount: " + event
	log, err := startUntil(t, n, e, template(`{"spec": {
		"volumes": [{"name": "none", "configMap": {"name": "none"}}], "containers": [
			{"name": "pulumi-workflow", "imagePullPolicy": "Never",
				"volumeMounts": [{"name": "none", "mountPath": "/none"}]}]}}`),
		func(job *runtime.Job, _ *runtimetest.Service) { adminOf(t, n).awaitEvent(job, event) })
	if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(log, want) {
		t.Errorf("got %v, want %q; log of step 0:\n%s", err, want, log)
	}
}

// TestExecutorManyPodsOnCluster runs twenty jobs at once.
func TestExecutorManyPodsOnCluster(t *testing.T) {
	t.Parallel()
	n := onCluster(t)
	e := openExecutor(t, n.Agent, n.Name)
	const jobs = 20
	service := runtimetest.NewService()
	url := serve(t, n.HostAddress(t), service)
	began := time.Now()
	var group sync.WaitGroup
	for i := range jobs {
		job := testJob()
		job.ID, job.Definition, job.Service = fmt.Sprintf("job-%d-%s", i, n.Name), runtimetest.Definition("true"), url
		useTestImages(job)
		job.Tuning.Instance.Kubernetes.StartTimeout = clusterLimit
		service.Add(job)
		group.Go(func() {
			id, err := e.Start(t.Context(), job, runtime.NewSetup(job, service, runtimetest.BaseHandoff(job)))
			if err != nil {
				t.Errorf("start: %v\n%s", err, service.Record(job.ID).Text(0))
				return
			}
			exit, err := e.Wait(t.Context(), id)
			if err := errors.Join(err, e.Remove(t.Context(), id, 0)); err != nil ||
				exit.Code != runtime.CodeSucceeded {
				t.Errorf("got exit %+v, %v", exit, err)
			}
		})
	}
	group.Wait()
	t.Logf("%d jobs at once took %s", jobs, time.Since(began).Round(100*time.Millisecond))
	if bad := service.Violations(); len(bad) > 0 {
		t.Errorf("invalid requests to the service: %q", bad)
	}
}
