package kube

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"syscall"

	corev1 "k8s.io/api/core/v1"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/schema/printable"
)

// outlook is the expected future of a Pod that has not started its job.
type outlook int

const (
	pending   outlook = iota // no problem is known; this may last as long as a transient problem
	transient                // a problem that can end without a change by a user, such as a full cluster
	stuck                    // a problem that ends only if a user changes the cluster
	failed                   // the Pod has ended or is being ended
)

// diagnosis describes a Pod that has not started its job.
type diagnosis struct {
	outlook    outlook
	cause           // as reported by Kubernetes; empty if the Pod is pending
	imageFault bool // the cause is the image of the job's container
	pullFault  bool // the cause is that an image cannot be pulled
}

// String returns the cause in one line.
func (c cause) String() string {
	switch {
	case c.empty():
		return "the Pod does not start, and its status has no reason: see its events"
	case c.message == "":
		return c.reason
	case c.reason == "" || strings.HasPrefix(c.message, c.reason):
		return c.message
	default:
		return c.reason + ": " + c.message
	}
}

// key identifies the diagnosis in step 0, which shows it once. While an image cannot be pulled, the
// kubelet reports two reasons in turn.
func (d diagnosis) key() string {
	if d.reason == imagePullBackOff {
		d.reason = errImagePull
	}
	return fmt.Sprint(d.reason, d.outlook)
}

// waitingOutlook returns the outlook of a waiting container. Another attempt does not change the
// reasons that are stuck. After other errors of a pull, the registry may recover.
func waitingOutlook(why cause) outlook {
	switch why.reason {
	case "ErrImageNeverPull", "InvalidImageName", "ErrImageInspect",
		"CreateContainerConfigError", "CreateContainerError", "RunContainerError":
		return stuck
	case errImagePull, imagePullBackOff:
		if refusesImage(why.message) {
			return stuck
		}
	}
	return transient
}

// Reasons of a container whose image cannot be pulled. The kubelet reports the error, and then that it
// waits before the next attempt.
const (
	errImagePull     = "ErrImagePull"
	imagePullBackOff = "ImagePullBackOff"
)

// refusesImage reports whether the registry has answered that there is no such image, or none for
// the architecture of the node, or that the credentials do not suffice. The texts are those of
// registries, containerd and CRI-O. A refusal because of too many pulls is not final.
func refusesImage(message string) bool {
	message = strings.ToLower(message)
	return slices.ContainsFunc([]string{
		"not found", "manifest unknown", "manifest_unknown", "name unknown", "name_unknown", "does not exist",
		"denied: ", "access denied", "is denied", "unauthorized", "403 forbidden", "no basic auth credentials",
		"no match for platform", "no matching manifest", "no image found in",
	}, func(text string) bool { return strings.Contains(message, text) })
}

func aboutImage(reason string) bool {
	prefixes := []string{
		"ErrImage", "ImagePull", "ImageInspect", "InvalidImageName", "RegistryUnavailable", "SignatureValidation",
	}
	return slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(reason, prefix) })
}

// diagnose returns why the job of a Pod has not started. It checks, in this order:
//
//  1. the status of the Pod, such as Evicted, DeadlineExceeded or OutOfcpu;
//  2. a disruption, such as a preemption;
//  3. a deletion;
//  4. the init container of the agent, then those of a template;
//  5. the job's container;
//  6. the scheduler;
//  7. otherwise the cause is unknown, because faults of mounts and sandboxes are only in
//     events.
func diagnose(s *state) diagnosis {
	d := diagnoseStart(s)
	d.pullFault = aboutImage(d.reason) && (d.outlook == transient || d.reason == errImagePull ||
		d.reason == imagePullBackOff)
	return d
}

