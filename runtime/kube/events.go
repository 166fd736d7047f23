package kube

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
)

const maxEvents = 100 // that are read for one Pod

// eventsOf returns the events of a Pod that does not start, the oldest first: the start of a pull,
// and faults of mounts and sandboxes, are only in events. The documented Role has no right on events.
// Without this right, the agent makes only one request, for the first such Pod.
func (e *Executor) eventsOf(ctx context.Context, pod *corev1.Pod) []corev1.Event {
	if e.pods.noEvents.Load() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, eventsLimit)
	defer cancel()
	all, err := e.client.events(ctx, e.namespace, string(pod.UID))
	if err != nil {
		e.pods.noEvents.Store(isForbidden(err))
		return nil
	}
	// Times have whole seconds. Of events with the same time, the last in the list is the newest:
	// the API server sorts by name, and a name ends with the time in nanoseconds.
	slices.SortStableFunc(all.Items, func(a, b corev1.Event) int { return lastSeen(a).Compare(lastSeen(b)) })
	return all.Items
}

// newestWarning returns the newest warning event of a Pod whose status has no reason.
func (e *Executor) newestWarning(ctx context.Context, pod *corev1.Pod) cause {
	for _, event := range slices.Backward(e.eventsOf(ctx, pod)) {
		if event.Type == corev1.EventTypeWarning {
			return cause{event.Reason, head(event.Message)}
		}
	}
	return cause{}
}

func lastSeen(event corev1.Event) time.Time {
	times := []time.Time{event.CreationTimestamp.Time, event.LastTimestamp.Time, event.EventTime.Time}
	if event.Series != nil {
		times = append(times, event.Series.LastObservedTime.Time)
	}
	return slices.MaxFunc(times, time.Time.Compare)
}

func (c *client) events(ctx context.Context, namespace, uid string) (*corev1.EventList, error) {
	selector := fields.Set{"involvedObject.uid": uid}
	options := metav1.ListOptions{FieldSelector: selector.String(), Limit: maxEvents}
	all := &corev1.EventList{}
	err := c.api.Get().Namespace(namespace).Resource("events").VersionedParams(&options, c.parameters).
		MaxRetries(0).Do(ctx).Into(all)
	return all, err
}

// look is when a start looks for events of its Pod: some seconds after the last change of the Pod,
// and then less and less often.
type look struct {
	at    time.Time
	delay time.Duration
	since time.Time // last change of the Pod
	state *state    // at the last change
}

// due reports whether to look for events now. A change of the Pod starts the delays again.
func (l *look) due(now *state) bool {
	switch {
	case l.state != now:
		*l = look{since: time.Now(), delay: eventsBackoff.First, state: now}
	case time.Now().Before(l.at):
		return false
	default:
		l.delay = eventsBackoff.Next(l.delay)
	}
	due := !l.at.IsZero()
	l.at = time.Now().Add(l.delay)
	return due
}

// logEvents adds the news in the events of a Pod that waits to step 0: that an image is pulled, and that
// a node is created, or why not. If the status of the Pod has no reason, the warnings are news too.
func (s *starting) logEvents(ctx context.Context, d diagnosis) {
	for _, event := range s.executor.eventsOf(ctx, s.created) {
		why := cause{event.Reason, head(event.Message)}
		switch event.Reason {
		case "Pulling":
			s.logOnce(why.message, "%s", why)
		case "TriggeredScaleUp", "NotTriggerScaleUp", "Nominated": // of the cluster autoscaler and Karpenter
			s.logOnce(why.reason, "%s", why)
		case "FailedScheduling", "Failed", "BackOff": // the status has, or had, the reason
		default:
			if event.Type == corev1.EventTypeWarning && d.cause.empty() {
				s.logOnce(why.reason, "Waiting for the Pod to start: %s", why)
			}
		}
	}
	if d.cause.empty() && time.Since(s.look.since) > silenceLimit {
		s.logOnce("", "Waiting for the Pod to start: its status has no reason, for example because an image is "+
			"pulled: see the events of the Pod")
	}
}

// logOnce adds a line to step 0, unless a line with the same key was added before. It reports whether it
// has added the line.
func (s *starting) logOnce(key, format string, arguments ...any) bool {
	if s.logged[key] {
		return false
	}
	s.logged[key], s.unsentLines = true, true
	s.setup.Log(format, arguments...)
	return true
}
