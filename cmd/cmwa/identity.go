package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/cmwa-project/cmwa/reconcile"
	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/agentid"
	"github.com/cmwa-project/cmwa/schema"
)

// listLimit bounds one list of the instances at a target.
const listLimit = time.Minute

// identify takes this agent's id from its state folder. An agent without a usable
// folder works all the same, with an id that it has until it ends.
func identify(ctx context.Context, c *schema.Config, environ environment, log *slog.Logger) *agentid.Agent {
	var agent *agentid.Agent
	folder, err := agentid.Directory(c.StateDirectory, environ.lookup, os.Getuid())
	if err == nil {
		agent, err = agentid.Take(ctx, folder, c.Path)
	}
	if err != nil {
		log.Warn("cannot use the state folder: after a restart the agent cannot adopt the jobs that it starts now; set state_directory to a folder that its user can write to", "folder", folder, "error", err)
		return agentid.Temporary()
	}
	if agent.Warning != nil {
		log.Warn("agent has a new id: jobs of the agent before it are not adopted", "error", agent.Warning)
	}
	return agent
}

// leftovers returns what lists the pools that have instances of this agent, at
// every target that it has used. A target without any is forgotten, unless a pool
// of this process has it.
func leftovers(environ environment, agent *agentid.Agent) reconcile.Leftovers {
	quiet := slog.New(slog.DiscardHandler) // the pools log what there is to know of their executors
	return func(ctx context.Context) (specs []runtime.PoolSpec, err error) {
		for _, target := range agent.Targets() {
			found, listErr := instances(ctx, target, environ, agent, quiet)
			switch {
			case listErr != nil:
				err = errors.Join(err, fmt.Errorf("deploy_target %s: %w", target, listErr))
			case len(found) == 0:
				agent.RemoveTarget(target)
			}
			for _, f := range found {
				specs = append(specs, f.Spec())
			}
		}
		if err == nil && len(specs) == 0 {
			agent.Empty()
		}
		return specs, err
	}
}

// instances lists the instances of this agent at one target.
func instances(ctx context.Context, target string, environ environment, agent *agentid.Agent, log *slog.Logger) ([]runtime.Found, error) {
	if !slices.Contains(carriedOut.Targets, target) {
		return nil, nil // of another release, or not written by an agent
	}
	ctx, cancel := context.WithTimeout(ctx, listLimit)
	defer cancel()
	executor, closeExecutor, err := executorFor(ctx, target, environ, agent, log)
	if err != nil {
		return nil, err
	}
	defer closeExecutor()
	return executor.List(ctx, agent.ID)
}
