package kube

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/kube/kubetest"
)

// TestStartPull starts jobs whose image cannot be pulled. Their handoff is sent before the pull.
func TestStartPull(t *testing.T) {
	const unknown = `failed to resolve reference "localhost:5000/none:1": MANIFEST_UNKNOWN`
	run := func(name string, change func(*runtime.Job), scenario func(t *testing.T, s *fakeCluster, job *runtime.Job)) {
		inBubble(t, name, func(t *testing.T) {
			s := newFakeClusterOn(t, kubetest.NewAPIWithoutNetwork(t), succeed)
			job := s.job("job-1")
			job.Tuning.Instance.Kubernetes.StartTimeout = StartTimeout
			change(job)
			scenario(t, s, job)
			s.wantNoPods(t)
			if bad := s.service.Violations(); len(bad) > 0 {
				t.Errorf("invalid requests to the service: %q", bad)
			}
		})
	}
	// wantEnd starts the job. It checks after how long the start fails, and that step 0 has the
	// wanted line within five seconds of the kubelet's event, which is ten seconds after the start.
	wantEnd := func(t *testing.T, s *fakeCluster, job *runtime.Job, line string, limit time.Duration) {
		t.Helper()
		started, shown := time.Now(), make(chan bool, 1)
		time.AfterFunc(15*time.Second, func() {
			shown <- strings.Contains(s.service.Record(job.ID).Text(0), line)
		})
		_, log, err := startWith(t.Context(), t, s.executor(t), job, s.service)
		took := time.Since(started) - 10*time.Second
		if err == nil || took > limit || took < limit-10*time.Second {
			t.Errorf("the start failed %s after the event with %v, want %s", took, err, limit)
		}
		if !<-shown {
			t.Errorf("step 0 did not have %q five seconds after the event", line)
		}
		wantStartError(t, log, err, line, true)
	}
	// pullFails makes the pull of the job's image fail with these messages, one after the other.
	pullFails := func(s *fakeCluster, messages ...string) {
		s.Inject(func(r kubetest.Request) *kubetest.Fault {
			if r.Verb == "delete" && r.Resource == pods {
				s.Drop(testNamespace, r.Name) // at once, because no container runs
			}
			return nil
		})
		s.before(MainContainer, func(pod *corev1.Pod) {
			time.Sleep(10 * time.Second)
			for i := range 20 {
				message := messages[min(i, len(messages)-1)]
				s.Change(pod.Namespace, pod.Name, mainWaits("ErrImagePull", message))
				time.Sleep(15 * time.Second)
				// Older kubelets do not repeat the error while they wait before the next attempt.
				s.Change(pod.Namespace, pod.Name, mainWaits("ImagePullBackOff", "Back-off pulling image"))
				time.Sleep(15 * time.Second)
			}
		})
	}
	for name, change := range map[string]func(*runtime.Job){
		"handoff in an annotation":   func(*runtime.Job) {},
		"large handoff in an object": func(job *runtime.Job) { job.Definition.Raw = randomJSON(t, 200<<10) },
	} {
		run("missing image, "+name, change, func(t *testing.T, s *fakeCluster, job *runtime.Job) {
			pullFails(s, unknown)
			wantEnd(t, s, job, "ErrImagePull: "+unknown, stuckLimit)
		})
	}
	away := "dial tcp 10.0.0.1:443: connect: connection refused"
	run("registry that is away", func(job *runtime.Job) {
		job.Tuning.Instance.Kubernetes.ImagePullTimeout = 5 * time.Minute
	}, func(t *testing.T, s *fakeCluster, job *runtime.Job) {
		pullFails(s, away)
		wantEnd(t, s, job, "ErrImagePull: "+away, 5*time.Minute)
	})
	run("one wrong response of a registry that is away", func(job *runtime.Job) {
		job.Tuning.Instance.Kubernetes.ImagePullTimeout = 6 * time.Minute
	}, func(t *testing.T, s *fakeCluster, job *runtime.Job) {
		pullFails(s, away, away, away, unknown, away)
		wantEnd(t, s, job, "ErrImagePull: "+away, 6*time.Minute)
	})
	run("pull that succeeds at last", func(*runtime.Job) {}, func(t *testing.T, s *fakeCluster, job *runtime.Job) {
		s.before(MainContainer, func(pod *corev1.Pod) {
			for range 4 {
				s.Change(pod.Namespace, pod.Name, mainWaits("ErrImagePull", away))
				time.Sleep(20 * time.Second)
			}
		})
		e := s.executor(t)
		id, log, err := s.start(t, e, job)
		if err != nil {
			t.Fatalf("%v\n%s", err, log)
		}
		if exit := waitFor(t, e, id); exit.Code != runtime.CodeSucceeded {
			t.Errorf("got exit %+v", exit)
		}
		// The service has the lines that the handoff contained, and the runner continues after them.
		h := s.handoffs()[0]
		if n := strings.Count(log, "\n"); !strings.Contains(log, away) || n != h.SetupLines+len(h.Pending) {
			t.Errorf("the runner continues at line %d + %d; step 0 has\n%s", h.SetupLines, len(h.Pending), log)
		}
		if err := e.Remove(t.Context(), id, 0); err != nil {
			t.Error(err)
		}
	})
}

