package kube

import (
	"context"
)

// Ending blocks until the cluster or somebody ends the Pod, and returns why. It reads
// what the watch shows and sends nothing.
func (e *Executor) Ending(ctx context.Context, id string) string {
	name, uid, ok := parseID(id)
	if !ok {
		return ""
	}
	seen := e.pods.subscribe(name, false)
	defer seen.close()
	for {
		now, gone, changed := seen.now()
		if now != nil && now.uid == uid {
			if why := now.ending(); !why.none() {
				return verdict{trouble: why}.String()
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

// ending returns why a Pod that runs is about to end: its status as a whole, such as
// Evicted, a disruption, such as a preemption, or a deletion.
func (s *state) ending() trouble {
	switch {
	case s.reason != "" && s.reason != "NodeLost":
		return trouble{s.reason, s.message}
	case !s.disruption.none():
		return s.disruption
	case !s.deleted.IsZero():
		return trouble{message: deletedText}
	}
	return trouble{}
}
