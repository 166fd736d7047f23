package kube

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/cmwa-project/cmwa/runtime/kube/kubetest"
)

// sleepJob is a job that takes five minutes.
func sleepJob(*simulated, string) { time.Sleep(5 * time.Minute) }

// pod returns the only Pod.
func (s *simulated) pod() *corev1.Pod {
	s.t.Helper()
	pods := s.Pods(testNamespace)
	if len(pods) != 1 {
		s.t.Fatalf("there are %d Pods, want 1", len(pods))
	}
	return &pods[0]
}

func TestObserverStaleAnswers(t *testing.T) {
	for name, scenario := range map[string]func(s *simulated){
		"list lacks a starting Pod": func(s *simulated) {
			s.kubelet.Before = func(*corev1.Pod, corev1.Container) { time.Sleep(time.Minute) }
			empty := s.Snapshot()
			s.add("one")
			s.wait(30 * time.Second)
			s.Show(empty)
			s.Compact()
			s.DropWatches()
			s.wait(5 * time.Minute)
			s.Show(nil)
		},
		"list lacks a running Pod": func(s *simulated) {
			empty := s.Snapshot()
			s.add("one")
			s.wait(time.Minute)
			s.Show(empty)
			s.Compact()
			s.DropWatches()
			s.wait(time.Minute)
			s.Show(nil)
		},
		"event of a deletion that did not happen": func(s *simulated) {
			s.add("one")
			s.wait(time.Minute)
			s.Send(watch.Deleted, s.pod())
			s.wait(time.Minute)
			s.Change(testNamespace, s.pod().Name, func(p *corev1.Pod) { p.Annotations["touched"] = "yes" })
		},
		"running Pod is shown as pending": func(s *simulated) {
			s.kubelet.Before = func(*corev1.Pod, corev1.Container) { time.Sleep(time.Minute) }
			s.add("one")
			s.wait(30 * time.Second)
			pending, earlier := s.pod(), s.Snapshot()
			s.wait(2 * time.Minute)
			s.Send(watch.Modified, pending)
			s.wait(time.Minute)
			s.Show(earlier)
			s.DropWatches()
			s.wait(time.Minute)
			s.Show(nil)
		},
		"deleted Pod is shown again": func(s *simulated) {
			s.add("one")
			s.wait(time.Minute)
			running, earlier := s.pod(), s.Snapshot()
			s.wait(10 * time.Minute)
			before := s.Requests()
			s.Send(watch.Added, running)
			s.wait(time.Minute)
			s.Show(earlier)
			s.DropWatches()
			s.wait(15 * time.Minute)
			s.Show(nil)
			s.DropWatches()
			s.Compact()
			after := s.Requests()
			if after["update"] != before["update"] || after["log"] != before["log"] {
				s.t.Errorf("the agent made requests for a deleted Pod: %v before its event, %v after", before, after)
			}
		},
	} {
		simulate(t, name, sleepJob, func(s *simulated) {
			s.wait(time.Second)
			scenario(s)
			s.wait(20 * time.Minute)
			s.wantSuccess("one")
		})
	}
}

// TestExecutorFaultsByVerb injects each fault into the first requests with each verb.
func TestExecutorFaultsByVerb(t *testing.T) {
	faults := map[string]struct {
		kubetest.Fault
		times int
	}{
		"429":               {kubetest.Fault{Status: http.StatusTooManyRequests, RetryAfter: 1}, 3},
		"429 for an hour":   {kubetest.Fault{Status: http.StatusTooManyRequests, RetryAfter: 3600}, 1},
		"500":               {kubetest.Fault{Status: http.StatusInternalServerError}, 3},
		"503":               {kubetest.Fault{Status: http.StatusServiceUnavailable, RetryAfter: 1}, 2},
		"hang":              {kubetest.Fault{Hang: time.Hour}, 1},
		"broken connection": {kubetest.Fault{}, 3},
		"lost response":     {kubetest.Fault{After: true}, 1},
		"page with 404":     {kubetest.Fault{Status: 404, Page: "<html>no</html>", MediaType: "text/html"}, 3},
		"page with 403": {
			kubetest.Fault{Status: 403, Page: "<html>you cannot</html>", MediaType: "text/html"}, 3,
		},
		"page with 200": {kubetest.Fault{Status: 200, Page: "<html>hello</html>", MediaType: "text/html"}, 3},
		"invalid protobuf": {
			kubetest.Fault{Status: 200, Page: "k8s\x00\xff\xff", MediaType: "application/vnd.kubernetes.protobuf"}, 3,
		},
		"message of 1 MB": {kubetest.Fault{Status: 500, Message: strings.Repeat("long ", 200_000)}, 1},
		"gone":            {kubetest.Fault{Status: http.StatusGone}, 1},
		"401":             {kubetest.Fault{Status: http.StatusUnauthorized}, 2},
	}
	for _, verb := range []string{"create", "get", "update", "delete", "log", "watch", "list"} {
		for name, fault := range faults {
			if name == "gone" && verb != "watch" && verb != "list" {
				continue // for other verbs, this status is an error that is not retried
			}
			simulate(t, verb+"/"+name, sleepJob, func(s *simulated) {
				s.wait(time.Second)
				const job = "the-only-job"
				var met, lost atomic.Int32
				s.Inject(func(r kubetest.Request) *kubetest.Fault {
					switch {
					case r.Verb == verb && r.Resource == "pods" && int(met.Load()) < fault.times:
						met.Add(1)
						return &fault.Fault
					case verb == "get" && r.Verb == "create" && bytes.Contains(r.Body, []byte(job)) &&
						lost.Add(1) == 1:
						return &kubetest.Fault{After: true} // a get becomes necessary
					case verb == "list" && r.Verb == "watch" && met.Load() == 0: // a list becomes necessary
						return &kubetest.Fault{Status: http.StatusUnprocessableEntity}
					}
					return nil
				})
				s.Compact()
				s.DropWatches()
				s.add(job)
				s.wait(25 * time.Minute) // objects that could not be deleted are swept
				s.wantSuccess(job)
				if met.Load() == 0 {
					s.t.Errorf("got no %s request", verb)
				}
				if line := longest(s.service.Record(job).Text(0)); line > 4000 {
					s.t.Errorf("a line of step 0 has %d bytes, want at most 4000", line)
				}
			})
		}
	}
}

