package kube

import (
	"cmp"
	"fmt"
	"syscall"

	"github.com/cmwa-project/cmwa/runtime"
)

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
		if s.reason == "" && s.disruption.none() {
			return ""
		}
		return verdict{trouble: s.ending()}.String()
	case reported(code):
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

// reported reports whether an exit code is one that the runner chooses.
func reported(code int) bool {
	switch code {
	case runtime.CodeSucceeded, runtime.CodeFailed, runtime.CodeGone,
		runtime.CodeFailedUnreported, runtime.CodeSucceededUnreported:
		return true
	}
	return false
}
