package main

import (
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cmwa-project/cmwa/runtime/kube/kubetest"
)

// gate is an HTTP server that lets jobs run until a test releases them. The script of a job
// repeats a request to the gate, until the job's stack is released and the gate responds
// with 200.
type gate struct {
	w   *world
	url string

	mu   sync.Mutex
	open map[string]bool // by stack
}

// newGate starts a gate at which no stack is released.
func (w *world) newGate() *gate {
	w.t.Helper()
	g := &gate{w: w, open: map[string]bool{}}
	listener, err := net.Listen("tcp", net.JoinHostPort(w.cluster.HostAddress(w.t), "0"))
	w.must(err)
	server := &http.Server{Handler: g, ReadHeaderTimeout: storyLimit}
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	w.t.Cleanup(func() {
		_ = server.Close()
		serving.Wait()
	})
	g.url = "http://" + listener.Addr().String()
	return g
}

func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.open[strings.TrimPrefix(r.URL.Path, "/")] {
		http.Error(w, "not yet", http.StatusForbidden)
	}
}

// hold queues a job that runs until it is released, and blocks until it runs.
func (g *gate) hold(stack string) {
	g.w.t.Helper()
	wait := "until wget -q -O - " + g.url + "/" + stack + " 2>/dev/null; do sleep 0.1; done"
	g.w.queue(stack, order{Steps: []step{{Name: "a", Run: "echo running; " + wait + "; echo finished"}}})
	g.w.waitStarted(stack)
}

// release releases a job, and blocks until the job has succeeded and its Pod is removed. It
// checks that the job ran once.
func (g *gate) release(stack string) {
	g.w.t.Helper()
	g.mu.Lock()
	g.open[stack] = true
	g.mu.Unlock()
	g.w.waitSucceeded(stack)
	g.w.wantSteps(stack, "succeeded", "succeeded")
	g.w.eventually("the Pod of "+stack+" is removed", func() bool { return len(g.w.workers(stack)) == 0 })
}

