package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cmwa-project/cmwa/cloud"
	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/reconcile"
	"github.com/cmwa-project/cmwa/reconcile/status"
	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/agentid"
	"github.com/cmwa-project/cmwa/runtime/docker"
	"github.com/cmwa-project/cmwa/runtime/kube"
	"github.com/cmwa-project/cmwa/runtime/pool"
	"github.com/cmwa-project/cmwa/runtime/process"
	"github.com/cmwa-project/cmwa/schema"
	"github.com/cmwa-project/cmwa/schema/podtemplate"
)

// carriedOut is what this release supports. No other list contains its targets.
var carriedOut = schema.Release{
	Targets: []string{"docker", "kubernetes", "process"},
	Kinds:   []string{string(runtime.Deployment), string(runtime.InsightsScan), string(runtime.PolicyEvaluation)},

	StopTime: stopTime,
}

// stopTime is how long an agent may need to end after shutdown_timeout: see README.md, "How long an agent
// needs to stop".
const stopTime = 2 * time.Minute

// builder returns the function that creates pools, each with a client and an executor.
// All pools share the agent's id, the slots, and the transports.
func builder(
	environ environment, agent *agentid.Agent, executors *executors, slots *pool.Slots,
	counters *status.Counters, tracer runtime.Tracer, log *slog.Logger,
) reconcile.Build {
	host, transports := hostname(), cloud.NewTransports(nil)
	userAgent := func(program string) string {
		return fmt.Sprintf("%s/%s (%s/%s; host=%s; pid=%d)",
			program, cli.Version(), goruntime.GOOS, goruntime.GOARCH, host, os.Getpid())
	}
	return func(ctx context.Context, spec runtime.PoolSpec) (reconcile.Pool, error) {
		executor, closeExecutor, err := executors.open(ctx, spec.Identity.Location())
		if err != nil {
			return nil, err
		}
		journal := executors.journal
		if pods, ok := executor.(*kube.Executor); !ok || !pods.Owned() {
			executors.needsID()
		} else if shared, ok := pods.Journal(spec.Key(), spec.Tuning); ok {
			journal = shared
		}
		if err := agent.AddTarget(spec.Identity.Location()); err != nil {
			log.Warn("cannot record the deploy_target in the state directory: "+
				"if the target changes, a restarted agent does not find the instances there",
				"target", spec.Identity.Location(), "error", err)
		}
		counters.AddPool(spec.Name, spec.Identity.Target, spec.Tuning.Kinds)

		client := cloud.New(cloud.Options{
			Identity: spec.Identity, Tuning: spec.Tuning, UserAgent: userAgent("cmwa"),
			Transports: transports, Log: log.With("component", "cloud", "pool", spec.Name), Metrics: counters,
		})
		return pool.New(spec, pool.Parts{
			Cloud: client, Executor: executor, Journal: journal, Agent: agent.ID, Slots: slots,
			UserAgent: userAgent("workflow-runner"), Environ: environ.lookup, Log: log, Metrics: counters,
			Tracer: tracer,
			Close: func() {
				client.Close()
				closeExecutor()
			},
		}), nil
	}
}

// executors creates the executors of pools and of the recovery.
type executors struct {
	environ environment
	agent   *agentid.Agent
	journal runtime.Journal // records the jobs of pools without another journal; may be nil
	needsID func()          // called for a pool whose instances are found by the agent's id
	log     *slog.Logger
	metrics kube.Metrics

	isolation sync.Once // the warning that processes are not isolated

	mu       sync.Mutex
	docker   *docker.Executor         // of all pools with deploy_target docker; nil before the first one
	clusters map[string]*kube.Cluster // of pools with deploy_target kubernetes, by context
}

// open creates the executor for a [runtime.Identity.Location]. The returned function
// closes the executor.
func (x *executors) open(ctx context.Context, location string) (runtime.Executor, func(), error) {
	at := runtime.ParseLocation(location)
	switch at.Target {
	case "docker":
		executor, err := x.engine(ctx)
		return executor, func() {}, err
	case "kubernetes":
		cluster, err := x.kubernetes(at.Context)
		if err != nil {
			return nil, nil, err
		}
		if err := cluster.Identify(ctx); err != nil {
			return nil, nil, err
		}
		executor := cluster.Executor(at.Namespace)
		return executor, executor.Close, nil
	case "process":
		executor, err := process.New(process.Options{Agent: x.agent.ID, Environ: x.environ.list()})
		if err == nil {
			x.isolation.Do(func() {
				x.log.Warn("jobs are not isolated: with deploy_target process " +
					"they run as the agent's user, with its files")
			})
		}
		return executor, func() {}, err
	}
	return nil, nil, fmt.Errorf("deploy_target %s is not in this release", at.Target)
}

// engine returns the executor for the Docker engine. All pools share it, and so its connections and
// its digests of runners. It closes idle connections by itself.
func (x *executors) engine(ctx context.Context) (*docker.Executor, error) {
	x.mu.Lock()
	shared := x.docker
	x.mu.Unlock()
	if shared != nil {
		return shared, nil
	}
	made, err := docker.New(ctx, docker.Options{
		Environ: x.environ.lookup, Agent: x.agent.ID, Log: x.log.With("component", "docker"),
		RunnerDirectory: podtemplate.RunnerDirectory,
	})
	if err != nil {
		return nil, err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.docker != nil { // made by another pool in the meantime
		made.Close()
		return x.docker, nil
	}
	x.docker = made
	return made, nil
}

func podOptions(environ environment) kube.Options {
	image, _ := environ.lookup("PULUMI_AGENT_IMAGE")
	return kube.Options{RunnerDirectory: podtemplate.RunnerDirectory, Environ: environ.lookup, Image: image}
}

// kubernetes returns the connection to the cluster of a kubeconfig context. All executors
// for this context share one connection.
func (x *executors) kubernetes(context string) (*kube.Cluster, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.clusters[context] == nil {
		options := podOptions(x.environ)
		options.Context, options.Agent = context, x.agent.ID
		options.Log, options.Metrics = x.log.With("component", "kubernetes"), x.metrics
		cluster, err := kube.New(options)
		if err != nil {
			return nil, err
		}
		if x.clusters == nil {
			x.clusters = map[string]*kube.Cluster{}
		}
		x.clusters[context] = cluster
	}
	return x.clusters[context], nil
}

// podPhases returns the number of Pods of all clusters by phase, or nil without a cluster.
func (x *executors) podPhases() map[string]int {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.clusters) == 0 {
		return nil
	}
	all := map[string]int{}
	for _, cluster := range x.clusters {
		for phase, pods := range cluster.PodPhases() {
			all[phase] += pods
		}
	}
	return all
}

// hostname returns the name of this host for the User-Agent header. A dash replaces each
// character except ASCII letters, digits, dashes, dots and underscores.
func hostname() string {
	name, err := os.Hostname()
	if err != nil || name == "" {
		return "unknown"
	}
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-', r == '.', r == '_':
			return r
		}
		return '-'
	}, name)
}

// environment has the variables of the process at its start. Their values never
// reload.
type environment map[string]string

func readEnvironment(list []string) environment {
	e := environment{}
	for _, entry := range list {
		if name, value, ok := strings.Cut(entry, "="); ok {
			e[name] = value
		}
	}
	return e
}

func (e environment) lookup(name string) (string, bool) {
	value, ok := e[name]
	return value, ok
}

func (e environment) list() []string {
	list := make([]string, 0, len(e))
	for name, value := range e {
		list = append(list, name+"="+value)
	}
	slices.Sort(list)
	return list
}
