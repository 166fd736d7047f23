package kube

import "context"

// EndReason blocks until something other than Remove ends the Pod, and returns the reason.
// It reads the store of the watch and makes no request.
func (e *Executor) EndReason(ctx context.Context, id string) string {
	name, uid, ok := parseID(id)
	if !ok {
		return ""
	}
	sub := e.pods.subscribe(name, false)
	defer sub.close()
	for {
		now, gone, changed := sub.current()
		if now != nil && now.uid == uid {
			if cause := now.endCause(); !cause.empty() {
				return cause.String()
			}
			if gone {
				return deletedText
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ""
		}
	}
}

// endCause returns why a running Pod is being ended: its status, such as Evicted, a
// disruption, such as a preemption, or a deletion. It is empty if the Pod is not being
// ended.
func (s *state) endCause() cause {
	switch {
	case s.reason != "" && s.reason != "NodeLost":
		return cause{s.reason, s.message}
	case !s.disruption.empty():
		return s.disruption
	case !s.deleted.IsZero():
		return cause{message: deletedText}
	}
	return cause{}
}
