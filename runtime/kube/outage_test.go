package kube

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/kube/kubetest"
)

// down is an API server that is not there.
func down(kubetest.Request) *kubetest.Fault { return &kubetest.Fault{} }

// waiting begins to wait for a job's end, and returns when the wait has begun.
func waiting(t *testing.T, e *Executor, id string) <-chan runtime.Exit {
	t.Helper()
	name, _, _ := parseID(id)
	held := func() int {
		e.pods.mu.Lock()
		defer e.pods.mu.Unlock()
		return e.pods.entry(name).holds
	}
	before := held()
	ended := make(chan runtime.Exit, 1)
	go func() {
		exit, err := e.Wait(t.Context(), id)
		if err != nil {
			exit.Reason = err.Error()
		}
		ended <- exit
	}()
	for held() == before && len(ended) == 0 {
		time.Sleep(time.Millisecond)
	}
	return ended
}

func receive(t *testing.T, ended <-chan runtime.Exit) runtime.Exit {
	t.Helper()
	select {
	case exit := <-ended:
		return exit
	case <-time.After(testLimit):
		t.Fatal("Wait does not return")
		return runtime.Exit{}
	}
}

func TestWaitWithFaults(t *testing.T) {
	begin := func(t *testing.T) (s *scripted, e *Executor, id, name string) {
		s = newScripted(t, last)
		e = s.executor(t)
		id, _, err := s.start(t, e, s.job("job-1"))
		if err != nil {
			t.Fatal(err)
		}
		name, _, _ = parseID(id)
		return s, e, id, name
	}
	t.Run("watches that break lose nothing", func(t *testing.T) {
		t.Parallel()
		s, e, id, name := begin(t)
		ended := waiting(t, e, id)
		for range 3 {
			s.DropWatches()
			time.Sleep(20 * time.Millisecond)
		}
		s.Compact() // the next watch is answered with 410
		s.Change(testNamespace, name, mainIs(ends(mainContainer, 10, "Error", "")))
		s.DropWatches()
		if exit := receive(t, ended); exit.Code != runtime.CodeFailed {
			t.Errorf("got %+v", exit)
		}
	})
	t.Run("an API server that is down delays the end", func(t *testing.T) {
		t.Parallel()
		s, e, id, name := begin(t)
		ended := waiting(t, e, id)
		s.Inject(down)
		s.DropWatches()
		s.Change(testNamespace, name, mainIs(ends(mainContainer, 0, "Completed", "")))
		select {
		case exit := <-ended:
			t.Errorf("got %+v while the API server was down", exit)
		case <-time.After(300 * time.Millisecond):
		}
		if err := e.Check(t.Context(), runtime.Tuning{}); err == nil || !strings.Contains(err.Error(), "cannot be reached") {
			t.Errorf("the check returns %v", err)
		}
		s.Inject(nil)
		if exit := receive(t, ended); exit.Code != runtime.CodeSucceeded {
			t.Errorf("got %+v", exit)
		}
	})
	t.Run("Pod that somebody deletes", func(t *testing.T) {
		t.Parallel()
		s, e, id, name := begin(t)
		ended := waiting(t, e, id)
		s.Drop(testNamespace, name)
		if exit := receive(t, ended); exit.Code != never || exit.Reason != deletedText {
			t.Errorf("got %+v", exit)
		}
		if _, err := e.Wait(t.Context(), id); !errors.Is(err, runtime.ErrNoEnvironment) {
			t.Errorf("a second Wait returns %v", err)
		}
	})
	t.Run("Pod that is preempted", func(t *testing.T) {
		t.Parallel()
		s, e, id, name := begin(t)
		ended := waiting(t, e, id)
		s.Change(testNamespace, name, condition(corev1.DisruptionTarget, corev1.ConditionTrue, "PreemptionByScheduler", "a higher priority"))
		s.Drop(testNamespace, name)
		if exit := receive(t, ended); exit.Reason != "PreemptionByScheduler: a higher priority" {
			t.Errorf("got %+v", exit)
		}
	})
	t.Run("reason that comes after the end of the container", func(t *testing.T) {
		t.Parallel()
		s, e, id, name := begin(t)
		ended := waiting(t, e, id)
		s.Change(testNamespace, name, mainIs(ends(mainContainer, 2, "Error", "")))
		time.Sleep(50 * time.Millisecond)
		s.Change(testNamespace, name, phase(corev1.PodFailed, "Evicted", "too much"))
		if exit := receive(t, ended); exit != (runtime.Exit{Code: 2, Reason: "Evicted: too much"}) {
			t.Errorf("got %+v", exit)
		}
	})
	t.Run("node that is lost", func(t *testing.T) {
		t.Parallel()
		s, e, id, name := begin(t)
		e.lostLimit = 100 * time.Millisecond
		ended := waiting(t, e, id)
		s.Change(testNamespace, name, func(p *corev1.Pod) {
			condition(corev1.PodReady, corev1.ConditionFalse, "", "")(p)
			condition(corev1.ContainersReady, corev1.ConditionTrue, "", "")(p)
		})
		if exit := receive(t, ended); exit.Code != never || !strings.Contains(exit.Reason, "node fake has not reported") {
			t.Errorf("got %+v", exit)
		}
		if err := e.Remove(t.Context(), id, 0); err != nil {
			t.Error(err)
		}
		s.none(t)
	})
	t.Run("labels that somebody takes away", func(t *testing.T) {
		t.Parallel()
		s, e, id, name := begin(t)
		ended := waiting(t, e, id)
		s.Change(testNamespace, name, func(p *corev1.Pod) { p.Labels = nil })
		if exit := receive(t, ended); !strings.Contains(exit.Reason, "labels must not be changed") {
			t.Errorf("got %+v", exit)
		}
	})
}

