package kube

import (
	"cmp"
	"fmt"
	"strings"
	"syscall"

	corev1 "k8s.io/api/core/v1"

	"github.com/cmwa-project/cmwa/runtime"
)

// outlook is what can be expected of a Pod that has not started its job.
type outlook int

const (
	pending outlook = iota // nothing is known to be wrong; this may last as long as what may heal
	mayHeal                // something is wrong that can end by itself, such as a full cluster
	stuck                  // something is wrong that ends only if somebody changes the cluster
	failed                 // the Pod has ended or is about to
)

// verdict is the judgement on a Pod that has not started its job.
type verdict struct {
	outlook outlook
	trouble trouble // as Kubernetes reports it; none if the Pod is pending
	own     bool    // it is about the image of the job's container
}

// String returns the trouble in one line.
func (v verdict) String() string {
	switch {
	case v.trouble.none():
		return "the Pod does not start, and its status does not say why: see its events"
	case v.trouble.message == "":
		return v.trouble.reason
	case v.trouble.reason == "" || strings.HasPrefix(v.trouble.message, v.trouble.reason):
		return v.trouble.message
	default:
		return v.trouble.reason + ": " + v.trouble.message
	}
}

// waitingReasons are the reasons of waiting containers that are known. Any other
// one that is not normal may heal.
var waitingReasons = map[string]outlook{
	"ErrImagePull":               mayHeal, // the registry may come back, the image may be pushed
	"ImagePullBackOff":           mayHeal,
	"ErrImageNeverPull":          stuck,
	"InvalidImageName":           stuck,
	"ErrImageInspect":            stuck,
	"CreateContainerConfigError": stuck,
	"CreateContainerError":       stuck,
	"RunContainerError":          stuck,
}

// imageReasons begin the reasons that are about an image.
var imageReasons = []string{
	"ErrImage", "ImagePull", "ImageInspect", "InvalidImageName", "RegistryUnavailable", "SignatureValidation",
}

// aboutImage reports whether a reason is about an image.
func aboutImage(reason string) bool {
	for _, one := range imageReasons {
		if strings.HasPrefix(reason, one) {
			return true
		}
	}
	return false
}

// judge returns the verdict on a Pod whose job has not started. The more
// particular reason comes first:
//
//  1. the status as a whole, such as Evicted, DeadlineExceeded or OutOfcpu
//  2. a disruption, such as a preemption
//  3. a deletion
//  4. the init container of the agent, then those of a template
//  5. the job's container
//  6. the scheduler
//  7. nothing: Kubernetes reports faults of mounts and sandboxes in events only
func judge(s *state) verdict {
	status := trouble{s.reason, s.message}
	switch {
	case s.reason != "": // 1
		outlook := mayHeal // NodeLost
		if s.phase == corev1.PodFailed {
			outlook = failed
		}
		return verdict{outlook: outlook, trouble: status}
	case !s.disruption.none(): // 2
		return verdict{outlook: failed, trouble: s.disruption}
	case !s.deleted.IsZero(): // 3
		return verdict{outlook: failed, trouble: trouble{message: deletedText}}
	}

	// 4. Init containers.
	switch {
	case s.prepare.ended && s.prepare.code != 0:
		why := trouble{message: "container " + prepareContainer + " failed: " + s.prepare.ending()}
		return verdict{outlook: failed, trouble: why}
	case s.prepare.ended && s.key == "":
		return verdict{outlook: failed, trouble: trouble{message: "container " + prepareContainer +
			" reported no key: the image in kubernetes.image must be of this agent's release"}}
	case !normal(s.prepare.waiting.reason):
		why := s.prepare.waiting
		return verdict{
			outlook: waitingOutlook(why.reason),
			trouble: trouble{why.reason, "container " + prepareContainer + ": " + why.message},
		}
	case !s.other.none():
		outlook := waitingOutlook(s.other.reason)
		if s.phase == corev1.PodFailed {
			outlook = failed
		}
		return verdict{outlook: outlook, trouble: s.other}
	}

	// 5. The job's container.
	switch {
	case notExecuted(s.main):
		return verdict{outlook: failed, trouble: s.main.why, own: true}
	case !normal(s.main.waiting.reason):
		why := s.main.waiting
		return verdict{outlook: waitingOutlook(why.reason), trouble: why, own: aboutImage(why.reason)}
	case s.phase == corev1.PodFailed:
		return verdict{outlook: failed, trouble: trouble{message: "the Pod failed without a reason"}}
	}

	// 6. The scheduler, and 7. silence.
	if !s.unscheduled.none() {
		return verdict{outlook: mayHeal, trouble: s.unscheduled}
	}
	return verdict{outlook: pending}
}

