package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	machinery "k8s.io/apimachinery/pkg/runtime"

	"github.com/cmwa-project/cmwa/runtime"
)

// Resources of the objects that a job may have beside its Pod. The documented Role
// allows ConfigMaps and not Secrets.
const (
	configMaps = "configmaps"
	secrets    = "secrets"
)

// annotationNeeded is when an object of a job is needed no more, RFC 3339: the
// limit of the job's start. Only a start reads it.
const annotationNeeded = "cmwa.needed-until"

// objectMeta returns the metadata of an object of a job.
func (e *Executor) objectMeta(job *runtime.Job, name string, needed time.Time) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: e.namespace, Name: name,
		Labels: map[string]string{
			labelManagedBy: managedByValue, labelAgent: labelValue(job.Agent),
			labelPool: labelValue(job.Pool), labelJob: labelValue(job.ID),
		},
		Annotations: map[string]string{annotationNeeded: needed.UTC().Format(time.RFC3339)},
	}
}

// ownedBy makes the cluster delete an object with its Pod. It blocks no deletion,
// which clusters with OwnerReferencesPermissionEnforcement would refuse.
func ownedBy(pod *corev1.Pod) []metav1.OwnerReference {
	return []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}}
}

// createObject creates an object of a job. What may succeed later is tried again
// until the deadline, and a refusal of the agent while refusals doubts it. One of this
// name that is there already is of an earlier attempt, whose answer was lost: names are
// random.
func (e *Executor) createObject(
	ctx context.Context, resource string, o object, deadline time.Time, refusals doubt,
) error {
	for wait := createRetry; ; wait = min(2*wait, createRetryMax) {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		limited, cancel := outliving(ctx, callLimit)
		err := e.client.createObject(limited, resource, o, false)
		cancel()
		if err == nil || apierrors.IsAlreadyExists(err) {
			return nil
		}
		if !refusals.about(err) || time.Until(deadline) < wait {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}

// removeObject deletes an object of a job, if it is there.
func (e *Executor) removeObject(ctx context.Context, resource, name string) error {
	if err := e.client.deleteObject(ctx, resource, e.namespace, name); err != nil && !absent(err) {
		return e.explainObject("delete", resource, err)
	}
	return nil
}

// discardObject deletes the object of a failed start, which may be readable to others.
// A deletion that may succeed later is tried again until ctx ends.
func (e *Executor) discardObject(ctx context.Context, resource, name string) error {
	for wait := createRetry; ; wait = min(2*wait, createRetryMax) {
		err := e.client.deleteObject(ctx, resource, e.namespace, name)
		switch {
		case err == nil || absent(err):
			return nil
		case !temporary(err) || !pause(ctx, wait):
			return e.explainObject("delete", resource, err)
		}
	}
}

// sweepObjects removes the objects that no start can need any more: those of an
// agent that ended between the creation of an object and its removal. It reads
// their metadata only. A cluster that does not let the agent list a resource has
// none of it that the agent has made, or removes it with its Pod.
func (e *Executor) sweepObjects(ctx context.Context) (removed []string, err error) {
	var failures []error
	for _, resource := range []string{configMaps, secrets} {
		list, err := e.client.listObjects(ctx, resource, e.namespace, labelManagedBy+"="+managedByValue)
		if apierrors.IsForbidden(err) {
			continue
		}
		if err != nil {
			failures = append(failures, e.explainObject("list", resource, err))
			continue
		}
		for _, object := range list.Items {
			text, ok := object.Annotations[annotationNeeded]
			needed, err := time.Parse(time.RFC3339, text)
			if !ok || err == nil && time.Now().Before(needed.Add(unneededAfter)) {
				continue
			}
			if err := e.removeObject(ctx, resource, object.Name); err != nil {
				failures = append(failures, err)
				continue
			}
			removed = append(removed, strings.TrimSuffix(resource, "s")+"/"+object.Name)
		}
	}
	return removed, errors.Join(failures...)
}

// unneededAfter is added to the limit of a start before a sweep removes an object:
// a handoff may be sent for a minute more, and clocks differ.
const unneededAfter = 5 * time.Minute

// explainObject returns, in one line, why a call about an object of a job failed
// and what to do.
func (e *Executor) explainObject(verb, resource string, err error) error {
	doing := fmt.Sprintf("%s a job's entry in %s", verb, resource)
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "cannot ") {
		return e.explain(doing, err)
	}
	cure := "grant create, update, list and delete on " + resource
	if resource == secrets {
		cure += ", or set kubernetes.handoff to sealed"
	} else { // of a large handoff, which may be sealed already
		cure += ", as the documented Role does"
	}
	return fmt.Errorf("%s: the agent's service account may not %s %s in namespace %s: %s (%s)",
		doing, verb, resource, e.namespace, cure, shortened(err.Error()))
}

// object is a ConfigMap or a Secret.
type object interface {
	metav1.Object
	machinery.Object
}

// createObject creates an object in its namespace. With dry, the API server checks it
// and creates nothing.
func (c *client) createObject(ctx context.Context, resource string, o object, dry bool) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	options := metav1.CreateOptions{FieldManager: managedByValue}
	if dry {
		options.DryRun = []string{metav1.DryRunAll}
	}
	// Get reads the answer; without that, the page of a proxy is taken for success.
	_, err := c.rest.Post().Namespace(o.GetNamespace()).Resource(resource).
		VersionedParams(&options, c.parameters).Body(o).Do(ctx).Get()
	return because(ctx, err)
}

// updateObject replaces an object that only this agent changes, whatever its
// resourceVersion is.
func (c *client) updateObject(ctx context.Context, resource string, o object) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	_, err := c.rest.Put().Namespace(o.GetNamespace()).Resource(resource).Name(o.GetName()).
		VersionedParams(&metav1.UpdateOptions{FieldManager: managedByValue}, c.parameters).Body(o).Do(ctx).Get()
	return because(ctx, err)
}

// deleteObject deletes an object.
func (c *client) deleteObject(ctx context.Context, resource, namespace, name string) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	_, err := c.rest.Delete().Namespace(namespace).Resource(resource).Name(name).Do(ctx).Get()
	return because(ctx, err)
}

// metadataOnly is what a list accepts that shall not contain the data of Secrets.
const metadataOnly = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

// listObjects returns the metadata of the objects with these labels.
func (c *client) listObjects(
	ctx context.Context, resource, namespace, selector string,
) (*metav1.PartialObjectMetadataList, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	text, err := c.rest.Get().Namespace(namespace).Resource(resource).
		VersionedParams(&metav1.ListOptions{LabelSelector: selector}, c.parameters).
		SetHeader("Accept", metadataOnly).Do(ctx).Raw()
	if err != nil {
		return nil, because(ctx, err)
	}
	list := &metav1.PartialObjectMetadataList{}
	if err := json.Unmarshal(text, list); err != nil {
		return nil, fmt.Errorf("decode the list of %s: %w", resource, err)
	}
	return list, nil
}
