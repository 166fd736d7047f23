package kube

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/kube/kubetest"
)

// replicas is a Deployment whose Pods represent agents.
type replicas struct{ *admin }

// newReplicas creates a Deployment of two Pods that do nothing.
func newReplicas(t *testing.T, n *kubetest.Namespace) *replicas {
	t.Helper()
	labels := map[string]string{"app": "agent"}
	deployment := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "agent"},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(2)), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					TerminationGracePeriodSeconds: new(int64(1)),
					Containers: []corev1.Container{{
						Name: "agent", Image: kubetest.BaseImage, ImagePullPolicy: corev1.PullNever,
						Command: []string{"sleep", "3600"},
					}},
				},
			},
		},
	}
	apps := kubetest.Client(t, n.Admin, appsv1.SchemeGroupVersion)
	err := apps.Post().Namespace(n.Name).Resource("deployments").Body(deployment).Do(t.Context()).Error()
	if err != nil {
		t.Fatal(err)
	}
	return &replicas{adminOf(t, n)}
}

// await blocks until two Pods run and are not being deleted, and returns their names.
func (r *replicas) await(t *testing.T) []string {
	t.Helper()
	limit := time.After(2 * time.Minute) // on a busy node
	for {
		var all corev1.PodList
		if err := r.get(pods).Param("labelSelector", "app=agent").Do(t.Context()).Into(&all); err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, pod := range all.Items {
			if pod.DeletionTimestamp == nil && pod.Status.Phase == corev1.PodRunning {
				names = append(names, pod.Name)
			}
		}
		if len(names) == 2 {
			return names
		}
		select {
		case <-limit:
			t.Fatalf("the Deployment has the Pods %v", names)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// agent returns an executor of an agent in a Pod, with the rights of the documented Role.
func (r *replicas) agent(t *testing.T, pod string) *Executor {
	t.Helper()
	cluster := newCluster(t, Options{Config: r.n.Agent, Namespace: r.n.Name, Pod: pod, Agent: "id-of-" + pod})
	if err := cluster.Identify(t.Context()); err != nil || !cluster.currentSelf().known() {
		t.Fatalf("identify: %v, %+v", err, cluster.currentSelf())
	}
	return executorOf(t, cluster)
}

func TestAdoptOnCluster(t *testing.T) {
	t.Parallel()
	n := onCluster(t)
	deployment := newReplicas(t, n)
	pods := deployment.await(t)
	first, second := deployment.agent(t, pods[0]), deployment.agent(t, pods[1])
	if want := n.Name + ".deployment.agent"; first.self.group != want || second.self.group != want {
		t.Fatalf("the groups are %s and %s, want %s", first.self.group, second.self.group, want)
	}

	// Start one job, and create ten whose Pods stay pending.
	id := mustStartJob(t, n, first, func(job *runtime.Job) { job.ID = "running" })
	want := []string{"running"}
	for i := range 10 {
		job := testJob()
		job.ID = fmt.Sprint("waiting-", i)
		useTestImages(job)
		job.Tuning.Instance.Kubernetes.Template = []byte(`{"spec": {"nodeSelector": {"disk": "none"}}}`)
		pod, err := podOf(job, newName(), first.podSettings())
		if err != nil {
			t.Fatal(err)
		}
		pod.Namespace, pod.Annotations[annotationHandoff] = n.Name, "sealed"
		if _, err := first.client.create(t.Context(), pod, false); err != nil {
			t.Fatal(err)
		}
		want = append(want, job.ID)
	}
	sees := func(e *Executor) {
		awaitState(t, e, "all jobs", func(all map[string]*state) bool { return len(all) == len(want) })
	}
	sees(second)
	wantAdopted(t, second)

	// Delete the Pod of the first agent. Its replacement and the second agent adopt
	// concurrently.
	deployment.delete(pods[0])
	pods = slices.DeleteFunc(deployment.await(t), func(pod string) bool { return pod == pods[1] })
	third := deployment.agent(t, pods[0])
	sees(third)
	var got [2][]string
	var group sync.WaitGroup
	for i, e := range []*Executor{second, third} {
		group.Go(func() {
			var err error
			if got[i], err = adopt(t, e); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	all := slices.Sorted(slices.Values(slices.Concat(got[0], got[1])))
	if slices.Sort(want); !slices.Equal(all, want) {
		t.Errorf("adopted %v and %v, want each of %v once", got[0], got[1], want)
	}
	for i, e := range []*Executor{second, third} {
		found, err := e.List(t.Context(), "any id")
		if err != nil || len(found) != len(got[i]) {
			t.Errorf("an agent lists %d jobs, %v, but has adopted %v", len(found), err, got[i])
		}
	}

	// The running job continues until its new agent removes it.
	attends := second
	if slices.Contains(got[1], "running") {
		attends = third
	}
	ended := startWait(t, attends, id)
	if err := attends.Remove(t.Context(), id, time.Second); err != nil {
		t.Error(err)
	}
	if exit := awaitExit(t, ended); exit.Code == runtime.CodeSucceeded {
		t.Errorf("got exit %+v, want no success", exit)
	}
}