// longest returns the length of the longest line.
func longest(text string) (length int) {
	for line := range strings.Lines(text) {
		length = max(length, len(line))
	}
	return length
}

func TestExecutorClockSkew(t *testing.T) {
	for _, ahead := range []time.Duration{-5 * time.Hour, 5 * time.Hour} {
		simulate(t, fmt.Sprint(ahead, " ahead"), sleepJob, func(s *simulated) {
			s.SetClock(ahead)
			s.before(prepareContainer, func(*corev1.Pod) {
				time.Sleep(9 * time.Minute) // one minute less than the start timeout
			})
			for i := range 4 { // so that sweeps happen in each phase of a job
				s.add(fmt.Sprint("job-", i))
				s.wait(4 * time.Minute)
			}
			s.wait(30 * time.Minute)
			s.wantSuccess("job-0", "job-1", "job-2", "job-3")
		})
	}
}

func TestSendAfterPullError(t *testing.T) {
	simulate(t, "reasons arrive with later handoffs", sleepJob, func(s *simulated) {
		s.before(MainContainer, func(pod *corev1.Pod) {
			for _, message := range []string{"registry is away", "manifest unknown"} {
				for _, reason := range []string{"ErrImagePull", "ImagePullBackOff", "ErrImagePull"} {
					time.Sleep(10 * time.Second)
					s.Change(pod.Namespace, pod.Name, mainWaits(reason, message))
				}
			}
			time.Sleep(10 * time.Second)
		})
		s.add("one")
		s.wait(15 * time.Minute)
		s.wantSuccess("one")
		s.wantLine("one", "Waiting for the Pod to start: ErrImagePull: registry is away\n"+
			"Waiting for the Pod to start: ErrImagePull: manifest unknown\n")
	})
}

func TestNewestWarning(t *testing.T) {
	event := func(pod *corev1.Pod, kind, reason, message string, age time.Duration) corev1.Event {
		return corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{Name: reason, Namespace: pod.Namespace},
			InvolvedObject: corev1.ObjectReference{UID: pod.UID},
			Type:           kind, Reason: reason, Message: message, LastTimestamp: metav1.NewTime(time.Now().Add(-age)),
		}
	}
	// silent starts a job whose Pod stays without a reason in its status, and runs the scenario after a
	// minute. Right is whether the agent may list events.
	silent := func(name string, right bool, scenario func(s *simulated)) {
		simulate(t, name, sleepJob, func(s *simulated) {
			if right {
				s.SetEvents()
			}
			s.kubelet.Hold = held()
			s.add("one")
			s.wait(time.Minute)
			scenario(s)
		})
	}
	silent("newest warning is reported", true, func(s *simulated) {
		pod, another := s.pod(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "another"}}
		s.SetEvents(
			event(pod, corev1.EventTypeWarning, "FailedScheduling", "0/1 nodes are available", time.Hour),
			event(pod, corev1.EventTypeWarning, "FailedMount", "secret\n\"none\" not found", time.Minute),
			event(pod, corev1.EventTypeNormal, "Pulled", "image is present", time.Second),
			event(another, corev1.EventTypeWarning, "Other", "", 0),
		)
		s.wait(15 * time.Minute)
		s.wantLine("one", `Error: start the Pod: FailedMount: secret "none" not found (waited for 10m0s)`)
	})
	// The times of events have whole seconds. Their names end with the time in nanoseconds.
	silent("of two warnings in one second, the later one is reported", true, func(s *simulated) {
		first := event(s.pod(), corev1.EventTypeWarning, "FailedMount", "failed to sync the cache", time.Minute)
		second := event(s.pod(), corev1.EventTypeWarning, "FailedMount", `configmap "none" not found`, time.Minute)
		first.Name, second.Name = "one.18c36f5a2b1c3d00", "one.18c36f5a4ee7b200"
		s.SetEvents(first, second)
		s.wait(15 * time.Minute)
		s.wantLine("one", `Error: start the Pod: FailedMount: configmap "none" not found (waited for 10m0s)`)
	})
	silent("without the right to list events, one request is made", false, func(s *simulated) {
		s.add("two")
		s.wait(time.Minute)
		s.add("three")
		s.wait(16 * time.Minute)
		s.wantLine("three", "see its events (waited for 10m0s)")
		if n := s.Requests()["list events"]; n != 1 {
			s.t.Errorf("events were listed %d times, want once", n)
		}
	})
	silent("timeout of the request for events is ignored", false, func(s *simulated) {
		s.Inject(failResource("events", kubetest.Fault{Hang: time.Hour}))
		s.wait(15 * time.Minute)
		s.wantLine("one", "see its events (waited for 10m0s)")
		s.wantNoPods(s.t)
	})
}