// TestStartEvents starts a job whose Pod waits for a node, for a volume, and for its image. The
// agent may list events.
func TestStartEvents(t *testing.T) {
	simulate(t, "news of a Pod that waits", sleepJob, func(s *simulated) {
		var all []corev1.Event
		happens := func(kind, reason, message string) {
			all = append(all, corev1.Event{
				ObjectMeta:     metav1.ObjectMeta{Name: fmt.Sprint(len(all)), Namespace: testNamespace},
				InvolvedObject: corev1.ObjectReference{UID: s.pod().UID},
				Type:           kind, Reason: reason, Message: message, LastTimestamp: metav1.Now(),
			})
			s.SetEvents(all...)
		}
		s.SetEvents()
		s.kubelet.Hold = func(*corev1.Pod) *corev1.PodStatus {
			full := condition(corev1.PodScheduled, corev1.ConditionFalse, "Unschedulable", "0/1 nodes")
			return &podWith(withoutStatuses, full).Status
		}
		s.add("one")
		s.wait(7 * time.Second)
		happens(corev1.EventTypeNormal, "TriggeredScaleUp", "pod triggered scale-up: [{pool-1 1->2 (max: 5)}]")
		s.wait(10 * time.Second)
		s.wantLine("one", "Unschedulable: 0/1 nodes")
		s.wantLine("one", "TriggeredScaleUp: pod triggered scale-up")

		pod := s.pod()
		s.Change(pod.Namespace, pod.Name, func(p *corev1.Pod) {
			p.Spec.NodeName, p.Status = "node-2", podWith().Status
		})
		happens(corev1.EventTypeWarning, "FailedMount", `secret "none" not found`)
		s.wait(5 * time.Second)
		s.wantLine("one", "Pod assigned to node node-2\n")
		s.wantLine("one", `Waiting for the Pod to start: FailedMount: secret "none" not found`)

		s.Change(pod.Namespace, pod.Name, func(p *corev1.Pod) { p.Status = podWith(initIs(prepared(s.t))).Status })
		happens(corev1.EventTypeNormal, "Pulling", `Pulling image "image"`)
		s.wait(8 * time.Second)
		s.wantLine("one", `Pulling image "image"`)
		s.wait(15 * time.Minute)
		if n := strings.Count(s.Record("one").Text(0), "Pulling image"); n != 1 {
			s.t.Errorf("step 0 has %d lines about the pull, want 1", n)
		}
		if n := s.Requests()["list events"]; n > 40 {
			s.t.Errorf("events were listed %d times in 15 minutes, want at most 40", n)
		}
	})
	simulate(t, "silence without the right to list events", sleepJob, func(s *simulated) {
		s.kubelet.Hold = held()
		s.add("one")
		s.wait(time.Minute)
		s.wantLine("one", "Waiting for the Pod to start: its status has no reason")
	})
}

// TestStartPullOnCluster starts a job whose registry does not have its image.
func TestStartPullOnCluster(t *testing.T) {
	t.Parallel()
	n := onCluster(t)
	registry := strings.TrimPrefix(serve(t, "127.0.0.1", http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/v2/" {
				return
			}
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusNotFound)
			_, _ = w.Write([]byte(`{"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]}`))
		})), "http://")
	registry = strings.Replace(registry, "127.0.0.1", "localhost", 1)
	e := openExecutor(t, n)
	e.stuckLimit = 20 * time.Second
	started := time.Now()
	_, log, err := startJob(t, n, e, func(job *runtime.Job) {
		job.Definition.Image.Reference = registry + "/none:1"
		template("{}")(job)
	})
	wantStartError(t, log, err, "not found", true)
	// Step 0 gets the reason that the status has when the agent reads it first.
	line := regexp.MustCompile(`Waiting for the Pod to start: (ErrImagePull|ImagePullBackOff): .*: not found\n`)
	if took := time.Since(started); !line.MatchString(log) || took > clusterLimit {
		t.Errorf("the start failed after %s; log of step 0:\n%s", took, log)
	}
}
