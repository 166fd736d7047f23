package kube

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/kube/kubetest"
)

// apiDown injects a broken connection into each request.
func apiDown(kubetest.Request) *kubetest.Fault { return &kubetest.Fault{} }

// startWait calls Wait in the background, and returns when Wait is blocked.
func startWait(t *testing.T, e *Executor, id string) <-chan runtime.Exit {
	t.Helper()
	name, _, _ := parseID(id)
	subscriptions := func() int {
		e.pods.mu.Lock()
		defer e.pods.mu.Unlock()
		return e.pods.entry(name).subs
	}
	before := subscriptions()
	ended := make(chan runtime.Exit, 1)
	go func() {
		exit, err := e.Wait(t.Context(), id)
		if err != nil {
			exit.Reason = err.Error()
		}
		ended <- exit
	}()
	for subscriptions() == before && len(ended) == 0 {
		time.Sleep(time.Millisecond)
	}
	return ended
}

func awaitExit(t *testing.T, ended <-chan runtime.Exit) runtime.Exit {
	t.Helper()
	select {
	case exit := <-ended:
		return exit
	case <-time.After(testLimit):
		t.Fatal("Wait has not returned")
		return runtime.Exit{}
	}
}

// newRunningJob returns a fake cluster with a job that runs until it gets a TERM.
func newRunningJob(t *testing.T) (s *fakeCluster, e *Executor, id, pod string) {
	t.Helper()
	s = newFakeCluster(t, runUntilTerm)
	e = s.executor(t)
	id = s.mustStart(t, e, s.job("job-1"))
	pod, _, _ = parseID(id)
	return s, e, id, pod
}

func TestWaitFaults(t *testing.T) {
	for name, c := range map[string]struct {
		act  func(s *fakeCluster, pod string)
		want runtime.Exit
	}{
		"broken watches lose no event": {func(s *fakeCluster, pod string) {
			for range 3 {
				s.DropWatches()
				time.Sleep(20 * time.Millisecond)
			}
			s.Compact() // the next watch gets a 410
			s.Change(testNamespace, pod, mainEnds(10, "Error", ""))
			s.DropWatches()
		}, runtime.Exit{Code: runtime.CodeFailed}},
		"Pod is preempted": {func(s *fakeCluster, pod string) {
			s.Change(testNamespace, pod, disrupted("PreemptionByScheduler", "a higher priority"))
			s.Drop(testNamespace, pod)
		}, runtime.Exit{Code: runtime.CodeUnknown, Reason: "PreemptionByScheduler: a higher priority"}},
		"reason follows the end of the container": {func(s *fakeCluster, pod string) {
			s.Change(testNamespace, pod, mainEnds(2, "Error", ""))
			time.Sleep(50 * time.Millisecond)
			s.Change(testNamespace, pod, phase(corev1.PodFailed, "Evicted", "too much"))
		}, runtime.Exit{Code: 2, Reason: "Evicted: too much"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, e, id, pod := newRunningJob(t)
			ended := startWait(t, e, id)
			c.act(s, pod)
			if exit := awaitExit(t, ended); exit != c.want {
				t.Errorf("got %+v, want %+v", exit, c.want)
			}
		})
	}
	t.Run("outage delays the end", func(t *testing.T) {
		t.Parallel()
		s, e, id, pod := newRunningJob(t)
		ended := startWait(t, e, id)
		s.Inject(apiDown)
		s.DropWatches()
		s.Change(testNamespace, pod, mainEnds(0, "Completed", ""))
		select {
		case exit := <-ended:
			t.Errorf("got %+v while the API server was down", exit)
		case <-time.After(300 * time.Millisecond):
		}
		if err := e.Check(t.Context(), runtime.Tuning{}); err == nil ||
			!strings.Contains(err.Error(), "cannot be reached") {
			t.Errorf("Check: got %v", err)
		}
		s.Inject(nil)
		if exit := awaitExit(t, ended); exit.Code != runtime.CodeSucceeded {
			t.Errorf("got %+v", exit)
		}
	})
	t.Run("another client removes the labels", func(t *testing.T) {
		t.Parallel()
		s, e, id, pod := newRunningJob(t)
		ended := startWait(t, e, id)
		s.Change(testNamespace, pod, func(p *corev1.Pod) { p.Labels = nil })
		if exit := awaitExit(t, ended); !strings.Contains(exit.Reason, "labels must not be changed") {
			t.Errorf("got %+v", exit)
		}
	})
}

