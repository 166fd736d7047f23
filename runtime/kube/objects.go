package kube

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	machinery "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/kube/claims"
)

// Resources of the other objects of a job. The documented Role allows ConfigMaps, but no
// Secrets.
const (
	configMaps = "configmaps"
	secrets    = "secrets"
)

// annotationNeeded is the time until which an object of a job is needed, in RFC 3339. For a
// handoff and a pull secret it is the end of the start timeout, because only the start of a
// job reads them. For a record it is the time at which the record is swept if no Pod owns
// it.
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

// ownedBy returns the owner reference that makes the cluster delete an object with its Pod.
// It does not set blockOwnerDeletion, which clusters with
// OwnerReferencesPermissionEnforcement refuse.
func ownedBy(pod *corev1.Pod) []metav1.OwnerReference {
	return []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}}
}

// createObject creates an object of a job. It retries errors that may be temporary until
// the deadline, and refused requests as long as retries allows. If the object exists, an
// earlier attempt of this call has created it and the response was lost, because names are
// random.
func (e *Executor) createObject(
	ctx context.Context, resource string, o object, deadline time.Time, retries retryPolicy,
) error {
	for delay := createRetry; ; delay = min(2*delay, createRetryMax) {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		callCtx, cancel := detached(ctx, callLimit)
		err := e.client.createObject(callCtx, resource, o, false)
		cancel()
		if err == nil || apierrors.IsAlreadyExists(err) {
			return nil
		}
		if !retries.allows(err) || time.Until(deadline) < delay {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(delay):
		}
	}
}

// removeObject deletes an object of a job if it exists.
func (e *Executor) removeObject(ctx context.Context, resource, name string) error {
	if err := e.client.deleteObject(ctx, resource, e.namespace, name); err != nil && !isNotFound(err) {
		return e.explainObject("delete", resource, err)
	}
	return nil
}

// discardObject deletes the object of a failed start, which other users may be able to
// read. It retries temporary errors until ctx ends.
func (e *Executor) discardObject(ctx context.Context, resource, name string) error {
	for delay := createRetry; ; delay = min(2*delay, createRetryMax) {
		err := e.client.deleteObject(ctx, resource, e.namespace, name)
		switch {
		case err == nil || isNotFound(err):
			return nil
		case !temporary(err) || !sleep(ctx, delay):
			return e.explainObject("delete", resource, err)
		}
	}
}

// sweepObjects deletes the objects that are no longer needed. Agents that ended between the
// create and the delete of an object have left them. sweepObjects reads only the metadata
// of objects. If the agent may not list a resource, it has created no such object, or the
// cluster deletes the object with its Pod.
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
			if !ok || err == nil && time.Now().Before(needed.Add(sweepMargin)) {
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

// sweepMargin is the time between annotationNeeded and the sweep of an object: a handoff
// may be sent up to one minute after the start timeout, and clocks differ.
const sweepMargin = 5 * time.Minute

// explainObject returns an error that describes, in one line, why a request for an object
// of a job failed, and the cure.
func (e *Executor) explainObject(verb, resource string, err error) error {
	operation := fmt.Sprintf("%s an object of the job in %s", verb, resource)
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "cannot ") {
		return e.explain(operation, err)
	}
	cure := "grant create, update, list and delete on " + resource
	if resource == secrets {
		cure += ", or set kubernetes.handoff to sealed"
	} else { // a large handoff needs a ConfigMap even if it is sealed
		cure += ", as the documented Role does"
	}
	return fmt.Errorf("%s: the agent's service account may not %s %s in namespace %s: %s (%s)",
		operation, verb, resource, e.namespace, cure, tail(err.Error()))
}

// object returns the object for an entry of a record.
func (j *journal) object(r *recorded, next claims.Entry) (object, error) {
	// Encode the entry.
	j.mu.Lock()
	key := j.key
	j.mu.Unlock()
	text, err := key.Encode(r.name, next)
	if err != nil {
		return nil, err
	}

	// Add labels, the owner, and the time of the sweep.
	e, record := j.executor, next.Record
	meta := metav1.ObjectMeta{
		Namespace: e.namespace, Name: r.name, UID: r.uid, ResourceVersion: r.version,
		Labels: map[string]string{
			labelManagedBy: managedByValue, labelRecord: recordValue, labelAgent: labelValue(e.cluster.options.Agent),
			labelPool: labelValue(record.Pool), labelJob: labelValue(record.Job),
		},
		Annotations: map[string]string{annotationJob: record.Job},
	}
	e.self.mark(&meta)
	switch {
	case record.Stage == runtime.RecordHandedOff && next.UID != "":
		meta.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: "v1", Kind: "Pod", Name: next.Pod, UID: types.UID(next.UID),
		}}
	case record.Stage == runtime.RecordHandedOff:
		meta.Annotations[annotationNeeded] = time.Now().Add(runtime.LeftoverAge).UTC().Format(time.RFC3339)
	default:
		meta.Annotations[annotationNeeded] = time.Now().Add(recordTime).UTC().Format(time.RFC3339)
	}
	if r.resource == secrets {
		return &corev1.Secret{ObjectMeta: meta, Data: map[string][]byte{recordKey: text}}, nil
	}
	return &corev1.ConfigMap{ObjectMeta: meta, Data: map[string]string{recordKey: string(text)}}, nil
}

// recordText returns the text of the record in an object.
func recordText(o object) []byte {
	switch o := o.(type) {
	case *corev1.Secret:
		return o.Data[recordKey]
	case *corev1.ConfigMap:
		return []byte(o.Data[recordKey])
	}
	return nil
}

