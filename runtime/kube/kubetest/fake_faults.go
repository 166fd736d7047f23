package kubetest

import (
	"context"
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

// Request is a call to the API server.
type Request struct {
	Verb     string // create, get, list, watch, update, delete or log
	Resource string // pods, configmaps, secrets or events
	Name     string // of the Pod or object, if the call names one
	Body     []byte
}

// Fault is what the API server does in place of the call, or, with After, behind
// it.
type Fault struct {
	Status     int           // of the answer; 0 breaks the connection
	Message    string        // of the answer, which is a Status object
	Page       string        // in place of that object: what a proxy, or a broken server, answers
	MediaType  string        // of Page
	RetryAfter int           // seconds; 0 sends no header
	Hang       time.Duration // before the rest
	After      bool          // the call is made, and its answer is lost
}

// NewAPIWithoutNetwork is [NewAPI] with pipes in place of sockets, so that time can
// be simulated by testing/synctest. It speaks HTTP/1 without TLS.
func NewAPIWithoutNetwork(t testing.TB) *API {
	t.Helper()
	a := newAPI()
	conns := make(pipes)
	server := &http.Server{Handler: a, ErrorLog: quiet}
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

// pipes is a listener whose connections are pipes. It is closed by its server only.
type pipes chan net.Conn

func (p pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	here, there := net.Pipe()
	select {
	case p <- there:
		return here, nil
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

// Close ends Accept.
func (p pipes) Close() error {
	close(p)
	return nil
}

// Addr returns an address that means nothing.
func (p pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "pipe"} }

// Inject sets a function that returns the fault of a call, or nil.
func (a *API) Inject(fault func(Request) *Fault) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.inject = fault
}

// DropWatches ends all watches and logs whose calls have been counted. The watches
// send no change that comes after it.
func (a *API) DropWatches() {
	a.mu.Lock()
	defer a.mu.Unlock()
	close(a.broken)
	a.broken = make(chan struct{})
}

// Compact forgets all changes, so that a watch that begins at an earlier version
// is answered with 410.
func (a *API) Compact() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.version++
	a.events, a.oldest = nil, a.version
}

// SetClock sets how far the clock of the cluster is ahead of the test's.
func (a *API) SetClock(ahead time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ahead = ahead
}

// now returns the time of the cluster. The lock is held.
func (a *API) now() metav1.Time { return metav1.NewTime(time.Now().Add(a.ahead)) }

// Snapshot is the Pods of an API server at one time.
type Snapshot struct {
	version int64
	pods    map[string]*corev1.Pod
}

// Snapshot returns the Pods as they are now.
func (a *API) Snapshot() *Snapshot {
	a.mu.Lock()
	defer a.mu.Unlock()
	return &Snapshot{a.version, maps.Clone(a.pods)}
}

// Show makes lists and watches show the Pods of a snapshot and no change, until it
// is called with nil. Other calls are served as always. So does an API server whose
// cache is not kept current.
func (a *API) Show(past *Snapshot) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.past = past
	close(a.changed)
	a.changed = make(chan struct{})
}

// shown returns the Pods that lists show, sorted by name. The lock is held.
func (a *API) shown() (version int64, pods []*corev1.Pod) {
	source := Snapshot{a.version, a.pods}
	if a.past != nil {
		source = *a.past
	}
	for _, key := range slices.Sorted(maps.Keys(source.pods)) {
		pods = append(pods, source.pods[key])
	}
	return source.version, pods
}

// Send sends a Pod to all watches without a change of it, such as a state of the
// past. The Pod keeps its resourceVersion.
func (a *API) Send(kind watch.EventType, pod *corev1.Pod) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.version++
	a.events = append(a.events, event{a.version, kind, pod.DeepCopy()})
	close(a.changed)
	a.changed = make(chan struct{})
}

// admit counts a call, and injects its fault. It returns the channel that ends the
// call if it is a watch, and reports whether the call is to be served.
func (a *API) admit(w http.ResponseWriter, r *http.Request, request Request) (<-chan struct{}, bool) {
	a.mu.Lock()
	counted := request.Verb
	if request.Resource != "pods" {
		counted += " " + request.Resource
	}
	a.requests[counted]++
	inject, broken := a.inject, a.broken
	a.mu.Unlock()
	if inject == nil {
		return broken, true
	}
	fault := inject(request)
	if fault == nil {
		return broken, true
	}
	if fault.After {
		a.mu.Lock()
		a.inject = nil
		a.mu.Unlock()
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
	a.answer(w, r, fault.Status, &metav1.Status{
		Status: metav1.StatusFailure, Code: int32(fault.Status), Message: fault.Message, Reason: reasons[fault.Status],
	})
	return nil, false
}

// reasons are the reasons of statuses that faults may have.
var reasons = map[int]metav1.StatusReason{
	http.StatusUnauthorized: metav1.StatusReasonUnauthorized, http.StatusForbidden: metav1.StatusReasonForbidden,
	http.StatusNotFound: metav1.StatusReasonNotFound, http.StatusConflict: metav1.StatusReasonConflict,
	http.StatusGone: metav1.StatusReasonExpired, http.StatusUnprocessableEntity: metav1.StatusReasonInvalid,
	http.StatusTooManyRequests:     metav1.StatusReasonTooManyRequests,
	http.StatusInternalServerError: metav1.StatusReasonInternalError,
	http.StatusServiceUnavailable:  metav1.StatusReasonServiceUnavailable,
}

// events is the resource of events.
const events = "events"

// SetEvents sets the events of all namespaces. Before it is called, the agent has no
// right to list them, as under the documented Role.
func (a *API) SetEvents(all ...corev1.Event) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.warnings = &corev1.EventList{Items: all}
}

// serveEvents serves the events that a field selector matches.
func (a *API) serveEvents(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	all := a.warnings
	a.mu.Unlock()
	if all == nil {
		kind := schema.GroupResource{Resource: events}
		refused := apierrors.NewForbidden(kind, "", errors.New("the Role has no right on them"))
		a.answer(w, r, http.StatusForbidden, status(refused))
		return
	}
	selector, err := fields.ParseSelector(r.URL.Query().Get("fieldSelector"))
	if err != nil {
		selector = fields.Nothing()
	}
	found := &corev1.EventList{}
	for _, event := range all.Items {
		set := fields.Set{"involvedObject.uid": string(event.InvolvedObject.UID), "type": event.Type}
		if selector.Matches(set) {
			found.Items = append(found.Items, event)
		}
	}
	a.answer(w, r, http.StatusOK, found)
}