func diagnoseStart(s *state) diagnosis {
	// 1. The status, 2. a disruption, 3. a deletion.
	switch {
	case s.reason != "":
		outlook := transient // NodeLost
		if s.phase == corev1.PodFailed {
			outlook = failed
		}
		return diagnosis{outlook: outlook, cause: cause{s.reason, s.message}}
	case !s.disruption.empty():
		return diagnosis{outlook: failed, cause: s.disruption}
	case !s.deleted.IsZero():
		return diagnosis{outlook: failed, cause: cause{message: deletedText}}
	}

	//  4. Init containers.
	switch {
	case s.prepare.ended && s.prepare.code != 0:
		why := cause{message: "container " + prepareContainer + " failed: " + s.prepare.exitText()}
		return diagnosis{outlook: failed, cause: why}
	case s.prepare.ended && s.key == "":
		return diagnosis{outlook: failed, cause: cause{message: "container " + prepareContainer +
			" reported no key: the image in kubernetes.image must be of this agent's release"}}
	case !normal(s.prepare.waiting.reason):
		why := s.prepare.waiting
		return diagnosis{
			outlook: waitingOutlook(why),
			cause:   cause{why.reason, "container " + prepareContainer + ": " + why.message},
		}
	case !s.other.empty():
		outlook := waitingOutlook(s.other)
		if s.phase == corev1.PodFailed {
			outlook = failed
		}
		return diagnosis{outlook: outlook, cause: s.other}
	}

	//  5. The job's container.
	switch {
	case notExecuted(s.main):
		return diagnosis{outlook: failed, cause: s.main.cause, imageFault: true}
	case !normal(s.main.waiting.reason):
		why := s.main.waiting
		return diagnosis{outlook: waitingOutlook(why), cause: why, imageFault: aboutImage(why.reason)}
	case s.phase == corev1.PodFailed:
		return diagnosis{outlook: failed, cause: cause{message: "the Pod failed without a reason"}}
	}

	//  6. The scheduler. 7. No cause is known.
	if !s.unscheduled.empty() {
		return diagnosis{outlook: transient, cause: s.unscheduled}
	}
	return diagnosis{outlook: pending}
}

const deletedText = "the Pod was deleted by another client"

func (c container) exitText() string {
	text := fmt.Sprintf("exit code %d", c.code)
	if c.cause.reason != "" && c.cause.reason != "Error" && c.cause.reason != "Completed" {
		text = c.cause.reason + ", " + text
	}
	if c.cause.message != "" {
		text += ": " + c.cause.message
	}
	return text
}

const maxMessage = 1000 // bytes of a message of Kubernetes that are shown

// head returns the first part of a message of Kubernetes, in one line.
func head(message string) string {
	return printable.Shorten(printable.OneLine(message), maxMessage)
}

// tail returns the last part of a message that may be a container's log, in one line and
// without the runner's lines of progress.
func tail(message string) string {
	var kept []string
	for line := range strings.Lines(message) {
		if !strings.HasPrefix(line, "{") {
			kept = append(kept, line)
		}
	}
	text := printable.OneLine(strings.Join(kept, " "))
	if len(text) > maxMessage {
		text = "… " + strings.ToValidUTF8(text[len(text)-maxMessage:], "")
	}
	return text
}

// containerStatusUnknown is the reason of a container that the kubelet did not find when it ended the Pod. Without
// a time of its start, the container was not started before.
const containerStatusUnknown = "ContainerStatusUnknown"

// exitOf returns how a job's Pod ended. It uses the state of the container, because the
// phase of the Pod changes up to 2.5 seconds later.
func exitOf(s *state) runtime.Exit {
	if !s.main.ended || notExecuted(s.main) || s.main.cause.reason == containerStatusUnknown {
		return runtime.Exit{Code: runtime.CodeUnknown, Reason: diagnose(s).String()}
	}
	return runtime.Exit{Code: s.main.code, Reason: endReason(s)}
}

// endReason returns why a container ended. If the runner itself chose the exit code, the
// result is empty, unless the job failed while Kubernetes ended the Pod, for example by an
// eviction.
func endReason(s *state) string {
	code := s.main.code
	switch {
	case code == runtime.CodeFailed || code == runtime.CodeFailedUnreported:
		// The runner may have reported a TERM as a failure. Deletions are ignored, because
		// the agent itself deletes the Pod of a job that it stops.
		cause := s.endCause()
		if cause.empty() || cause.message == deletedText {
			return ""
		}
		return cause.String()
	case runtime.IsRunnerCode(code):
		return ""
	case s.reason != "": // Evicted, DeadlineExceeded
		return cause{s.reason, s.message}.String()
	case !s.disruption.empty():
		return s.disruption.String()
	case s.main.cause.reason == "OOMKilled":
		return "out of memory"
	case !s.deleted.IsZero():
		return deletedText
	case code == 128+int(syscall.SIGKILL) && s.memoryLimited:
		// With cgroup v1, four of ten containers whose process was killed because of memory
		// do not have the reason OOMKilled.
		return cmp.Or(s.main.cause.message, "killed, probably because memory ran out")
	default:
		return cmp.Or(s.main.cause.message, runtime.SignalReason(code))
	}
}
