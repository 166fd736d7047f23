package kubetest

import (
	"net/http"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
)

// servePod serves a request for one Pod.
func (a *API) servePod(w http.ResponseWriter, r *http.Request, namespace string, request Request) {
	var sent *corev1.Pod
	if request.Verb == "create" || request.Verb == "update" {
		object, err := decode(request.Body)
		pod, ok := object.(*corev1.Pod)
		if err != nil || !ok || len(pod.Spec.Containers) == 0 || a.lacksField(request) {
			fail(w, r, apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, request.Name, nil))
			return
		}
		pod.Namespace = namespace
		sent, request.Name = pod, pod.Name
	}

	a.mu.Lock()
	pod, exists := a.pods[namespace+"/"+request.Name]
	current := !exists || isCurrent(pod, sent, request)
	switch {
	case request.Verb == "create" && !exists:
		pod = sent
		if a.mutate != nil {
			a.mutate(pod)
		}
		if r.URL.Query().Get("dryRun") == "" {
			pod = a.add(sent)
		}
	case !exists || !current:
	case request.Verb == "update":
		sent.Status = pod.Status // an update does not change the status
		pod = a.record(watch.Modified, sent)
	case request.Verb == "delete":
		pod = a.deletePod(pod, decodeOptions(request.Body).GracePeriodSeconds)
	}
	a.mu.Unlock()
	if request.Verb == "get" && exists && serializerFor(r).MediaType == runtime.ContentTypeJSON {
		if text := a.withField(pod); text != nil {
			w.Header().Set("Content-Type", runtime.ContentTypeJSON)
			_, _ = w.Write(text)
			return
		}
	}
	finish(w, r, request, exists, current, pod)
}

// deletePod deletes a Pod, or sets its deletion time. The caller holds the lock.
func (a *API) deletePod(pod *corev1.Pod, grace *int64) *corev1.Pod {
	if grace == nil {
		grace = new(int64(30))
	}
	pod = pod.DeepCopy()
	ended := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	switch {
	case *grace == 0 || ended || pod.Spec.NodeName == "" || a.kubelet == nil:
		a.record(watch.Deleted, pod)
	case pod.DeletionTimestamp == nil || *pod.DeletionGracePeriodSeconds > *grace:
		pod.DeletionGracePeriodSeconds = grace
		pod.DeletionTimestamp = &metav1.Time{Time: a.now().Add(time.Duration(*grace) * time.Second)}
		a.record(watch.Modified, pod)
	}
	return pod
}

// finish sends the response to a request that creates, gets, updates or deletes an object. Exists
// reports whether the object existed before, current whether it has the version in the request.
func finish(w http.ResponseWriter, r *http.Request, request Request, exists, current bool, object Object) {
	kind := schema.GroupResource{Resource: request.Resource}
	switch {
	case request.Verb == "create" && exists:
		fail(w, r, apierrors.NewAlreadyExists(kind, request.Name))
	case request.Verb == "create":
		respond(w, r, http.StatusCreated, object.DeepCopyObject())
	case !exists:
		fail(w, r, apierrors.NewNotFound(kind, request.Name))
	case !current:
		fail(w, r, apierrors.NewConflict(kind, request.Name, nil))
	default:
		respond(w, r, http.StatusOK, object.DeepCopyObject())
	}
}

// serveList serves all Pods that match, in pages if the request has a limit.
func (a *API) serveList(w http.ResponseWriter, r *http.Request, namespace string) {
	selector, query := labelSelector(r), r.URL.Query()
	field := fields.ParseSelectorOrDie(query.Get("fieldSelector"))
	limit, _ := strconv.Atoi(query.Get("limit"))
	a.mu.Lock()
	version, pods := a.visiblePods()
	list := &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: strconv.FormatInt(version, 10)}}
	for _, pod := range pods {
		key := pod.Namespace + "/" + pod.Name
		if pod.Namespace != namespace || key <= query.Get("continue") || !matches(selector, pod) ||
			!field.Matches(fields.Set{"status.phase": string(pod.Status.Phase)}) {
			continue
		}
		if limit > 0 && len(list.Items) == limit {
			last := list.Items[limit-1]
			list.Continue = last.Namespace + "/" + last.Name
			break
		}
		list.Items = append(list.Items, *pod)
	}
	a.mu.Unlock()
	respond(w, r, http.StatusOK, list)
}

