package kube

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	machinery "k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// Times of the watch.
const (
	watchRetry    = time.Second      // after an attempt that failed, and between the beginnings of two watches; doubles
	watchRetryMax = 10 * time.Second // ceiling of that
	syncLimit     = 30 * time.Second // for the first list, when a job is started
)

// observer watches all Pods of the agent in one namespace, and keeps what the
// executor needs of each. It is the store of client-go's reflector, which lists,
// watches, reconnects and lists again after a 410.
type observer struct {
	client    *client
	namespace string
	self      self
	selector  string

	cancel context.CancelFunc
	done   chan struct{} // closed when the goroutine has ended
	synced chan struct{} // closed after the first list

	began    time.Time   // of the last watch, for the goroutine of run
	noEvents atomic.Bool // the Role does not allow to list the events of the namespace

	mu      sync.Mutex
	pods    map[string]*entry // by name
	problem error             // of the last attempt to list or watch; nil after one that succeeded
}

// entry is one Pod that exists, or that somebody waits for.
type entry struct {
	state   *state        // as it was last; nil while there never was such a Pod
	gone    bool          // the Pod is deleted
	whole   *corev1.Pod   // as the API server sent it last, for a subscriber that updates it; else nil
	changed chan struct{} // closed and replaced at each change
	holds   int           // subscriptions
	wholes  int           // subscriptions that need the whole Pod
}

// observe begins to watch. The caller calls close.
func observe(client *client, namespace string, self self, selector string) *observer {
	ctx, cancel := context.WithCancel(context.Background())
	o := &observer{
		client: client, namespace: namespace, self: self, selector: selector,
		cancel: cancel, done: make(chan struct{}), synced: make(chan struct{}), pods: map[string]*entry{},
	}
	go func() {
		defer close(o.done)
		o.run(ctx)
	}()
	return o
}

// errClosed is the problem of a watch that was closed. An executor may be used
// after its Close, to remove what is left; it then asks the API server.
var errClosed = errors.New("the watch is closed")

// close ends the watch.
func (o *observer) close() {
	o.cancel()
	<-o.done
	o.mu.Lock()
	defer o.mu.Unlock()
	o.problem = errClosed
}

// run lists and watches until ctx ends.
func (o *observer) run(ctx context.Context) {
	lister := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (machinery.Object, error) {
			options.LabelSelector = o.selector
			all, err := o.client.list(ctx, o.namespace, options)
			o.attempted(ctx, err)
			for i := range all.Items { // of all pages, which the reflector collects
				all.Items[i] = *o.needed(&all.Items[i])
			}
			return all, err
		},
		WatchFuncWithContext: o.watch,
	}
	reflector := cache.NewReflectorWithOptions(lister, &corev1.Pod{}, o, cache.ReflectorOptions{Name: "pods"})
	for wait := watchRetry; ; wait = min(2*wait, watchRetryMax) {
		began := time.Now()
		err := reflector.ListAndWatchWithContext(ctx)
		o.attempted(ctx, err)
		if time.Since(began) > watchRetryMax {
			wait = watchRetry
		}
		if !pause(ctx, wait) {
			return
		}
	}
}

// watch begins a watch for the reflector. What the reflector repeats by itself is
// repeated here, because its own waits do not end with ctx, and a watch that is
// answered with 410 again and again has no wait at all.
func (o *observer) watch(ctx context.Context, options metav1.ListOptions) (apiwatch.Interface, error) {
	options.LabelSelector = o.selector
	for wait := watchRetry; ; wait = min(2*wait, watchRetryMax) {
		if !pause(ctx, time.Until(o.began.Add(watchRetry))) {
			return nil, context.Cause(ctx)
		}
		o.began = time.Now()
		w, err := o.client.watch(ctx, o.namespace, options)
		o.attempted(ctx, err)
		if !utilnet.IsConnectionRefused(err) && !apierrors.IsTooManyRequests(err) {
			return w, err
		}
		if !pause(ctx, wait) {
			return nil, context.Cause(ctx)
		}
	}
}

// pause waits, and reports whether ctx has not ended.
func pause(ctx context.Context, wait time.Duration) bool {
	timer := time.NewTimer(max(wait, 0))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}

// attempted keeps the result of an attempt to list or watch.
func (o *observer) attempted(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.problem = err
}

// health returns why the state of Pods is not known at present; nil if it is.
func (o *observer) health() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.problem
}

// listed reports whether the Pods that existed at first are known.
func (o *observer) listed() bool {
	select {
	case <-o.synced:
		return true
	default:
		return false
	}
}

// ready blocks until the Pods that exist are known.
func (o *observer) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, syncLimit)
	defer cancel()
	select {
	case <-o.synced:
		return nil
	case <-ctx.Done():
	}
	err := o.health()
	if err == nil {
		err = context.Cause(ctx)
	}
	return fmt.Errorf("list the Pods of namespace %s: %w", o.namespace, err)
}

// subscription is an interest in one Pod, which may not exist yet.
type subscription struct {
	observer *observer
	name     string
	entry    *entry
	whole    bool
}

// subscribe begins to follow the Pod with this name. Whole is whether the caller
// needs the whole object. The caller calls close.
func (o *observer) subscribe(name string, whole bool) *subscription {
	o.mu.Lock()
	defer o.mu.Unlock()
	e := o.entry(name)
	e.holds++
	if whole {
		e.wholes++
	}
	return &subscription{observer: o, name: name, entry: e, whole: whole}
}

// entry returns the entry of a name, and makes one if there is none.
func (o *observer) entry(name string) *entry {
	e, ok := o.pods[name]
	if !ok {
		e = &entry{changed: make(chan struct{})}
		o.pods[name] = e
	}
	return e
}