func TestRemoveWithFaults(t *testing.T) {
	t.Run("a refused call is an error and can be repeated", func(t *testing.T) {
		s := newScripted(t, last)
		e := s.executor(t)
		id, _, err := s.start(t, e, s.job("job-1"))
		if err != nil {
			t.Fatal(err)
		}
		s.Inject(times(1, "delete", kubetest.Fault{Status: http.StatusForbidden, Message: "no right"}))
		if err := e.Remove(t.Context(), id, time.Second); err == nil {
			t.Error("got no error")
		}
		if err := e.Remove(t.Context(), id, time.Second); err != nil {
			t.Error(err)
		}
		s.none(t)
	})
	t.Run("another Pod of the same name is left alone", func(t *testing.T) {
		s := newScripted(t, last)
		e := s.executor(t)
		id, _, err := s.start(t, e, s.job("job-1"))
		if err != nil {
			t.Fatal(err)
		}
		name, _, _ := parseID(id)
		if err := e.Remove(t.Context(), idOf(name, "another"), 0); err != nil {
			t.Error(err)
		}
		if pods := s.Pods(testNamespace); len(pods) != 1 || pods[0].DeletionTimestamp != nil {
			t.Errorf("the Pods are %+v", pods)
		}
	})
	t.Run("a watch that is down does not hold the removal", func(t *testing.T) {
		s := newScripted(t, last)
		e := s.executor(t)
		id, _, err := s.start(t, e, s.job("job-1"))
		if err != nil {
			t.Fatal(err)
		}
		s.Inject(func(r kubetest.Request) *kubetest.Fault {
			if r.Verb == "watch" || r.Verb == "list" {
				return &kubetest.Fault{Status: http.StatusInternalServerError}
			}
			return nil
		})
		s.DropWatches()
		if err := e.Remove(t.Context(), id, time.Second); err != nil {
			t.Error(err)
		}
		s.none(t)
	})
}