func TestRemoveFaults(t *testing.T) {
	t.Run("refused request is an error and can be retried", func(t *testing.T) {
		s, e, id, _ := newRunningJob(t)
		s.Inject(failFirst(1, "delete", kubetest.Fault{Status: http.StatusForbidden, Message: "no right"}))
		if err := e.Remove(t.Context(), id, time.Second); err == nil {
			t.Error("got no error for a refused request")
		}
		if err := e.Remove(t.Context(), id, time.Second); err != nil {
			t.Error(err)
		}
		s.wantNoPods(t)
	})
	t.Run("another Pod with the same name is kept", func(t *testing.T) {
		s, e, _, pod := newRunningJob(t)
		if err := e.Remove(t.Context(), idOf(pod, "another"), 0); err != nil {
			t.Error(err)
		}
		if pods := s.Pods(testNamespace); len(pods) != 1 || pods[0].DeletionTimestamp != nil {
			t.Errorf("the Pods are %+v, want the running one", pods)
		}
	})
	t.Run("removal does not need the watch", func(t *testing.T) {
		s, e, id, _ := newRunningJob(t)
		s.Inject(failWatches)
		s.DropWatches()
		if err := e.Remove(t.Context(), id, time.Second); err != nil {
			t.Error(err)
		}
		s.wantNoPods(t)
	})
}

// TestRemoveOutage removes many Pods while the API server accepts deletions and nothing else.
func TestRemoveOutage(t *testing.T) {
	const pods, span = 20, time.Minute
	synctest.Test(t, func(t *testing.T) {
		s := newFakeClusterOn(t, kubetest.NewAPIWithoutNetwork(t), succeed)
		e := s.executor(t)
		if err := e.pods.ready(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), span)
		defer cancel()
		s.Inject(func(r kubetest.Request) *kubetest.Fault {
			if r.Verb == "delete" {
				return nil
			}
			return &kubetest.Fault{}
		})
		s.DropWatches()
		synctest.Wait()
		before := s.Requests()
		var removals sync.WaitGroup
		for i := range pods {
			name := fmt.Sprintf("%s%d", namePrefix, i)
			removals.Go(func() {
				sub := e.pods.subscribe(name, false)
				defer sub.close()
				if err := e.awaitDeletion(ctx, sub, "uid", 30); err == nil {
					t.Error("the removal has ended, although no response has shown that the Pod is gone")
				}
			})
		}
		removals.Wait()
		if n := s.Requests()["get"] - before["get"]; n < pods || n > 9*pods {
			t.Errorf("%d requests in %s for %d removals, want 1 to 9 each", n, span, pods)
		}
	})
}

func TestExecutorKeepPods(t *testing.T) {
	for _, c := range []struct {
		keep string
		code int // exit code of the job
		kept bool
	}{
		{"", runtime.CodeFailed, false},
		{keepFailed, runtime.CodeSucceeded, false},
		{keepFailed, runtime.CodeFailed, true},
		{keepAll, runtime.CodeSucceeded, true},
	} {
		t.Run(fmt.Sprintf("keep %q, exit code %d", c.keep, c.code), func(t *testing.T) {
			s := newFakeCluster(t, func(*kubetest.Container) int { return c.code })
			e, job := s.executor(t), s.job("job-1")
			job.Tuning.Instance.Kubernetes.KeepPods = c.keep
			id := s.mustStart(t, e, job)
			if exit := waitFor(t, e, id); exit.Code != c.code {
				t.Fatalf("got %+v", exit)
			}
			if err := e.Remove(t.Context(), id, 0); err != nil {
				t.Fatal(err)
			}
			if c.kept {
				wantKept(t, s, e, job)
			}
			s.wantNoPods(t)
		})
	}
}

// wantKept checks the kept Pod of a job, and that a sweep deletes it later.
func wantKept(t *testing.T, s *fakeCluster, e *Executor, job *runtime.Job) {
	t.Helper()
	pods := s.Pods(testNamespace)
	if len(pods) != 1 || pods[0].Annotations[annotationHandoff] != "" {
		t.Fatalf("the Pods are %+v, want that of the job without its handoff", pods)
	}
	for key := range defaultAnnotations {
		if value, found := pods[0].Annotations[key]; found {
			t.Errorf("the kept Pod has the annotation %s: %s, and prevents the removal of its node", key, value)
		}
	}
	if found, err := e.List(t.Context(), job.Agent); err != nil || len(found) > 0 {
		t.Errorf("listed %+v, %v, want nothing: the Pod is kept", found, err)
	}
	if removed, err := e.Sweep(t.Context(), nil); err != nil || len(removed) > 0 {
		t.Errorf("swept %v, %v before the end of the keep time, want nothing", removed, err)
	}
	s.Change(testNamespace, pods[0].Name, func(p *corev1.Pod) {
		p.Annotations[annotationKept] = time.Now().Add(-time.Second).Format(time.RFC3339)
	})
	if removed, err := e.Sweep(t.Context(), nil); err != nil || len(removed) != 1 {
		t.Errorf("swept %v, %v, want the Pod", removed, err)
	}
}

