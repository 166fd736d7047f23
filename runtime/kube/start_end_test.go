package kube

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/kube/kubetest"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
)

// newAgentPair returns a fake cluster and the executors of the agents agent-x and agent-y.
// The Pods of the agents run no program. A job's container calls job.
func newAgentPair(t *testing.T, job func(*kubetest.Container) int) (s *fakeCluster, first, second *Executor) {
	t.Helper()
	s = newFakeCluster(t, job)
	s.kubelet.Hold = func(pod *corev1.Pod) *corev1.PodStatus {
		if !strings.HasPrefix(pod.Name, "agent-") {
			return nil
		}
		return &corev1.PodStatus{Phase: corev1.PodRunning}
	}
	a := &agents{API: s.API}
	a.put("agent-x", "agent")
	a.put("agent-y", "agent")
	return s, a.agent(t, "agent-x"), a.agent(t, "agent-y")
}

// TestStartAdoptedPod starts a job whose Pod is adopted by another agent: the first agent's
// own Pod was force-deleted, and the agent still runs.
func TestStartAdoptedPod(t *testing.T) {
	// wantLeft checks that the first agent leaves the Pod to the second one. The cluster deletes
	// the job's record with the Pod, and the second agent may not have adopted the record yet.
	wantLeft := func(t *testing.T, s *fakeCluster, second *Executor) {
		t.Helper()
		if !slices.ContainsFunc(s.Pods(testNamespace), func(pod corev1.Pod) bool {
			return ownerOf(&pod) == second.self.owner
		}) {
			t.Error("the Pod that the second agent has adopted is removed")
		}
	}
	adoptPod := func(s *fakeCluster, e *Executor, name string) {
		s.Change(testNamespace, name, func(p *corev1.Pod) { e.self.mark(p) })
	}
	adoptBeforeKey := func(s *fakeCluster, e *Executor) {
		s.before(prepareContainer, func(pod *corev1.Pod) { adoptPod(s, e, pod.Name) })
	}
	for name, inject := range map[string]func(s *fakeCluster, second *Executor){
		"before the key": adoptBeforeKey,
		"before the update": func(s *fakeCluster, second *Executor) {
			s.Inject(func(r kubetest.Request) *kubetest.Fault {
				if r.Verb == "update" {
					adoptPod(s, second, r.Name)
				}
				return nil
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, first, second := newAgentPair(t, succeed)
			inject(s, second)
			_, _, err := s.start(t, first, s.job("job-1"))
			if err == nil || !strings.Contains(err.Error(), "another agent has adopted the job") ||
				len(s.handoffs()) > 0 {
				t.Errorf("got %v and %d handoffs, want the Pod adopted and no handoff", err, len(s.handoffs()))
			}
			wantLeft(t, s, second)
		})
	}
	t.Run("with a record that the second agent has not adopted yet", func(t *testing.T) {
		s, first, second := newAgentPair(t, succeed)
		j := journalOf(first)
		j.add(t, "job-1")
		adoptBeforeKey(s, second)
		if _, _, err := s.start(t, first, s.job("job-1")); !errors.Is(err, runtime.ErrGone) {
			t.Errorf("got %v, want ErrGone", err)
		}
		wantLeft(t, s, second)
		if err := j.Remove(t.Context(), "job-1"); !errors.Is(err, runtime.ErrGone) {
			t.Errorf("Remove of the first agent: got %v, want ErrGone", err)
		}
		if left := s.Objects(configMaps, testNamespace); len(left) != 1 {
			t.Errorf("there are %d records, want that of the job", len(left))
		}
	})
	t.Run("after an update with a lost response", func(t *testing.T) {
		s, first, second := newAgentPair(t, succeed)
		later := 0 // updates of a Pod that already has its handoff
		s.Inject(func(r kubetest.Request) *kubetest.Fault {
			if r.Verb != "update" {
				return nil
			}
			for _, pod := range s.Pods(testNamespace) {
				if pod.Name == r.Name && pod.Annotations[annotationHandoff] != "" {
					later++
					adoptPod(s, second, r.Name)
					return nil
				}
			}
			return &kubetest.Fault{Status: 500, After: true}
		})
		id := s.mustStart(t, first, s.job("job-1"))
		if exit := waitFor(t, second, id); exit.Code != runtime.CodeSucceeded || later != 1 {
			t.Errorf("the job ended with %+v after %d more updates, want success after 1", exit, later)
		}
	})
}

// TestStartRemovedPod starts a job whose Pod is removed before it has the handoff. If the first
// agent's own Pod was force-deleted, another agent has removed the Pod to start the job again.
// Then the first agent, which still runs, must not report the job.
func TestStartRemovedPod(t *testing.T) {
	for name, c := range map[string]struct{ ownPod, record, refused, gone bool }{
		"by the agent that has adopted the job":      {record: true, gone: true},
		"while the agent's token is refused":         {record: true, refused: true, gone: true},
		"by another client":                          {ownPod: true, record: true},
		"without a record, which no agent can adopt": {},
	} {
		t.Run(name, func(t *testing.T) {
			s, first, _ := newAgentPair(t, succeed)
			job := s.job("job-1")
			records := journalOf(first)
			if c.record {
				records.add(t, job.ID)
			}
			s.kubelet.Before = func(pod *corev1.Pod, _ corev1.Container) {
				if !c.ownPod {
					s.Drop(testNamespace, first.self.owner.Name)
				}
				s.Drop(testNamespace, pod.Name)
				if c.refused {
					s.Inject(func(r kubetest.Request) *kubetest.Fault {
						if r.Verb == "get" && r.Name == first.self.owner.Name {
							return &kubetest.Fault{Status: 401, Message: "Unauthorized"}
						}
						return nil
					})
				}
			}
			_, _, err := s.start(t, first, job)
			if err == nil || errors.Is(err, runtime.ErrGone) != c.gone || len(s.handoffs()) > 0 {
				t.Errorf("got %v and %d handoffs, want no handoff and ErrGone: %v", err, len(s.handoffs()), c.gone)
			}
		})
	}
}

// TestStartCanceled cancels a start after the handoff was sent, while the kubelet pulls the
// image.
func TestStartCanceled(t *testing.T) {
	cancelStart := func(s *fakeCluster, e *Executor) (id string, err error) {
		ctx, stop := context.WithCancelCause(t.Context())
		pulled := make(chan struct{})
		defer close(pulled)
		s.before(MainContainer, func(*corev1.Pod) { <-pulled })
		s.Inject(func(r kubetest.Request) *kubetest.Fault {
			if r.Verb == "update" {
				time.AfterFunc(200*time.Millisecond, func() { stop(errors.New("the agent is stopping")) })
			}
			if r.Verb == "delete" {
				s.Drop(testNamespace, r.Name) // at once, because no container runs
			}
			return nil
		})
		job := s.job("job-1")
		return e.Start(ctx, job, runtime.NewSetup(job, s.service, runtimetest.BaseHandoff(job)))
	}
	t.Run("agent in a Pod leaves the job", func(t *testing.T) {
		s, e, next := newAgentPair(t, succeed)
		id, err := cancelStart(s, e)
		if err != nil {
			t.Fatalf("got %v, want a job that continues", err)
		}
		if exit := waitFor(t, next, id); exit.Code != runtime.CodeSucceeded {
			t.Errorf("got exit %+v, want success", exit)
		}
	})
	t.Run("agent outside of a cluster removes the Pod", func(t *testing.T) {
		s := newFakeCluster(t, succeed)
		_, err := cancelStart(s, s.executor(t))
		if err == nil || !strings.Contains(err.Error(), "the agent is stopping") {
			t.Errorf("got %v, want the cause of the cancellation", err)
		}
		s.wantNoPods(t)
	})
}

// statusCloud is a service with a function that answers requests for the status of a job.
type statusCloud struct {
	*runtimetest.Service
	status func() (runtime.JobStatus, error)
}

func (c statusCloud) JobStatus(context.Context, *runtime.Job) (runtime.JobStatus, error) {
	if c.status == nil {
		return runtime.Continue, nil
	}
	return c.status()
}

// startInBackground starts a job in simulated time. The job has its handoff after some seconds,
// and its container starts after the image pull, which is a call of pull. The job ends when
// release is closed. Result blocks until Start returns.
func startInBackground(
	ctx context.Context, t *testing.T, status func() (runtime.JobStatus, error),
	pull func(s *fakeCluster, pod *corev1.Pod),
) (s *fakeCluster, e *Executor, release chan struct{}, result func() (id string, err error)) {
	t.Helper()
	release = make(chan struct{})
	s = newFakeClusterOn(t, kubetest.NewAPIWithoutNetwork(t), func(c *kubetest.Container) int {
		select {
		case <-release:
			return succeed(c)
		case <-c.Term:
			return 143
		}
	})
	s.before(MainContainer, func(pod *corev1.Pod) { pull(s, pod) })
	e, job := s.executor(t), s.job("job-1")
	job.Tuning.Instance.Kubernetes.StartTimeout = StartTimeout
	done, id, err := make(chan struct{}), "", error(nil)
	go func() {
		defer close(done)
		id, err = e.Start(ctx, job, runtime.NewSetup(job, statusCloud{s.service, status}, runtimetest.BaseHandoff(job)))
	}()
	return s, e, release, func() (string, error) {
		<-done
		return id, err
	}
}

// TestStartCanceledWithHandoff cancels jobs that have their handoff. A job that may run is
// returned as started, so that the caller stops it with its grace period.
func TestStartCanceledWithHandoff(t *testing.T) {
	wantStarted := func(t *testing.T, s *fakeCluster, e *Executor, release chan struct{}, id string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("got %v, want a job that may run", err)
		}
		if pods := s.Pods(testNamespace); len(pods) != 1 || pods[0].DeletionTimestamp != nil {
			t.Errorf("the Pods are %+v, want one that is not being deleted", pods)
		}
		close(release)
		if exit := waitFor(t, e, id); exit.Code != runtime.CodeSucceeded {
			t.Errorf("got exit %+v, want success", exit)
		}
	}
	inBubble(t, "agent stops while the watch is down", func(t *testing.T) {
		ctx, stop := context.WithCancelCause(t.Context())
		s, e, release, result := startInBackground(ctx, t, nil, func(*fakeCluster, *corev1.Pod) {
			time.Sleep(time.Minute) // simulated
		})
		time.Sleep(30 * time.Second)
		s.Inject(apiDown)
		s.DropWatches()
		time.Sleep(time.Minute) // the job runs
		stop(errors.New("the agent is stopping"))
		synctest.Wait()
		s.Inject(nil)
		id, err := result()
		wantStarted(t, s, e, release, id, err)
	})
	const line = "registry is away" // step 0 gets this line after the handoff
	pullFails := func(s *fakeCluster, pod *corev1.Pod) {
		time.Sleep(2 * time.Minute) // the next handoff requires the status of the job
		s.Change(pod.Namespace, pod.Name, mainWaits("ErrImagePull", line))
		time.Sleep(10 * time.Second)
	}
	inBubble(t, "job is cancelled before a handoff with more lines", func(t *testing.T) {
		status := func() (runtime.JobStatus, error) { return runtime.Cancelled, nil }
		s, e, release, result := startInBackground(t.Context(), t, status, pullFails)
		id, err := result()
		wantStarted(t, s, e, release, id, err)
	})
	inBubble(t, "agent stops before a handoff with more lines, and the container has not started", func(t *testing.T) {
		ctx, stop := context.WithCancelCause(t.Context())
		status := func() (runtime.JobStatus, error) {
			stop(errors.New("the agent is stopping"))
			return "", ctx.Err()
		}
		s, _, _, result := startInBackground(ctx, t, status, pullFails)
		s.Inject(func(r kubetest.Request) *kubetest.Fault {
			if r.Verb == "delete" {
				s.Drop(testNamespace, r.Name) // at once, because no container runs
			}
			return nil
		})
		if _, err := result(); err == nil || !strings.Contains(err.Error(), "the agent is stopping") {
			t.Errorf("got %v, want the cause of the cancellation", err)
		}
		s.wantNoPods(t)
	})
}
