package kubetest

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// Resources of an [API] beside Pods.
const (
	configMaps = "configmaps"
	secrets    = "secrets"
)

// maxData limits the data of a ConfigMap or Secret in bytes, as API servers do.
const maxData = 1 << 20

// Object is a ConfigMap or a Secret.
type Object interface {
	metav1.Object
	runtime.Object
}

// Objects returns the objects of a resource, configmaps or secrets, in a namespace,
// sorted by name. They are not to be changed.
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

// PutObject adds an object of a resource as it is.
func (a *API) PutObject(resource string, object Object) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.objects[resource+"/"+object.GetNamespace()+"/"+object.GetName()] = object
}

// collect deletes the objects that a Pod owns which is deleted. The lock is held.
func (a *API) collect(pod types.UID) {
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
		maps.Copy(data, o.BinaryData)
		for name, text := range o.Data {
			data[name] = []byte(text)
		}
	}
	return data
}

// serveObject serves a call about ConfigMaps or Secrets.
func (a *API) serveObject(w http.ResponseWriter, r *http.Request, namespace string, request Request) {
	kind := schema.GroupResource{Resource: request.Resource}
	if request.Verb == "list" {
		w.Header().Set("Content-Type", runtime.ContentTypeJSON)
		_ = json.NewEncoder(w).Encode(a.metadata(request.Resource, namespace, selected(r)))
		return
	}
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
			a.answer(w, r, http.StatusUnprocessableEntity, status(apierrors.NewInvalid(schema.GroupKind{Kind: request.Resource}, request.Name, nil)))
			return
		}
		o.SetNamespace(namespace)
		sent, request.Name = o, o.GetName()
	}
	key := request.Resource + "/" + namespace + "/" + request.Name
	a.mu.Lock()
	before, there := a.objects[key]
	switch {
	case r.URL.Query().Get("dryRun") != "":
	case request.Verb == "create" && !there, request.Verb == "update" && there:
		a.objects[key] = sent
	case request.Verb == "delete":
		delete(a.objects, key)
	}
	a.mu.Unlock()
	switch {
	case request.Verb == "create" && there:
		a.answer(w, r, http.StatusConflict, status(apierrors.NewAlreadyExists(kind, request.Name)))
	case request.Verb == "create":
		a.answer(w, r, http.StatusCreated, sent.DeepCopyObject())
	case !there:
		a.answer(w, r, http.StatusNotFound, status(apierrors.NewNotFound(kind, request.Name)))
	case request.Verb == "update":
		a.answer(w, r, http.StatusOK, sent.DeepCopyObject())
	default:
		a.answer(w, r, http.StatusOK, before.DeepCopyObject())
	}
}

// metadata returns the metadata of the objects of a resource that a selector matches.
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
