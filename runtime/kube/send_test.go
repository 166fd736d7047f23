package kube

import (
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/handoff"
	"github.com/cmwa-project/cmwa/runtime/kube/kubetest"
)

func TestSend(t *testing.T) {
	simulate(t, "backs off during an outage after a conflict", func(*simulated, string) {}, func(s *simulated) {
		var mu sync.Mutex
		updates := 0
		s.Inject(func(r kubetest.Request) *kubetest.Fault {
			mu.Lock()
			defer mu.Unlock()
			if r.Verb != "update" {
				return nil
			}
			updates++
			if updates <= 2 {
				return &kubetest.Fault{Status: http.StatusConflict}
			}
			return &kubetest.Fault{Status: http.StatusServiceUnavailable}
		})
		s.add("job-1")
		s.wait(time.Minute)
		s.Inject(nil)
		s.wait(time.Minute)
		if updates > 20 {
			s.t.Errorf("got %d updates in two minutes, want at most 20", updates)
		}
		s.wantSuccess("job-1")
	})
}

// TestUpdateUnknownField starts and adopts jobs in a cluster of a newer release. Its Pods have a
// field that the agent's types do not have.
func TestUpdateUnknownField(t *testing.T) {
	simulate(t, "start", func(*simulated, string) {}, func(s *simulated) {
		s.AddField("futureField")
		s.add("job-1")
		s.wait(time.Minute)
		s.wantSuccess("job-1")
	})
	t.Run("adoption", func(t *testing.T) {
		a, e, worker, _ := newOrphan(t)
		a.AddField("futureField")
		wantAdopted(t, e, "job-1")
		awaitOwner(t, e, worker, e.self.owner)
	})
	t.Run("Pod changes before the second request", func(t *testing.T) {
		a, e, worker, _ := newOrphan(t)
		a.AddField("futureField")
		var changed atomic.Bool
		a.Inject(func(r kubetest.Request) *kubetest.Fault {
			if r.Verb == "update" && !changed.Swap(true) {
				a.Change(testNamespace, worker, func(p *corev1.Pod) { p.Status.Message = "changed" })
			}
			return nil
		})
		wantAdopted(t, e, "job-1")
		for _, pod := range a.Pods(testNamespace) {
			if pod.Name == worker && pod.Status.Message != "changed" {
				t.Error("the update has overwritten a change of the Pod")
			}
		}
	})
	t.Run("update that is refused for another reason", func(t *testing.T) {
		a, e, worker, before := newOrphan(t)
		a.Inject(failAll("update", kubetest.Fault{Status: http.StatusUnprocessableEntity, Message: "not with me"}))
		if got, err := adopt(t, e); err == nil || !strings.Contains(err.Error(), "not with me") || len(got) > 0 {
			t.Errorf("adopted %v, %v, want the error of the API server", got, err)
		}
		awaitOwner(t, e, worker, before)
	})
}

// TestSendLaterLines starts a job. After its handoff has arrived, a problem adds a line to
// step 0, and a new handoff with this line cannot be sent.
func TestSendLaterLines(t *testing.T) {
	for name, fault := range map[string]kubetest.Fault{
		"broken connection": {},
		"request hangs":     {Hang: time.Hour},
		"right is missing": {
			Status: http.StatusForbidden, Message: `pods is forbidden: User "u" cannot update resource "pods"`,
		},
		"invalid object":          {Status: http.StatusUnprocessableEntity, Message: "invalid"},
		"conflict at each update": {Status: http.StatusConflict},
	} {
		simulate(t, name, sleepJob, func(s *simulated) {
			s.before(MainContainer, func(pod *corev1.Pod) {
				time.Sleep(10 * time.Second)
				s.Inject(failAll("update", fault))
				s.Change(pod.Namespace, pod.Name, mainWaits("ErrImagePull", "registry is away"))
				time.Sleep(10 * time.Second)
			})
			s.add("one")
			s.wait(20 * time.Minute)
			s.Inject(nil)
			s.wantSuccess("one")
		})
	}
}

// TestStartOutageAfterHandoff starts an outage during the image pull of a job. The outage
// is longer than the start timeout.
func TestStartOutageAfterHandoff(t *testing.T) {
	outage := func(s *simulated) {
		s.add("one")
		s.wait(30 * time.Second)
		s.Inject(apiDown)
		s.DropWatches()
		s.wait(20 * time.Minute)
		s.Inject(nil)
		s.wait(15 * time.Minute)
	}
	for name, length := range map[string]time.Duration{
		"job ends during the outage": 5 * time.Minute, "job ends after the outage": 25 * time.Minute,
	} {
		work := func(*simulated, string) { time.Sleep(length) }
		simulate(t, name, work, func(s *simulated) {
			s.before(MainContainer, func(*corev1.Pod) { time.Sleep(time.Minute) })
			outage(s)
			s.wantSuccess("one")
		})
	}
	simulate(t, "job does not start", sleepJob, func(s *simulated) {
		s.kubelet.Hold = held(initIs(prepared(s.t)), mainWaits("ErrImagePull", "registry is away"))
		outage(s)
		s.wantLine("one", "ErrImagePull: registry is away (waited for 10m0s)")
		s.wantNoPods(s.t)
	})
}

// TestCreatePackedFaults starts jobs whose handoff is created before the Pod. After that,
// the agent must add no line to step 0, because the runner continues the log from the line
// that the handoff states.
func TestCreatePackedFaults(t *testing.T) {
	for name, c := range map[string]struct {
		resource string
		fault    kubetest.Fault
	}{
		"Pod that cannot be created yet":       {pods, kubetest.Fault{Status: http.StatusServiceUnavailable}},
		"credentials that are replaced":        {secrets, kubetest.Fault{Status: http.StatusUnauthorized}},
		"right that is not known yet":          {secrets, refusedSecrets},
		"object that cannot be created yet":    {secrets, kubetest.Fault{Status: http.StatusServiceUnavailable}},
		"object whose create response is lost": {secrets, kubetest.Fault{After: true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newFakeCluster(t, succeed)
			var met atomic.Bool
			s.Inject(func(r kubetest.Request) *kubetest.Fault {
				if r.Verb != "create" || r.Resource != c.resource || met.Swap(true) {
					return nil
				}
				return &c.fault
			})
			e, job := s.executor(t), s.job("job-1")
			job.Tuning.Instance.Kubernetes.Handoff = handoffSecret
			id, log, err := s.start(t, e, job)
			if err != nil || !met.Load() {
				t.Fatalf("got %v; fault injected: %v", err, met.Load())
			}
			packed := s.Objects(secrets, testNamespace)[0].(*corev1.Secret).Data[handoff.PackedFile]
			text, err := handoff.Unpack(senderOf(&s.Pods(testNamespace)[0]), packed)
			if err != nil {
				t.Fatal(err)
			}
			h, err := runtime.ReadHandoff(strings.NewReader(string(text)))
			if err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(log, "\n"); n != h.SetupLines {
				t.Errorf("the runner continues at line %d, but step 0 has %d lines:\n%s", h.SetupLines, n, log)
			}
			if err := e.Remove(t.Context(), id, 0); err != nil {
				t.Error(err)
			}
			s.wantNoPods(t)
		})
	}
}