func TestKeep(t *testing.T) {
	s := newScripted(t, func(c *kubetest.Container) int { return runtime.CodeFailed })
	e := s.executor(t)
	job := s.job("job-1")
	job.Tuning.Place.Kubernetes.KeepFailedPods = true
	if exit := s.run(t, e, job); exit.Code != runtime.CodeFailed {
		t.Fatalf("got %+v", exit)
	}
	pods := s.Pods(testNamespace)
	if len(pods) != 1 || pods[0].Annotations[annotationHandoff] != "" {
		t.Fatalf("the Pods are %+v, want the failed one without its handoff", pods)
	}
	if found, err := e.List(t.Context(), job.Agent); err != nil || len(found) > 0 {
		t.Errorf("a kept Pod is listed: %+v, %v", found, err)
	}
	if removed, err := e.Sweep(t.Context(), nil); err != nil || len(removed) > 0 {
		t.Errorf("swept too early: %v, %v", removed, err)
	}
	s.Change(testNamespace, pods[0].Name, func(p *corev1.Pod) {
		p.Annotations[annotationKept] = time.Now().Add(-time.Second).Format(time.RFC3339)
	})
	if removed, err := e.Sweep(t.Context(), nil); err != nil || len(removed) != 1 {
		t.Errorf("swept %v, %v, want the Pod", removed, err)
	}
	s.none(t)
}

func TestCheck(t *testing.T) {
	s := newScripted(t, succeed)
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
	s.none(t)
	tuning.Place.Kubernetes.Template = []byte(`{"spec": {"contaners": []}}`)
	if err := e.Check(t.Context(), tuning); err == nil || !strings.Contains(err.Error(), "contaners") {
		t.Errorf("a template that does not fit: got %v", err)
	}

	t.Run("a template that the cluster refuses", func(t *testing.T) {
		var log strings.Builder
		e.log = slog.New(slog.NewTextHandler(&log, nil))
		s.Inject(func(r kubetest.Request) *kubetest.Fault {
			if r.Verb == "create" && bytes.Contains(r.Body, []byte("refused-class")) {
				return &kubetest.Fault{Status: http.StatusForbidden, Message: "no PriorityClass with name refused-class was found"}
			}
			return nil
		})
		before := s.Requests()["create"]
		for _, host := range []string{"a", "a", "b"} {
			tuning.Place.Kubernetes.Template = []byte(`{"spec": {"priorityClassName": "refused-class", "hostname": "` + host + `"}}`)
			if err := e.Check(t.Context(), tuning); err != nil {
				t.Errorf("got %v, want none: its jobs fail", err)
			}
		}
		if n := s.Requests()["create"] - before; n != 4 {
			t.Errorf("%d dry runs for two templates, want 4", n)
		}
		if text := log.String(); strings.Count(text, "the cluster refuses Pods with the pod_template") != 1 || !strings.Contains(text, "no PriorityClass") {
			t.Errorf("the log is\n%s", text)
		}
	})

	tuning.Place.Kubernetes.Template = nil
	s.Inject(times(1, "create", kubetest.Fault{Status: http.StatusForbidden, Message: "exceeded quota: q"}))
	tuning.Place.Kubernetes.CPU = "1"
	if err := e.Check(t.Context(), tuning); err == nil || !strings.Contains(err.Error(), "ResourceQuota") {
		t.Errorf("a quota that is used up: got %v", err)
	}
	if err := e.Check(t.Context(), tuning); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

func TestList(t *testing.T) {
	s := newScripted(t, succeed)
	e := s.executor(t)
	const many = 2*pageSize + 1
	for i := range many {
		job := testJob()
		job.ID = fmt.Sprint("job-", i)
		pod, err := podOf(job, fmt.Sprintf("%s%04d", namePrefix, i), settingsOf(agentImage))
		if err != nil {
			t.Fatal(err)
		}
		pod.Namespace = "other"
		s.Put(pod)
	}
	other := e.cluster.Executor("other")
	defer other.Close()
	found, err := other.List(t.Context(), "agent-1")
	if err != nil || len(found) != many {
		t.Fatalf("found %d Pods, %v, want %d", len(found), err, many)
	}
	want := testJob()
	for _, f := range found {
		if f.Pool != (runtime.PoolSpec{Name: want.PoolName, Identity: want.Identity}).Key() || f.Identity != want.Identity || f.Subject != want.Subject {
			t.Fatalf("found %+v", f)
		}
	}
	if found, err := e.List(t.Context(), "agent-1"); err != nil || len(found) > 0 {
		t.Errorf("another namespace has %d Pods, %v", len(found), err)
	}
}
