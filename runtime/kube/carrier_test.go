package kube

import (
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/cmwa-project/cmwa/runtime/kube/kubetest"
)

func TestSend(t *testing.T) {
	t.Run("backs off during an outage after a conflict", func(t *testing.T) {
		simulate(t, func(*simulated, string) {}, func(s *simulated) {
			var mu sync.Mutex
			updates := 0
			s.Inject(func(r kubetest.Request) *kubetest.Fault {
				mu.Lock()
				defer mu.Unlock()
				switch {
				case r.Verb != "update":
					return nil
				case updates < 2:
					updates++
					return &kubetest.Fault{Status: http.StatusConflict}
				}
				updates++
				return &kubetest.Fault{Status: http.StatusServiceUnavailable}
			})
			s.add("job-1")
			s.wait(time.Minute)
			s.Inject(nil)
			s.wait(time.Minute)
			if updates > 20 {
				t.Errorf("got %d updates in two minutes, want at most 20", updates)
			}
			s.wantSuccess("job-1")
		})
	})
}

func TestCreateObjectFaults(t *testing.T) {
	refused := kubetest.Fault{
		Status: http.StatusForbidden, Message: `secrets is forbidden: User "u" cannot create resource "secrets"`,
	}
	t.Run("rights are not loaded yet", func(t *testing.T) {
		for name, fault := range map[string]kubetest.Fault{
			"a Role": refused, "a token": {Status: http.StatusUnauthorized, Message: "Unauthorized"},
		} {
			s := newFakeCluster(t, succeed)
			create := failFirst(1, "create", fault)
			s.Inject(func(r kubetest.Request) *kubetest.Fault {
				if r.Resource != secrets {
					return nil
				}
				return create(r)
			})
			e, job := s.executor(t), s.job("job-1")
			job.Tuning.Instance.Kubernetes.Handoff = handoffSecret
			s.kubelet.Hold = func(*corev1.Pod) *corev1.PodStatus { return &podWith().Status }
			job.Tuning.Instance.Kubernetes.StartTimeout = 2 * time.Second
			if _, log, err := s.start(t, e, job); err == nil || !strings.Contains(log, "Pod created") {
				t.Errorf("%s: got %v, want an error after the Pod was created; log of step 0:\n%s", name, err, log)
			}
		}
	})
	t.Run("retried deletion leaves no object", func(t *testing.T) {
		s := newFakeCluster(t, succeed)
		remove := failFirst(1, "delete", kubetest.Fault{Status: http.StatusInternalServerError})
		s.Inject(func(r kubetest.Request) *kubetest.Fault {
			switch {
			case r.Verb == "create" && r.Resource == pods:
				return &kubetest.Fault{Status: http.StatusUnprocessableEntity, Message: "invalid"}
			case r.Resource == secrets:
				return remove(r)
			}
			return nil
		})
		e, job := s.executor(t), s.job("job-1")
		job.Tuning.Instance.Kubernetes.Handoff = handoffSecret
		if _, _, err := s.start(t, e, job); err == nil {
			t.Error("the job started")
		}
		if left := s.Objects(secrets, testNamespace); len(left) > 0 {
			t.Errorf("got leftover object %s, which other users can read", left[0].GetName())
		}
	})
}
