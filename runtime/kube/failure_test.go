package kube

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/handoff"
)

// podWith returns a Pod as the API server returns it: the Pod is scheduled, and its
// containers have the normal states of a start. Then the changes are applied to it.
func podWith(changes ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "u"},
		Spec: corev1.PodSpec{
			NodeName: "n", InitContainers: []corev1.Container{{Name: prepareContainer}},
			Containers: []corev1.Container{{Name: MainContainer, Image: "image"}},
		},
		Status: corev1.PodStatus{
			Phase:                 corev1.PodPending,
			InitContainerStatuses: []corev1.ContainerStatus{waits(prepareContainer, "PodInitializing", "")},
			ContainerStatuses:     []corev1.ContainerStatus{waits(MainContainer, "PodInitializing", "")},
		},
	}
	for _, change := range changes {
		change(pod)
	}
	return pod
}

func waits(name, reason, message string) corev1.ContainerStatus {
	return corev1.ContainerStatus{Name: name, State: corev1.ContainerState{
		Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message},
	}}
}

func ends(name string, code int32, reason, message string) corev1.ContainerStatus {
	return corev1.ContainerStatus{Name: name, State: corev1.ContainerState{
		Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: reason, Message: message},
	}}
}

func runs(name string) corev1.ContainerStatus {
	return corev1.ContainerStatus{Name: name, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}
}

func initIs(status corev1.ContainerStatus) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Status.InitContainerStatuses[0] = status }
}

func mainIs(status corev1.ContainerStatus) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Status.ContainerStatuses[0] = status }
}

func mainWaits(reason, message string) func(*corev1.Pod) {
	return mainIs(waits(MainContainer, reason, message))
}

func mainEnds(code int32, reason, message string) func(*corev1.Pod) {
	return mainIs(ends(MainContainer, code, reason, message))
}

func phase(phase corev1.PodPhase, reason, message string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Status.Phase, p.Status.Reason, p.Status.Message = phase, reason, message }
}

func condition(kind corev1.PodConditionType, status corev1.ConditionStatus, reason, message string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.Conditions = append(p.Status.Conditions,
			corev1.PodCondition{Type: kind, Status: status, Reason: reason, Message: message})
	}
}

func disrupted(reason, message string) func(*corev1.Pod) {
	return condition(corev1.DisruptionTarget, corev1.ConditionTrue, reason, message)
}

func deleted(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.Now()) }

// withoutStatuses changes a Pod to one that no kubelet has accepted.
func withoutStatuses(p *corev1.Pod) {
	p.Spec.NodeName, p.Status.InitContainerStatuses, p.Status.ContainerStatuses = "", nil, nil
}

// prepared returns the status of an init container that has reported a key.
func prepared(t *testing.T) corev1.ContainerStatus {
	t.Helper()
	_, public, err := handoff.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	return ends(prepareContainer, 0, "Completed", public)
}

