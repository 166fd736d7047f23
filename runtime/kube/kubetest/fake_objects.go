package kubetest

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// Other resources of an [API].
const (
	configMaps = "configmaps"
	secrets    = "secrets"
)

// maxData is the largest size of the data of a ConfigMap or Secret in bytes, as in real API
// servers.
const maxData = 1 << 20

// Object is a ConfigMap or a Secret.
type Object interface {
	metav1.Object
	runtime.Object
}

// Objects returns the objects of a resource (configmaps or secrets) in a namespace, sorted
// by name. The caller must not change them.
func (a *API) Objects(resource, namespace string) []Object {
	a.mu.Lock()
	defer a.mu.Unlock()
	var all []Object
	for _, key := range slices.Sorted(maps.Keys(a.objects)) {
		if strings.HasPrefix(key, resource+"/"+namespace+"/") {
			all = append(all, a.objects[key])
		}
	}
	return all
}

// PutObject adds an object of a resource.
func (a *API) PutObject(resource string, object Object) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.objects[resource+"/"+object.GetNamespace()+"/"+object.GetName()] = object
}

// deleteOwned deletes the objects that are owned by a deleted Pod. The caller holds the lock.
func (a *API) deleteOwned(pod types.UID) {
	maps.DeleteFunc(a.objects, func(_ string, o Object) bool {
		return slices.ContainsFunc(o.GetOwnerReferences(), func(r metav1.OwnerReference) bool { return r.UID == pod })
	})
}

// dataOf returns the data of an object by key.
func dataOf(o Object) map[string][]byte {
	data := map[string][]byte{}
	switch o := o.(type) {
	case *corev1.Secret:
		maps.Copy(data, o.Data)
	case *corev1.ConfigMap:
		for name, text := range o.Data {
			data[name] = []byte(text)
		}
	}
	return data
}

// serveObject serves a request for ConfigMaps or Secrets.
func (a *API) serveObject(w http.ResponseWriter, r *http.Request, namespace string, request Request) {
	kind := schema.GroupResource{Resource: request.Resource}
	switch {
	case request.Verb == "list" && strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadataList"):
		w.Header().Set("Content-Type", runtime.ContentTypeJSON)
		_ = json.NewEncoder(w).Encode(a.metadata(request.Resource, namespace, labelSelector(r)))
		return
	case request.Verb == "list":
		a.respond(w, r, http.StatusOK, a.listObjects(request.Resource, namespace, labelSelector(r)))
		return
	}

	// Decode and validate the object in the request.
	var sent Object
	if request.Verb == "create" || request.Verb == "update" {
		object, err := decode(request.Body)
		o, ok := object.(Object)
		size := 0
		if ok {
			for _, text := range dataOf(o) {
				size += len(text)
			}
		}
		if err != nil || !ok || size > maxData {
			a.respond(w, r, http.StatusUnprocessableEntity,
				status(apierrors.NewInvalid(schema.GroupKind{Kind: request.Resource}, request.Name, nil)))
			return
		}
		o.SetNamespace(namespace)
		sent, request.Name = o, o.GetName()
	}

	key := request.Resource + "/" + namespace + "/" + request.Name
	a.mu.Lock()
	before, exists := a.objects[key]
	current := !exists || isCurrent(before, sent, request)
	switch {
	case r.URL.Query().Get("dryRun") != "":
	case request.Verb == "create" && !exists:
		a.uids++
		sent.SetUID(types.UID(fmt.Sprintf("uid-%d", a.uids)))
		a.putObject(key, sent)
	case request.Verb == "update" && exists && current:
		sent.SetUID(before.GetUID())
		a.putObject(key, sent)
	case request.Verb == "delete" && current:
		delete(a.objects, key)
	}
	a.mu.Unlock()

	switch {
	case request.Verb == "create" && exists:
		a.respond(w, r, http.StatusConflict, status(apierrors.NewAlreadyExists(kind, request.Name)))
	case request.Verb == "create":
		a.respond(w, r, http.StatusCreated, sent.DeepCopyObject())
	case !exists:
		a.respond(w, r, http.StatusNotFound, status(apierrors.NewNotFound(kind, request.Name)))
	case !current:
		a.respond(w, r, http.StatusConflict, status(apierrors.NewConflict(kind, request.Name, nil)))
	case request.Verb == "update":
		a.respond(w, r, http.StatusOK, sent.DeepCopyObject())
	default:
		a.respond(w, r, http.StatusOK, before.DeepCopyObject())
	}
}

// putObject stores a new version of an object, unless its owner no longer exists. The caller
// holds the lock.
func (a *API) putObject(key string, o Object) {
	a.version++
	o.SetResourceVersion(strconv.FormatInt(a.version, 10))
	a.objects[key] = o
	for _, reference := range o.GetOwnerReferences() {
		owner, exists := a.pods[o.GetNamespace()+"/"+reference.Name]
		if !exists || owner.UID != reference.UID {
			delete(a.objects, key) // by the garbage collector
		}
	}
}

// isCurrent reports whether a request is for the stored version of an object, or for any.
func isCurrent(before, sent Object, request Request) bool {
	switch request.Verb {
	case "update":
		return sent.GetResourceVersion() == "" || sent.GetResourceVersion() == before.GetResourceVersion()
	case "delete":
		wanted := decodeOptions(request.Body).Preconditions
		return wanted == nil || (wanted.UID == nil || *wanted.UID == before.GetUID()) &&
			(wanted.ResourceVersion == nil || *wanted.ResourceVersion == before.GetResourceVersion())
	}
	return true
}

// listObjects returns the objects of a resource that match a selector.
func (a *API) listObjects(resource, namespace string, selector labels.Selector) runtime.Object {
	configs, others := &corev1.ConfigMapList{}, &corev1.SecretList{}
	for _, o := range a.Objects(resource, namespace) {
		switch o := o.(type) {
		case *corev1.ConfigMap:
			if selector.Matches(labels.Set(o.Labels)) {
				configs.Items = append(configs.Items, *o)
			}
		case *corev1.Secret:
			if selector.Matches(labels.Set(o.Labels)) {
				others.Items = append(others.Items, *o)
			}
		}
	}
	if resource == secrets {
		return others
	}
	return configs
}

// metadata returns the metadata of the objects of a resource that match a selector.
func (a *API) metadata(resource, namespace string, selector labels.Selector) *metav1.PartialObjectMetadataList {
	list := &metav1.PartialObjectMetadataList{}
	for _, o := range a.Objects(resource, namespace) {
		if selector.Matches(labels.Set(o.GetLabels())) {
			list.Items = append(list.Items, metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
				Namespace: namespace, Name: o.GetName(), Labels: o.GetLabels(), Annotations: o.GetAnnotations(),
			}})
		}
	}
	return list
}
