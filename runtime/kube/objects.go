package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	machinery "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/kube/records"
)

// Resources of the other objects of a job. The documented Role allows ConfigMaps, but no
// Secrets.
const (
	configMaps = records.ConfigMaps
	secrets    = records.Secrets
)

// annotationNeeded is the time until which an object of a job is needed, in RFC 3339, by the clock of
// the API server. For a handoff and a pull secret it is the end of the start timeout, because only
// the start of a job reads them. For a record it is the time at which the record is swept if no Pod
// owns it.
const annotationNeeded = "cmwa.needed-until"

func (e *Executor) objectMeta(job *runtime.Job, name string, needed time.Time) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: e.namespace, Name: name,
		Labels: map[string]string{
			labelManagedBy: managedByValue, labelAgent: labelValue(job.Agent),
			labelPool: labelValue(job.Pool), labelJob: labelValue(job.ID),
		},
		Annotations: map[string]string{annotationNeeded: e.client.toServer(needed).UTC().Format(time.RFC3339)},
	}
}

// ownedBy returns the owner reference that makes the cluster delete an object with its Pod.
// It does not set blockOwnerDeletion, which clusters with
// OwnerReferencesPermissionEnforcement refuse.
func ownedBy(pod string, uid types.UID) []metav1.OwnerReference {
	return []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod, UID: uid}}
}

// createObject creates an object of a job, and retries by these rules. An object with this name may
// exist, because an earlier attempt of this call has created it and the response was lost. Another
// client may have created it too: everyone who may read Pods knows the name. So createObject returns
// an error if its content or its owner differs. It does not compare an object that the agent may
// create and may not read, which is an image pull secret.
func (e *Executor) createObject(ctx context.Context, resource string, o object, rules retry) error {
	var other error
	err := rules.do(ctx, func() error {
		callCtx, cancel := detached(ctx, callLimit)
		defer cancel()
		_, err := e.client.createObject(callCtx, resource, o, false)
		if !apierrors.IsAlreadyExists(err) {
			return err
		}
		found, err := e.client.listData(callCtx, resource, e.namespace, named(o.GetName()))
		switch {
		case lacksRight(err):
			return nil
		case err != nil:
			return err
		case len(found) == 0:
			return fmt.Errorf("%s/%s was deleted during its creation", resource, o.GetName())
		case !sameContent(found[0], o):
			other = fmt.Errorf("create an object of the job: %s/%s exists, "+
				"and another client of the cluster has created it", resource, o.GetName())
		}
		return nil
	})
	return cmp.Or(other, err)
}

// sameContent reports whether two objects have the same data and the same owner.
func sameContent(a, b object) bool {
	data := func(o object) any {
		switch o := o.(type) {
		case *corev1.ConfigMap:
			return o.Data
		case *corev1.Secret:
			return o.Data
		}
		return nil
	}
	return reflect.DeepEqual(data(a), data(b)) && slices.Equal(ownerUIDs(a), ownerUIDs(b))
}

func ownerUIDs(o object) (all []types.UID) {
	for _, reference := range o.GetOwnerReferences() {
		all = append(all, reference.UID)
	}
	return all
}

// named selects the object with this name, regardless of its labels.
func named(name string) metav1.ListOptions {
	return metav1.ListOptions{FieldSelector: "metadata.name=" + name}
}

func (e *Executor) removeObject(ctx context.Context, resource, name string) error {
	err := e.client.deleteObject(ctx, resource, e.namespace, name, metav1.DeleteOptions{})
	if err != nil && !isNotFound(err) {
		return e.explainObject("delete", resource, err)
	}
	return nil
}

// discardObject deletes the object of a failed start, which other users may be able to
// read. It retries temporary errors until ctx ends.
func (e *Executor) discardObject(ctx context.Context, resource, name string) error {
	return retry{
		explain: func(err error) error { return e.explainObject("delete", resource, err) },
	}.do(ctx, func() error {
		err := e.client.deleteObject(ctx, resource, e.namespace, name, metav1.DeleteOptions{})
		if isNotFound(err) {
			return nil
		}
		return err
	})
}

