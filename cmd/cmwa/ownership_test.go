package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cmwa-project/cmwa/runtime/kube/kubetest"
)

// heldPod is a job that runs in a Pod until it is released.
type heldPod struct {
	stack   string
	pod     corev1.Pod
	release func()
}

// holdPod queues a job that runs until it is released, and blocks until it runs.
func (w *world) holdPod(stack string) heldPod {
	w.t.Helper()
	release := w.holdAnywhere(stack, w.poolID)
	return heldPod{stack, w.worker(stack), release}
}

// owner returns the name of the agent's Pod to which the job belongs.
func (h heldPod) owner() string { return h.pod.Labels["cmwa.owner"] }

// attribute returns the attribute of log lines about the job.
func (h heldPod) attribute() string { return "job=" + h.pod.Labels["cmwa.job"] }

// workers returns the Pods of a stack's job.
func (w *world) workers(stack string) []corev1.Pod {
	w.t.Helper()
	id := w.id(stack)
	return slices.DeleteFunc(w.allPods(), func(pod corev1.Pod) bool { return pod.Annotations["cmwa.subject"] != id })
}

// worker returns the Pod of a stack's job.
func (w *world) worker(stack string) corev1.Pod {
	w.t.Helper()
	workers := w.workers(stack)
	if len(workers) != 1 {
		w.t.Fatalf("the job of %s has %d Pods", stack, len(workers))
	}
	return workers[0]
}

// allPods returns the Pods of the namespace.
func (w *world) allPods() []corev1.Pod {
	w.t.Helper()
	var all corev1.PodList
	client := kubetest.Client(w.t, w.cluster.Admin, corev1.SchemeGroupVersion)
	w.must(client.Get().Namespace(w.cluster.Name).Resource("pods").Do(w.t.Context()).Into(&all))
	return all.Items
}

// kill removes the Pod of an agent at once.
func (d *deployment) kill(pod string) {
	d.w.t.Helper()
	options := &metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}
	request := d.core.Delete().Namespace(d.namespace).Resource("pods").Name(pod).Body(options)
	d.w.must(request.Do(d.w.t.Context()).Error())
}

// logged returns how many lines of the logs of a Deployment's agents contain all of
// the texts.
func (d *deployment) logged(texts ...string) (count int) {
	d.w.t.Helper()
	for _, pod := range d.pods() {
		for line := range strings.Lines(d.log(pod.Name)) {
			if !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(line, text) }) {
				count++
			}
		}
	}
	return count
}

// adopted blocks until an agent of the Deployment has adopted a job. It checks that only one
// agent has adopted the job, and that the job still runs in the same Pod.
func (d *deployment) adopted(h heldPod) {
	d.w.t.Helper()
	job := h.attribute() + " "
	d.w.eventually("the job of "+h.stack+" is adopted", func() bool { return d.logged("job adopted", job) > 0 })
	if n := d.logged("job adopted", job); n != 1 {
		d.w.t.Errorf("the job of %s was adopted %d times", h.stack, n)
	}
	after := d.w.worker(h.stack)
	if owner := after.Labels["cmwa.owner"]; after.UID != h.pod.UID || owner == h.owner() ||
		!slices.ContainsFunc(d.pods(), func(pod corev1.Pod) bool { return pod.Name == owner }) {
		d.w.t.Errorf("after the adoption by one of %d agents, the UID of the job's Pod is %s, its owner %s",
			len(d.pods()), after.UID, owner)
	}
}

// finish releases a job, and blocks until the job has succeeded, its Pod is removed, and an agent
// has logged its end. It checks that the job ran once, that no other agent has logged the end,
// and that no agent logs a warning about its state directory.
func (d *deployment) finish(h heldPod) {
	d.w.t.Helper()
	h.release()
	d.w.wantSteps(h.stack, "succeeded", "succeeded")
	d.w.waitRemoved(h.stack)
	job := h.attribute() + " "
	d.w.eventually("an agent has logged the end of the job", func() bool { return d.logged("job succeeded", job) > 0 })
	if n := d.logged("job succeeded", job); n != 1 {
		d.w.t.Errorf("agents have logged the end of the job %d times", n)
	}
	if text := "state directory"; d.logged("WRN", text) > 0 {
		d.w.t.Errorf("an agent logs a warning about its %s", text)
	}
}

