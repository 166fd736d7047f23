package kubetest

import (
	"bytes"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// Kubelet runs the Pods of an [API]: first the init containers one by one, then the first
// container. A function implements the containers.
type Kubelet struct {
	// Hold returns the status of a Pod that must not run, such as one whose image cannot be
	// pulled, and nil for other Pods. If Hold is nil, every Pod runs.
	Hold func(*corev1.Pod) *corev1.PodStatus

	// Before is called before the start of each container, and may block. It may be nil.
	Before func(*corev1.Pod, corev1.Container)

	api   *API
	exec  func(*Container) int
	group sync.WaitGroup
	mu    sync.Mutex
	runs  map[string]*Container // by uid of the Pod: its current or last container
}

// Container is a container of a Pod.
type Container struct {
	Pod  *corev1.Pod // as it was when the container started
	Spec corev1.Container
	Init bool
	Term chan struct{} // closed when the container must end
	Kill chan struct{} // closed at the end of the grace period

	kubelet *Kubelet
	mu      sync.Mutex
	log     bytes.Buffer
	changed chan struct{} // closed and replaced at each change of log or newest
	message string
	ended   bool
	newest  *corev1.Pod
	deleted bool
}

// NewKubelet returns a kubelet that runs containers with exec. Exec returns the exit code,
// and must return soon after Kill is closed.
func NewKubelet(t testing.TB, api *API, exec func(*Container) int) *Kubelet {
	t.Helper()
	k := &Kubelet{api: api, exec: exec, runs: map[string]*Container{}}
	api.mu.Lock()
	api.kubelet = k
	api.mu.Unlock()
	t.Cleanup(func() {
		k.mu.Lock()
		for _, c := range k.runs {
			c.end(0)
		}
		k.mu.Unlock()
		k.group.Wait()
	})
	return k
}

// Write writes to the container's log.
func (c *Container) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.log.Write(p)
	c.notify()
	return len(p), nil
}

// Report sets the container's termination message.
func (c *Container) Report(message string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.message = message
}

// Newest returns the current Pod, and a channel that is closed at the next change of the
// Pod or the log.
func (c *Container) Newest() (*corev1.Pod, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.newest, c.changed
}

func (c *Container) notify() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// end closes Term, and Kill after the grace period.
func (c *Container) end(grace time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.deleted {
		c.deleted = true
		close(c.Term)
		time.AfterFunc(grace, func() { close(c.Kill) })
	}
}

// podChanged is called for each change of a Pod. The caller holds the lock of the API.
func (k *Kubelet) podChanged(kind watch.EventType, pod *corev1.Pod) {
	k.mu.Lock()
	c := k.runs[string(pod.UID)]
	k.mu.Unlock()
	switch {
	case kind == watch.Added:
		k.group.Go(func() { k.run(pod) })
	case c == nil:
	case kind == watch.Deleted:
		c.end(0)
	default:
		c.mu.Lock()
		c.newest = pod
		c.notify()
		c.mu.Unlock()
		if pod.DeletionTimestamp != nil {
			c.end(time.Duration(*pod.DeletionGracePeriodSeconds) * time.Second)
		}
	}
}

func (k *Kubelet) run(pod *corev1.Pod) {
	namespace, name := pod.Namespace, pod.Name
	if k.Hold != nil {
		if held := k.Hold(pod); held != nil {
			k.api.Change(namespace, name, func(p *corev1.Pod) { p.Status = *held })
			return
		}
	}
	exists := k.api.Change(namespace, name, func(p *corev1.Pod) {
		now := k.api.now()
		p.Spec.NodeName = "fake"
		p.Status = corev1.PodStatus{
			Phase: corev1.PodPending, StartTime: &now,
			Conditions:            []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}},
			InitContainerStatuses: make([]corev1.ContainerStatus, len(p.Spec.InitContainers)),
			ContainerStatuses:     make([]corev1.ContainerStatus, 1),
		}
		for i, c := range p.Spec.InitContainers {
			p.Status.InitContainerStatuses[i] = waiting(c.Name)
		}
		p.Status.ContainerStatuses[0] = waiting(p.Spec.Containers[0].Name)
	})
	if !exists {
		return
	}

	for i, spec := range pod.Spec.InitContainers {
		code, exists := k.runContainer(pod, spec, true,
			func(p *corev1.Pod) *corev1.ContainerStatus { return &p.Status.InitContainerStatuses[i] })
		if exists && code != 0 {
			k.phase(pod, corev1.PodFailed)
		}
		if !exists || code != 0 {
			return
		}
	}
	code, exists := k.runContainer(pod, pod.Spec.Containers[0], false,
		func(p *corev1.Pod) *corev1.ContainerStatus { return &p.Status.ContainerStatuses[0] })
	if exists && code == 0 {
		k.phase(pod, corev1.PodSucceeded)
	} else if exists {
		k.phase(pod, corev1.PodFailed)
	}
}

