package kube

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/handoff"
	"github.com/cmwa-project/cmwa/runtime/kube/kubetest"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
)

// forge returns a handoff of another job, sealed to the key that the status of a Pod shows. Every user
// who may read Pods can seal it.
func forge(t testing.TB, pod *corev1.Pod) string {
	t.Helper()
	job := testJob()
	job.ID, job.Definition = "forged", runtimetest.Definition("echo forged")
	h := runtimetest.BaseHandoff(job)
	h.Version, h.JobID, h.Definition = runtime.HandoffVersion, job.ID, job.Definition.Raw
	text, err := json.Marshal(h)
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := handoff.NewSender()
	if err != nil {
		t.Fatal(err)
	}
	sealed, err := foreign.Seal(stateOf(pod).key, recipientOf(pod), text, handoff.MaxAnnotation)
	if err != nil {
		t.Error(err)
	}
	return sealed
}

// forgedObject returns the ConfigMap with the forged handoff of a Pod, as a copy of the agent's would
// look.
func forgedObject(t testing.TB, pod *corev1.Pod) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: objectOf(pod.Name), OwnerReferences: ownedBy(pod.Name, pod.UID),
		},
		Data: map[string]string{handoff.SealedFile: forge(t, pod)},
	}
}

// TestStartForgedHandoff starts jobs whose handoff another client of the cluster creates or replaces.
func TestStartForgedHandoff(t *testing.T) {
	const large = largeHandoff + 1
	isHandoff := func(r kubetest.Request, verb string) bool {
		return r.Verb == verb && r.Resource == configMaps && strings.Contains(string(r.Body), "-handoff")
	}
	start := func(t *testing.T, size int, inject func(*fakeCluster, kubetest.Request) *kubetest.Fault) (
		s *fakeCluster, e *Executor, id, log string, err error,
	) {
		s = newFakeCluster(t, succeed)
		s.Inject(func(r kubetest.Request) *kubetest.Fault { return inject(s, r) })
		e = s.executor(t)
		job := s.job("job-1")
		job.Definition.Raw = withPadding(t, job.Definition.Raw, size)
		id, log, err = s.start(t, e, job)
		return s, e, id, log, err
	}
	// wantRefused checks that the runner has opened no handoff, and its reason.
	wantRefused := func(t *testing.T, s *fakeCluster, e *Executor, id string) {
		t.Helper()
		exit := waitFor(t, e, id)
		if exit.Code != runtime.CodeUsage || len(s.handoffs()) > 0 {
			t.Errorf("got exit %+v after the handoffs %v, want the code %d and no handoff",
				exit, s.handoffs(), runtime.CodeUsage)
		}
		if want := "not signed by the agent that created this Pod"; !strings.Contains(exit.Reason, want) {
			t.Errorf("the reason of the end is %q, want %q", exit.Reason, want)
		}
	}

	t.Run("ConfigMap that exists already", func(t *testing.T) {
		s, _, _, log, err := start(t, large, func(s *fakeCluster, r kubetest.Request) *kubetest.Fault {
			if isHandoff(r, "create") {
				s.PutObject(configMaps, forgedObject(t, &s.Pods(testNamespace)[0]))
			}
			return nil
		})
		wantStartError(t, log, err, "another client of the cluster has created it", false)
		if len(s.handoffs()) > 0 {
			t.Errorf("the runner has opened %v", s.handoffs())
		}
		s.wantNoPods(t)
	})
	t.Run("ConfigMap that exists already with another owner", func(t *testing.T) {
		lost := failFirst(1, "create", kubetest.Fault{After: true})
		_, _, _, log, err := start(t, large, func(s *fakeCluster, r kubetest.Request) *kubetest.Fault {
			if !isHandoff(r, "create") {
				return nil
			}
			if created := s.Objects(configMaps, testNamespace); len(created) > 0 {
				o := created[0].(*corev1.ConfigMap).DeepCopy()
				o.OwnerReferences = nil
				s.PutObject(configMaps, o)
			}
			return lost(r)
		})
		wantStartError(t, log, err, "another client of the cluster has created it", false)
	})
	t.Run("ConfigMap whose create response is lost", func(t *testing.T) {
		lost := failFirst(1, "create", kubetest.Fault{After: true})
		s, e, id, log, err := start(t, large, func(_ *fakeCluster, r kubetest.Request) *kubetest.Fault {
			if !isHandoff(r, "create") {
				return nil
			}
			return lost(r)
		})
		if err != nil {
			t.Fatalf("start: %v\n%s", err, log)
		}
		if exit := waitFor(t, e, id); exit.Code != runtime.CodeSucceeded || len(s.handoffs()) != 1 {
			t.Errorf("got exit %+v after the handoffs %v, want success", exit, s.handoffs())
		}
	})
	t.Run("ConfigMap that is replaced", func(t *testing.T) {
		s, e, id, log, err := start(t, large, func(s *fakeCluster, r kubetest.Request) *kubetest.Fault {
			if r.Verb == "update" && r.Resource == pods {
				s.PutObject(configMaps, forgedObject(t, &s.Pods(testNamespace)[0]))
			}
			return nil
		})
		if err != nil {
			t.Fatalf("start: %v\n%s", err, log)
		}
		wantRefused(t, s, e, id)
	})
	t.Run("annotation that is replaced", func(t *testing.T) {
		s := newFakeCluster(t, succeed)
		s.before(MainContainer, func(pod *corev1.Pod) {
			for s.Pods(testNamespace)[0].Annotations[annotationHandoff] == "" && t.Context().Err() == nil {
				time.Sleep(time.Millisecond)
			}
			s.Change(testNamespace, pod.Name, func(p *corev1.Pod) { p.Annotations[annotationHandoff] = forge(t, p) })
		})
		e := s.executor(t)
		wantRefused(t, s, e, s.mustStart(t, e, s.job("job-1")))
	})
}

