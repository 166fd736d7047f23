package kube

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/kube/kubetest"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
)

// lossTest starts a job in simulated time on a fake cluster that loses Pods.
type lossTest struct {
	*fakeCluster
	t       *testing.T
	stages  []string // of the job's record
	removed []string // names of the Pods that the agent has deleted
}

// lose runs a subtest. Prepare makes the cluster lose Pods.
func lose(
	t *testing.T, name string, change func(*runtime.Job), prepare func(*lossTest), check func(*lossTest, string, error),
) {
	inBubble(t, name, func(t *testing.T) {
		s := &lossTest{t: t, fakeCluster: newFakeClusterOn(t, kubetest.NewAPIWithoutNetwork(t), succeed)}
		s.Inject(func(r kubetest.Request) *kubetest.Fault {
			if r.Verb == "delete" && r.Resource == pods {
				s.removed = append(s.removed, r.Name)
				s.Drop(testNamespace, r.Name) // at once, because no container of the test ends
			}
			return nil
		})
		prepare(s)
		job := s.job("job-1")
		job.Tuning.Instance.Kubernetes.StartTimeout = StartTimeout
		change(job)
		setup := runtime.NewSetup(job, s.service, runtimetest.BaseHandoff(job))
		setup.Hook(runtime.SetupHooks{
			HandingOff: func(ctx context.Context) error { s.stages = append(s.stages, "handed off"); return nil },
			Withdrawn:  func(context.Context) { s.stages = append(s.stages, "claimed") },
		})
		e := s.executor(t)
		id, err := e.Start(t.Context(), job, setup)
		log := s.service.Record(job.ID).Text(0)
		if err == nil {
			if exit := waitFor(t, e, id); exit.Code == runtime.CodeSucceeded && len(s.handoffs()) != 1 {
				t.Errorf("%d runners got a handoff, want 1", len(s.handoffs()))
			}
			_ = e.Remove(t.Context(), id, 0)
		} else if err := setup.Fail(t.Context(), err); err != nil {
			t.Error(err)
		}
		check(s, log, err)
		s.wantNoPods(t)
		s.wantNoSecrets(t)
		if bad := s.service.Violations(); len(bad) > 0 {
			t.Errorf("invalid requests to the service: %q", bad)
		}
	})
}

// wantReplaced checks that the job has started in another Pod, that step 0 has the reason, and the
// stages of the record.
func wantReplaced(reason string, stages ...string) func(*lossTest, string, error) {
	return func(s *lossTest, log string, err error) {
		s.t.Helper()
		line := "The Pod was lost before the job started, and another Pod replaces it (1 of at most 3): start the Pod: "
		if err != nil || !strings.Contains(log, line+reason) {
			s.t.Errorf("got %v, want a start in another Pod; log of step 0:\n%s", err, log)
		}
		s.fakeCluster.mu.Lock()
		defer s.fakeCluster.mu.Unlock()
		if got := strings.Join(s.stages, ", "); got != strings.Join(stages, ", ") {
			s.t.Errorf("the record is %s, want %v", got, stages)
		}
	}
}

// firstPod returns a function that gives the first Pod that it is called with a status, and lets all
// others run.
func firstPod(changes ...func(*corev1.Pod)) func(*corev1.Pod) *corev1.PodStatus {
	lost := false
	return func(*corev1.Pod) *corev1.PodStatus {
		if lost {
			return nil
		}
		lost = true
		return &podWith(changes...).Status
	}
}