// now returns the state of the Pod as it was last, nil if it was never seen,
// whether it is deleted, and a channel that is closed at the next change.
func (s *subscription) now() (last *state, gone bool, changed <-chan struct{}) {
	s.observer.mu.Lock()
	defer s.observer.mu.Unlock()
	return s.entry.state, s.entry.gone, s.entry.changed
}

// object returns the whole Pod as it was seen last, or nil. It is not to be
// changed.
func (s *subscription) object() *corev1.Pod {
	s.observer.mu.Lock()
	defer s.observer.mu.Unlock()
	return s.entry.whole
}

// close ends the subscription.
func (s *subscription) close() {
	o := s.observer
	o.mu.Lock()
	defer o.mu.Unlock()
	s.entry.holds--
	if s.whole {
		s.entry.wholes--
	}
	if s.entry.wholes == 0 {
		s.entry.whole = nil
	}
	o.tidy(s.name, s.entry)
}

// tidy drops an entry that has no purpose. The lock is held.
func (o *observer) tidy(name string, e *entry) {
	if (e.state == nil || e.gone) && e.holds == 0 {
		delete(o.pods, name)
	}
}

// each calls visit for the state of each Pod that exists. Visit must not call the
// observer.
func (o *observer) each(visit func(*state)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, e := range o.pods {
		if e.state != nil && !e.gone {
			visit(e.state)
		}
	}
}

// set keeps the state of a Pod, or the last one of a Pod that is deleted. The lock
// is held.
func (o *observer) set(pod *corev1.Pod, gone bool) {
	e := o.entry(pod.Name)
	e.state, e.gone, e.whole = stateOf(pod), gone, nil
	if e.wholes > 0 && pod.ResourceVersion != "" {
		e.whole = pod
	}
	o.notify(pod.Name, e)
}

// notify wakes the subscribers of an entry. The lock is held.
func (o *observer) notify(name string, e *entry) {
	close(e.changed)
	e.changed = make(chan struct{})
	o.tidy(name, e)
}

// Add is called by the reflector.
func (o *observer) Add(object any) error { return o.keep(object, false) }

// Update is called by the reflector.
func (o *observer) Update(object any) error { return o.keep(object, false) }

// Delete is called by the reflector. The event holds the last state of the Pod.
func (o *observer) Delete(object any) error { return o.keep(object, true) }

func (o *observer) keep(object any, gone bool) error {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return fmt.Errorf("watched %T, want a Pod", object)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.set(pod, gone)
	return nil
}

// Replace is called by the reflector with all Pods there are.
func (o *observer) Replace(objects []any, _ string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	there := make(map[string]bool, len(objects))
	for _, object := range objects {
		pod, ok := object.(*corev1.Pod)
		if !ok {
			return fmt.Errorf("listed %T, want a Pod", object)
		}
		there[pod.Name] = true
		o.set(pod, false)
	}
	for name, e := range o.pods {
		if e.state != nil && !e.gone && !there[name] {
			e.gone, e.whole = true, nil
			o.notify(name, e)
		}
	}
	select {
	case <-o.synced:
	default:
		close(o.synced)
	}
	return nil
}

// Transformer is called by the reflector for a list as a stream, which it collects
// before it passes it on: 5,000 whole Pods would take 70 MB meanwhile.
func (o *observer) Transformer() cache.TransformFunc {
	return func(object any) (any, error) {
		pod, ok := object.(*corev1.Pod)
		if !ok {
			return object, nil
		}
		return o.needed(pod), nil
	}
}

// needed returns a Pod with what the observer needs of it.
func (o *observer) needed(pod *corev1.Pod) *corev1.Pod {
	o.mu.Lock()
	defer o.mu.Unlock()
	if e, ok := o.pods[pod.Name]; ok && e.wholes > 0 {
		return pod
	}
	return reduced(pod)
}

// reduced returns a Pod with what stateOf reads. It has no resourceVersion, so that
// update refuses it.
func reduced(pod *corev1.Pod) *corev1.Pod {
	small := &corev1.Pod{Status: pod.Status}
	small.Name, small.Namespace, small.UID = pod.Name, pod.Namespace, pod.UID
	small.DeletionTimestamp = pod.DeletionTimestamp
	small.Labels = only(pod.Labels, labelKeep, labelOwner)
	small.Annotations = only(pod.Annotations, annotationOwner, annotationPoolName, annotationIdentity)
	for _, v := range pod.Spec.Volumes {
		if v.Name == handoffVolume {
			small.Spec.Volumes = append(small.Spec.Volumes, v)
		}
	}
	small.Spec.NodeName, small.Spec.ReadinessGates = pod.Spec.NodeName, pod.Spec.ReadinessGates
	for _, c := range pod.Spec.Containers {
		kept := corev1.Container{Name: c.Name, Image: c.Image, Resources: c.Resources}
		small.Spec.Containers = append(small.Spec.Containers, kept)
	}
	for _, c := range pod.Spec.InitContainers {
		kept := corev1.Container{Name: c.Name, RestartPolicy: c.RestartPolicy}
		small.Spec.InitContainers = append(small.Spec.InitContainers, kept)
	}
	return small
}

// only returns the entries of a map with these keys.
func only(all map[string]string, keys ...string) map[string]string {
	few := make(map[string]string, len(keys))
	for _, key := range keys {
		if value, ok := all[key]; ok {
			few[key] = value
		}
	}
	return few
}

// Resync is called by the reflector and does nothing.
func (o *observer) Resync() error { return nil }
