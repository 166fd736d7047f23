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

// recoverLimit bounds one list of the instances at a target, and one sweep there.
const recoverLimit = 3 * time.Minute

// identify takes this agent's id from its state folder. An agent without a usable
// folder works all the same, with an id that it has until it ends.
func identify(ctx context.Context, c *schema.Config, environ environment, log *slog.Logger) *agentid.Agent {
	var agent *agentid.Agent
	folder, err := agentid.Directory(c.StateDirectory, environ.lookup, os.Getuid())
	if err == nil {
		agent, err = agentid.Take(ctx, folder, c.Path)
	}
	if err != nil {
		log.Warn("cannot use the state folder: after a restart the agent cannot adopt the jobs that it starts now; "+
			"set state_directory to a folder that its user can write to", "folder", folder, "error", err)
		return agentid.Temporary()
	}
	if agent.Warning != nil {
		log.Warn("agent has a new id: jobs of the agent before it are not adopted", "error", agent.Warning)
	}
	return agent
}

// leftovers returns a function that lists the pools that have instances of this
// agent, at every target that the agent uses or has used. At each target it also
// removes leftovers of agents that died. A target without instances is forgotten,
// unless a pool of this process uses it.
func leftovers(environ environment, agent *agentid.Agent, log *slog.Logger) reconcile.Leftovers {
	return func(ctx context.Context, desired map[string]runtime.PoolSpec) (specs []runtime.PoolSpec, err error) {
		used := agent.Targets()
		for _, spec := range desired { // also those that are not built yet
			used = append(used, spec.Identity.Target)
		}
		slices.Sort(used)
		for _, target := range slices.Compact(used) {
			found, targetErr := recoverAt(ctx, target, desired, environ, agent, log)
			switch {
			case targetErr != nil:
				err = errors.Join(err, fmt.Errorf("deploy_target %s: %w", target, targetErr))
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

// recoverAt lists the instances of this agent at one target, and removes leftovers
// there. An error is of the list alone.
func recoverAt(
	ctx context.Context, target string, desired map[string]runtime.PoolSpec,
	environ environment, agent *agentid.Agent, log *slog.Logger,
) ([]runtime.Found, error) {
	if !slices.Contains(carriedOut.Targets, target) {
		return nil, nil // of another release, or not written by an agent
	}
	ctx, cancel := context.WithTimeout(ctx, recoverLimit)
	defer cancel()
	quiet := slog.New(slog.DiscardHandler) // the pools log what there is to know of their executors
	executor, closeExecutor, err := executorFor(ctx, target, environ, agent, quiet)
	if err != nil {
		return nil, err
	}
	defer closeExecutor()
	found, err := executor.List(ctx, agent.ID)
	if err != nil {
		return nil, err
	}
	if sweeper, ok := executor.(runtime.Sweeper); ok {
		var places []runtime.Place
		for _, spec := range desired {
			if spec.Identity.Target == target {
				places = append(places, spec.Tuning.Place)
			}
		}
		removed, err := sweeper.Sweep(ctx, places)
		if len(removed) > 0 {
			log.Info("removed leftovers of agents that died", "target", target, "removed", removed)
		}
		if err != nil {
			log.Warn("cannot remove leftovers of agents that died", "target", target, "error", err)
		}
	}
	return found, nil
}