func waiting(name string) corev1.ContainerStatus {
	return corev1.ContainerStatus{Name: name, State: corev1.ContainerState{
		Waiting: &corev1.ContainerStateWaiting{Reason: "PodInitializing"},
	}}
}

// runContainer runs one container. It reports whether the Pod still exists.
func (k *Kubelet) runContainer(
	pod *corev1.Pod, spec corev1.Container, init bool, state func(*corev1.Pod) *corev1.ContainerStatus,
) (code int, exists bool) {
	if k.Before != nil {
		k.Before(pod, spec)
	}
	c := &Container{
		Pod: pod, Spec: spec, Init: init, kubelet: k, changed: make(chan struct{}), newest: pod,
		Term: make(chan struct{}), Kill: make(chan struct{}),
	}
	k.mu.Lock()
	k.runs[string(pod.UID)] = c
	k.mu.Unlock()

	var started metav1.Time
	exists = k.api.Change(pod.Namespace, pod.Name, func(p *corev1.Pod) {
		started = k.api.now()
		state(p).State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: started}}
		if !init {
			p.Status.Phase = corev1.PodRunning
		}
		c.mu.Lock()
		c.newest = p
		c.mu.Unlock()
	})
	if !exists {
		return 0, false
	}
	code = k.exec(c)

	c.mu.Lock()
	c.ended = true
	message := c.message
	if message == "" && code != 0 && spec.TerminationMessagePolicy == corev1.TerminationMessageFallbackToLogsOnError {
		message = c.log.String()
		message = message[max(0, len(message)-2048):]
	}
	deleted := c.deleted
	c.notify()
	c.mu.Unlock()
	reason := "Completed"
	if code != 0 {
		reason = "Error"
	}
	exists = k.api.Change(pod.Namespace, pod.Name, func(p *corev1.Pod) {
		state(p).State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			ExitCode: int32(code), Reason: reason, Message: message, StartedAt: started, FinishedAt: k.api.now(),
		}}
	})
	if deleted {
		k.api.Drop(pod.Namespace, pod.Name)
		return code, false
	}
	return code, exists
}

func (k *Kubelet) phase(pod *corev1.Pod, phase corev1.PodPhase) {
	k.api.Change(pod.Namespace, pod.Name, func(p *corev1.Pod) { p.Status.Phase = phase })
}

// serveLog streams the log of a Pod's container from the beginning to the end.
func (a *API) serveLog(w http.ResponseWriter, r *http.Request, namespace, name string) {
	a.mu.Lock()
	pod, exists := a.pods[namespace+"/"+name]
	kubelet, dropped := a.kubelet, a.dropped
	a.mu.Unlock()
	if !exists {
		fail(w, r, apierrors.NewNotFound(podKind, name))
		return
	}
	if kubelet == nil {
		w.WriteHeader(http.StatusOK) // a Pod without a node has an empty log
		return
	}
	kubelet.mu.Lock()
	c := kubelet.runs[string(pod.UID)]
	kubelet.mu.Unlock()
	if c == nil || c.Spec.Name != r.URL.Query().Get("container") {
		fail(w, r, apierrors.NewBadRequest("container is waiting to start"))
		return
	}
	w.Header().Set("Content-Type", "text/plain")
	w.WriteHeader(http.StatusOK)
	for sent := 0; ; {
		c.mu.Lock()
		news, text, ended := c.changed, slices.Clone(c.log.Bytes()[sent:]), c.ended
		c.mu.Unlock()
		sent += len(text)
		_, _ = w.Write(text)
		_ = http.NewResponseController(w).Flush()
		if ended {
			return
		}
		select {
		case <-news:
		case <-dropped:
			return
		case <-r.Context().Done():
			return
		}
	}
}
