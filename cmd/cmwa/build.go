package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	goruntime "runtime"
	"slices"
	"strings"

	"github.com/cmwa-project/cmwa/cloud"
	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/reconcile"
	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/agentid"
	"github.com/cmwa-project/cmwa/runtime/docker"
	"github.com/cmwa-project/cmwa/runtime/process"
	"github.com/cmwa-project/cmwa/schema"
	"github.com/cmwa-project/cmwa/schema/podtemplate"
)

// carriedOut is what this release can carry out: the only list of its targets.
var carriedOut = schema.Release{
	Targets: []string{"docker", "process"},
	Kinds:   []string{string(runtime.Deployment)},

	StopGrace: runtime.StopGrace,
}

// builder returns what makes pools: a client, an executor, and the pool over
// both. All of them share the agent's id and the slots.
func builder(environ environment, agent *agentid.Agent, slots *runtime.Slots, log *slog.Logger) reconcile.Build {
	host := hostname()
	userAgent := func(program string) string {
		return fmt.Sprintf("%s/%s (%s/%s; host=%s; pid=%d)",
			program, cli.Version(), goruntime.GOOS, goruntime.GOARCH, host, os.Getpid())
	}
	return func(ctx context.Context, spec runtime.PoolSpec) (reconcile.Pool, error) {
		executor, closeExecutor, err := executorFor(ctx, spec.Identity.Target, environ, agent, log.With("pool", spec.Name))
		if err != nil {
			return nil, err
		}
		if err := agent.AddTarget(spec.Identity.Target); err != nil {
			log.Warn("cannot record the deploy_target in the state folder: "+
				"if the target changes, a restarted agent does not find the instances there",
				"target", spec.Identity.Target, "error", err)
		}
		client := cloud.New(cloud.Options{
			Identity: spec.Identity, Tuning: spec.Tuning, UserAgent: userAgent("cmwa"),
			Log: log.With("component", "cloud", "pool", spec.Name),
		})
		return runtime.NewPool(spec, runtime.Parts{
			Cloud: client, Executor: executor, Agent: agent.ID, InFlight: agent.Jobs, Slots: slots,
			UserAgent: userAgent("workflow-runner"), Environ: environ.lookup, Log: log,
			Close: func() {
				client.Close()
				closeExecutor()
			},
		}), nil
	}
}

// executorFor makes the executor of a deploy_target. The function that it returns
// closes what the executor holds.
func executorFor(
	ctx context.Context, target string, environ environment, agent *agentid.Agent, log *slog.Logger,
) (runtime.Executor, func(), error) {
	log = log.With("component", target)
	switch target {
	case "docker":
		executor, err := docker.New(ctx, docker.Options{
			Environ: environ.lookup, Agent: agent.ID, Log: log, RunnerDirectory: podtemplate.RunnerDirectory,
		})
		if err != nil {
			return nil, nil, err
		}
		return executor, executor.Close, nil
	case "process":
		executor, err := process.New(process.Options{Agent: agent.ID, Environ: environ.list(), Log: log})
		return executor, func() {}, err
	}
	return nil, nil, fmt.Errorf("deploy_target %s is not in this release", target)
}

// hostname returns the name of this host for the User-Agent header, without
// characters that a header could not contain.
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

// environment is the process environment as it was at the start. Values that
// came from it never reload.
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