func TestCheck(t *testing.T) {
	s := newFakeCluster(t, succeed)
	e := s.executor(t)
	tuning := testJob().Tuning
	for range 3 {
		if err := e.Check(t.Context(), tuning); err != nil {
			t.Fatal(err)
		}
	}
	if n := s.Requests()["create"]; n != 1 {
		t.Errorf("%d dry runs for settings that do not change, want 1", n)
	}
	s.wantNoPods(t)
	tuning.Instance.Kubernetes.Template = []byte(`{"spec": {"contaners": []}}`)
	if err := e.Check(t.Context(), tuning); err == nil || !strings.Contains(err.Error(), "contaners") {
		t.Errorf("invalid template: got %v", err)
	}

	t.Run("cluster refuses the template", func(t *testing.T) {
		var log strings.Builder
		e.log = slog.New(slog.NewTextHandler(&log, nil))
		s.Inject(func(r kubetest.Request) *kubetest.Fault {
			if r.Verb == "create" && bytes.Contains(r.Body, []byte("refused-class")) {
				return &kubetest.Fault{
					Status: http.StatusForbidden, Message: "no PriorityClass with name refused-class was found",
				}
			}
			return nil
		})
		before := s.Requests()["create"]
		for _, host := range []string{"a", "a", "b"} {
			tuning.Instance.Kubernetes.Template = []byte(
				`{"spec": {"priorityClassName": "refused-class", "hostname": "` + host + `"}}`)
			if err := e.Check(t.Context(), tuning); err != nil {
				t.Errorf("got %v, want no error", err)
			}
		}
		if n := s.Requests()["create"] - before; n != 4 {
			t.Errorf("%d dry runs for two templates, want 4", n)
		}
		if text := log.String(); strings.Count(text, "pod_template rejected by the cluster, jobs will fail") != 1 ||
			!strings.Contains(text, "no PriorityClass") {
			t.Errorf("the log is\n%s", text)
		}
	})

	tuning.Instance.Kubernetes.Template = nil
	s.Inject(failFirst(1, "create", kubetest.Fault{Status: http.StatusForbidden, Message: "exceeded quota: q"}))
	tuning.Instance.Kubernetes.Requests.CPU = "1"
	if err := e.Check(t.Context(), tuning); err == nil || !strings.Contains(err.Error(), "ResourceQuota") {
		t.Errorf("quota is used up: got %v", err)
	}
}

// TestCheckRefused counts dry runs while the cluster refuses them. A pool repeats a failed check
// after a second.
func TestCheckRefused(t *testing.T) {
	for name, c := range map[string]struct {
		fault    kubetest.Fault
		min, max int // dry runs in ten minutes
	}{
		"quota is used up": {kubetest.Fault{Status: http.StatusForbidden, Message: "exceeded quota: q"}, 20, 45},
		"webhook fails": {
			kubetest.Fault{Status: http.StatusInternalServerError, Message: "failed calling webhook"}, 20, 45,
		},
		"no response": {kubetest.Fault{}, 500, 1300},
		"response of a proxy": {
			kubetest.Fault{Status: http.StatusForbidden, Page: "<html>", MediaType: "text/html"}, 500, 600,
		},
	} {
		inBubble(t, name, func(t *testing.T) {
			s := newFakeClusterOn(t, kubetest.NewAPIWithoutNetwork(t), succeed)
			e, tuning := s.executor(t), testJob().Tuning
			s.Inject(failAll("create", c.fault))
			check := func() (err error) {
				time.Sleep(time.Second)
				return e.Check(t.Context(), tuning)
			}
			for range 10 * 60 {
				if check() == nil {
					t.Fatal("got no error")
				}
			}
			if n := s.Requests()["create"]; n < c.min || n > c.max {
				t.Errorf("%d dry runs in ten minutes, want %d to %d", n, c.min, c.max)
			}
			s.Inject(nil)
			seconds := 0
			for ; check() != nil; seconds++ {
				if seconds > 30 {
					t.Fatal("the check still fails 30 seconds after the last fault")
				}
			}
		})
	}
	inBubble(t, "removal of a Pod frees the quota", func(t *testing.T) {
		s := newFakeClusterOn(t, kubetest.NewAPIWithoutNetwork(t), succeed)
		e, tuning := s.executor(t), testJob().Tuning
		s.Inject(failAll("create", kubetest.Fault{Status: http.StatusForbidden, Message: "exceeded quota: q"}))
		for range 10 * 60 {
			time.Sleep(time.Second)
			if e.Check(t.Context(), tuning) == nil {
				t.Fatal("got no error")
			}
		}
		s.Inject(nil)
		if err := e.remove(t.Context(), "job", "uid", 0); err != nil {
			t.Fatal(err)
		}
		time.Sleep(refusedBackoff.First)
		if err := e.Check(t.Context(), tuning); err != nil {
			t.Errorf("after the removal of a Pod: %v", err)
		}
	})
}

func TestList(t *testing.T) {
	s := newFakeCluster(t, succeed)
	e := s.executor(t)
	const many = 2*pageSize + 1
	for i := range many {
		job := testJob()
		job.ID = fmt.Sprint("job-", i)
		pod := newPod(t, job)
		pod.Namespace, pod.Name = "other", fmt.Sprintf("%s%04d", namePrefix, i)
		s.Put(pod)
	}
	other := e.cluster.Executor("other")
	defer other.Close()
	found, err := other.List(t.Context(), "agent-1")
	if err != nil || len(found) != many {
		t.Fatalf("found %d Pods, %v, want %d", len(found), err, many)
	}
	if found, err := e.List(t.Context(), "agent-1"); err != nil || len(found) > 0 {
		t.Errorf("listed %d Pods, %v, want none: the Pods are in another namespace", len(found), err)
	}
}
