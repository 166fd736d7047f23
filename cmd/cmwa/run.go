package main

import (
	"context"
	"flag"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/cmd/cmwa/command"
	"github.com/cmwa-project/cmwa/reconcile"
	"github.com/cmwa-project/cmwa/reconcile/status"
	"github.com/cmwa-project/cmwa/reconcile/watch"
	"github.com/cmwa-project/cmwa/schema"
	"github.com/cmwa-project/cmwa/schema/position"
)

func runCommand(hard context.Context, s streams) command.Command {
	var config string
	var dry bool
	return command.Command{
		Name: "run", Help: "claim jobs and run them, until a TERM or INT",
		Forms: []command.Form{{
			command.Optional(command.String(&config, "config", command.File, "configuration file; "+
				"otherwise PULUMI_AGENT_CONFIG, or the first pulumi-workflow-agent.yaml in the documented folders")),
			command.Optional(command.Bool(&dry, "dry-run",
				"check the configuration, print what would be done first, and do nothing")),
		}},
		Daemon: true,
		Long: "The first TERM or INT ends the claiming, and running jobs may finish until shutdown_timeout is over.\n" +
			"The second one stops running jobs in order. Where the agent runs in a Kubernetes Pod, jobs in Pods are not\n" +
			"stopped: they go on, and the next agent adopts them. A HUP checks the configuration at once, and ends waits\n" +
			"after failures with one more try, except waits that the service asked for.",
		Run: func(ctx context.Context, _ *flag.FlagSet, args []string) error {
			if len(args) > 0 {
				return cli.Usagef("run takes no argument %q", args[0])
			}
			if dry {
				return dryRun(config, s)
			}
			return runAgent(ctx, hard, config, s)
		},
	}
}

// runAgent is cmwa run. It returns after the first signal when all is done,
// after a single run, or when it cannot begin.
func runAgent(ctx, hurry context.Context, config string, s streams) error {
	// A HUP requests a check of the configuration and a retry. By default it would end the process, and
	// leave the jobs: it is caught from the beginning and until all jobs have ended.
	asked := hangUps()
	defer signal.Stop(asked)

	// The configuration, as it is now.
	environ := readEnvironment(s.environ)
	watcher := watch.New()
	log := newSwitch(s.stderr)
	reloader := newReloader(config, environ, watcher, log.logger)
	if err := reloader.Reload(); err != nil {
		return cli.Usage(err)
	}
	c := reloader.View().Config
	first := reconcile.Want(c, reloader.View().Generation)

	// The process: log, listener, limits. The agent's id.
	process, err := newShell(ctx, log, first.Process)
	if err != nil {
		return err
	}
	defer process.close()
	agent, warn := identify(ctx, c, environ, log.logger)
	defer agent.Close()

	// The loop, and the pages that show its state.
	executors := &executors{environ: environ, agent: agent, needsID: warn, log: log.logger}
	build := builder(environ, agent, executors, process.slots, log.logger)
	loop := reconcile.New(build, process.prepare, first.Process, log.logger)
	process.handle(status.Handler(status.Snapshots{
		Version: cli.Version(), StartedAt: time.Now(), Config: reloader.View, Loop: loop.Status, WatchMode: watcher.Mode,
	}))
	log.logger.Info("agent starts", "version", cli.Version(), "config", c.Path, "pools", len(c.Pools),
		"agent", agent.ID, "state", agent.Folder)
	reloader.Deliver(loop.Want)

	releaseProgram()

	// Run until the first of them returns. The HTTP server is the last to stop.
	group, groupCtx := errgroup.WithContext(ctx)
	serving, closeServer := context.WithCancel(context.WithoutCancel(groupCtx))
	watching, stopWatching := context.WithCancel(groupCtx)
	group.Go(func() error {
		defer closeServer()
		defer stopWatching()
		return loop.Run(groupCtx, hurry)
	})
	group.Go(func() error { return process.serve(serving) })
	group.Go(func() error { return loop.FollowLeftovers(watching, recovery(agent, executors, log.logger).List) })
	group.Go(func() error { return watcher.Run(watching) })
	group.Go(func() error {
		return reloader.Follow(watching, reconcile.Triggers{
			Changed: watcher.Changed(), Asked: asked, BeforeCheck: watcher.Look, AfterCheck: loop.Retry,
		})
	})
	if err := group.Wait(); err != nil {
		return err
	}
	log.logger.Info("agent has stopped")
	return nil
}

// hangUps returns a channel that receives each HUP.
func hangUps() chan os.Signal {
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGHUP)
	return asked
}

// newReloader returns what reads the configuration again when its files change.
func newReloader(config string, environ environment, watcher *watch.Watcher, log *slog.Logger) *reconcile.Reloader {
	places := placesOf(config, environ)
	return reconcile.NewReloader(reconcile.ReloaderParts{
		Find:  func() (schema.Source, error) { return findForRun(places) },
		Watch: watcher.Watch, Written: watcher.Written, Frozen: watch.Frozen, Log: log,
	})
}

// findForRun finds the configuration as a running agent does.
func findForRun(places schema.Places) (schema.Source, error) {
	source, err := schema.Find(places)
	source.Release = carriedOut
	return source, err
}

// load finds and reads the configuration.
func load(config string, environ environment) (*schema.Config, position.Problems, error) {
	source, err := find(config, environ)
	if err != nil {
		return nil, nil, err
	}
	c, problems := schema.Load(source)
	return c, problems.Warnings(), problems.Err()
}

// find reads the file that the command line names, or that lies in one of the
// documented places.
func find(config string, environ environment) (schema.Source, error) {
	source, err := schema.Find(placesOf(config, environ))
	source.Release.StopGrace = carriedOut.StopGrace
	return source, err
}

// placesOf returns where the configuration is looked for. The working directory is
// asked for only where it is one of these places, as it may have been deleted; it
// is "." then, which holds no file.
func placesOf(config string, environ environment) schema.Places {
	places := schema.Places{Config: config, Environ: environ}
	places.Home, _ = os.UserHomeDir()
	places.Executable, _ = os.Executable()
	if !places.Named() {
		places.WorkingDirectory, _ = os.Getwd()
	}
	return places
}
