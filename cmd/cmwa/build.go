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
	"github.com/cmwa-project/cmwa/reconcile"
	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/agentid"
	"github.com/cmwa-project/cmwa/runtime/docker"
	"github.com/cmwa-project/cmwa/runtime/process"
	"github.com/cmwa-project/cmwa/schema"
)

// carriedOut is what this release can carry out: the only list of its targets.
var carriedOut = schema.Release{
	Targets: []string{"docker", "process"},
	Kinds:   []string{string(runtime.Deployment)},
}

// builder returns what makes pools: a client, an executor, and the pool over
// both. All of them share the agent's id and the slots.
func builder(environ environment, agent *agentid.Agent, slots *runtime.Slots, log *slog.Logger) reconcile.Build {
	host := hostname()
	userAgent := func(program string) string {
		return fmt.Sprintf("%s/%s (%s/%s; host=%s; pid=%d)", program, release(), goruntime.GOOS, goruntime.GOARCH, host, os.Getpid())
	}
	return func(ctx context.Context, spec runtime.PoolSpec) (reconcile.Pool, error) {
		parts := func(component string) *slog.Logger { return log.With("component", component, "pool", spec.Name) }
		var executor runtime.Executor
		var err error
		letGo := func() {}
		switch spec.Identity.Target {
		case "docker":
			var engine *docker.Executor
			if engine, err = docker.New(ctx, docker.Options{Environ: environ.lookup, Agent: agent.ID, Log: parts("docker")}); err == nil {
				executor, letGo = engine, engine.Close
			}
		case "process":
			executor, err = process.New(process.Options{Agent: agent.ID, Environ: environ.list(), Log: parts("process")})
		default:
			err = fmt.Errorf("deploy_target %s is not in this release", spec.Identity.Target)
		}
		if err != nil {
			return nil, err
		}
		client := cloud.New(cloud.Options{Identity: spec.Identity, Tuning: spec.Tuning, UserAgent: userAgent("cmwa"), Log: parts("cloud")})
		return runtime.NewPool(spec, runtime.Parts{
			Cloud: client, Executor: executor, Agent: agent.ID, InFlight: agent.Jobs, Slots: slots,
			UserAgent: userAgent("workflow-runner"), Environ: environ.lookup, Log: log,
			Close: func() {
				client.Close()
				letGo()
			},
		}), nil
	}
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
