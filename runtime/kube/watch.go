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

	"github.com/cmwa-project/cmwa/runtime"
)

// observer watches the Pods of one namespace that match its selector: those of the agent
// and of its group (see watchedSelector). It stores their states, and is the store of
// client-go's reflector, which lists, watches, reconnects, and lists again after a 410. It
// is safe for concurrent use.
type observer struct {
	client    *client
	namespace string
	self      self
	selector  string

	cancel context.CancelFunc
	group  sync.WaitGroup // of the goroutine of run
	synced chan struct{}  // closed after the first list

	watchStarted time.Time   // used by watch only, which run's goroutine calls
	watchEnd     time.Time   // when that watch ends regularly; used like watchStarted
	noEvents     atomic.Bool // the Role does not allow the agent to list events

	mu      sync.Mutex
	pods    map[string]*entry // by name
	lastErr error             // of the last attempt to list or watch; nil after a success
	lastEnd time.Time         // when the watch last showed that a Pod has ended or is deleted; zero before
}

// entry is one Pod that exists or has subscribers.
type entry struct {
	state     *state        // last state; nil if there was never such a Pod
	gone      bool          // the Pod is deleted
	whole     *corev1.Pod   // last object from the API server, for a subscriber that updates it; otherwise nil
	changed   chan struct{} // closed and replaced at each change
	subs      int           // subscriptions
	wholeSubs int           // subscriptions that need the whole Pod
}

// exists reports whether the watch shows the Pod, and the Pod has not ended.
func (e *entry) exists() bool { return e.state != nil && !e.gone && !e.state.finished() }

// observe starts a watch. The caller must call close.
func observe(client *client, namespace string, self self, selector string) *observer {
	ctx, cancel := context.WithCancel(context.Background())
	o := &observer{
		client: client, namespace: namespace, self: self, selector: selector,
		cancel: cancel, synced: make(chan struct{}), pods: map[string]*entry{},
	}
	o.group.Go(func() { o.run(ctx) })
	return o
}

// errClosed is the error of a closed watch. An executor may be used after Close to remove
// leftovers; it then sends requests and does not rely on the store.
var errClosed = errors.New("the watch is closed")

// close stops the watch and waits for its goroutine.
func (o *observer) close() {
	o.cancel()
	o.group.Wait()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lastErr = errClosed
}

// run lists and watches until ctx ends.
func (o *observer) run(ctx context.Context) {
	lister := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (machinery.Object, error) {
			options.LabelSelector = o.selector
			all, err := o.client.list(ctx, o.namespace, options)
			o.noteAttempt(ctx, err)
			for i := range all.Items { // of one page; the reflector collects all pages
				all.Items[i] = *o.reduce(&all.Items[i])
			}
			return all, err
		},
		WatchFuncWithContext: o.watch,
	}
	reflector := cache.NewReflectorWithOptions(lister, &corev1.Pod{}, o, cache.ReflectorOptions{Name: "pods"})
	for delay := watchBackoff.First; ; delay = watchBackoff.Next(delay) {
		started := time.Now()
		err := reflector.ListAndWatchWithContext(ctx)
		o.noteAttempt(ctx, err)
		if time.Since(started) > watchBackoff.Max {
			delay = watchBackoff.First
		}
		if !runtime.Sleep(ctx, nil, runtime.Jitter(delay)) {
			return
		}
	}
}

// watch starts a watch for the reflector. It makes the retries that the reflector would
// make: the delays of the reflector do not end with ctx, and it retries a watch that always
// gets a 410 without any delay.
func (o *observer) watch(ctx context.Context, options metav1.ListOptions) (apiwatch.Interface, error) {
	options.LabelSelector = o.selector
	for delay := watchBackoff.First; ; delay = watchBackoff.Next(delay) {
		if !runtime.Sleep(ctx, nil, time.Until(o.watchStarted.Add(watchBackoff.First))) {
			return nil, context.Cause(ctx)
		}
		if time.Now().Before(o.watchEnd) {
			o.client.metrics.WatchRestarted()
		}
		o.watchStarted = time.Now()
		o.watchEnd = o.watchStarted.Add(regularWatch(options))
		w, err := o.client.watch(ctx, o.namespace, options)
		if options.SendInitialEvents != nil && apierrors.IsInvalid(err) {
			// This API server does not send lists as streams: in Kubernetes 1.33, the feature gate
			// WatchList is off by default. The reflector then requests a list, and a watch.
			o.watchStarted, o.watchEnd = time.Time{}, time.Time{}
			return nil, err
		}
		o.noteAttempt(ctx, err)
		if !utilnet.IsConnectionRefused(err) && !apierrors.IsTooManyRequests(err) {
			return w, err
		}
		if !runtime.Sleep(ctx, nil, runtime.Jitter(delay)) {
			return nil, context.Cause(ctx)
		}
	}
}

