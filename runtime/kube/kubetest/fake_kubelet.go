package kubetest

import (
	"bytes"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// Kubelet runs the Pods of an [API]: init containers one after the other, then the
// first container. What a container does is a function.
type Kubelet struct {
	// Hold returns a Pod's status as long as the Pod is not to be run, such as one
	// whose image cannot be pulled. Nil runs every Pod.
	Hold func(*corev1.Pod) *corev1.PodStatus

	// Before is called before each container is made, and may take its time. Nil does
	// nothing.
	Before func(*corev1.Pod, corev1.Container)

	api  *API
	exec func(*Container) int
	busy sync.WaitGroup
	mu   sync.Mutex
	runs map[string]*Container // by uid of the Pod: the container that runs, or ran last
}

// Container is one container that runs.
type Container struct {
	Pod  *corev1.Pod // as it was when the container started
	Spec corev1.Container
	Init bool
	Term <-chan struct{} // closed when the container is to end
	Kill <-chan struct{} // closed at the end of its grace

	kubelet *Kubelet
	mu      sync.Mutex
	log     bytes.Buffer
	news    chan struct{} // closed and replaced when log or pod has changed
	message string
	ended   bool
	newest  *corev1.Pod
	term    chan struct{}
	kill    chan struct{}
	deleted bool
}

// NewKubelet makes a kubelet whose containers do what exec does. Exec returns the
// exit code, and must return soon after Kill.
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
		k.busy.Wait()
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

// Newest returns the Pod as it is now, and a channel that is closed when that, or
// the log, has changed.
func (c *Container) Newest() (*corev1.Pod, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.newest, c.news
}

func (c *Container) notify() {
	close(c.news)
	c.news = make(chan struct{})
}

// end begins to end the container.
func (c *Container) end(grace time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.deleted {
		c.deleted = true
		close(c.term)
		time.AfterFunc(grace, func() { close(c.kill) })
	}
}

// saw is called for each change of a Pod, with the lock of the API.
func (k *Kubelet) saw(kind watch.EventType, pod *corev1.Pod) {
	k.mu.Lock()
	c := k.runs[string(pod.UID)]
	k.mu.Unlock()
	switch {
	case kind == watch.Added:
		k.busy.Go(func() { k.run(pod) })
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

// run runs a Pod from its creation to its end.
func (k *Kubelet) run(pod *corev1.Pod) {
	namespace, name := pod.Namespace, pod.Name
	if k.Hold != nil {
		if held := k.Hold(pod); held != nil {
			k.api.Change(namespace, name, func(p *corev1.Pod) { p.Status = *held })
			return
		}
	}
	there := k.api.Change(namespace, name, func(p *corev1.Pod) {
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
	for i, spec := range pod.Spec.InitContainers {
		if !there {
			return
		}
		code := 0
		code, there = k.contain(pod, spec, true, func(p *corev1.Pod) *corev1.ContainerStatus { return &p.Status.InitContainerStatuses[i] })
		if there && code != 0 {
			k.phase(pod, corev1.PodFailed)
			return
		}
	}
	if !there {
		return
	}
	code, there := k.contain(pod, pod.Spec.Containers[0], false, func(p *corev1.Pod) *corev1.ContainerStatus { return &p.Status.ContainerStatuses[0] })
	if there && code == 0 {
		k.phase(pod, corev1.PodSucceeded)
	} else if there {
		k.phase(pod, corev1.PodFailed)
	}
}

func waiting(name string) corev1.ContainerStatus {
	return corev1.ContainerStatus{Name: name, State: corev1.ContainerState{
		Waiting: &corev1.ContainerStateWaiting{Reason: "PodInitializing"},
	}}
}

// contain runs one container. There is false when the Pod was deleted meanwhile.
func (k *Kubelet) contain(
	pod *corev1.Pod, spec corev1.Container, init bool, state func(*corev1.Pod) *corev1.ContainerStatus,
) (code int, there bool) {
	if k.Before != nil {
		k.Before(pod, spec)
	}
	c := &Container{
		Pod: pod, Spec: spec, Init: init, kubelet: k, news: make(chan struct{}), newest: pod,
		term: make(chan struct{}), kill: make(chan struct{}),
	}
	c.Term, c.Kill = c.term, c.kill
	k.mu.Lock()
	k.runs[string(pod.UID)] = c
	k.mu.Unlock()
	var started metav1.Time
	there = k.api.Change(pod.Namespace, pod.Name, func(p *corev1.Pod) {
		started = k.api.now()
		state(p).State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: started}}
		if !init {
			p.Status.Phase = corev1.PodRunning
		}
		c.mu.Lock()
		c.newest = p
		c.mu.Unlock()
	})
	if !there {
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
	there = k.api.Change(pod.Namespace, pod.Name, func(p *corev1.Pod) {
		state(p).State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			ExitCode: int32(code), Reason: reason, Message: message, StartedAt: started, FinishedAt: k.api.now(),
		}}
	})
	if deleted {
		k.api.Drop(pod.Namespace, pod.Name)
		return code, false
	}
	return code, there
}

func (k *Kubelet) phase(pod *corev1.Pod, phase corev1.PodPhase) {
	k.api.Change(pod.Namespace, pod.Name, func(p *corev1.Pod) { p.Status.Phase = phase })
}

// serveLog streams the log of a Pod's container from its beginning to its end.
func (a *API) serveLog(w http.ResponseWriter, r *http.Request, namespace, name string) {
	a.mu.Lock()
	pod, there := a.pods[namespace+"/"+name]
	kubelet, broken := a.kubelet, a.broken
	a.mu.Unlock()
	if !there {
		a.answer(w, r, http.StatusNotFound, status(apierrors.NewNotFound(podKind, name)))
		return
	}
	if kubelet == nil {
		w.WriteHeader(http.StatusOK) // of a Pod without a node
		return
	}
	kubelet.mu.Lock()
	c := kubelet.runs[string(pod.UID)]
	kubelet.mu.Unlock()
	if c == nil || c.Spec.Name != r.URL.Query().Get("container") {
		a.answer(w, r, http.StatusBadRequest, status(apierrors.NewBadRequest("container is waiting to start")))
		return
	}
	w.Header().Set("Content-Type", "text/plain")
	w.WriteHeader(http.StatusOK)
	for sent := 0; ; {
		c.mu.Lock()
		news, text, ended := c.news, strings.Clone(string(c.log.Bytes()[sent:])), c.ended
		c.mu.Unlock()
		sent += len(text)
		_, _ = w.Write([]byte(text))
		if f, ok := w.(http.Flusher); ok {
			f.Flush()
		}
		if ended && text == "" {
			return
		}
		if ended {
			continue
		}
		select {
		case <-news:
		case <-broken:
			return
		case <-r.Context().Done():
			return
		}
	}
}