func TestDiagnose(t *testing.T) {
	ready := initIs(prepared(t))
	const notPulled = `Back-off pulling image "x:1": ErrImagePull: dial tcp: connection refused`
	for name, c := range map[string]struct {
		pod   *corev1.Pod
		want  outlook
		image bool // want imageFault
		text  string
	}{
		"just created":              {podWith(withoutStatuses), pending, false, "see its events"},
		"init container runs":       {podWith(initIs(runs(prepareContainer))), pending, false, ""},
		"main container is created": {podWith(ready), pending, false, ""},
		"registry unreachable": {podWith(ready, mainWaits("ErrImagePull", "dial tcp: connection refused")),
			transient, true, "ErrImagePull: dial tcp"},
		"registry unreachable, back-off": {podWith(ready, mainWaits("ImagePullBackOff", notPulled)),
			transient, true, "ImagePullBackOff: Back-off"},
		"registry has no such image": {
			podWith(ready, mainWaits("ErrImagePull", `rpc error: code = NotFound desc = failed to pull and unpack `+
				`image "localhost:5000/none:1": failed to resolve reference "localhost:5000/none:1": not found`)),
			stuck, true, "code = NotFound",
		},
		"registry has no such image, back-off": {
			podWith(ready, mainWaits("ImagePullBackOff", `Back-off pulling image "x:1": ErrImagePull: `+
				`manifest unknown`)),
			stuck, true, "manifest unknown",
		},
		"registry refuses the credentials": {
			podWith(ready, mainWaits("ErrImagePull", "pull access denied, repository does not exist or may require "+
				"authorization: server message: insufficient_scope: authorization failed")),
			stuck, true, "pull access denied",
		},
		"registry needs credentials": {
			podWith(ready, mainWaits("ErrImagePull", "failed to authorize: failed to fetch anonymous token: "+
				"unexpected status: 401 Unauthorized")),
			stuck, true, "401 Unauthorized",
		},
		"image of another architecture": {
			podWith(ready, mainWaits("ErrImagePull", "no match for platform in manifest: not found")),
			stuck, true, "no match for platform",
		},
		"image of the agent that the registry does not have": {
			podWith(initIs(waits(prepareContainer, "ErrImagePull", "manifest unknown"))), stuck, false,
			"container pulumi-workflow-prepare: manifest unknown",
		},
		"too many pulls": {
			podWith(ready, mainWaits("ErrImagePull", "429 Too Many Requests - Server message: toomanyrequests: "+
				"You have reached your pull rate limit")),
			transient, true, "rate limit",
		},
		"registry without an address": {
			podWith(ready, mainWaits("ErrImagePull", "dial tcp: lookup registry.example.com: no such host")),
			transient, true, "no such host",
		},
		"registry that fails": {
			podWith(ready, mainWaits("ErrImagePull", "unexpected status from HEAD request: 503 Service Unavailable")),
			transient, true, "503",
		},
		"node that cannot write the image": {
			podWith(ready, mainWaits("ErrImagePull", "write /var/lib/containerd/x: permission denied")),
			transient, true, "permission denied",
		},
		"pull policy Never, no image": {
			podWith(ready, mainWaits("ErrImageNeverPull", `Container image "x" is not present`)),
			stuck, true, "ErrImageNeverPull: Container image",
		},
		"invalid image name": {
			podWith(ready, mainWaits("InvalidImageName", "repository name (Case) must be lowercase")),
			stuck, true, "must be lowercase",
		},
		"invalid image name, init container": {
			podWith(initIs(waits(prepareContainer, "InvalidImageName", "must be lowercase"))), stuck, false,
			"container pulumi-workflow-prepare: must be lowercase",
		},
		"ConfigMap in env missing": {
			podWith(ready, mainWaits("CreateContainerConfigError", `configmap "none" not found`)),
			stuck, false, `configmap "none" not found`,
		},
		"missing volume, or sandbox that cannot start": {podWith(mainWaits("ContainerCreating", "")),
			pending, false, "see its events"},
		"container that the runtime cannot create": {
			podWith(ready, mainWaits("CreateContainerError", `failed to mkdir ""`)), stuck, false, "failed to mkdir",
		},
		"RunContainerError": {podWith(ready, mainWaits("RunContainerError", "context deadline exceeded")),
			stuck, false, "RunContainerError: context"},
		"too little cpu": {
			podWith(withoutStatuses,
				condition(corev1.PodScheduled, corev1.ConditionFalse, "Unschedulable",
					"0/1 nodes are available: 1 Insufficient cpu.")),
			transient, false, "Unschedulable: 0/1 nodes",
		},
		"rejected by the kubelet": {
			podWith(withoutStatuses,
				phase(corev1.PodFailed, "OutOfcpu", "Pod was rejected: Node didn't have enough resource: cpu")),
			failed, false, "OutOfcpu: Pod was rejected",
		},
		"command not found": {podWith(ready, mainEnds(128, "StartError", `exec: "/nope": no such file`)),
			failed, true, "StartError: exec"},
		"command not found, init container": {
			podWith(initIs(ends(prepareContainer, 128, "StartError", `exec: "/nope": no such file`))), failed, false,
			"pulumi-workflow-prepare failed: StartError, exit code 128",
		},
		"init container exits 3": {
			podWith(initIs(ends(prepareContainer, 3, "Error", "no space left")), phase(corev1.PodFailed, "", "")),
			failed, false, "failed: exit code 3: no space left",
		},
		"init container of another image": {podWith(initIs(ends(prepareContainer, 0, "Completed", ""))),
			failed, false, "reported no key"},
		"evicted": {
			podWith(ready,
				phase(corev1.PodFailed, "Evicted",
					"Pod ephemeral local storage usage exceeds the total limit of containers 10Mi. ")),
			failed, false, "Evicted: Pod ephemeral",
		},
		"deadline while an image is pulled": {
			podWith(phase(corev1.PodFailed, "DeadlineExceeded",
				"Pod was active on the node longer than the specified deadline")),
			failed, false, "DeadlineExceeded",
		},
		"deleted by another client": {podWith(ready, deleted), failed, false, deletedText},
		"Eviction API": {podWith(ready, deleted, disrupted("EvictionByEvictionAPI", "Eviction API: evicting")),
			failed, false, "EvictionByEvictionAPI"},
		"preemption": {
			podWith(ready, deleted, disrupted("PreemptionByScheduler",
				"default-scheduler: preempting to accommodate a higher priority pod")),
			failed, false, "PreemptionByScheduler: default-scheduler",
		},
		"node lost": {podWith(ready, phase(corev1.PodPending, "NodeLost", "Node n is lost")),
			transient, false, "NodeLost: Node n"},
		"an unknown reason": {podWith(ready, mainWaits("Frozen", "brr")), transient, false, "Frozen: brr"},
	} {
		t.Run(name, func(t *testing.T) {
			d := diagnose(stateOf(c.pod))
			if d.outlook != c.want || d.imageFault != c.image || !strings.Contains(d.String(), c.text) {
				t.Errorf("got outlook %d, image fault %v, %q; want %d, %v, %q", d.outlook, d.imageFault, d,
					c.want, c.image, c.text)
			}
		})
	}
	t.Run("init container of a template cannot start", func(t *testing.T) {
		pod := podWith(ready)
		pod.Status.InitContainerStatuses = append(pod.Status.InitContainerStatuses,
			waits("tools", "ErrImageNeverPull", "no image"))
		if d := diagnose(stateOf(pod)); d.outlook != stuck || d.imageFault ||
			d.String() != "ErrImageNeverPull: container tools: no image" {
			t.Errorf("got %+v: %s", d, d)
		}
	})
}