// regularWatch returns how long a watch runs if nothing interrupts it. The clock of the API server
// may differ by a second.
func regularWatch(options metav1.ListOptions) time.Duration {
	if options.TimeoutSeconds == nil {
		return 0
	}
	return time.Duration(*options.TimeoutSeconds)*time.Second - time.Second
}

func (o *observer) noteAttempt(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lastErr = err
}

func (o *observer) health() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.lastErr
}

func (o *observer) listed() bool {
	select {
	case <-o.synced:
		return true
	default:
		return false
	}
}

// follows reports whether the watch shows changes. It does not during an outage either, but then no
// other request would show more.
func (o *observer) follows() bool {
	if o == nil || !o.listed() {
		return false
	}
	err := o.health()
	return err == nil || temporary(err)
}

// runs reports whether the watch shows that this Pod of an agent runs. If the result is false, the Pod
// may run nevertheless.
func (o *observer) runs(pod owner) bool {
	if !o.follows() {
		return false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	e := o.pods[pod.Name]
	return e != nil && e.exists() && e.state.uid == pod.UID && !e.state.nodeLost &&
		!overdue(e.state.deleted, o.client.now())
}

// ended returns when the watch last showed that a Pod has ended or is deleted.
func (o *observer) ended() time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.lastEnd
}

// ready blocks until the first list is complete.
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

// subscription watches one Pod, which may not exist yet.
type subscription struct {
	observer *observer
	name     string
	entry    *entry
	whole    bool
}

// subscribe returns a subscription to the Pod with this name. If whole is true, the whole
// object is stored. The caller must call close.
func (o *observer) subscribe(name string, whole bool) *subscription {
	o.mu.Lock()
	defer o.mu.Unlock()
	e := o.entry(name)
	e.subs++
	if whole {
		e.wholeSubs++
	}
	return &subscription{observer: o, name: name, entry: e, whole: whole}
}

// entry returns the entry of a name, and creates it if it does not exist. The caller holds
// the lock.
func (o *observer) entry(name string) *entry {
	e, ok := o.pods[name]
	if !ok {
		e = &entry{changed: make(chan struct{})}
		o.pods[name] = e
	}
	return e
}

// current returns the last state of the Pod (nil if the watch has never shown it), whether
// it is deleted, and a channel that is closed at the next change.
func (s *subscription) current() (last *state, gone bool, changed <-chan struct{}) {
	s.observer.mu.Lock()
	defer s.observer.mu.Unlock()
	return s.entry.state, s.entry.gone, s.entry.changed
}

// object returns the last version of the whole Pod, or nil. The caller must not change it.
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
	s.entry.subs--
	if s.whole {
		s.entry.wholeSubs--
	}
	if s.entry.wholeSubs == 0 {
		s.entry.whole = nil
	}
	o.prune(s.name, s.entry)
}

// prune removes an entry that has no Pod and no subscribers. The caller holds the lock.
func (o *observer) prune(name string, e *entry) {
	if (e.state == nil || e.gone) && e.subs == 0 {
		delete(o.pods, name)
	}
}

// each calls visit with the state of each Pod that exists. Visit must not call methods of
// the observer.
func (o *observer) each(visit func(*state)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, e := range o.pods {
		if e.state != nil && !e.gone {
			visit(e.state)
		}
	}
}

