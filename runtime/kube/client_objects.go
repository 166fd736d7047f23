package kube

import (
	"context"
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	machinery "k8s.io/apimachinery/pkg/runtime"
)

// object is a ConfigMap or a Secret.
type object interface {
	metav1.Object
	machinery.Object
}

// createObject creates an object in its namespace.
func (c *client) createObject(ctx context.Context, resource string, o object) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	err := c.rest.Post().Namespace(o.GetNamespace()).Resource(resource).
		VersionedParams(&metav1.CreateOptions{FieldManager: managedByValue}, c.parameters).Body(o).Do(ctx).Error()
	return because(ctx, err)
}

// updateObject replaces an object that only this agent changes, whatever its
// resourceVersion is.
func (c *client) updateObject(ctx context.Context, resource string, o object) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	err := c.rest.Put().Namespace(o.GetNamespace()).Resource(resource).Name(o.GetName()).
		VersionedParams(&metav1.UpdateOptions{FieldManager: managedByValue}, c.parameters).Body(o).Do(ctx).Error()
	return because(ctx, err)
}

// deleteObject deletes an object.
func (c *client) deleteObject(ctx context.Context, resource, namespace, name string) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	return because(ctx, c.rest.Delete().Namespace(namespace).Resource(resource).Name(name).Do(ctx).Error())
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