// sweepObjects deletes the objects that are no longer needed. Agents that ended between the
// create and the delete of an object have left them. The cluster deletes an object that a Pod owns,
// so sweepObjects leaves it to its job, however long its image takes. It reads only the metadata
// of objects. If the agent may not list a resource, it has created no such object, or the
// cluster deletes the object with its Pod.
func (e *Executor) sweepObjects(ctx context.Context) (removed []string, err error) {
	var failures []error
	now := e.client.now()
	for _, resource := range []string{configMaps, secrets} {
		options := metav1.ListOptions{LabelSelector: managedSelector}
		list, err := e.client.listMetadata(ctx, resource, e.namespace, options)
		if apierrors.IsForbidden(err) {
			continue
		}
		if err != nil {
			failures = append(failures, e.explainObject("list", resource, err))
			continue
		}
		for _, object := range list {
			text, ok := object.GetAnnotations()[annotationNeeded]
			needed, err := time.Parse(time.RFC3339, text)
			if !ok || len(object.GetOwnerReferences()) > 0 || err == nil && now.Before(needed.Add(sweepMargin)) {
				continue
			}
			if err := e.removeObject(ctx, resource, object.GetName()); err != nil {
				failures = append(failures, err)
				continue
			}
			removed = append(removed, strings.TrimSuffix(resource, "s")+"/"+object.GetName())
		}
	}
	return removed, errors.Join(failures...)
}

// explainObject returns an error that describes, in one line, why a request for an object
// of a job failed, and the hint.
func (e *Executor) explainObject(verb, resource string, err error) error {
	operation := fmt.Sprintf("%s an object of the job in %s", verb, resource)
	if !lacksRight(err) {
		return e.explain(operation, err)
	}
	hint := "grant create, update, list and delete on " + resource
	if resource == secrets {
		hint += ", or set kubernetes.handoff to sealed"
	} else { // a large handoff needs a ConfigMap even if it is sealed
		hint += ", as the documented Role does"
	}
	return fmt.Errorf("%s: the agent's service account may not %s %s in namespace %s: %s (%s)",
		operation, verb, resource, e.namespace, hint, tail(err.Error()))
}

// object is a Pod, a ConfigMap or a Secret.
type object interface {
	metav1.Object
	machinery.Object
}

// createObject creates an object in its namespace, and returns the stored object. If dry is true, the
// API server validates the object and creates nothing.
func (c *client) createObject(ctx context.Context, resource string, o object, dry bool) (object, error) {
	options := metav1.CreateOptions{FieldManager: managedByValue}
	if dry {
		options.DryRun = []string{metav1.DryRunAll}
	}
	return sendObject(asCreate(ctx), c.api.Post().VersionedParams(&options, c.parameters), resource, o)
}

// updateObject replaces the version of an object, or any version if the object has none. It returns
// the stored object.
func (c *client) updateObject(ctx context.Context, resource string, o object) (object, error) {
	options := metav1.UpdateOptions{FieldManager: managedByValue}
	return sendObject(ctx, c.api.Put().Name(o.GetName()).VersionedParams(&options, c.parameters), resource, o)
}

// sendObject sends an object with a request, and returns the object in the response.
func sendObject(ctx context.Context, request *rest.Request, resource string, o object) (object, error) {
	stored := reflect.New(reflect.TypeOf(o).Elem()).Interface().(object)
	return stored, sendRequest(ctx, request.Namespace(o.GetNamespace()).Resource(resource).Body(o), stored)
}

func (c *client) deleteObject(
	ctx context.Context, resource, namespace, name string, options metav1.DeleteOptions,
) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	// Get reads the response; otherwise an HTML page of a proxy would count as success.
	_, err := c.api.Delete().Namespace(namespace).Resource(resource).Name(name).Body(&options).Do(ctx).Get()
	return withCause(ctx, err)
}

// listData returns the objects of a resource that the options select, with their data.
func (c *client) listData(
	ctx context.Context, resource, namespace string, options metav1.ListOptions,
) (all []object, err error) {
	options.Limit = pageSize
	for {
		callCtx, cancel := context.WithTimeout(ctx, callLimit)
		result, err := c.api.Get().Namespace(namespace).Resource(resource).
			VersionedParams(&options, c.parameters).Do(callCtx).Get()
		err = withCause(callCtx, err)
		cancel()
		if err != nil {
			return nil, err
		}

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

// metadataOnly is the Accept header for a list without the data of the objects.
const metadataOnly = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

// listMetadata returns the objects of a resource that the options select, without their data.
func (c *client) listMetadata(
	ctx context.Context, resource, namespace string, options metav1.ListOptions,
) (all []object, err error) {
	options.Limit = pageSize
	for {
		callCtx, cancel := context.WithTimeout(ctx, callLimit)
		response := c.api.Get().Namespace(namespace).Resource(resource).VersionedParams(&options, c.parameters).
			SetHeader("Accept", metadataOnly).Do(callCtx)
		err = withCause(callCtx, response.Error()) // decodes the error, unlike Raw
		cancel()
		if err != nil {
			return nil, err
		}
		text, _ := response.Raw()
		page := &metav1.PartialObjectMetadataList{}
		if err := json.Unmarshal(text, page); err != nil {
			return nil, fmt.Errorf("decode the list of %s: %w", resource, err)
		}
		for i := range page.Items {
			all = append(all, &page.Items[i])
		}
		if options.Continue = page.Continue; options.Continue == "" {
			return all, nil
		}
	}
}