// read returns the entry in an object. If the object cannot be read, it logs a warning once and
// returns false. The caller holds the lock.
func (j *journal) read(resource string, o object) (entry claims.Entry, ok bool) {
	entry, err := j.decode(resource, o)
	if err != nil && !j.unreadable[o.GetUID()] {
		j.unreadable[o.GetUID()] = true
		j.executor.log.Warn("cannot read the record of a job; unless another agent can, "+runtime.DeclaredFailed,
			"job", o.GetAnnotations()[annotationJob], "object", resource+"/"+o.GetName(), "error", err)
	}
	return entry, err == nil
}

// recordName returns the name of the object for the record of a job.
func recordName(job string) string {
	sum := sha256.Sum256([]byte(job))
	return recordPrefix + hex.EncodeToString(sum[:10])
}

// recordSelector returns the selector of the records of an agent's group.
func recordSelector(s self) string {
	return managedSelector + "," + labelRecord + "=" + recordValue + "," + labelGroup + "=" + s.group
}

// object is a ConfigMap or a Secret.
type object interface {
	metav1.Object
	machinery.Object
}

// createObject creates an object in its namespace. If dry is true, the API server validates
// the object and creates nothing.
func (c *client) createObject(ctx context.Context, resource string, o object, dry bool) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	options := metav1.CreateOptions{FieldManager: managedByValue}
	if dry {
		options.DryRun = []string{metav1.DryRunAll}
	}
	// Get reads the response; otherwise an HTML page of a proxy would count as success.
	_, err := c.api.Post().Namespace(o.GetNamespace()).Resource(resource).
		VersionedParams(&options, c.parameters).Body(o).Do(ctx).Get()
	return withCause(ctx, err)
}

// storeObject creates an object that has no resourceVersion. If the object has a
// resourceVersion, storeObject replaces that version instead. It returns the stored object.
func (c *client) storeObject(ctx context.Context, resource string, o object) (object, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	var request *rest.Request
	if o.GetResourceVersion() == "" {
		request = c.api.Post().VersionedParams(&metav1.CreateOptions{FieldManager: managedByValue}, c.parameters)
	} else {
		request = c.api.Put().Name(o.GetName()).
			VersionedParams(&metav1.UpdateOptions{FieldManager: managedByValue}, c.parameters)
	}
	stored := o.DeepCopyObject().(object)
	err := request.Namespace(o.GetNamespace()).Resource(resource).Body(o).Do(ctx).Into(stored)
	return stored, withCause(ctx, err)
}

// deleteRecord deletes an object with this uid and version. An empty uid or version matches
// any.
func (c *client) deleteRecord(
	ctx context.Context, resource, namespace, name string, uid types.UID, version string,
) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	options := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{}}
	if uid != "" {
		options.Preconditions.UID = &uid
	}
	if version != "" {
		options.Preconditions.ResourceVersion = &version
	}
	_, err := c.api.Delete().Namespace(namespace).Resource(resource).Name(name).Body(&options).Do(ctx).Get()
	return withCause(ctx, err)
}

// records returns the objects of a resource that match the selector, with their data.
func (c *client) records(ctx context.Context, resource, namespace, selector string) (all []object, err error) {
	options := metav1.ListOptions{LabelSelector: selector, Limit: pageSize}
	for {
		// Get a page.
		callCtx, cancel := context.WithTimeout(ctx, callLimit)
		result, err := c.api.Get().Namespace(namespace).Resource(resource).
			VersionedParams(&options, c.parameters).Do(callCtx).Get()
		err = withCause(callCtx, err)
		cancel()
		if err != nil {
			return nil, err
		}

		// Add its objects.
		switch page := result.(type) {
		case *corev1.ConfigMapList:
			options.Continue = page.Continue
			for i := range page.Items {
				all = append(all, &page.Items[i])
			}
		case *corev1.SecretList:
			options.Continue = page.Continue
			for i := range page.Items {
				all = append(all, &page.Items[i])
			}
		default:
			return nil, fmt.Errorf("list %s: the response is a %T", resource, result)
		}
		if options.Continue == "" {
			return all, nil
		}
	}
}

// updateObject replaces an object that only this agent changes. The object has no
// resourceVersion, so any stored version is replaced.
func (c *client) updateObject(ctx context.Context, resource string, o object) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	_, err := c.api.Put().Namespace(o.GetNamespace()).Resource(resource).Name(o.GetName()).
		VersionedParams(&metav1.UpdateOptions{FieldManager: managedByValue}, c.parameters).Body(o).Do(ctx).Get()
	return withCause(ctx, err)
}

// deleteObject deletes an object.
func (c *client) deleteObject(ctx context.Context, resource, namespace, name string) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	_, err := c.api.Delete().Namespace(namespace).Resource(resource).Name(name).Do(ctx).Get()
	return withCause(ctx, err)
}

// metadataOnly is the Accept header for a list without the data of Secrets.
const metadataOnly = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

// listObjects returns the metadata of the objects that match the selector.
func (c *client) listObjects(
	ctx context.Context, resource, namespace, selector string,
) (*metav1.PartialObjectMetadataList, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	text, err := c.api.Get().Namespace(namespace).Resource(resource).
		VersionedParams(&metav1.ListOptions{LabelSelector: selector}, c.parameters).
		SetHeader("Accept", metadataOnly).Do(ctx).Raw()
	if err != nil {
		return nil, withCause(ctx, err)
	}
	list := &metav1.PartialObjectMetadataList{}
	if err := json.Unmarshal(text, list); err != nil {
		return nil, fmt.Errorf("decode the list of %s: %w", resource, err)
	}
	return list, nil
}
