package kube

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cmwa-project/cmwa/runtime"
)

// pageSize is the number of Pods in one answer of the API server.
const pageSize = 500

// List returns the agent's own Pods in the namespace: those that its Pod owns, or
// those with the agent's id if its Pod is not known. A Pod that never got its handoff
// counts as ended when it was created: its agent ended before it started the job.
func (e *Executor) List(ctx context.Context, agent string) ([]runtime.Found, error) {
	var all []runtime.Found
	err := e.each(ctx, owned(e.self, agent), func(pod *corev1.Pod) {
		if !e.self.known() || ownerOf(pod) == e.self.owner {
			all = append(all, foundWithState(pod))
		}
	})
	if err != nil {
		return nil, e.explain("list the Pods of jobs", err)
	}
	return all, nil
}

// foundWithState returns what the metadata and the status of a Pod tell of its job.
func foundWithState(pod *corev1.Pod) runtime.Found {
	f, s := found(pod), stateOf(pod)
	f.Started = pod.CreationTimestamp.Time
	if !s.main.started.IsZero() {
		f.Started = s.main.started
	}
	switch {
	case !s.over() && pod.Annotations[annotationHandoff] != "":
		f.Running = true
	case !s.main.at.IsZero():
		f.Ended = s.main.at
	default:
		f.Ended = pod.CreationTimestamp.Time
	}
	return f
}

// each calls visit for the Pods with these labels.
func (e *Executor) each(ctx context.Context, selector string, visit func(*corev1.Pod)) error {
	options := metav1.ListOptions{LabelSelector: selector, Limit: pageSize}
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

// Sweep removes the Pods of failed jobs that were kept for long enough, and what
// starts that were cut off have left.
func (e *Executor) Sweep(ctx context.Context, _ []runtime.Place) (removed []string, err error) {
	var due []*corev1.Pod
	err = e.each(ctx, kept(e.self), func(pod *corev1.Pod) {
		until, err := time.Parse(time.RFC3339, pod.Annotations[annotationKept])
		if err != nil || time.Now().After(until) {
			due = append(due, pod.DeepCopy())
		}
	})
	if err != nil {
		return nil, e.explain("list kept Pods", err)
	}
	removed, err = e.sweepObjects(ctx)
	failures := []error{err}
	for _, pod := range due {
		if _, err := e.delete(ctx, pod.Name, string(pod.UID), 0); err != nil {
			failures = append(failures, e.explain("delete kept Pod "+pod.Name, err))
			continue
		}
		removed = append(removed, pod.Name)
	}
	return removed, errors.Join(failures...)
}
