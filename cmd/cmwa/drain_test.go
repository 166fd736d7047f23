package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// evict requests the eviction of a Pod, and returns the status code of the response.
func (d *deployment) evict(pod string) int32 {
	d.w.t.Helper()
	eviction := &policyv1.Eviction{
		TypeMeta:   metav1.TypeMeta{APIVersion: policyv1.SchemeGroupVersion.String(), Kind: "Eviction"},
		ObjectMeta: metav1.ObjectMeta{Name: pod, Namespace: d.namespace},
	}
	text, err := json.Marshal(eviction)
	d.w.must(err)
	err = d.core.Post().Namespace(d.namespace).Resource("pods").Name(pod).SubResource("eviction").
		SetHeader("Content-Type", "application/json").Body(text).Do(d.w.t.Context()).Error()
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		d.w.t.Logf("eviction of %s: %v", pod, err)
		return status.Status().Code
	}
	d.w.must(err)
	return http.StatusCreated
}

// TestDrain installs two releases of the chart in one namespace. Each has a running job.
func TestDrain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "kubernetes")
	var agents [2]*deployment
	var jobs [2]heldPod
	for i, pool := range w.pools(len(agents)) {
		agents[i] = w.installChart(fmt.Sprint("agent-", i), pool.token)
		stack := fmt.Sprint("stack-", i)
		release := w.holdAnywhere(stack, pool.id)
		w.eventually("the Pod of the job is ready", func() bool { return isReady(w.worker(stack)) })
		jobs[i] = heldPod{stack, w.worker(stack), release}
	}

	// 1. A drain waits for the jobs. The dry run sends the same requests as a drain. It changes
	// neither the node nor the Pods, so that it does not disturb other tests.
	drain := func(timeout string) (message string, err error) {
		groups := jobs[0].pod.Labels["cmwa.group"] + "," + jobs[1].pod.Labels["cmwa.group"]
		_, message, err = try(t, kubectlVariable, "drain", jobs[0].pod.Spec.NodeName, "--dry-run=server", "--force",
			"--ignore-daemonsets", "--delete-emptydir-data", "--pod-selector", "cmwa.group in ("+groups+")",
			"--timeout", timeout)
		return message, err
	}
	message, err := drain("1s")
	if n := strings.Count(message, "will retry"); err == nil || n != len(jobs) {
		t.Errorf("a drain while %d jobs run prints %d retries, %v:\n%s", len(jobs), n, err, message)
	}

	// 2. The API server refuses to evict a job, but not the only agent of a release. The next agent
	// claims jobs, and the evicted one waits for its own.
	for i, job := range jobs {
		if code := agents[i].evict(job.pod.Name); code != http.StatusTooManyRequests {
			t.Errorf("the eviction of a job's Pod has the status %d", code)
		}
		if code := agents[i].evict(job.owner()); code != http.StatusCreated {
			t.Errorf("the eviction of an agent's Pod has the status %d", code)
		}
	}
	for i, job := range jobs {
		w.eventually("the evicted agent is replaced", func() bool {
			pods := agents[i].pods()
			return len(pods) == 1 && pods[0].Name != job.owner() && isReady(pods[0])
		})
	}

	// 3. When the jobs have ended, a drain does not wait.
	for _, job := range jobs {
		job.release()
		w.waitRemoved(job.stack)
	}
	if message, err := drain("1m"); err != nil {
		t.Errorf("a drain after the end of the jobs: %v\n%s", err, message)
	}

	// 4. A budget does not protect an agent that is not ready, because its token is wrong.
	updateObject(agents[0], agents[0].core, "secrets", agents[0].name, &corev1.Secret{}, func(s *corev1.Secret) {
		s.Data["PULUMI_AGENT_TOKEN"] = []byte("pul-wrong")
	})
	var unready corev1.Pod
	w.eventually("the agent is not ready", func() bool {
		unready = agents[0].pods()[0]
		agents[0].touch(unready.Name)
		return !isReady(unready)
	})
	if code := agents[0].evict(unready.Name); code != http.StatusCreated {
		t.Errorf("the eviction of an agent that is not ready has the status %d", code)
	}
}
