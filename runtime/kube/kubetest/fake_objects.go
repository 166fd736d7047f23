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

const maxData = 1 << 20 // bytes of the data of a ConfigMap or Secret, as in real API servers

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
	if request.Verb == "list" {
		selector, fields := labelSelector(r), r.URL.Query().Get("fieldSelector")
		found := slices.DeleteFunc(a.Objects(request.Resource, namespace), func(o Object) bool {
			return !selector.Matches(labels.Set(o.GetLabels())) ||
				fields != "" && fields != "metadata.name="+o.GetName()
		})
		if strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadataList") {
			w.Header().Set("Content-Type", runtime.ContentTypeJSON)
			_ = json.NewEncoder(w).Encode(metadataOf(found))
		} else {
			respond(w, r, http.StatusOK, listOf(request.Resource, found))
		}
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
			fail(w, r, apierrors.NewInvalid(schema.GroupKind{Kind: request.Resource}, request.Name, nil))
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
	if sent != nil {
		before = sent
	}
	finish(w, r, request, exists, current, before)
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

// listOf returns the objects of a resource as a list of the API.
func listOf(resource string, objects []Object) runtime.Object {
	configs, others := &corev1.ConfigMapList{}, &corev1.SecretList{}
	for _, o := range objects {
		switch o := o.(type) {
		case *corev1.ConfigMap:
			configs.Items = append(configs.Items, *o)
		case *corev1.Secret:
			others.Items = append(others.Items, *o)
		}
	}
	if resource == secrets {
		return others
	}
	return configs
}

func metadataOf(objects []Object) *metav1.PartialObjectMetadataList {
	list := &metav1.PartialObjectMetadataList{}
	for _, o := range objects {
		list.Items = append(list.Items, metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
			Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID(), ResourceVersion: o.GetResourceVersion(),
			Labels: o.GetLabels(), Annotations: o.GetAnnotations(),
			OwnerReferences: o.GetOwnerReferences(), DeletionTimestamp: o.GetDeletionTimestamp(),
		}})
	}
	return list
}
