package kube

import (
	"context"
	"fmt"
	"net/http"
	goruntime "runtime"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/handoff"
	"github.com/cmwa-project/cmwa/runtime/kube/kubetest"
)

const (
	nodeTaint = "cmwa.test/lost" // keeps all other Pods away from the node of a test
	leasePath = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
)

// fakeNode is a node that exists only in the API: the test replaces its kubelet.
type fakeNode struct {
	*admin
	name string
	lose func() // stops the renewal of the node's Lease
}

// newFakeNode creates a node that is ready, and renews its Lease until lose is called.
func newFakeNode(a *admin) *fakeNode {
	a.t.Helper()
	n := &fakeNode{admin: a, name: a.n.Name + "-lost"}
	labels := values{nodeTaint: a.n.Name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: goruntime.GOARCH}
	a.create("/api/v1/nodes", n.name, values{
		"apiVersion": "v1", "kind": "Node", "metadata": values{"name": n.name, "labels": labels},
		"spec": values{"taints": []values{{"key": nodeTaint, "effect": "NoSchedule"}}},
	})
	ready := values{
		"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "ready",
		"lastHeartbeatTime": second(), "lastTransitionTime": second(),
	}
	room := values{"cpu": "2", "memory": "2Gi", "pods": "10", "ephemeral-storage": "10Gi"}
	a.do(http.MethodPatch, "/api/v1/nodes/"+n.name+"/status", values{
		"status": values{"capacity": room, "allocatable": room, "conditions": []values{ready}},
	})
	a.create(leasePath, n.name, values{
		"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": values{"name": n.name},
		"spec": values{"holderIdentity": n.name, "leaseDurationSeconds": 40, "renewTime": microsecond()},
	})
	ctx, cancel := context.WithCancel(a.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for runtime.Sleep(ctx, nil, 2*time.Second) {
			renewed := fmt.Appendf(nil, `{"spec": {"renewTime": %q}}`, microsecond())
			_ = a.core.Patch(types.MergePatchType).AbsPath(leasePath, n.name).Body(renewed).Do(ctx).Error()
		}
	}()
	n.lose = func() {
		cancel()
		<-done
	}
	a.t.Cleanup(n.lose)
	return n
}

// second returns the current time in the format of metadata, and microsecond in the format
// of Leases.
func second() string      { return time.Now().UTC().Format(time.RFC3339) }
func microsecond() string { return time.Now().UTC().Format("2006-01-02T15:04:05.000000Z") }

// run simulates the Pod of a job: the init container reports a key, and the job's container
// starts when the Pod has the handoff.
func (n *fakeNode) run(pod string) {
	n.t.Helper()
	_, public, err := handoff.NewKey()
	if err != nil {
		n.t.Fatal(err)
	}
	report := func(status values) {
		n.do(http.MethodPatch, n.path("pods", pod, "status"), values{"status": status})
	}
	status := func(name string, state values) []values {
		return []values{{"name": name, "image": "i", "imageID": "i", "ready": true, "restartCount": 0, "state": state}}
	}
	began := second()
	prepared := status(prepareContainer, values{"terminated": values{
		"exitCode": 0, "reason": "Completed", "message": public, "startedAt": began, "finishedAt": began,
	}})
	report(values{
		"phase": "Pending", "startTime": began, "initContainerStatuses": prepared,
		"containerStatuses": status(MainContainer, values{"waiting": values{"reason": "PodInitializing"}}),
	})
	n.pod(pod, "has the handoff", func(p *corev1.Pod) bool { return p.Annotations[annotationHandoff] != "" })
	var conditions []values
	for _, kind := range []string{"PodScheduled", "Initialized", "ContainersReady", "Ready"} {
		conditions = append(conditions, values{"type": kind, "status": "True", "lastTransitionTime": began})
	}
	report(values{
		"phase": "Running", "conditions": conditions, "initContainerStatuses": prepared,
		"containerStatuses": status(MainContainer, values{"running": values{"startedAt": began}}),
	})
}

// place makes a job run only on this node.
func (n *fakeNode) place(job *runtime.Job) {
	job.Tuning.Instance.Kubernetes.Template = fmt.Appendf(nil, `{"spec": {"nodeSelector": {%q: %q}, "tolerations": [
		{"key": %q, "operator": "Exists"}, {"key": "node.kubernetes.io/not-ready", "operator": "Exists"}]}}`,
		nodeTaint, n.n.Name, nodeTaint)
}

// loseNode starts a job on a node, and then stops the renewal of the node's Lease. The
// returned function waits for the end of the job, and checks it. The node controller of the
// cluster detects the loss after about 50 seconds.
func loseNode(t *testing.T, n *kubetest.Namespace) func(t *testing.T) {
	t.Helper()
	e := openExecutor(t, n)
	e.lostLimit = 2 * time.Second
	node := newFakeNode(adminOf(t, n))

	// Start the job.
	var id, log string
	var err error
	started, jobs := make(chan struct{}), make(chan string, 1)
	go func() {
		defer close(started)
		id, log, err = startJob(t, n, e, func(job *runtime.Job) {
			node.place(job)
			jobs <- job.ID
		})
	}()
	pod := node.podOf(<-jobs)
	node.pod(pod, "is assigned", func(p *corev1.Pod) bool { return p.Spec.NodeName == node.name })
	node.run(pod)
	<-started
	if err != nil {
		t.Fatalf("%v\n%s", err, log)
	}

	// Stop the renewal of the Lease.
	ended := startWait(t, e, id)
	node.lose()
	return func(t *testing.T) {
		exit := finish(t, e, id, ended)
		if exit.Code != runtime.CodeUnknown || exit.Reason != "node "+node.name+" has not reported for 2s" {
			t.Errorf("got %+v", exit)
		}
		err := node.get(pods).Name(pod).Do(t.Context()).Error()
		if !apierrors.IsNotFound(err) {
			t.Errorf("after the removal, reading the Pod returns %v", err)
		}
	}
}

// podOf waits for the Pod of a job, and returns its name.
func (a *admin) podOf(job string) (name string) {
	a.t.Helper()
	await(a.t, "the Pod of "+job, func(ctx context.Context) (bool, error) {
		var list corev1.PodList
		err := a.get(pods).Param("labelSelector", labelJob+"="+labelValue(job)).Do(ctx).Into(&list)
		if len(list.Items) == 0 {
			return false, err
		}
		name = list.Items[0].Name
		return true, err
	})
	return name
}
