package kubetest

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
)

// Request is a request to the API server.
type Request struct {
	Verb     string // create, get, list, watch, update, delete or log
	Resource string // pods, configmaps, secrets or events
	Name     string // of the Pod or object, if the request names one
	Body     []byte
}

// Fault is a fault of the API server. It replaces the response. If After is true, the
// request is served first.
type Fault struct {
	Status     int           // of the response; 0 breaks the connection
	Message    string        // of the response, which is a Status object
	Page       string        // body that replaces the Status object, such as an HTML page of a proxy
	MediaType  string        // of Page
	RetryAfter int           // seconds; 0 sends no header
	Hang       time.Duration // before the response
	After      bool          // serve the request first, and lose its response
}

// NewAPIWithoutNetwork is [NewAPI] with pipes instead of sockets, so that testing/synctest
// can simulate time. It uses HTTP/1 without TLS.
func NewAPIWithoutNetwork(t testing.TB) *API {
	t.Helper()
	a := newAPI()
	conns := make(pipes)
	server := &http.Server{Handler: a, ErrorLog: discardLog}
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(conns) }()
	a.config = &rest.Config{Host: "http://fake.invalid", Dial: conns.dial}
	t.Cleanup(func() {
		a.DropWatches()
		_ = server.Close()
		<-done
	})
	return a
}

// pipes is a listener whose connections are pipes. Only its server closes it.
type pipes chan net.Conn

func (p pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case p <- server:
		return client, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Accept returns the next connection.
func (p pipes) Accept() (net.Conn, error) {
	conn, ok := <-p
	if !ok {
		return nil, net.ErrClosed
	}
	return conn, nil
}

// Close closes the listener and unblocks Accept.
func (p pipes) Close() error {
	close(p)
	return nil
}

// Addr returns a placeholder address.
func (p pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "pipe"} }

// Inject sets a function that returns the fault for a request, or nil for no fault.
func (a *API) Inject(fault func(Request) *Fault) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.inject = fault
}

// Mutate sets a function that changes each Pod at its creation, like a mutating webhook.
func (a *API) Mutate(mutate func(*corev1.Pod)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.mutate = mutate
}

// AddField adds a field with the value true to the spec of every Pod, which only a newer release of
// Kubernetes has. JSON contains the field, other encodings do not. An update without it is refused.
func (a *API) AddField(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.newField = name
}

// lacksField reports whether a request would remove the field of AddField.
func (a *API) lacksField(request Request) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	var sent struct{ Spec map[string]any }
	return request.Verb == "update" && a.newField != "" &&
		(json.Unmarshal(request.Body, &sent) != nil || sent.Spec[a.newField] != true)
}

// withField returns the JSON of a Pod with the field of AddField, or nil without one.
func (a *API) withField(pod *corev1.Pod) []byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.newField == "" {
		return nil
	}
	var fields map[string]any
	text, _ := json.Marshal(pod)
	_ = json.Unmarshal(text, &fields)
	fields["apiVersion"], fields["kind"] = "v1", "Pod"
	fields["spec"].(map[string]any)[a.newField] = true
	text, _ = json.Marshal(fields)
	return text
}

// DropWatches ends all watches and logs whose requests are already counted (see
// [API.Requests]). These watches send no change that follows the call.
func (a *API) DropWatches() {
	a.mu.Lock()
	defer a.mu.Unlock()
	close(a.dropped)
	a.dropped = make(chan struct{})
}

// Compact drops all stored changes. A watch that starts at an earlier version gets a 410.
func (a *API) Compact() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.version++
	a.events, a.oldest = nil, a.version
}

// SetClock sets how far the cluster's clock is ahead of the test's clock.
func (a *API) SetClock(ahead time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.clockOffset = ahead
}

// now returns the cluster's time. The caller holds the lock.
func (a *API) now() metav1.Time { return metav1.NewTime(time.Now().Add(a.clockOffset)) }

// Snapshot holds the Pods of an API server at one time.
type Snapshot struct {
	version int64
	pods    map[string]*corev1.Pod
}

// Snapshot returns the current Pods.
func (a *API) Snapshot() *Snapshot {
	a.mu.Lock()
	defer a.mu.Unlock()
	return &Snapshot{a.version, maps.Clone(a.pods)}
}

