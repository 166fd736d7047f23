package kube

import (
	"slices"
	"time"
	"unique"

	corev1 "k8s.io/api/core/v1"

	"github.com/cmwa-project/cmwa/runtime/handoff"
)

// state is what the executor keeps of a Pod. A Pod as the API server sends it takes
// 14 kB of memory, of which a third is the managed fields; this takes less than one.
type state struct {
	name, uid string
	keep      string                // value of labelKeep
	pool      unique.Handle[string] // key of the job's pool
	owner     unique.Handle[owner]
	carrier   string    // resource of the object that carries the handoff; empty if none does
	node      string    // empty until the Pod is assigned to one
	deleted   time.Time // deletionTimestamp: when the Pod should be gone; zero is not deleted
	began     time.Time // status.startTime; zero until the kubelet has seen the Pod

	phase           corev1.PodPhase
	reason, message string // of the status as a whole, such as Evicted

	unscheduled trouble // PodScheduled=False
	disruption  trouble // DisruptionTarget=True
	nodeLost    bool    // Ready=False although all containers are ready: the node does not report

	key     string    // public key that the init container has reported
	prepare container // the init container of the agent
	main    container // the job's container
	other   trouble   // the first of a template's containers that keeps the job's from starting
	image   string    // of the job's container
	limited bool      // the job's container has a memory limit
	alone   bool      // no other container runs beside the job's
}

// trouble is a reason with its message, as Kubernetes reports them.
type trouble struct{ reason, message string }

// none reports whether there is no trouble.
func (t trouble) none() bool { return t == trouble{} }

// container is the state of one container.
type container struct {
	waiting trouble // while it waits; the reason ContainerCreating or PodInitializing is the normal case
	running bool
	ended   bool
	code    int       // if ended
	why     trouble   // if ended
	started time.Time // if it has ever run
	at      time.Time // of the end
}

// stateOf returns what the executor keeps of a Pod.
func stateOf(pod *corev1.Pod) *state {
	s := &state{
		name: pod.Name, uid: string(pod.UID), keep: pod.Labels[labelKeep], carrier: carrierOf(pod),
		node: pod.Spec.NodeName, pool: unique.Make(poolOf(pod).Key()), owner: unique.Make(ownerOf(pod)),
		phase: pod.Status.Phase, reason: beginning(pod.Status.Reason), message: beginning(pod.Status.Message),
	}
	if pod.DeletionTimestamp != nil {
		s.deleted = pod.DeletionTimestamp.Time
	}
	if pod.Status.StartTime != nil {
		s.began = pod.Status.StartTime.Time
	}
	s.conditions(pod)
	s.containers(pod)
	return s
}

// conditions reads the conditions of a Pod's status.
func (s *state) conditions(pod *corev1.Pod) {
	ready, containersReady := corev1.ConditionUnknown, corev1.ConditionUnknown
	for _, c := range pod.Status.Conditions {
		switch c.Type {
		case corev1.PodScheduled:
			if c.Status == corev1.ConditionFalse {
				s.unscheduled = trouble{beginning(c.Reason), beginning(c.Message)}
			}
		case corev1.DisruptionTarget:
			if c.Status == corev1.ConditionTrue {
				s.disruption = trouble{beginning(c.Reason), beginning(c.Message)}
			}
		case corev1.PodReady:
			ready = c.Status
		case corev1.ContainersReady:
			containersReady = c.Status
		}
	}
	// The node controller sets Ready of a lost node's Pods to False, and nothing
	// else. A kubelet that reports sets both, unless there are readiness gates.
	s.nodeLost = ready == corev1.ConditionFalse && containersReady == corev1.ConditionTrue &&
		len(pod.Spec.ReadinessGates) == 0 && pod.Status.Phase == corev1.PodRunning
}

// containers reads the states of a Pod's containers.
func (s *state) containers(pod *corev1.Pod) {
	if len(pod.Spec.Containers) > 0 {
		s.image = pod.Spec.Containers[0].Image
		_, s.limited = pod.Spec.Containers[0].Resources.Limits[corev1.ResourceMemory]
	}
	sidecar := func(c corev1.Container) bool { return c.RestartPolicy != nil }
	s.alone = len(pod.Spec.Containers) == 1 && !slices.ContainsFunc(pod.Spec.InitContainers, sidecar)
	for _, c := range pod.Status.InitContainerStatuses {
		one := containerOf(c)
		if c.Name != prepareContainer {
			s.see(c.Name, one, true)
			continue
		}
		s.prepare = one
		if one.ended && one.code == 0 && handoff.IsKey(c.State.Terminated.Message) {
			s.key = c.State.Terminated.Message
		}
	}
	for _, c := range pod.Status.ContainerStatuses {
		one := containerOf(c)
		if c.Name == mainContainer {
			s.main = one
			continue
		}
		s.see(c.Name, one, false)
	}
}

// see remembers the first container of a template that cannot start. The end of a
// sidecar is ignored, and so is that of an init container that succeeded.
func (s *state) see(name string, c container, init bool) {
	switch {
	case !s.other.none():
	case !c.waiting.none() && !normal(c.waiting.reason):
		s.other = trouble{c.waiting.reason, "container " + name + ": " + c.waiting.message}
	case init && c.ended && c.code != 0:
		s.other = trouble{c.why.reason, "container " + name + " failed: " + c.ending()}
	}
}

// normal reports whether a waiting container is just being made.
func normal(reason string) bool {
	return reason == "" || reason == "ContainerCreating" || reason == "PodInitializing"
}

// containerOf returns what the executor keeps of a container.
func containerOf(c corev1.ContainerStatus) (one container) {
	switch {
	case c.State.Running != nil:
		one.running, one.started = true, c.State.Running.StartedAt.Time
	case c.State.Terminated != nil:
		end := c.State.Terminated
		one.ended, one.code = true, int(end.ExitCode)
		one.why = trouble{beginning(end.Reason), shortened(end.Message)}
		one.started, one.at = end.StartedAt.Time, end.FinishedAt.Time
	case c.State.Waiting != nil:
		one.waiting = trouble{beginning(c.State.Waiting.Reason), shortened(c.State.Waiting.Message)}
	}
	return one
}

// started reports whether the job's container has run. One whose program could not
// be executed has not.
func (s *state) started() bool {
	return s.main.running || s.main.ended && !notExecuted(s.main)
}

// notExecuted reports whether a container ended because its program could not be
// executed.
func notExecuted(c container) bool {
	return c.ended && (c.why.reason == "StartError" || c.why.reason == "ContainerCannotRun")
}

// over reports whether nothing of the Pod runs any more.
func (s *state) over() bool {
	return s.main.ended || s.phase == corev1.PodFailed || s.phase == corev1.PodSucceeded
}
