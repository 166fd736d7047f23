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
	codecs  = serializer.NewCodecFactory(scheme)
	podKind = schema.GroupResource{Resource: "pods"}
)

// API is an API server in memory. It serves Pods of any namespace over HTTP, with resource
// versions, watches, graceful deletion and logs. It also serves ConfigMaps and Secrets, and
// deletes them with the Pod that owns them. [API.Inject] injects faults. Pods run if there
// is a [Kubelet]. An API is safe for concurrent use.
type API struct {
	config *rest.Config

	mu          sync.Mutex
	version     int64 // resourceVersion of the last change
	oldest      int64 // oldest resourceVersion from which a watch can start
	clockOffset time.Duration
	pods        map[string]*corev1.Pod
	snapshot    *Snapshot         // shown by lists and watches; nil shows the current Pods
	warnings    *corev1.EventList // set by SetEvents; nil without the right to list events
	objects     map[string]Object // ConfigMaps and Secrets by resource, namespace and name
	events      []event           // since oldest
	changed     chan struct{}     // closed and replaced at each change
	dropped     chan struct{}     // closed and replaced to end all watches
	inject      func(Request) *Fault
	mutate      func(*corev1.Pod)
	newField    string // set by AddField
	requests    map[string]int
	kubelet     *Kubelet
	uids        int
}

// event is one change of a Pod.
type event struct {
	version int64
	kind    watch.EventType
	pod     *corev1.Pod // not changed afterwards
}

// NewAPI starts an API server. It is closed at the end of the test.
func NewAPI(t testing.TB) *API {
	t.Helper()
	a := newAPI()
	server := httptest.NewUnstartedServer(a)
	server.EnableHTTP2 = true // as every API server does
	server.Config.ErrorLog = discardLog
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

// discardLog is the log of servers whose connections are broken by tests.
var discardLog = log.New(io.Discard, "", 0)

func newAPI() *API {
	return &API{
		version: 1, oldest: 1, pods: map[string]*corev1.Pod{}, objects: map[string]Object{},
		changed: make(chan struct{}), dropped: make(chan struct{}), requests: map[string]int{},
	}
}

// Config returns the client configuration for the API server.
func (a *API) Config() *rest.Config { return rest.CopyConfig(a.config) }

// Requests returns the number of requests so far. The keys are verbs for Pods, and verb and
// resource for other objects, such as "create secrets".
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

// Change applies a change to a Pod, like a controller, and reports whether the Pod exists.
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

// Drop removes a Pod at once, like a deletion with a grace period of zero.
func (a *API) Drop(namespace, name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if pod, ok := a.pods[namespace+"/"+name]; ok {
		a.record(watch.Deleted, pod.DeepCopy())
	}
}

// Put adds a Pod. It sets the resourceVersion and the creation time, and the uid if it is
// missing.
func (a *API) Put(pod *corev1.Pod) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.add(pod.DeepCopy())
}

// add stores a new Pod. The caller holds the lock.
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

// record stores a change and wakes the watches. The caller holds the lock.
func (a *API) record(kind watch.EventType, pod *corev1.Pod) *corev1.Pod {
	a.version++
	pod.ResourceVersion = strconv.FormatInt(a.version, 10)
	key := pod.Namespace + "/" + pod.Name
	if kind == watch.Deleted {
		delete(a.pods, key)
		a.deleteOwned(pod.UID)
	} else {
		a.pods[key] = pod
	}
	a.events = append(a.events, event{a.version, kind, pod})
	close(a.changed)
	a.changed = make(chan struct{})
	if a.kubelet != nil {
		a.kubelet.podChanged(kind, pod)
	}
	return pod
}

// ServeHTTP serves one request.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	w.Header().Set("Date", a.now().UTC().Format(http.TimeFormat))
	a.mu.Unlock()
	path, ok := strings.CutPrefix(r.URL.Path, "/api/v1/namespaces/")
	parts := strings.Split(path, "/")
	if !ok || len(parts) < 2 || !slices.Contains([]string{"pods", configMaps, secrets, events}, parts[1]) {
		fail(w, r, apierrors.NewNotFound(podKind, r.URL.Path))
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	request := Request{Verb: verb(r, len(parts)), Resource: parts[1], Body: body}
	if len(parts) > 2 {
		request.Name = parts[2]
	}
	dropped, ok := a.admit(w, r, request)
	if !ok {
		return
	}

	namespace := parts[0]
	switch {
	case request.Resource == events:
		a.serveEvents(w, r)
	case request.Resource != "pods":
		a.serveObject(w, r, namespace, request)
	case request.Verb == "log":
		a.serveLog(w, r, namespace, request.Name)
	case request.Verb == "watch":
		a.serveWatch(w, r, namespace, dropped)
	case request.Verb == "list":
		a.serveList(w, r, namespace)
	default:
		a.servePod(w, r, namespace, request)
	}
}

// verb returns the verb of a request. Parts is the number of elements of its path.
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

// serializerFor returns the serializer of the content type that the client accepts.
func serializerFor(r *http.Request) runtime.SerializerInfo {
	wanted := runtime.ContentTypeJSON
	if strings.Contains(r.Header.Get("Accept"), runtime.ContentTypeProtobuf) {
		wanted = runtime.ContentTypeProtobuf
	}
	info, _ := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), wanted)
	return info
}

// fail sends an error as the response.
func fail(w http.ResponseWriter, r *http.Request, err *apierrors.StatusError) {
	respond(w, r, int(err.ErrStatus.Code), &err.ErrStatus)
}

// respond sends an object as the response.
func respond(w http.ResponseWriter, r *http.Request, code int, object runtime.Object) {
	info := serializerFor(r)
	text, err := encode(info, object)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", info.MediaType)
	w.WriteHeader(code)
	_, _ = w.Write(text)
}

// encode returns the encoded object. Encoding sets the kind of the object, so a shared Pod
// is copied first.
func encode(info runtime.SerializerInfo, object runtime.Object) ([]byte, error) {
	if pod, ok := object.(*corev1.Pod); ok {
		mine := *pod
		object = &mine
	}
	return runtime.Encode(codecs.EncoderForVersion(info.Serializer, corev1.SchemeGroupVersion), object)
}

func decode(body []byte) (runtime.Object, error) {
	object, _, err := codecs.UniversalDeserializer().Decode(body, nil, nil)
	return object, err
}

// decodeOptions decodes the options of a delete, which are an object of meta/v1 or JSON
// without a kind.
func decodeOptions(body []byte) (options metav1.DeleteOptions) {
	if object, err := decode(body); err == nil {
		if sent, ok := object.(*metav1.DeleteOptions); ok {
			return *sent
		}
	}
	_ = json.Unmarshal(body, &options)
	return options
}

func labelSelector(r *http.Request) labels.Selector {
	selector, err := labels.Parse(r.URL.Query().Get("labelSelector"))
	if err != nil {
		return labels.Nothing()
	}
	return selector
}
