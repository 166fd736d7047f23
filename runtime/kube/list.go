package kube

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cmwa-project/cmwa/runtime"
)

const pageSize = 500 // Pods or objects in one response of the API server

// List returns the Pods in the namespace that belong to the agent: those that the agent's
// Pod owns or, if the agent's Pod is not known, those with the agent's id. If a Pod has no
// handoff, its job was never started, because the agent ended before it sent the handoff.
// Such a Pod counts as ended at its creation.
func (e *Executor) List(ctx context.Context, agent string) ([]runtime.Instance, error) {
	var all []runtime.Instance
	half := map[int]*corev1.Pod{} // by index; the agent may have ended before it wrote the annotation
	err := e.each(ctx, metav1.ListOptions{LabelSelector: ownedSelector(e.self, agent)}, func(pod *corev1.Pod) {
		if !e.self.known() || ownerOf(pod) == e.self.owner {
			instance := instanceWithState(pod)
			if instance.Started.IsZero() && carrierOf(pod) != inAnnotation {
				half[len(all)] = pod.DeepCopy()
			}
			all = append(all, instance)
		}
	})
	if err != nil {
		return nil, e.explain("list the Pods of jobs", err)
	}
	for i, pod := range half {
		if err := e.completeDelivery(ctx, pod, &all[i]); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// completeDelivery completes the delivery of a large handoff if its ConfigMap exists. In
// this case the kubelet reads the ConfigMap within about a minute, and then the job runs.
// After the write of the annotation, the kubelet reads the ConfigMap at once.
func (e *Executor) completeDelivery(ctx context.Context, pod *corev1.Pod, instance *runtime.Instance) error {
	carrier := carrierOf(pod)
	list, err := e.client.listMetadata(ctx, string(carrier), e.namespace, named(objectOf(pod.Name)))
	if err != nil {
		return e.explainObject("list", string(carrier), err)
	}
	if len(list) == 0 {
		return nil
	}

	instance.Running, instance.Started, instance.Ended = true, pod.CreationTimestamp.Time, time.Time{}
	if err := e.annotate(ctx, pod, carrier.annotationValue()); err != nil {
		e.log.Debug("cannot complete delivery of handoff", "pod", pod.Name, "error", err)
	}
	return nil
}

// annotate writes the annotation of the handoff. While the Pod starts, the kubelet often changes
// its status. After such a change annotate reads the Pod and writes again.
func (e *Executor) annotate(ctx context.Context, pod *corev1.Pod, value string) error {
	return retry{
		deadline: time.Now().Add(resendLimit), conflicts: true,
		explain: func(err error) error { return err },
	}.do(ctx, func() error {
		ctx, cancel := detached(ctx, callLimit)
		defer cancel()
		err := e.update(ctx, pod, value)
		if isConflict(err) {
			newest, failed := e.client.get(ctx, e.namespace, pod.Name)
			if failed != nil {
				return failed
			}
			pod = newest
		}
		return err
	})
}

func instanceWithState(pod *corev1.Pod) runtime.Instance {
	instance, s := instanceOf(pod), stateOf(pod)
	instance.Started = pod.CreationTimestamp.Time
	if !s.main.started.IsZero() {
		instance.Started = s.main.started
	}
	switch {
	case !s.finished() && pod.Annotations[annotationHandoff] != "":
		instance.Running = true
	case !s.main.finished.IsZero():
		instance.Ended = s.main.finished
	case !s.finished():
		instance.Started, instance.Ended = time.Time{}, pod.CreationTimestamp.Time
	default:
		instance.Ended = pod.CreationTimestamp.Time
	}
	return instance
}

// each lists the Pods that the options select, in pages.
func (e *Executor) each(ctx context.Context, options metav1.ListOptions, visit func(*corev1.Pod)) error {
	options.Limit = pageSize
	for {
		page, err := e.client.list(ctx, e.namespace, options)
		if err != nil {
			return err
		}
		for i := range page.Items {
			visit(&page.Items[i])
		}
		if options.Continue = page.Continue; options.Continue == "" {
			return nil
		}
	}
}

// endedPods selects Pods that have ended. A Pod whose job has ended while another of its containers
// runs ends at its active deadline.
const endedPods = "status.phase!=Pending,status.phase!=Running"

// Sweep deletes the kept Pods of failed jobs whose time is over, the Pods that ended
// [runtime.LeftoverAge] ago, and the objects that are no longer needed. No agent removes an ended Pod
// of its group any more if the group was renamed or uninstalled, so Sweep deletes those of every group.
func (e *Executor) Sweep(ctx context.Context, _ []runtime.InstanceSpec) (removed []string, err error) {
	var due []*corev1.Pod
	err = e.each(ctx, metav1.ListOptions{LabelSelector: keptSelector(e.self)}, func(pod *corev1.Pod) {
		until, err := time.Parse(time.RFC3339, pod.Annotations[annotationKept])
		if err != nil || e.client.now().After(until) {
			due = append(due, pod.DeepCopy())
		}
	})
	if err != nil {
		return nil, e.explain("list kept Pods", err)
	}
	ended := metav1.ListOptions{LabelSelector: managedSelector, FieldSelector: endedPods}
	err = e.each(ctx, ended, func(pod *corev1.Pod) {
		if e.client.now().Sub(endOf(pod)) > runtime.LeftoverAge {
			due = append(due, pod.DeepCopy())
		}
	})
	if err != nil {
		return nil, e.explain("list ended Pods", err)
	}
	removed, err = e.sweepObjects(ctx)
	failures := []error{err}
	for _, pod := range due {
		if _, err := e.delete(ctx, pod.Name, string(pod.UID), 0); err != nil {
			failures = append(failures, e.explain("delete ended Pod "+pod.Name, err))
			continue
		}
		removed = append(removed, pod.Name)
	}
	return removed, errors.Join(failures...)
}

// endOf returns when an ended Pod ended. The kubelet sets this time for the job's container, but not
// if the container was never started, or if the cluster has lost the node.
func endOf(pod *corev1.Pod) time.Time {
	if finished := stateOf(pod).main.finished; !finished.IsZero() {
		return finished
	}
	return pod.CreationTimestamp.Time
}