// TestStartForgedHandoffOnCluster replaces handoffs of a real Pod. A second init container keeps the
// job's container from starting until the kubelet has written the forged handoff into its file.
func TestStartForgedHandoffOnCluster(t *testing.T) {
	t.Parallel()
	n := onCluster(t)
	a := adminOf(t, n)
	await := func(t *testing.T, job *runtime.Job, what string, shown func(*corev1.Pod) bool) (pod *corev1.Pod) {
		await(t, what, func(ctx context.Context) (bool, error) {
			var list corev1.PodList
			err := a.get(pods).Param("labelSelector", labelJob+"="+job.ID).Do(ctx).Into(&list)
			if len(list.Items) == 0 {
				return false, err
			}
			pod = &list.Items[0]
			return shown(pod), err
		})
		return pod
	}
	put := func(resource string, o object) {
		t.Helper()
		o.SetResourceVersion("") // replaces any version
		err := a.core.Put().Namespace(n.Name).Resource(resource).Name(o.GetName()).Body(o).Do(t.Context()).Error()
		if err != nil {
			t.Error(err)
		}
	}
	hasHandoff := func(pod *corev1.Pod) bool { return pod.Annotations[annotationHandoff] != "" }
	for name, c := range map[string]struct {
		size    int
		replace func(pod *corev1.Pod, forged string)
	}{
		"annotation": {0, func(pod *corev1.Pod, forged string) {
			pod.Annotations[annotationHandoff], pod.Annotations["touched"] = forged, "yes"
			put(pods, pod)
		}},
		"ConfigMap": {largeHandoff + 1, func(pod *corev1.Pod, forged string) {
			o := forgedObject(t, pod)
			o.Data[handoff.SealedFile] = forged
			put(configMaps, o)
			pod.Annotations["touched"] = "yes" // the kubelet reads the ConfigMap at once
			put(pods, pod)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			service, job := newScriptJob(t, n.HostAddress(t), "echo the job of the user runs")
			job.Definition.Raw = withPadding(t, job.Definition.Raw, c.size)
			job.Tuning.Instance.Kubernetes.Template = []byte(`{"spec": {
				"volumes": [{"name": "seen", "downwardAPI": {"items": [
					{"path": "touched", "fieldRef": {"fieldPath": "metadata.annotations['touched']"}}]}}],
				"initContainers": [{
					"name": "wait", "image": "` + kubetest.BaseImage + `", "imagePullPolicy": "Never",
					"command": ["sh", "-c", "until [ -s /seen/touched ]; do sleep 0.1; done"],
					"volumeMounts": [{"name": "seen", "mountPath": "/seen"}]
				}],
				"containers": [{"name": "pulumi-workflow", "imagePullPolicy": "Never"}]}}`)
			service.Add(job)
			replaced := make(chan struct{})
			go func() {
				defer close(replaced)
				pod := await(t, job, "the handoff", hasHandoff)
				c.replace(pod, forge(t, pod))
			}()
			e := openExecutor(t, n)
			id, log, err := startWith(t.Context(), t, e, job, service)
			<-replaced
			if err != nil {
				t.Fatalf("start: %v\n%s", err, log)
			}
			exit := finish(t, e, id, startWait(t, e, id))
			if exit.Code != runtime.CodeUsage || !strings.Contains(exit.Reason, "not signed by the agent") {
				t.Errorf("got exit %+v, want the code %d and that the handoff is not signed", exit, runtime.CodeUsage)
			}
		})
	}
	t.Run("ConfigMap that exists already", func(t *testing.T) {
		t.Parallel()
		service, job := newScriptJob(t, n.HostAddress(t), "echo the job of the user runs")
		job.Definition.Raw = withPadding(t, job.Definition.Raw, largeHandoff+1)
		service.Add(job)
		go func() {
			pod := await(t, job, "the Pod", func(*corev1.Pod) bool { return true })
			a.add(configMaps, &corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Name: objectOf(pod.Name), OwnerReferences: ownedBy(pod.Name, pod.UID)},
				Data:       map[string]string{"other": "text"},
			})
		}()
		_, log, err := startWith(t.Context(), t, openExecutor(t, n), job, service)
		wantStartError(t, log, err, "another client of the cluster has created it", false)
		if left := podsOfJob(t, n, job); len(left) > 0 {
			t.Errorf("the Pods %v are left", left)
		}
	})
}