func TestExitOf(t *testing.T) {
	running := phase(corev1.PodRunning, "", "")
	evicted := phase(corev1.PodFailed, "Evicted", "too much")
	overdue := phase(corev1.PodFailed, "DeadlineExceeded", "Pod was active")
	preempted := disrupted("PreemptionByScheduler", "preempting")
	limited := func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: {}}
	}
	exits := func(code int32) func(*corev1.Pod) { return mainEnds(code, "Error", "") }
	for name, c := range map[string]struct {
		pod    *corev1.Pod
		code   int
		reason string
	}{
		"success":              {podWith(running, mainEnds(0, "Completed", "")), 0, ""},
		"failed step":          {podWith(running, mainEnds(10, "Error", "log")), 10, ""},
		"failed step, evicted": {podWith(evicted, exits(10)), 10, "Evicted: too much"},
		"failed step, preempted": {podWith(running, deleted, preempted, exits(12)),
			12, "PreemptionByScheduler: preempting"},
		"failed step of a deleted Pod, such as one that the agent stopped": {podWith(running, deleted, exits(10)),
			10, ""},
		"success, deleted":            {podWith(running, deleted, mainEnds(0, "Completed", "")), 0, ""},
		"child process out of memory": {podWith(running, mainEnds(10, "OOMKilled", "")), 10, ""},
		"out of memory":               {podWith(running, mainEnds(137, "OOMKilled", "")), 137, "out of memory"},
		"out of memory without reason": {podWith(running, limited, exits(137)),
			137, "killed, probably because memory ran out"},
		"killed": {podWith(running, exits(137)), 137, "killed"},
		"another architecture": {podWith(running, mainEnds(1, "Error", "exec /x: exec format error\n")),
			1, "exec /x: exec format error"},
		"runner with a message": {podWith(running, mainEnds(13, "Error", "{\"step\":0}\nlevel=ERROR msg=x\n")),
			13, "level=ERROR msg=x"},
		"evicted": {podWith(evicted, exits(2)), 2, "Evicted: too much"},
		"evicted, and the runner could not report": {podWith(evicted, exits(12)),
			12, "Evicted: too much"},
		"failed on a lost node": {podWith(phase(corev1.PodRunning, "NodeLost", "n"), exits(10)), 10, ""},
		"deadline exceeded":     {podWith(overdue, exits(137)), 137, "DeadlineExceeded: Pod was active"},
		"node reports again after a deletion": {podWith(running, deleted, exits(143)),
			143, deletedText},
		"preempted": {podWith(running, deleted, preempted, exits(143)), 143, "PreemptionByScheduler: preempting"},
		"container status unknown": {
			podWith(overdue, mainEnds(137, "ContainerStatusUnknown", "The container could not be located")),
			runtime.CodeUnknown, "DeadlineExceeded: Pod was active",
		},
		"rejected by the kubelet": {podWith(withoutStatuses, phase(corev1.PodFailed, "OutOfcpu", "rejected")),
			runtime.CodeUnknown, "OutOfcpu: rejected"},
		"ended by a signal": {podWith(running, exits(139)), 139, "ended by signal 11 (segmentation fault)"},
	} {
		t.Run(name, func(t *testing.T) {
			if got, want := exitOf(stateOf(c.pod)), (runtime.Exit{Code: c.code, Reason: c.reason}); got != want {
				t.Errorf("got %+v, want %+v", got, want)
			}
		})
	}
}