// serveWatch sends changes until the client disconnects or dropped is closed.
func (a *API) serveWatch(w http.ResponseWriter, r *http.Request, namespace string, dropped <-chan struct{}) {
	info, selector, query := serializerFor(r), labelSelector(r), r.URL.Query()
	initial := query.Get("sendInitialEvents") == "true"
	version, _ := strconv.ParseInt(query.Get("resourceVersion"), 10, 64)

	// Send the initial events, or 410 for a version whose changes are no longer stored.
	a.mu.Lock()
	var initialPods []*corev1.Pod
	if initial || version == 0 {
		version, initialPods = a.visiblePods()
	}
	old := version < a.oldest
	a.mu.Unlock()
	if old {
		fail(w, r, apierrors.NewResourceExpired("too old resource version"))
		return
	}
	w.Header().Set("Content-Type", info.MediaType+";stream=watch")
	w.WriteHeader(http.StatusOK)
	out := &sender{w: w, info: info}
	shown := map[string]bool{}
	for _, pod := range initialPods {
		if pod.Namespace == namespace && matches(selector, pod) {
			shown[pod.Name] = true
			out.send(watch.Added, pod)
		}
	}
	if initial {
		out.bookmark(version)
	}

	// Send each change. A change that follows the close of dropped is not sent, because
	// dropped is closed with the lock held.
	for {
		a.mu.Lock()
		select {
		case <-dropped:
			a.mu.Unlock()
			return
		default:
		}
		changed, lags := a.changed, a.snapshot != nil
		begin, _ := slices.BinarySearchFunc(a.events, version+1,
			func(e event, v int64) int { return int(e.version - v) })
		news := slices.Clone(a.events[begin:])
		a.mu.Unlock()
		if lags {
			news = nil
		}
		for _, e := range news {
			version = e.version
			if e.pod.Namespace == namespace {
				out.change(e, matches(selector, e.pod), shown)
			}
		}
		_ = http.NewResponseController(w).Flush()
		select {
		case <-changed:
		case <-dropped:
			return
		case <-r.Context().Done():
			return
		}
	}
}

func matches(selector labels.Selector, pod *corev1.Pod) bool {
	return selector.Matches(labels.Set(pod.Labels))
}

// sender writes the events of one watch.
type sender struct {
	w    http.ResponseWriter
	info runtime.SerializerInfo
}

// change sends a change with regard to the selector of the watch: if a Pod no longer
// matches, the watch gets a deletion.
func (s *sender) change(e event, match bool, shown map[string]bool) {
	kind := e.kind
	switch {
	case !match && !shown[e.pod.Name]:
		return
	case !match, kind == watch.Deleted:
		kind = watch.Deleted
		delete(shown, e.pod.Name)
	case !shown[e.pod.Name]:
		kind = watch.Added
		shown[e.pod.Name] = true
	}
	s.send(kind, e.pod)
}

func (s *sender) send(kind watch.EventType, pod *corev1.Pod) {
	object, err := encode(s.info, pod)
	if err != nil {
		panic(err) // the scheme contains its type
	}
	frame := s.info.StreamSerializer.Framer.NewFrameWriter(s.w)
	text, err := runtime.Encode(s.info.StreamSerializer.Serializer,
		&metav1.WatchEvent{Type: string(kind), Object: runtime.RawExtension{Raw: object}})
	if err != nil {
		panic(err)
	}
	_, _ = frame.Write(text)
}

// bookmark sends the bookmark at the end of the initial events.
func (s *sender) bookmark(version int64) {
	end := &corev1.Pod{}
	end.ResourceVersion = strconv.FormatInt(version, 10)
	end.Annotations = map[string]string{metav1.InitialEventsAnnotationKey: "true"}
	s.send(watch.Bookmark, end)
}
