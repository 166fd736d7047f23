package main

import (
	"context"
	"log/slog"
	"os"
	"sync"

	"github.com/cmwa-project/cmwa/reconcile"
	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/agentid"
	"github.com/cmwa-project/cmwa/schema"
)

// identify takes this agent's id from its state folder. An agent without a usable
// folder works all the same, with an id that it has until it ends. The function that it
// returns logs once what follows from that; it is called for a pool whose instances are
// found by the agent's id.
func identify(
	ctx context.Context, c *schema.Config, environ environment, log *slog.Logger,
) (_ *agentid.Agent, warn func()) {
	var agent *agentid.Agent
	folder, err := agentid.Directory(c.StateDirectory, environ.lookup, os.Getuid())
	if err == nil {
		agent, err = agentid.Take(ctx, folder, c.Path)
	}
	if err != nil {
		return agentid.Temporary(), sync.OnceFunc(func() {
			log.Warn("cannot use the state folder: after a restart the agent cannot adopt the jobs that it starts now; "+
				"set state_directory to a folder that its user can write to, or let it write to this one "+
				"(in a container: mount a volume there)", "folder", folder, "error", err)
		})
	}
	return agent, sync.OnceFunc(func() {
		if agent.Warning != nil {
			log.Warn("agent has a new id: jobs of the agent before it are not adopted", "error", agent.Warning)
		}
	})
}

// recovery returns what finds the instances of this agent at every target that it uses
// or has used.
func recovery(agent *agentid.Agent, executors *executors, log *slog.Logger) reconcile.Recovery {
	quiet := slog.New(slog.DiscardHandler) // the pools log the problems of their executors
	return reconcile.Recovery{
		Agent: agent.ID, Record: agent, Supported: carriedOut.Targets, Log: log,
		Executor: func(ctx context.Context, target string) (runtime.Executor, func(), error) {
			return executors.open(ctx, target, quiet)
		},
	}
}
