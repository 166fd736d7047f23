package main

import (
	"errors"
	"log/slog"
	"os"
	"sync"

	"github.com/cmwa-project/cmwa/reconcile"
	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/agentid"
	"github.com/cmwa-project/cmwa/runtime/journal"
	"github.com/cmwa-project/cmwa/schema"
)

// identify takes this agent's id from its state directory. Its error means that another agent
// uses the directory. Without a usable directory, the agent has a temporary id. Warn logs a
// warning if the id is temporary, or if it is new although an earlier agent had one. Callers
// call warn for each pool whose instances are found by the agent's id; only the first call
// logs.
func identify(c *schema.Config, environ environment, log *slog.Logger) (_ *agentid.Agent, warn func(), _ error) {
	var agent *agentid.Agent
	directory, err := agentid.Directory(c.StateDirectory, environ.lookup, os.Getuid())
	if err == nil {
		agent, err = agentid.Take(directory, c.Path)
	}
	if errors.Is(err, agentid.ErrInUse) {
		return nil, nil, err
	}
	if err != nil {
		return agentid.Temporary(), sync.OnceFunc(func() {
			log.Warn("cannot use the state directory: after a restart the agent cannot adopt its present jobs; "+
				"set state_directory to a directory that the agent's user can write to, or give this user write "+
				"access to the present directory (in a container: mount a volume there)",
				"directory", directory, "error", err)
		}), nil
	}
	return agent, sync.OnceFunc(func() {
		if agent.Warning != nil {
			log.Warn("agent has a new id: jobs of the agent before it are not adopted", "error", agent.Warning)
		}
	}), nil
}

// openJournal opens the journal of claimed jobs in the agent's state directory.
// Without a usable directory, it returns a nil journal.
func openJournal(agent *agentid.Agent, log *slog.Logger) (_ runtime.Journal, closeIt func()) {
	if agent.Directory == "" {
		return nil, func() {} // identify has logged why
	}
	files, err := journal.Open(agent.Directory, log.With("component", "journal"))
	if err != nil {
		log.Warn("cannot record claimed jobs in the state directory; if the agent is killed, "+runtime.DeclaredFailed,
			"directory", agent.Directory, "error", err)
		return nil, func() {}
	}
	return files, files.Close
}

// recovery returns what the loop needs to find the instances and the records of this agent,
// at every target that the agent uses or has used.
func recovery(agent *agentid.Agent, executors *executors, log *slog.Logger) reconcile.Recovery {
	return reconcile.Recovery{
		Agent: agent.ID, Record: agent, Journal: executors.journal, Supported: carriedOut.Targets, Log: log,
		Executor: executors.open,
	}
}