func TestOwnership(t *testing.T) {
	t.Parallel()
	inWorld(t, "kubernetes", "agent Pod is deleted and the new one adopts its jobs", func(w *world) {
		agents := w.deploy("agent", 1, "max_concurrent_workflows: 3")
		jobs := []heldPod{w.holdPod("one"), w.holdPod("two"), w.holdPod("three")}
		agents.kill(agents.pods()[0].Name)
		agents.awaitReady(1)
		for _, job := range jobs {
			agents.adopted(job)
			agents.finish(job)
		}
		w.runShort("next", w.poolID)
	})

	inWorld(t, "kubernetes", "new agent adopts the job of a pool that is no longer configured", func(w *world) {
		pool := func(name string) string {
			return "pools: [{name: " + name + ", token_file: " + tokenDirectory + "/token}]"
		}
		agents := w.deploy("agent", 1, pool("old"))
		one := w.holdPod("one")
		updateObject(agents, agents.core, "configmaps", agents.name, &corev1.ConfigMap{}, func(c *corev1.ConfigMap) {
			c.Data = agents.configuration([]string{pool("new")})
		})
		agents.kill(agents.pods()[0].Name)
		agents.awaitReady(1)
		agents.adopted(one)
		agents.finish(one)
		w.runShort("next", w.poolID)
	})

	inWorld(t, "kubernetes", "rolling update while a job runs", func(w *world) {
		agents := w.deploy("agent", 1, "shutdown_timeout: 1s")
		one, old := w.holdPod("one"), agents.pods()[0].Name
		agents.change(func(d *appsv1.Deployment) {
			pod := &d.Spec.Template.Spec // the new Pods have no state directory
			pod.Volumes = slices.DeleteFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == "state" })
			mounts := &pod.Containers[0].VolumeMounts
			*mounts = slices.DeleteFunc(*mounts, func(m corev1.VolumeMount) bool { return m.Name == "state" })
		})
		w.eventually("the old Pod is removed", func() bool {
			return !slices.ContainsFunc(w.allPods(), func(pod corev1.Pod) bool { return pod.Name == old })
		})
		w.wantStatus("one", "running")
		agents.adopted(one)
		agents.finish(one)
	})

	inWorld(t, "kubernetes", "one of two replicas is deleted", func(w *world) {
		agents := w.deploy("agent", 2)
		one, two := w.holdPod("one"), w.holdPod("two")
		if one.owner() == two.owner() {
			w.t.Fatalf("both jobs belong to the agent in Pod %s", one.owner())
		}
		agents.kill(one.owner())
		agents.adopted(one)
		if owner := w.worker("two").Labels["cmwa.owner"]; owner != two.owner() {
			w.t.Errorf("the other agent's job was adopted by %s", owner)
		}
		agents.finish(one)
		agents.finish(two)
	})

	inWorld(t, "kubernetes", "agents of two Deployments of one pool do not adopt each other's jobs", func(w *world) {
		left := w.deploy("left", 1)
		one := w.holdPod("one")
		right := w.deploy("right", 1)
		two := w.holdPod("two")
		if groups := fmt.Sprint(one.pod.Labels["cmwa.group"], " ", two.pod.Labels["cmwa.group"]); groups !=
			fmt.Sprintf("%s.deployment.left %s.deployment.right", w.cluster.Name, w.cluster.Name) {
			w.t.Fatalf("the groups are %s", groups)
		}
		left.kill(left.pods()[0].Name)
		left.adopted(one)
		left.finish(one)
		right.finish(two)
		if n := right.logged("job adopted") + right.logged(one.attribute()); n > 0 {
			w.t.Errorf("the agent of the other Deployment has %d lines about the job", n)
		}
	})
}