// workers returns the Pods of a stack's job.
func (w *world) workers(stack string) (workers []corev1.Pod) {
	w.t.Helper()
	names := w.containers(stack)
	for _, pod := range w.allPods() {
		if slices.Contains(names, pod.Name) {
			workers = append(workers, pod)
		}
	}
	return workers
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

// adopted blocks until an agent of the Deployment has adopted the job of a stack. It checks
// that only one agent has adopted the job, and that the job still runs in the same Pod.
func (d *deployment) adopted(stack string, before corev1.Pod) {
	d.w.t.Helper()
	job := "job=" + before.Labels["cmwa.job"] + " "
	d.w.eventually("the job of "+stack+" is adopted", func() bool { return d.logged("job adopted", job) > 0 })
	if n := d.logged("job adopted", job); n != 1 {
		d.w.t.Errorf("the job of %s was adopted %d times", stack, n)
	}
	after := d.w.worker(stack)
	if owner := after.Labels["cmwa.owner"]; after.UID != before.UID || owner == before.Labels["cmwa.owner"] ||
		!slices.ContainsFunc(d.pods(), func(pod corev1.Pod) bool { return pod.Name == owner }) {
		d.w.t.Errorf("after the adoption by one of %d agents, the UID of the job's Pod is %s, its owner %s",
			len(d.pods()), after.UID, owner)
	}
}

// ended blocks until an agent has logged the end of the job in a Pod. It checks that no
// other agent has logged the end, and that no agent logs a warning about its state directory.
func (d *deployment) ended(worker corev1.Pod) {
	d.w.t.Helper()
	job := "job=" + worker.Labels["cmwa.job"] + " "
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
	t.Run("agent Pod is deleted and the new one adopts its jobs", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, "kubernetes")
		g, agents := w.newGate(), w.deploy("agent", 1, "max_concurrent_workflows: 3")
		stacks := []string{"one", "two", "three"}
		before := map[string]corev1.Pod{}
		for _, stack := range stacks {
			g.hold(stack)
			before[stack] = w.worker(stack)
		}
		agents.kill(agents.pods()[0].Name)
		agents.awaitReady(1)
		for _, stack := range stacks {
			agents.adopted(stack, before[stack])
			g.release(stack)
			agents.ended(before[stack])
		}
		w.queue("next", order{Steps: []step{{Name: "a", Run: "true"}}})
		w.await("next", "succeeded")
	})

	t.Run("new agent adopts the job of a pool that is no longer configured", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, "kubernetes")
		pool := func(name string) string {
			return "pools: [{name: " + name + ", token_file: " + tokenDirectory + "/token}]"
		}
		g, agents := w.newGate(), w.deploy("agent", 1, pool("old"))
		g.hold("one")
		before := w.worker("one")
		updateObject(agents, agents.core, "configmaps", agents.name, &corev1.ConfigMap{}, func(c *corev1.ConfigMap) {
			c.Data = agents.configuration([]string{pool("new")})
		})
		agents.kill(agents.pods()[0].Name)
		agents.awaitReady(1)
		agents.adopted("one", before)
		g.release("one")
		agents.ended(before)
		w.queue("next", order{Steps: []step{{Name: "a", Run: "true"}}})
		w.await("next", "succeeded")
	})

	t.Run("rolling update while a job runs", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, "kubernetes")
		g, agents := w.newGate(), w.deploy("agent", 1, "shutdown_timeout: 1s")
		g.hold("one")
		before, old := w.worker("one"), agents.pods()[0].Name
		agents.change(func(d *appsv1.Deployment) {
			pod := &d.Spec.Template.Spec // the new Pods have no state directory
			pod.Volumes = slices.DeleteFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == "state" })
			mounts := &pod.Containers[0].VolumeMounts
			*mounts = slices.DeleteFunc(*mounts, func(m corev1.VolumeMount) bool { return m.Name == "state" })
		})
		w.eventually("the old Pod is removed", func() bool {
			return !slices.ContainsFunc(w.allPods(), func(pod corev1.Pod) bool { return pod.Name == old })
		})
		if status, _ := w.status("one"); status != "running" {
			t.Errorf("after the end of the old agent, the job is %s, want running", status)
		}
		agents.adopted("one", before)
		g.release("one")
		agents.ended(before)
	})

	t.Run("two replicas of which one is deleted", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, "kubernetes")
		g, agents := w.newGate(), w.deploy("agent", 2)
		for _, stack := range []string{"one", "two"} {
			g.hold(stack)
		}
		one, two := w.worker("one"), w.worker("two")
		if one.Labels["cmwa.owner"] == two.Labels["cmwa.owner"] {
			t.Fatalf("both jobs belong to the agent in Pod %s", one.Labels["cmwa.owner"])
		}
		agents.kill(one.Labels["cmwa.owner"])
		agents.adopted("one", one)
		if owner := w.worker("two").Labels["cmwa.owner"]; owner != two.Labels["cmwa.owner"] {
			t.Errorf("the other agent's job was adopted by %s", owner)
		}
		for stack, worker := range map[string]corev1.Pod{"one": one, "two": two} {
			g.release(stack)
			agents.ended(worker)
		}
	})

	t.Run("agents of two Deployments of one pool do not adopt each other's jobs", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, "kubernetes")
		g, left := w.newGate(), w.deploy("left", 1)
		g.hold("one")
		right := w.deploy("right", 1)
		g.hold("two")
		one, two := w.worker("one"), w.worker("two")
		if groups := fmt.Sprint(one.Labels["cmwa.group"], " ", two.Labels["cmwa.group"]); groups !=
			fmt.Sprintf("%s.deployment.left %s.deployment.right", w.cluster.Name, w.cluster.Name) {
			t.Fatalf("the groups are %s", groups)
		}
		left.kill(left.pods()[0].Name)
		left.adopted("one", one)
		for stack, worker := range map[string]corev1.Pod{"one": one, "two": two} {
			g.release(stack)
			map[string]*deployment{"one": left, "two": right}[stack].ended(worker)
		}
		if n := right.logged("job adopted") + right.logged("job="+one.Labels["cmwa.job"]); n > 0 {
			t.Errorf("the agent of the other Deployment has %d lines about the job", n)
		}
	})
}
