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
		e.pods.noEvents.Store(isForbidden(err))
		return cause{}
	}
	// Times have whole seconds. Of events with the same time, the last in the list is the newest:
	// the API server sorts by name, and a name ends with the time in nanoseconds.
	newest, newestSeen := cause{}, time.Time{}
	for _, event := range all.Items {
		if seen := lastSeen(event); !seen.Before(newestSeen) {
			newest, newestSeen = cause{event.Reason, head(event.Message)}, seen
		}
	}
	return newest
}

func lastSeen(event corev1.Event) time.Time {
	times := []time.Time{event.CreationTimestamp.Time, event.LastTimestamp.Time, event.EventTime.Time}
	if event.Series != nil {
		times = append(times, event.Series.LastObservedTime.Time)
	}
	return slices.MaxFunc(times, time.Time.Compare)
}

func (c *client) warningEvents(ctx context.Context, namespace, uid string) (*corev1.EventList, error) {
	selector := fields.Set{"involvedObject.uid": uid, "type": corev1.EventTypeWarning}
	options := metav1.ListOptions{FieldSelector: selector.String(), Limit: maxEvents}
	all := &corev1.EventList{}
	err := c.api.Get().Namespace(namespace).Resource("events").VersionedParams(&options, c.parameters).
		MaxRetries(0).Do(ctx).Into(all)
	return all, err
}