// set stores the state of a Pod, or the last state of a deleted Pod. The caller holds the
// lock.
func (o *observer) set(pod *corev1.Pod, gone bool) {
	e := o.entry(pod.Name)
	existed, before := e.exists(), e.state
	e.state, e.gone, e.whole = stateOf(pod), gone, nil
	if existed && (!e.exists() || e.state.uid != before.uid) {
		o.lastEnd = time.Now()
	}
	if e.wholeSubs > 0 && pod.ResourceVersion != "" {
		e.whole = pod
	}
	o.notify(pod.Name, e)
}

// notify wakes the subscribers of an entry. The caller holds the lock.
func (o *observer) notify(name string, e *entry) {
	close(e.changed)
	e.changed = make(chan struct{})
	o.prune(name, e)
}

// Add stores a new Pod. The reflector calls it.
func (o *observer) Add(object any) error { return o.store(object, false) }

// Update stores a changed Pod. The reflector calls it.
func (o *observer) Update(object any) error { return o.store(object, false) }

// Delete stores the last state of a deleted Pod. The reflector calls it.
func (o *observer) Delete(object any) error { return o.store(object, true) }

// store stores a Pod of an event. The reflector drops events with objects of other types.
func (o *observer) store(object any, gone bool) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.set(object.(*corev1.Pod), gone)
	return nil
}

// Replace stores the Pods of a list and marks all others as deleted. The reflector calls
// it.
func (o *observer) Replace(objects []any, _ string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	listed := make(map[string]bool, len(objects))
	for _, object := range objects {
		pod := object.(*corev1.Pod) // list returns a PodList, and the reflector drops events of other types
		listed[pod.Name] = true
		o.set(pod, false)
	}
	for name, e := range o.pods {
		if e.state != nil && !e.gone && !listed[name] {
			e.gone, e.whole, o.lastEnd = true, nil, time.Now()
			o.notify(name, e)
		}
	}
	if !o.listed() {
		close(o.synced)
	}
	return nil
}

// Transformer returns a function that reduces each Pod of a list that is sent as a stream.
// The reflector collects the list first, and 5,000 whole Pods would take 70 MB.
func (o *observer) Transformer() cache.TransformFunc {
	return func(object any) (any, error) { return o.reduce(object.(*corev1.Pod)), nil }
}

// reduce returns the whole Pod if a subscriber needs it, otherwise a reduced copy.
func (o *observer) reduce(pod *corev1.Pod) *corev1.Pod {
	o.mu.Lock()
	defer o.mu.Unlock()
	if e, ok := o.pods[pod.Name]; ok && e.wholeSubs > 0 {
		return pod
	}
	return reduced(pod)
}

// reduced returns a Pod with only the fields that stateOf reads. It has no resourceVersion,
// so that update refuses it.
func reduced(pod *corev1.Pod) *corev1.Pod {
	result := &corev1.Pod{Status: pod.Status}
	result.Name, result.Namespace, result.UID = pod.Name, pod.Namespace, pod.UID
	result.DeletionTimestamp = pod.DeletionTimestamp
	result.Labels = pick(pod.Labels, labelKeep, labelOwner)
	result.Annotations = pick(pod.Annotations, annotationOwner, annotationPoolName, annotationIdentity)
	for _, v := range pod.Spec.Volumes {
		if v.Name == handoffVolume {
			result.Spec.Volumes = append(result.Spec.Volumes, v)
		}
	}
	result.Spec.NodeName, result.Spec.ReadinessGates = pod.Spec.NodeName, pod.Spec.ReadinessGates
	result.Spec.TerminationGracePeriodSeconds = pod.Spec.TerminationGracePeriodSeconds
	for _, c := range pod.Spec.Containers {
		kept := corev1.Container{Name: c.Name, Image: c.Image, Resources: c.Resources}
		result.Spec.Containers = append(result.Spec.Containers, kept)
	}
	for _, c := range pod.Spec.InitContainers {
		kept := corev1.Container{Name: c.Name, RestartPolicy: c.RestartPolicy}
		result.Spec.InitContainers = append(result.Spec.InitContainers, kept)
	}
	return result
}

func pick(all map[string]string, keys ...string) map[string]string {
	picked := make(map[string]string, len(keys))
	for _, key := range keys {
		if value, ok := all[key]; ok {
			picked[key] = value
		}
	}
	return picked
}

// Resync does nothing. The reflector calls it.
func (o *observer) Resync() error { return nil }
