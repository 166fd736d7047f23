package kube

import (
	"cmp"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"

	"github.com/cmwa-project/cmwa/runtime/kube/records"
)

// Options are the arguments of [New].
type Options struct {
	// Environ looks up KUBECONFIG and HOME, and in a Pod POD_NAME, POD_NAMESPACE and
	// HOSTNAME.
	Environ func(name string) (string, bool)

	// Context is a context of the kubeconfig. If it is set, the kubeconfig is used in a Pod
	// too. If it is empty, New uses the cluster of the agent's Pod, or the current context.
	Context string

	// Config, Namespace, Pod and Home replace Environ and Context if Config is not nil. Pod is
	// the name of the agent's own Pod in Namespace; empty if the agent runs in no Pod. Home is the
	// cluster of this Pod; nil if it is the cluster of Config.
	Config    *rest.Config
	Namespace string
	Pod       string
	Home      *rest.Config

	// RunnerDirectory is the directory of the runner in a job's container. It is required.
	RunnerDirectory string

	Agent string // id of the agent whose Pods are watched; if empty, the Pods of all agents
	Image string // of PULUMI_AGENT_IMAGE; see runnerImage
	Log   *slog.Logger

	Metrics Metrics // nil records nothing
}

// Cluster is the connection to one cluster. The executors of all pools share its client and
// its watches. There is one watch for each namespace. It is safe for concurrent use.
type Cluster struct {
	client    *client
	namespace string // default of kubernetes.namespace
	options   Options
	agentPod  agentPod // the agent's own Pod
	home      *client  // of the cluster of the agent's own Pod; client itself if it is this cluster
	homeID    string   // distinguishes that cluster from others; empty if it is this cluster

	identifying  chan struct{} // holds a token while Identify makes its request
	ownPodWarned bool          // the log has the warning of warnOwnPod; guarded by identifying

	mu         sync.Mutex
	self       self
	observers  map[watched]*shared
	ownersSeen map[owner]time.Time
}

// watched selects Pods of a namespace: those of jobs, or those of the agents of the group.
type watched struct {
	namespace string
	agents    bool
}

// shared is an observer with the number of executors that use it.
type shared struct {
	*observer
	users int
}

// New returns a Cluster. It makes no request.
func New(options Options) (*Cluster, error) {
	if options.RunnerDirectory == "" {
		return nil, errors.New("kube: RunnerDirectory is empty")
	}
	if options.Metrics == nil {
		options.Metrics = noMetrics{}
	}
	config, namespace, home, at := options.Config, options.Namespace, options.Home, agentPod{}
	switch {
	case config == nil:
		var err error
		if config, namespace, home, err = connection(options.Environ, options.Context); err != nil {
			return nil, err
		}
		if home != nil {
			own, err := ownNamespace(options.Environ)
			if err != nil {
				return nil, err
			}
			at = agentPodOf(options.Environ, own)
		}
	case options.Pod != "":
		at = agentPod{namespace: namespace, name: options.Pod}
	}

	client, err := newClient(config, options.Metrics)
	if err != nil {
		return nil, err
	}
	c := &Cluster{
		client: client, namespace: namespace, options: options, agentPod: at, home: client,
		identifying: make(chan struct{}, 1), observers: map[watched]*shared{}, ownersSeen: map[owner]time.Time{},
	}
	if home != nil && home != config {
		c.homeID = clusterID(home)
		if c.home, err = newClient(home, options.Metrics); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// Executor returns an executor for a namespace; the empty string selects the default
// namespace. It starts the watch of the namespace, and that of the agents of the group, and does
// not block. The caller must call [Executor.Close].
func (c *Cluster) Executor(namespace string) *Executor {
	namespace = cmp.Or(namespace, c.namespace)
	c.mu.Lock()
	defer c.mu.Unlock()
	jobs := c.acquire(watched{namespace: namespace}, watchedSelector(c.self, c.options.Agent))
	own, agents := jobs.self, (*observer)(nil)
	if own.agents != "" {
		agents = c.acquire(watched{namespace: own.owner.Namespace, agents: true}, own.agents)
	}
	e := &Executor{
		cluster: c, client: c.client, pods: jobs, agents: agents, self: own, namespace: namespace, log: c.options.Log,
		stuckLimit: stuckLimit, lostLimit: nodeLostLimit,
		unresolved: map[string]bool{},
	}
	e.records.Store(&records.Store{})
	return e
}

// acquire returns the observer of these Pods, and starts it if there is none. The caller holds the
// lock, and must call release.
func (c *Cluster) acquire(key watched, selector string) *observer {
	o, ok := c.observers[key]
	if !ok {
		client := c.client
		if key.agents {
			client = c.home
		}
		o = &shared{observer: observe(client, key.namespace, c.self, selector)}
		c.observers[key] = o
	}
	o.users++
	return o.observer
}

// release stops the observer of these Pods, unless other executors use it. The caller holds the lock.
func (c *Cluster) release(key watched) {
	o := c.observers[key]
	if o.users--; o.users == 0 {
		delete(c.observers, key)
		o.close()
	}
}

// Executor runs jobs as Pods of one namespace. Its state is in the cluster: a restarted
// agent needs nothing else. It is safe for concurrent use.
type Executor struct {
	cluster   *Cluster
	client    *client
	pods      *observer
	agents    *observer // of the agents of the group; nil if they cannot be selected
	self      self      // as known when the watch of the namespace started
	namespace string
	log       *slog.Logger

	stuckLimit, lostLimit time.Duration
	timeOut               <-chan struct{} // tests close it to let starts time out at once; otherwise nil

	dryRuns dryRunCache
	closed  sync.Once
	records atomic.Pointer[records.Store] // of the pool

	mu         sync.Mutex
	unresolved map[string]bool // uids of Pods whose adoption is unknown: the response to the update was lost
}

// podSettings returns the settings that all Pods of the executor share.
func (e *Executor) podSettings() podSettings {
	options := e.cluster.options
	return podSettings{image: options.Image, runnerDirectory: options.RunnerDirectory, self: e.self}
}

// Close stops the watches of the executor, unless other executors use them.
func (e *Executor) Close() {
	e.closed.Do(func() {
		e.client.limits.remove(e)
		e.cluster.mu.Lock()
		defer e.cluster.mu.Unlock()
		e.cluster.release(watched{namespace: e.namespace})
		if e.agents != nil {
			e.cluster.release(watched{namespace: e.self.owner.Namespace, agents: true})
		}
	})
}
