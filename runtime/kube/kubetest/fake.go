package kubetest

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
)

var (
	codecs  = serializer.NewCodecFactory(kinds)
	podKind = schema.GroupResource{Resource: "pods"}
)

// API is an API server in memory that serves Pods of any namespace over HTTP, with
// resource versions, watches, deletion with a grace period and logs, and ConfigMaps
// and Secrets, which it deletes with the Pod that owns them. Faults are
// injected with [API.Inject]. Pods run when a [Kubelet] serves it.
type API struct {
	config *rest.Config

	mu       sync.Mutex
	version  int64 // resourceVersion of the last change
	oldest   int64 // of the oldest change that a watch can begin at
	ahead    time.Duration
	pods     map[string]*corev1.Pod
	past     *Snapshot         // that lists and watches show; nil shows the Pods as they are
	warnings *corev1.EventList // nil is without the right to list them
	objects  map[string]Object // ConfigMaps and Secrets by resource, namespace and name
	events   []event           // since oldest
	changed  chan struct{}     // closed and replaced at each change
	broken   chan struct{}     // closed and replaced to end all watches
	inject   func(Request) *Fault
	requests map[string]int
	kubelet  *Kubelet
	uids     int
}

// event is one change.
type event struct {
	version int64
	kind    watch.EventType
	pod     *corev1.Pod // never changed afterwards
}

// NewAPI starts an API server. It ends with the test.
func NewAPI(t testing.TB) *API {
	t.Helper()
	a := newAPI()
	server := httptest.NewUnstartedServer(a)
	server.EnableHTTP2 = true // as every API server does
	server.Config.ErrorLog = quiet
	server.StartTLS()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	a.config = &rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{CAData: ca}}
	t.Cleanup(func() {
		a.DropWatches()
		server.CloseClientConnections()
		server.Close()
	})
	return a
}

// quiet is the log of servers whose connections break.
var quiet = log.New(io.Discard, "", 0)

func newAPI() *API {
	return &API{
		version: 1, oldest: 1, pods: map[string]*corev1.Pod{}, objects: map[string]Object{},
		changed: make(chan struct{}), broken: make(chan struct{}), requests: map[string]int{},
	}
}

// Config returns how a client reaches the API server.
func (a *API) Config() *rest.Config { return rest.CopyConfig(a.config) }

// Requests returns the number of calls so far by verb; those that are not about Pods
// by verb and resource, such as "create secrets".
func (a *API) Requests() map[string]int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return maps.Clone(a.requests)
}

// Pods returns the Pods of a namespace, sorted by name.
func (a *API) Pods(namespace string) []corev1.Pod {
	a.mu.Lock()
	defer a.mu.Unlock()
	var all []corev1.Pod
	for _, key := range slices.Sorted(maps.Keys(a.pods)) {
		if pod := a.pods[key]; pod.Namespace == namespace {
			all = append(all, *pod.DeepCopy())
		}
	}
	return all
}

// Change applies a change to a Pod, as a controller would, and reports whether
// there is such a Pod.
func (a *API) Change(namespace, name string, change func(*corev1.Pod)) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	pod, ok := a.pods[namespace+"/"+name]
	if ok {
		pod = pod.DeepCopy()
		change(pod)
		a.record(watch.Modified, pod)
	}
	return ok
}

// Drop removes a Pod at once, as a deletion with no grace does.
func (a *API) Drop(namespace, name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if pod, ok := a.pods[namespace+"/"+name]; ok {
		a.record(watch.Deleted, pod.DeepCopy())
	}
}

// Put adds a Pod as it is, with the uid and the version that it lacks.
func (a *API) Put(pod *corev1.Pod) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.add(pod.DeepCopy())
}

// add keeps a new Pod. The lock is held.
func (a *API) add(pod *corev1.Pod) *corev1.Pod {
	a.uids++
	if pod.UID == "" {
		pod.UID = types.UID(fmt.Sprintf("uid-%d", a.uids))
	}
	pod.CreationTimestamp = a.now()
	if pod.Status.Phase == "" {
		pod.Status.Phase = corev1.PodPending
	}
	return a.record(watch.Added, pod)
}

