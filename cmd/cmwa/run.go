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
	"github.com/cmwa-project/cmwa/reconcile"
	"github.com/cmwa-project/cmwa/reconcile/watch"
	"github.com/cmwa-project/cmwa/schema"
)

func runCommand(hard context.Context, s streams) command {
	var config string
	var dry bool
	return command{
		name: "run", help: "claim jobs and run them, until a TERM or INT",
		forms: []form{{
			optional(stringFlag(&config, "config", aFile, "configuration file; otherwise PULUMI_AGENT_CONFIG, or the first pulumi-workflow-agent.yaml in the documented folders")),
			optional(boolFlag(&dry, "dry-run", "check the configuration, print what would be done first, and do nothing")),
		}},
		daemon: true,
		long: "The first TERM or INT ends the claiming, and running jobs may finish until shutdown_timeout is over.\n" +
			"The second one stops running jobs in order. A HUP checks the configuration at once, and ends waits after\n" +
			"failures with one more try, except waits that the service asked for.",
		run: func(ctx context.Context, _ *flag.FlagSet, args []string) error {
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
	// A HUP asks for a look and for another try. From the beginning and until all jobs are over it must
	// not do what it does by default, which is to end the process and leave them.
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGHUP)
	defer signal.Stop(asked)

	environ := readEnvironment(s.environ)

	// the configuration, as it is now
	var first reconcile.Desired
	want := func(d reconcile.Desired) { first = d } // until there is a loop
	watcher := watch.New()
	log := newSwitch(s.stderr)
	places := placesOf(config, environ)
	follower := reconcile.NewFollower(reconcile.FollowerParts{
		Find: func() (schema.Source, error) {
			source, err := schema.Find(places)
			source.Release = carriedOut
			return source, err
		},
		Want: func(d reconcile.Desired) { want(d) }, Watch: watcher.Watch, Written: watcher.Written, Log: log.logger,
	})
	if err := follower.Look(); err != nil {
		return cli.Usage(err)
	}

	// the process: log, listener, limits
	process, err := newShell(ctx, log, first.Process)
	if err != nil {
		return err
	}
	defer process.close()

	// the agent's id
	c := follower.View().Config
	agent := identify(ctx, c, environ, log.logger)
	defer agent.Close()

	// the loop, and what tells of it
	loop := reconcile.New(builder(environ, agent, process.slots, log.logger), process.prepare, first.Process, log.logger)
	process.handle((&account{started: time.Now(), config: follower.View, loop: loop.Status, mode: watcher.Mode}).answers())
	log.logger.Info("agent starts", "version", cli.Version(), "config", c.Path, "pools", len(c.Pools),
		"agent", agent.ID, "state", agent.Folder)
	want = loop.Want
	loop.Want(first)

	group, groupCtx := errgroup.WithContext(ctx)
	serving, closeServer := context.WithCancel(context.WithoutCancel(groupCtx))
	looking, lookAway := context.WithCancel(groupCtx)
	group.Go(func() error {
		defer closeServer() // health is told until the last job is
		defer lookAway()
		return loop.Run(groupCtx, hurry)
	})
	group.Go(func() error { return process.serve(serving) })
	group.Go(func() error { return loop.FollowLeftovers(looking, leftovers(environ, agent, log.logger)) })
	group.Go(func() error { return watcher.Run(looking) })
	group.Go(func() error { return follow(looking, asked, watcher, follower, loop.Retry, log.logger) })
	if err := group.Wait(); err != nil {
		return err
	}
	log.logger.Info("agent has stopped")
	return nil
}

// follow looks at the configuration whenever it may have changed, or a signal asks
// for it, until ctx ends. A signal also ends waits after failures, through retry. It
// warns once of each file that cannot be replaced as it is mounted.
func follow(ctx context.Context, asked <-chan os.Signal, watcher *watch.Watcher, follower *reconcile.Follower, retry func(), log *slog.Logger) error {
	told := map[string]bool{}
	look := follower.Look
	for looked := (*schema.Config)(nil); ; {
		_ = look() // it has told
		look = follower.Look
		if c := follower.View().Config; c != looked {
			looked = c
			for _, path := range frozenOf(c) {
				if !told[path] {
					log.Warn("a new file in the place of this one is never seen: it is mounted by itself, or with subPath; mount the folder that holds it", "file", path)
				}
				told[path] = true
			}
		}
		var again <-chan time.Time
		if wait := follower.Again(); wait > 0 {
			again = time.After(wait)
		}
		select {
		case <-again:
		case <-ctx.Done():
			return nil
		case <-watcher.Changed():
		case <-asked:
			watcher.Look()
			look = func() error { defer retry(); return follower.Check() }
		}
	}
}

// load finds and reads the configuration.
func load(config string, environ environment) (*schema.Config, schema.Problems, error) {
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
	return schema.Find(placesOf(config, environ))
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
