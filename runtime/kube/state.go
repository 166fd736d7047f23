package kube

import (
	"slices"
	"time"
	"unique"

	corev1 "k8s.io/api/core/v1"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/handoff"
)

// state is the part of a Pod that the executor keeps. A whole Pod takes 14 kB of memory, a
// third of it for managed fields; a state takes less than 1 kB.
type state struct {
	name, uid string
	keep      string                // value of labelKeep
	pool      unique.Handle[string] // key of the job's pool
	owner     unique.Handle[owner]
	carrier   delivery  // how the handoff reaches the Pod
	node      string    // empty until the Pod is scheduled
	deleted   time.Time // deletionTimestamp: when the Pod should be gone; zero if it is not being deleted

	stopTime int64 // terminationGracePeriodSeconds

	phase           corev1.PodPhase
	reason, message string // of the whole status, such as Evicted

	unscheduled cause // PodScheduled=False
	disruption  cause // DisruptionTarget=True
	nodeLost    bool  // Ready=False although all containers are ready: the node does not report

	key           string    // public key that the init container has reported
	prepare       container // the init container of the agent
	main          container // the job's container
	other         cause     // why the start fails or waits because of another container; the first such container
	image         string    // of the job's container
	memoryLimited bool      // the job's container has a memory limit
	onlyContainer bool      // no other container runs with the job's
}

// cause is a reason with its message, as Kubernetes reports them.
type cause struct{ reason, message string }

func (c cause) empty() bool { return c == cause{} }

// container is the state of one container.
type container struct {
	waiting  cause // while it waits; normally ContainerCreating or PodInitializing
	running  bool
	ended    bool
	code     int       // if ended
	cause    cause     // if ended
	started  time.Time // zero if it has never run
	finished time.Time // when it ended
}

func stateOf(pod *corev1.Pod) *state {
	s := &state{
		name: pod.Name, uid: string(pod.UID), keep: pod.Labels[labelKeep], carrier: carrierOf(pod),
		node: pod.Spec.NodeName, pool: unique.Make(poolOf(pod).Key()), owner: unique.Make(ownerOf(pod)),
		phase: pod.Status.Phase, reason: head(pod.Status.Reason), message: head(pod.Status.Message),
	}
	if seconds := pod.Spec.TerminationGracePeriodSeconds; seconds != nil {
		s.stopTime = *seconds
	}
	if pod.DeletionTimestamp != nil {
		s.deleted = pod.DeletionTimestamp.Time
	}
	s.conditions(pod)
	s.containers(pod)
	return s
}

// isKept reports whether the Pod is kept after its job has ended.
func (s *state) isKept() bool {
	return s.main.ended && (s.keep == keepAll || s.keep == keepFailed && s.main.code != runtime.CodeSucceeded)
}

func (s *state) conditions(pod *corev1.Pod) {
	ready, containersReady := corev1.ConditionUnknown, corev1.ConditionUnknown
	for _, c := range pod.Status.Conditions {
		switch c.Type {
		case corev1.PodScheduled:
			if c.Status == corev1.ConditionFalse {
				s.unscheduled = cause{head(c.Reason), head(c.Message)}
			}
		case corev1.DisruptionTarget:
			if c.Status == corev1.ConditionTrue {
				s.disruption = cause{head(c.Reason), head(c.Message)}
			}
		case corev1.PodReady:
			ready = c.Status
		case corev1.ContainersReady:
			containersReady = c.Status
		}
	}
	// For Pods of a lost node, the node controller sets only Ready to False. A kubelet sets
	// both conditions, unless the condition of a readiness gate is not True. The loss of the node of
	// such a Pod cannot be seen: its Ready was False before.
	s.nodeLost = ready == corev1.ConditionFalse && containersReady == corev1.ConditionTrue &&
		gatesPassed(pod) && pod.Status.Phase == corev1.PodRunning
}

// gatesPassed reports whether the conditions of all readiness gates of a Pod are True.
func gatesPassed(pod *corev1.Pod) bool {
	return !slices.ContainsFunc(pod.Spec.ReadinessGates, func(gate corev1.PodReadinessGate) bool {
		return !slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == gate.ConditionType && c.Status == corev1.ConditionTrue
		})
	})
}

func (s *state) containers(pod *corev1.Pod) {
	// Admission may put other containers first, such as the proxy of a service mesh.
	if i := slices.IndexFunc(pod.Spec.Containers, hasName(MainContainer)); i >= 0 {
		s.image = pod.Spec.Containers[i].Image
		_, s.memoryLimited = pod.Spec.Containers[i].Resources.Limits[corev1.ResourceMemory]
	}
	sidecar := func(c corev1.Container) bool { return c.RestartPolicy != nil }
	s.onlyContainer = len(pod.Spec.Containers) == 1 && !slices.ContainsFunc(pod.Spec.InitContainers, sidecar)
	for _, c := range pod.Status.InitContainerStatuses {
		status := containerOf(c)
		if c.Name != prepareContainer {
			s.noteOther(c.Name, status, true)
			continue
		}
		s.prepare = status
		if status.ended && status.code == 0 && handoff.IsKey(c.State.Terminated.Message) {
			s.key = c.State.Terminated.Message
		}
	}
	for _, c := range pod.Status.ContainerStatuses {
		status := containerOf(c)
		if c.Name == MainContainer {
			s.main = status
			continue
		}
		s.noteOther(c.Name, status, false)
	}
}

// noteOther notes the first container of a template that cannot start, or that is an init
// container and has failed. It ignores other containers that ended.
func (s *state) noteOther(name string, c container, init bool) {
	switch {
	case !s.other.empty():
	case !normal(c.waiting.reason):
		s.other = cause{c.waiting.reason, "container " + name + ": " + c.waiting.message}
	case init && c.ended && c.code != 0:
		s.other = cause{c.cause.reason, "container " + name + " failed: " + c.exitText()}
	}
}

// normal reports whether a container waits with this reason while it is being created
// without a problem.
func normal(reason string) bool {
	return reason == "" || reason == "ContainerCreating" || reason == "PodInitializing"
}

func containerOf(c corev1.ContainerStatus) (result container) {
	switch {
	case c.State.Running != nil:
		result.running, result.started = true, c.State.Running.StartedAt.Time
	case c.State.Terminated != nil:
		end := c.State.Terminated
		result.ended, result.code = true, int(end.ExitCode)
		result.cause = cause{head(end.Reason), tail(end.Message)}
		result.started, result.finished = end.StartedAt.Time, end.FinishedAt.Time
	case c.State.Waiting != nil:
		result.waiting = cause{head(c.State.Waiting.Reason), tail(c.State.Waiting.Message)}
	}
	return result
}

// hasStarted reports whether the job's container has run. A container whose program could
// not be executed has not.
func (s *state) hasStarted() bool {
	return s.main.running || s.main.ended && !notExecuted(s.main)
}

// notExecuted reports whether a container ended because its program could not be executed.
func notExecuted(c container) bool {
	return c.ended && (c.cause.reason == "StartError" || c.cause.reason == "ContainerCannotRun")
}

// finished reports whether the job's container or the whole Pod has ended. Sidecars of a
// template may still run.
func (s *state) finished() bool {
	return s.main.ended || s.phase == corev1.PodFailed || s.phase == corev1.PodSucceeded
}