func TestStateOf(t *testing.T) {
	t.Run("distinguishes a lost node from a container that is not ready", func(t *testing.T) {
		running := phase(corev1.PodRunning, "", "")
		ready := func(pod, containers corev1.ConditionStatus) bool {
			return stateOf(podWith(running, mainIs(runs(MainContainer)),
				condition(corev1.PodReady, pod, "", ""),
				condition(corev1.ContainersReady, containers, "", ""))).nodeLost
		}
		if ready(corev1.ConditionTrue, corev1.ConditionTrue) || ready(corev1.ConditionFalse, corev1.ConditionFalse) {
			t.Error("got a lost node, want a node that reports")
		}
		if !ready(corev1.ConditionFalse, corev1.ConditionTrue) {
			t.Error("got a node that reports, want a lost node")
		}
	})
	t.Run("readiness gates do not hide the loss of a node", func(t *testing.T) {
		const gate = "example.com/ready"
		lost := func(passed corev1.ConditionStatus) bool {
			pod := podWith(phase(corev1.PodRunning, "", ""), mainIs(runs(MainContainer)),
				condition(corev1.PodReady, corev1.ConditionFalse, "", ""),
				condition(corev1.ContainersReady, corev1.ConditionTrue, "", ""), condition(gate, passed, "", ""))
			pod.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: gate}}
			return stateOf(reduced(pod)).nodeLost
		}
		if !lost(corev1.ConditionTrue) {
			t.Error("got a node that reports, although all gates have passed and the Pod is not ready")
		}
		if lost(corev1.ConditionFalse) || lost(corev1.ConditionUnknown) {
			t.Error("got a lost node, although the Pod is not ready because of its gate")
		}
	})
	t.Run("the job's container is found by its name", func(t *testing.T) {
		proxy := corev1.Container{Name: "proxy", Image: "proxy:1", Resources: corev1.ResourceRequirements{
			Limits: corev1.ResourceList{corev1.ResourceMemory: {}},
		}}
		pod := podWith(mainEnds(137, "Error", ""), phase(corev1.PodRunning, "", ""))
		pod.Spec.Containers = append([]corev1.Container{proxy}, pod.Spec.Containers...)
		pod.Status.ContainerStatuses = append([]corev1.ContainerStatus{runs("proxy")}, pod.Status.ContainerStatuses...)
		s := stateOf(reduced(pod))
		if s.image != "image" || s.memoryLimited || exitOf(s).Reason != "killed" {
			t.Errorf("image %s, memory limit %v, %+v; want those of the job's container", s.image, s.memoryLimited,
				exitOf(s))
		}
	})
	t.Run("a reduced Pod has the same state", func(t *testing.T) {
		pod := podWith(initIs(prepared(t)), deleted, phase(corev1.PodRunning, "r", "m"), mainIs(runs(MainContainer)),
			condition(corev1.PodReady, corev1.ConditionFalse, "", ""),
			condition(corev1.ContainersReady, corev1.ConditionTrue, "", ""))
		pod.Labels, pod.ResourceVersion = map[string]string{labelKeep: keepFailed}, "7"
		pod.Spec.TerminationGracePeriodSeconds = new(int64(70))
		if whole, small := stateOf(pod), stateOf(reduced(pod)); *whole != *small {
			t.Errorf("got %+v, want %+v", small, whole)
		}
	})
}
