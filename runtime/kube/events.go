package kube

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
)

const (
	eventsLimit = 10 * time.Second // for the list of a Pod's events
	maxEvents   = 100              // of one Pod that are read; the API server sorts them by name
)

// warning returns the newest warning event of a Pod, for a Pod that does not start and
// whose status does not show why: faults of mounts and sandboxes are
// in events only. The documented Role has no right on events; without it, the first
// Pod costs one request and all others none.
func (e *Executor) warning(ctx context.Context, pod *corev1.Pod) trouble {
	if e.pods.noEvents.Load() {
		return trouble{}
	}
	ctx, cancel := context.WithTimeout(ctx, eventsLimit)
	defer cancel()
	all, err := e.client.warnings(ctx, e.namespace, string(pod.UID))
	if err != nil {
		e.pods.noEvents.Store(apierrors.IsForbidden(err) && !fromProxy(err))
		return trouble{}
	}
	var newest *corev1.Event
	for i := range all.Items {
		if event := &all.Items[i]; newest == nil || lastSeen(newest).Before(lastSeen(event)) {
			newest = event
		}
	}
	if newest == nil {
		return trouble{}
	}
	return trouble{newest.Reason, beginning(newest.Message)}
}

// lastSeen returns when an event was seen last.
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

// warnings returns the warning events about the object with this uid.
func (c *client) warnings(ctx context.Context, namespace, uid string) (*corev1.EventList, error) {
	selector := fields.Set{"involvedObject.uid": uid, "type": corev1.EventTypeWarning}
	options := metav1.ListOptions{FieldSelector: selector.String(), Limit: maxEvents}
	all := &corev1.EventList{}
	err := c.rest.Get().Namespace(namespace).Resource("events").VersionedParams(&options, c.parameters).
		MaxRetries(0).Do(ctx).Into(all)
	return all, err
}