// record keeps a change and wakes the watches. The lock is held.
func (a *API) record(kind watch.EventType, pod *corev1.Pod) *corev1.Pod {
	a.version++
	pod.ResourceVersion = strconv.FormatInt(a.version, 10)
	key := pod.Namespace + "/" + pod.Name
	if kind == watch.Deleted {
		delete(a.pods, key)
		a.collect(pod.UID)
	} else {
		a.pods[key] = pod
	}
	a.events = append(a.events, event{a.version, kind, pod})
	close(a.changed)
	a.changed = make(chan struct{})
	if a.kubelet != nil {
		a.kubelet.saw(kind, pod)
	}
	return pod
}

// ServeHTTP serves one call.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	rest, ok := strings.CutPrefix(r.URL.Path, "/api/v1/namespaces/")
	parts := strings.Split(rest, "/")
	if !ok || len(parts) < 2 || !slices.Contains([]string{"pods", configMaps, secrets, events}, parts[1]) {
		a.answer(w, r, http.StatusNotFound, status(apierrors.NewNotFound(podKind, r.URL.Path)))
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	request := Request{Body: body, Resource: parts[1]}
	if len(parts) > 2 {
		request.Name = parts[2]
	}
	request.Verb = verb(r, len(parts))
	broken, ok := a.admit(w, r, request)
	if !ok {
		return
	}
	namespace := parts[0]
	switch request.Resource {
	case "pods":
	case events:
		a.serveEvents(w, r)
		return
	default:
		a.serveObject(w, r, namespace, request)
		return
	}
	switch request.Verb {
	case "create":
		a.serveCreate(w, r, namespace, body)
	case "update":
		a.serveUpdate(w, r, namespace, request.Name, body)
	case "delete":
		a.serveDelete(w, r, namespace, request.Name, body)
	case "get":
		a.serveGet(w, r, namespace, request.Name)
	case "log":
		a.serveLog(w, r, namespace, request.Name)
	case "watch":
		a.serveWatch(w, r, namespace, broken)
	default:
		a.serveList(w, r, namespace)
	}
}

// verb names the call of a request whose path has so many parts.
func verb(r *http.Request, parts int) string {
	switch {
	case r.Method == http.MethodPost:
		return "create"
	case r.Method == http.MethodPut:
		return "update"
	case r.Method == http.MethodDelete:
		return "delete"
	case parts > 3:
		return "log"
	case parts > 2:
		return "get"
	case r.URL.Query().Get("watch") != "":
		return "watch"
	}
	return "list"
}

// status returns an API error as the object that is sent.
func status(err *apierrors.StatusError) *metav1.Status { s := err.Status(); return &s }

// media returns how the client wants to be answered.
func media(r *http.Request) runtime.SerializerInfo {
	wanted := runtime.ContentTypeJSON
	if strings.Contains(r.Header.Get("Accept"), runtime.ContentTypeProtobuf) {
		wanted = runtime.ContentTypeProtobuf
	}
	info, _ := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), wanted)
	return info
}

// answer sends an object.
func (a *API) answer(w http.ResponseWriter, r *http.Request, code int, object runtime.Object) {
	info := media(r)
	text, err := encode(info, object)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", info.MediaType)
	w.WriteHeader(code)
	_, _ = w.Write(text)
}

// encode returns an object as it is sent. Encoding sets the kind of the object
// meanwhile, so a Pod that others read is copied.
func encode(info runtime.SerializerInfo, object runtime.Object) ([]byte, error) {
	if pod, ok := object.(*corev1.Pod); ok {
		mine := *pod
		object = &mine
	}
	return runtime.Encode(codecs.EncoderForVersion(info.Serializer, corev1.SchemeGroupVersion), object)
}

// decode reads an object that a client sent.
func decode(body []byte) (runtime.Object, error) {
	object, _, err := codecs.UniversalDeserializer().Decode(body, nil, nil)
	return object, err
}

// decodeOptions reads the options of a delete. They are sent as meta/v1 or in JSON.
func decodeOptions(body []byte) (options metav1.DeleteOptions) {
	if object, err := decode(body); err == nil {
		if sent, ok := object.(*metav1.DeleteOptions); ok {
			return *sent
		}
	}
	_ = json.Unmarshal(body, &options)
	return options
}

// selected returns the label selector of a request.
func selected(r *http.Request) labels.Selector {
	selector, err := labels.Parse(r.URL.Query().Get("labelSelector"))
	if err != nil {
		return labels.Nothing()
	}
	return selector
}
