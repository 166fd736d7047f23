package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"k8s.io/client-go/rest"

	"github.com/cmwa-project/cmwa/runtime"
)

// StartTimeout is the time that a Pod has to start, unless a pool's configuration
// says otherwise.
const StartTimeout = 10 * time.Minute

// Times of a Pod.
const (
	stuckLimit    = 2 * time.Minute  // for what does not heal by itself, before the job has failed
	nodeLostLimit = 10 * time.Minute // without a report of the node; as long as a service waits for a heartbeat
	keepTime      = 24 * time.Hour   // for which the Pod of a failed job is kept
)

// Options is what a [Cluster] is made of.
type Options struct {
	// Environ looks up KUBECONFIG, and in a Pod POD_NAME, POD_NAMESPACE and HOSTNAME.
	Environ func(name string) (string, bool)

	// Context is the context of the kubeconfig that is used, also in a Pod. Empty is the
	// cluster of the agent's Pod or the current context.
	Context string

	// Config, Namespace and Pod take the place of what the environment says, if
	// Config is not nil. Pod is the name of the Pod that the agent runs in, in
	// Namespace; empty if it runs in none.
	Config    *rest.Config
	Namespace string
	Pod       string

	// RunnerDirectory is where the runner lies in a job's container. It is required.
	RunnerDirectory string

	Agent string // id of the agent whose Pods are watched; empty watches those of every agent
	Image string // that the runner is copied from, unless a pool's configuration names another
	Log   *slog.Logger
}

// Cluster is the connection to one cluster. Executors of all pools share it: it
// has one client, and one watch for each namespace.
type Cluster struct {
	client    *client
	namespace string // that is meant when none is named
	options   Options
	at        agentPod // that the agent runs in

	identifying chan struct{} // holds a token while Identify makes its request
	warned      bool          // that the agent's own Pod cannot be read; guarded by identifying

	mu        sync.Mutex
	self      self
	observers map[string]*shared // by namespace
	alive     map[owner]time.Time
}

// shared is an observer with the number of its users.
type shared struct {
	*observer
	users int
}

// New makes a connection and sends nothing.
func New(options Options) (*Cluster, error) {
	if options.RunnerDirectory == "" {
		return nil, errors.New("kube: RunnerDirectory is empty")
	}
	config, namespace, at := options.Config, options.Namespace, agentPod{}
	switch {
	case config == nil:
		var inPod bool
		var err error
		if config, namespace, inPod, err = connection(options.Environ, options.Context); err != nil {
			return nil, err
		}
		if inPod {
			at = agentPodOf(options.Environ, namespace)
		}
	case options.Pod != "":
		at = agentPod{namespace: namespace, name: options.Pod}
	}
	client, err := newClient(config)
	if err != nil {
		return nil, err
	}
	return &Cluster{
		client: client, namespace: namespace, options: options, at: at,
		identifying: make(chan struct{}, 1), observers: map[string]*shared{}, alive: map[owner]time.Time{},
	}, nil
}

// Executor returns an executor for a namespace; empty is the agent's own. It
// begins to watch and waits for nothing. The caller calls [Executor.Close].
func (c *Cluster) Executor(namespace string) *Executor {
	if namespace == "" {
		namespace = c.namespace
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	o, ok := c.observers[namespace]
	if !ok {
		o = &shared{observer: observe(c.client, namespace, c.self, watched(c.self, c.options.Agent))}
		c.observers[namespace] = o
	}
	o.users++
	return &Executor{
		cluster: c, client: c.client, pods: o.observer, self: o.self, namespace: namespace, log: c.options.Log,
		stuckLimit: stuckLimit, lostLimit: nodeLostLimit,
		root: func(string) string { return "/" }, unsure: map[string]bool{},
	}
}

// Executor runs jobs as Pods of one namespace. It keeps nothing that a restarted
// agent would miss.
type Executor struct {
	cluster   *Cluster
	client    *client
	pods      *observer
	self      self // as it was when the namespace began to be watched
	namespace string
	log       *slog.Logger

	stuckLimit, lostLimit time.Duration

	root    func(pod string) string // what stands for "/" in the job's world; tests without containers replace it
	checked checkedPlace
	closed  sync.Once

	mu     sync.Mutex
	unsure map[string]bool // uids of Pods that an update may have adopted whose answer was lost
}

// podSettings returns what all Pods of the executor have in common.
func (e *Executor) podSettings() podSettings {
	options := e.cluster.options
	return podSettings{image: options.Image, runnerDirectory: options.RunnerDirectory, self: e.self}
}

// Close ends the watch of the namespace, unless other executors use it.
func (e *Executor) Close() {
	e.closed.Do(func() {
		e.cluster.mu.Lock()
		defer e.cluster.mu.Unlock()
		o := e.cluster.observers[e.namespace]
		if o.users--; o.users == 0 {
			delete(e.cluster.observers, e.namespace)
			o.close()
		}
	})
}

// outliving returns a context for a call that changes the cluster: the call is not
// cancelled half-way, because the server may finish it all the same.
func outliving(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(context.WithoutCancel(ctx), limit,
		fmt.Errorf("the Kubernetes API server did not answer within %s", limit))
}

// jobError is a failure of the job's own. It is a [runtime.ErrJob] without
// containing its text.
type jobError struct{ error }

func (e jobError) Unwrap() []error { return []error{e.error, runtime.ErrJob} }

// jobFault makes an error that wraps [runtime.ErrJob].
func jobFault(format string, args ...any) error {
	return jobError{fmt.Errorf(format, args...)}
}
