package kube

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/handoff"
	"github.com/cmwa-project/cmwa/runtime/kube/kubetest"
)

// pulls makes each job's container wait for its image, as long as a pull takes.
func (s *simulated) pulls(pull func(pod *corev1.Pod)) {
	s.kubelet.Before = func(pod *corev1.Pod, c corev1.Container) {
		if c.Name == mainContainer {
			pull(pod)
		}
	}
}

// TestSendOfLaterLines starts a job whose handoff has arrived before there is trouble,
// and cannot be replaced by one with the line about it.
func TestSendOfLaterLines(t *testing.T) {
	for name, fault := range map[string]kubetest.Fault{
		"no answer":           {},
		"a call that hangs":   {Hang: time.Hour},
		"a refusal":           {Status: http.StatusForbidden, Message: `pods is forbidden: User "u" cannot update resource "pods"`},
		"an invalid object":   {Status: http.StatusUnprocessableEntity, Message: "invalid"},
		"conflict after each": {Status: http.StatusConflict},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			simulate(t, sleeping, func(s *simulated) {
				s.pulls(func(pod *corev1.Pod) {
					time.Sleep(10 * time.Second)
					s.Inject(func(r kubetest.Request) *kubetest.Fault {
						if r.Verb != "update" {
							return nil
						}
						return &fault
					})
					s.Change(pod.Namespace, pod.Name, mainIs(waits(mainContainer, "ErrImagePull", "registry is away")))
					time.Sleep(10 * time.Second)
				})
				s.add("one")
				s.wait(20 * time.Minute)
				s.Inject(nil)
				s.wantSuccess("one")
			})
		})
	}
}

// TestOutageAfterTheHandoff begins an outage while the image of a job is pulled, which
// lasts longer than a start may take.
func TestOutageAfterTheHandoff(t *testing.T) {
	outage := func(s *simulated) {
		s.add("one")
		s.wait(30 * time.Second)
		s.Inject(down)
		s.DropWatches()
		s.wait(20 * time.Minute)
		s.Inject(nil)
		s.wait(15 * time.Minute)
	}
	t.Run("job that runs meanwhile", func(t *testing.T) {
		t.Parallel()
		simulate(t, sleeping, func(s *simulated) {
			s.pulls(func(*corev1.Pod) { time.Sleep(time.Minute) })
			outage(s)
			s.wantSuccess("one")
		})
	})
	t.Run("job that runs longer", func(t *testing.T) {
		t.Parallel()
		simulate(t, func(*simulated, string) { time.Sleep(25 * time.Minute) }, func(s *simulated) {
			s.pulls(func(*corev1.Pod) { time.Sleep(time.Minute) })
			outage(s)
			s.wantSuccess("one")
		})
	})
	t.Run("job that does not start", func(t *testing.T) {
		t.Parallel()
		simulate(t, sleeping, func(s *simulated) {
			_, public, err := handoff.NewKey()
			if err != nil {
				t.Fatal(err)
			}
			ready := initIs(ends(prepareContainer, 0, "Completed", public))
			pulls := mainIs(waits(mainContainer, "ErrImagePull", "registry is away"))
			s.kubelet.Hold = func(*corev1.Pod) *corev1.PodStatus { return &seenPod(ready, pulls).Status }
			outage(s)
			s.wantLine("one", "ErrImagePull: registry is away (waited for 10m0s)")
			s.none(t)
		})
	})
}

// TestFaultsOfAHandoffInAnObject starts jobs whose handoff is made before the Pod: the
// lines that come after it belong to the runner.
func TestFaultsOfAHandoffInAnObject(t *testing.T) {
	for name, c := range map[string]struct {
		resource string
		fault    kubetest.Fault
	}{
		"Pod that cannot be created yet":   {pods, kubetest.Fault{Status: http.StatusServiceUnavailable}},
		"credentials that are replaced":    {configMaps, kubetest.Fault{Status: http.StatusUnauthorized}},
		"right that is not known yet":      {configMaps, kubetest.Fault{Status: http.StatusForbidden, Message: `User "u" cannot create resource "configmaps"`}},
		"object that cannot be made yet":   {configMaps, kubetest.Fault{Status: http.StatusServiceUnavailable}},
		"object whose answer is lost once": {configMaps, kubetest.Fault{After: true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScripted(t, succeed)
			var met atomic.Bool
			s.Inject(func(r kubetest.Request) *kubetest.Fault {
				if r.Verb != "create" || r.Resource != c.resource || met.Swap(true) {
					return nil
				}
				return &c.fault
			})
			e, job := s.executor(t), s.job("job-1")
			job.Tuning.Place.Kubernetes.Handoff = handoffConfigMap
			id, log, err := s.start(t, e, job)
			if err != nil || !met.Load() {
				t.Fatalf("got %v; the fault was met: %v", err, met.Load())
			}
			packed := s.Objects(configMaps, testNamespace)[0].(*corev1.ConfigMap).BinaryData[handoff.PackedFile]
			text, err := handoff.Unpack(packed)
			if err != nil {
				t.Fatal(err)
			}
			h, err := runtime.ReadHandover(strings.NewReader(string(text)))
			if err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(log, "\n"); n != h.SetupLines {
				t.Errorf("the runner continues at line %d, and step 0 has %d lines:\n%s", h.SetupLines, n, log)
			}
			if err := e.Remove(t.Context(), id, 0); err != nil {
				t.Error(err)
			}
			s.none(t)
		})
	}
}