// TestStartReplacesPod loses the first Pod of a job.
func TestStartReplacesPod(t *testing.T) {
	sealed := func(*runtime.Job) {}
	inASecret := func(job *runtime.Job) { job.Tuning.Instance.Kubernetes.Handoff = handoffSecret }
	unknown := mainEnds(137, containerStatusUnknown, "The container could not be located when the pod was terminated")

	// The Pod has no handoff.
	for reason, loss := range map[string][]func(*corev1.Pod){
		"OutOfcpu":                 {withoutStatuses, phase(corev1.PodFailed, "OutOfcpu", "no cpu")},
		"OutOfmemory":              {withoutStatuses, phase(corev1.PodFailed, "OutOfmemory", "no memory")},
		"UnexpectedAdmissionError": {withoutStatuses, phase(corev1.PodFailed, "UnexpectedAdmissionError", "no device")},
		"Evicted":                  {phase(corev1.PodFailed, "Evicted", "disk pressure")},
		"Preempting":               {phase(corev1.PodFailed, "Preempting", "a critical Pod")},
		"Terminated":               {phase(corev1.PodFailed, "Terminated", "node shutdown")},
		"PreemptionByScheduler":    {disrupted("PreemptionByScheduler", "a higher priority")},
		"EvictionByEvictionAPI":    {disrupted("EvictionByEvictionAPI", "drained")},
		"DeletionByPodGC":          {phase(corev1.PodFailed, "", ""), disrupted("DeletionByPodGC", "node is gone")},
		"DeletionByTaintManager":   {disrupted("DeletionByTaintManager", "node is not ready")},
	} {
		lose(t, reason, sealed, func(s *lossTest) { s.kubelet.Hold = firstPod(loss...) },
			wantReplaced(reason, "handed off"))
	}
	lose(t, "deleted by a user", sealed, func(s *lossTest) {
		hold := firstPod()
		s.kubelet.Hold = func(p *corev1.Pod) *corev1.PodStatus {
			status := hold(p)
			if status != nil {
				time.AfterFunc(time.Second, func() { s.Drop(p.Namespace, p.Name) })
			}
			return status
		}
	}, wantReplaced(deletedText, "handed off"))
	lose(t, "deleted directly before its handoff is sent", sealed, func(s *lossTest) {
		inject, done := failFirst(1, "update", kubetest.Fault{Status: http.StatusNotFound}), false
		s.Inject(func(r kubetest.Request) *kubetest.Fault {
			if r.Verb == "update" && !done {
				done = true
				s.Drop(testNamespace, r.Name)
			}
			return inject(r)
		})
	}, wantReplaced(deletedText, "handed off", "claimed", "handed off"))

	// The Pod has its handoff. Its kubelet reports that the job's container was not started.
	evictedInPull := func(change ...func(*corev1.Pod)) func(*lossTest) {
		return func(s *lossTest) {
			first := true
			s.before(MainContainer, func(pod *corev1.Pod) {
				if !first {
					return
				}
				first = false
				time.Sleep(20 * time.Second)
				s.Change(pod.Namespace, pod.Name, func(p *corev1.Pod) {
					for _, c := range change {
						c(p)
					}
				})
				time.Sleep(time.Minute)
			})
		}
	}
	evicted := phase(corev1.PodFailed, "Evicted", "disk pressure")
	replaced := wantReplaced("Evicted: disk pressure", "handed off", "claimed", "handed off")
	lose(t, "evicted while its image is pulled", sealed, evictedInPull(evicted, unknown), replaced)
	lose(t, "evicted, with a container that waits", sealed, evictedInPull(evicted), replaced)
	lose(t, "handoff in a Secret", inASecret, func(s *lossTest) {
		s.kubelet.Hold = firstPod(withoutStatuses, phase(corev1.PodFailed, "OutOfcpu", "no cpu"))
	}, func(s *lossTest, log string, err error) {
		if err != nil || len(s.stages) != 3 || s.stages[1] != "claimed" {
			s.t.Errorf("got %v and the stages %v, want a start in another Pod", err, s.stages)
		}
	})

	// The job may have run.
	wantOne := func(s *lossTest, log string, err error) {
		s.t.Helper()
		if n := len(s.stages); n != 1 {
			s.t.Errorf("the handoff was sent %d times, want once: %v", n, s.stages)
		}
		if strings.Contains(log, "replaces") {
			s.t.Errorf("the Pod was replaced although its job may have run:\n%s", log)
		}
	}
	ended := func(p *corev1.Pod) {
		p.Status.ContainerStatuses[0] = ends(MainContainer, 143, "Error", "")
		p.Status.ContainerStatuses[0].State.Terminated.StartedAt = metav1.Now()
	}
	lose(t, "evicted after the container was started", sealed, evictedInPull(evicted, ended), wantOne)
	lose(t, "node that no longer exists", sealed, evictedInPull(
		phase(corev1.PodFailed, "", ""), disrupted("DeletionByPodGC", "node is gone"), unknown), wantOne)
	late := phase(corev1.PodFailed, "DeadlineExceeded", "too long")
	lose(t, "deadline", sealed, evictedInPull(late, unknown), wantOne)
	lose(t, "deleted with a grace period of zero", sealed, func(s *lossTest) {
		s.before(MainContainer, func(pod *corev1.Pod) {
			time.Sleep(20 * time.Second)
			s.Drop(pod.Namespace, pod.Name)
		})
	}, wantOne)

	lose(t, "every Pod is lost", sealed, func(s *lossTest) { s.kubelet.Hold = held(evicted) },
		func(s *lossTest, log string, err error) {
			if err == nil || !strings.Contains(err.Error(), "Evicted: disk pressure") || len(s.removed) != 4 {
				s.t.Errorf("got %v and %d Pods, want an error after four Pods", err, len(s.removed))
			}
			if errors.Is(err, runtime.ErrJobFault) {
				s.t.Error("the job counts as the cause")
			}
		})
}

// TestStartReplacesPodOnCluster deletes the first Pod of a job, which waits for a node.
func TestStartReplacesPodOnCluster(t *testing.T) {
	t.Parallel()
	n := onCluster(t)
	e, a := openExecutor(t, n), adminOf(t, n)
	job, service := newClusterJob(t, n, template(`{"spec": {"schedulingGates": [{"name": "example.com/wait"}],
		"containers": [{"name": "pulumi-workflow", "imagePullPolicy": "Never"}]}}`))
	type result struct {
		id, log string
		err     error
	}
	ended := make(chan result, 1)
	go func() {
		id, log, err := startWith(t.Context(), t, e, job, service)
		ended <- result{id, log, err}
	}()
	first := a.podOf(job.ID)
	a.delete(first)
	service.Await(t, job.ID, "the loss in step 0", func(r runtimetest.Record) bool {
		return strings.Contains(r.Text(0), "another Pod replaces it (1 of at most 3): start the Pod: "+deletedText)
	})
	var second string
	await(t, "another Pod", func(ctx context.Context) (bool, error) {
		for _, name := range podsOfJob(t, n, job) {
			if name != first {
				second = name
			}
		}
		return second != "", nil
	})
	a.do(http.MethodPatch, a.path("pods", second), values{"spec": values{"schedulingGates": nil}})
	got := <-ended
	if got.err != nil || !strings.HasPrefix(got.id, second+"/") {
		t.Fatalf("got %s, %v, want the job in Pod %s\n%s", got.id, got.err, second, got.log)
	}
	if err := e.Remove(t.Context(), got.id, time.Second); err != nil {
		t.Error(err)
	}
}