// Show makes lists and watches return the Pods of a snapshot and no changes. Show(nil) ends
// this. Other requests are served normally. It simulates an API server with an outdated
// cache.
func (a *API) Show(past *Snapshot) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.snapshot = past
	close(a.changed)
	a.changed = make(chan struct{})
}

// visiblePods returns the Pods that lists return, sorted by name. The caller holds the lock.
func (a *API) visiblePods() (version int64, pods []*corev1.Pod) {
	source := Snapshot{a.version, a.pods}
	if a.snapshot != nil {
		source = *a.snapshot
	}
	for _, key := range slices.Sorted(maps.Keys(source.pods)) {
		pods = append(pods, source.pods[key])
	}
	return source.version, pods
}

// Send sends an event with a Pod, such as an earlier state of it, to all watches. It does
// not change the stored Pod, and the Pod in the event keeps its resourceVersion.
func (a *API) Send(kind watch.EventType, pod *corev1.Pod) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.version++
	a.events = append(a.events, event{a.version, kind, pod.DeepCopy()})
	close(a.changed)
	a.changed = make(chan struct{})
}

// admit counts a request and injects its fault. It returns the channel that ends a watch,
// and reports whether the request must be served.
func (a *API) admit(w http.ResponseWriter, r *http.Request, request Request) (<-chan struct{}, bool) {
	a.mu.Lock()
	counted := request.Verb
	if request.Resource != "pods" {
		counted += " " + request.Resource
	}
	a.requests[counted]++
	inject, dropped := a.inject, a.dropped
	a.mu.Unlock()
	if inject == nil {
		return dropped, true
	}
	fault := inject(request)
	if fault == nil {
		return dropped, true
	}
	if fault.After {
		a.Inject(nil)
		r.Body = io.NopCloser(strings.NewReader(string(request.Body)))
		a.ServeHTTP(httptest.NewRecorder(), r)
		a.Inject(inject)
	}
	if fault.Hang > 0 {
		select {
		case <-time.After(fault.Hang):
		case <-r.Context().Done():
		}
	}

	if fault.Status == 0 {
		panic(http.ErrAbortHandler)
	}
	if fault.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(fault.RetryAfter))
	}
	if fault.Page != "" {
		w.Header().Set("Content-Type", fault.MediaType)
		w.WriteHeader(fault.Status)
		_, _ = io.WriteString(w, fault.Page)
		return nil, false
	}
	respond(w, r, fault.Status, &metav1.Status{
		Status: metav1.StatusFailure, Code: int32(fault.Status), Message: fault.Message, Reason: reasons[fault.Status],
	})
	return nil, false
}

var reasons = map[int]metav1.StatusReason{
	http.StatusUnauthorized: metav1.StatusReasonUnauthorized, http.StatusForbidden: metav1.StatusReasonForbidden,
	http.StatusNotFound: metav1.StatusReasonNotFound, http.StatusConflict: metav1.StatusReasonConflict,
	http.StatusGone: metav1.StatusReasonExpired, http.StatusUnprocessableEntity: metav1.StatusReasonInvalid,
	http.StatusTooManyRequests:     metav1.StatusReasonTooManyRequests,
	http.StatusInternalServerError: metav1.StatusReasonInternalError,
	http.StatusServiceUnavailable:  metav1.StatusReasonServiceUnavailable,
}

const events = "events"

// SetEvents sets the events of all namespaces. Before the first call, the agent has no
// right to list them, as with the documented Role.
func (a *API) SetEvents(all ...corev1.Event) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.warnings = &corev1.EventList{Items: all}
}

// serveEvents serves the events that match the field selector.
func (a *API) serveEvents(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	all := a.warnings
	a.mu.Unlock()
	if all == nil {
		kind := schema.GroupResource{Resource: events}
		fail(w, r, apierrors.NewForbidden(kind, "", errors.New("the Role has no right on them")))
		return
	}
	selector := fields.ParseSelectorOrDie(r.URL.Query().Get("fieldSelector"))
	found := &corev1.EventList{}
	for _, event := range all.Items {
		set := fields.Set{"involvedObject.uid": string(event.InvolvedObject.UID), "type": event.Type}
		if selector.Matches(set) {
			found.Items = append(found.Items, event)
		}
	}
	respond(w, r, http.StatusOK, found)
}
