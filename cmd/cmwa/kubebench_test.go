package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/cmwa-project/cmwa/runtime/kube/kubetest"
)

// Limits that the benchmarks print next to their results.
const (
	podLimit      = 200 * time.Millisecond // by which a job may start later than a Pod created by hand
	programSizeMB = 36
)

// BenchmarkPodBesideByHand compares two times: from the claim of a job to the output of
// its first step, and from the creation of the same Pod by hand to its first output. The
// Pods have the same image, volumes and init container. The jobs and the Pods alternate,
// and a random pause precedes each. The kubelet checks once a second which containers have
// ended, so a Pod waits up to a second for this check. That is several times the
// difference that the benchmark measures.
func BenchmarkPodBesideByHand(b *testing.B) {
	const pairs = 20
	for b.Loop() {
		w := newWorld(b, "kubernetes")
		v := w.timeJobs()
		w.agent("polling_interval: 100ms", "log_level: info")
		pods := kubetest.Client(b, w.cluster.Agent, corev1.SchemeGroupVersion)
		spec := w.specOfAJob()
		var ours, byHand []time.Duration
		beforePod, beforeJob := pauses(pairs), pauses(pairs)
		for i := range pairs {
			time.Sleep(beforePod[i])
			byHand = append(byHand, w.podByHand(pods, fmt.Sprint("by-hand-", i), spec))
			time.Sleep(beforeJob[i])
			ours = append(ours, w.firstStep(v, fmt.Sprint("pair-", i)))
			if (i+1)%5 == 0 {
				b.Logf("%d of %d pairs: median job %s, median Pod by hand %s", i+1, pairs, median(ours), median(byHand))
			}
		}
		more := median(ours) - median(byHand)
		b.ReportMetric(float64(median(ours).Milliseconds()), "ms/job")
		b.ReportMetric(float64(median(byHand).Milliseconds()), "ms/by-hand")
		b.ReportMetric(float64(more.Milliseconds()), "ms-more")
		b.Logf("%d pairs: median from claim to first step %s, median Pod by hand %s, difference %s (limit %s)",
			pairs, median(ours), median(byHand), more, podLimit)
	}
}

// pauses divides a second into n equal parts and returns one random pause from each part,
// in random order. The median of 20 independent random pauses would vary by 0.1 s.
func pauses(n int) []time.Duration {
	part := time.Second / time.Duration(n)
	all := make([]time.Duration, n)
	for i, position := range rand.Perm(n) {
		all[i] = time.Duration(position)*part + rand.N(part)
	}
	return all
}

// specOfAJob runs a job, so that all images are cached, and returns the spec of its Pod
// with a command instead of the runner.
func (w *world) specOfAJob() corev1.PodSpec {
	w.t.Helper()
	w.queue("first", oneStep("sleep 1"))
	w.eventually("the job has a Pod", func() bool { return len(w.workers("first")) == 1 })
	pod := w.worker("first")
	w.await("first", "succeeded")
	pod.Spec.NodeName = "" // the scheduler has set it
	pod.Spec.Containers[0].Command, pod.Spec.Containers[0].Args = []string{"cat", "/proc/uptime"}, nil
	return pod.Spec
}

// podByHand creates a Pod that prints a time, and returns how long after the request that
// time is.
func (w *world) podByHand(pods *rest.RESTClient, name string, spec corev1.PodSpec) time.Duration {
	w.t.Helper()
	in := func(r *rest.Request) *rest.Request { return r.Namespace(w.cluster.Name).Resource("pods") }
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
	started := time.Now()
	w.must(in(pods.Post()).Body(pod).Do(w.t.Context()).Error())
	w.eventually("the Pod has ended", func() bool {
		w.must(in(pods.Get()).Name(name).Do(w.t.Context()).Into(pod))
		return len(pod.Status.ContainerStatuses) > 0 && pod.Status.ContainerStatuses[0].State.Terminated != nil
	})
	log, err := in(pods.Get()).Name(name).SubResource("log").Param("container", spec.Containers[0].Name).
		Do(w.t.Context()).Raw()
	w.must(err)
	w.must(in(pods.Delete()).Name(name).Body(&metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}).
		Do(w.t.Context()).Error())
	return w.printed(string(log)).Sub(started)
}

// firstStep runs a job whose step prints a time, and returns how long after the claim of
// the job that time is.
func (w *world) firstStep(v *jobTimer, stack string) time.Duration {
	w.t.Helper()
	v.forget()
	w.queue(stack, oneStep("echo uptime $(cat /proc/uptime)"))
	w.await(stack, "succeeded")
	w.waitRemoved(stack)
	_, text, _ := strings.Cut(w.log(stack), "\nuptime ")
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, claimed := range v.claimed {
		return w.printed(text).Sub(claimed)
	}
	w.t.Fatal("the job was not claimed")
	return 0
}

// printed returns the time at which a program has read this content of /proc/uptime.
// Containers have the clock of this machine.
func (w *world) printed(text string) time.Time {
	w.t.Helper()
	seconds := func(text string) time.Duration {
		fields := strings.Fields(text)
		if len(fields) == 0 {
			w.t.Fatalf("%q is not the content of /proc/uptime", text)
		}
		value, err := strconv.ParseFloat(fields[0], 64)
		w.must(err)
		return time.Duration(value * float64(time.Second))
	}
	now, err := os.ReadFile("/proc/uptime")
	w.must(err)
	return time.Now().Add(seconds(text) - seconds(string(now)))
}

// BenchmarkCmwaSize shows the size of the released program.
func BenchmarkCmwaSize(b *testing.B) {
	for b.Loop() {
		program := filepath.Join(b.TempDir(), "cmwa")
		noError(b, build([]string{"CGO_ENABLED=0"}, "-trimpath", "-ldflags", "-s -w", "-o", program, "."))
		info, err := os.Stat(program)
		noError(b, err)
		size := float64(info.Size()) / (1 << 20)
		b.ReportMetric(size, "MB")
		b.Logf("the program cmwa has %.1f MB (limit %d)", size, programSizeMB)
	}
}
