package kube

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
)

// maxEvents is the largest number of events read for one Pod.
const maxEvents = 100

// newestWarning returns the newest warning event of a Pod that does not start and whose
// status has no reason: faults of mounts and sandboxes are only in events. The documented
// Role has no right on events. Without this right, the agent makes only one request, for
// the first such Pod.
func (e *Executor) newestWarning(ctx context.Context, pod *corev1.Pod) cause {
	if e.pods.noEvents.Load() {
		return cause{}
	}
	ctx, cancel := context.WithTimeout(ctx, eventsLimit)
	defer cancel()
	all, err := e.client.warningEvents(ctx, e.namespace, string(pod.UID))
	if err != nil {
		e.pods.noEvents.Store(apierrors.IsForbidden(err) && !fromProxy(err))
		return cause{}
	}
	// Times have whole seconds. Of events with the same time, the last in the list is the newest:
	// the API server sorts by name, and a name ends with the time in nanoseconds.
	var newest *corev1.Event
	for i := range all.Items {
		if event := &all.Items[i]; newest == nil || !lastSeen(event).Before(lastSeen(newest)) {
			newest = event
		}
	}
	if newest == nil {
		return cause{}
	}
	return cause{newest.Reason, head(newest.Message)}
}

// lastSeen returns the time of the last occurrence of an event.
func lastSeen(event *corev1.Event) time.Time {
	last := event.CreationTimestamp.Time
	for _, other := range []time.Time{event.LastTimestamp.Time, event.EventTime.Time} {
		if last.Before(other) {
			last = other
		}
	}
	if event.Series != nil && last.Before(event.Series.LastObservedTime.Time) {
		last = event.Series.LastObservedTime.Time
	}
	return last
}

// warningEvents returns the warning events of the object with this uid.
func (c *client) warningEvents(ctx context.Context, namespace, uid string) (*corev1.EventList, error) {
	selector := fields.Set{"involvedObject.uid": uid, "type": corev1.EventTypeWarning}
	options := metav1.ListOptions{FieldSelector: selector.String(), Limit: maxEvents}
	all := &corev1.EventList{}
	err := c.api.Get().Namespace(namespace).Resource("events").VersionedParams(&options, c.parameters).
		MaxRetries(0).Do(ctx).Into(all)
	return all, err
}