// deletedText is the reason of a Pod that the agent has not deleted.
const deletedText = "the Pod was deleted by somebody else"

// waitingOutlook returns what can be expected of a waiting container.
func waitingOutlook(reason string) outlook {
	if known, ok := waitingReasons[reason]; ok {
		return known
	}
	return mayHeal
}

// ending returns how a container ended, in one line.
func (c container) ending() string {
	text := fmt.Sprintf("exit code %d", c.code)
	if c.why.reason != "" && c.why.reason != "Error" && c.why.reason != "Completed" {
		text = c.why.reason + ", " + text
	}
	if c.why.message != "" {
		text += ": " + c.why.message
	}
	return text
}

// maxMessage limits what is shown of a message of Kubernetes, in bytes.
const maxMessage = 1000

// beginning returns the beginning of a message of Kubernetes, in one line.
func beginning(message string) string {
	if len(message) > 4*maxMessage { // so that little is split into fields
		message = message[:4*maxMessage]
	}
	text := oneLine(message)
	if len(text) > maxMessage {
		text = strings.ToValidUTF8(text[:maxMessage], "") + " …"
	}
	return text
}

// shortened returns the end of a message that may be a container's log, without
// the lines of the runner's progress, in one line.
func shortened(message string) string {
	var kept []string
	for line := range strings.Lines(message) {
		if !strings.HasPrefix(line, "{") {
			kept = append(kept, line)
		}
	}
	text := oneLine(strings.Join(kept, " "))
	if len(text) > maxMessage {
		text = "… " + strings.ToValidUTF8(text[len(text)-maxMessage:], "")
	}
	return text
}

// never is the exit code of a container that has none.
const never = -1

// exitOf returns how a job's Pod ended. The state of the container decides, and
// not the phase of the Pod, which follows up to 2.5 seconds later.
func exitOf(s *state) runtime.Exit {
	if !s.main.ended || notExecuted(s.main) || s.main.why.reason == "ContainerStatusUnknown" {
		return runtime.Exit{Code: never, Reason: judge(s).String()}
	}
	return runtime.Exit{Code: s.main.code, Reason: endReason(s)}
}

// endReason returns why a container ended, if that was not the runner's choice.
func endReason(s *state) string {
	code := s.main.code
	signal := syscall.Signal(code - 128)
	switch {
	case code == runtime.CodeFailed || code == runtime.CodeFailedUnreported:
		// A TERM that the runner has answered. Deletions are left out, because the agent
		// itself deletes the Pod of a job that it stops.
		why := s.ending()
		if why.none() || why.message == deletedText {
			return ""
		}
		return verdict{trouble: why}.String()
	case runtime.ChosenCode(code):
		return ""
	case s.reason != "": // Evicted, DeadlineExceeded
		return verdict{trouble: trouble{s.reason, s.message}}.String()
	case !s.disruption.none():
		return verdict{trouble: s.disruption}.String()
	case s.main.why.reason == "OOMKilled":
		return "out of memory"
	case !s.deleted.IsZero():
		return deletedText
	case signal == syscall.SIGKILL:
		// With cgroup v1, four of ten processes that were killed for want of memory
		// are reported without the reason OOMKilled.
		if s.limited {
			return cmp.Or(s.main.why.message, "killed, probably because it was out of memory")
		}
		return cmp.Or(s.main.why.message, "killed")
	case s.main.why.message != "":
		return s.main.why.message
	case signal == syscall.SIGTERM:
		return "terminated"
	case signal > 0 && signal < 65:
		return fmt.Sprintf("ended by signal %d (%v)", int(signal), signal)
	default:
		return ""
	}
}
