package main

import (
	"context"
	"fmt"
	"os"

	"github.com/peterbourgon/ff/v3/ffcli"
	"golang.org/x/sync/errgroup"

	"github.com/cmwa-project/cmwa/reconcile"
	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/schema"
)

func runCommand(hard context.Context, s streams) *ffcli.Command {
	flags := s.flags("cmwa run")
	config := flags.String("config", "", "configuration file; otherwise PULUMI_AGENT_CONFIG, or the first pulumi-workflow-agent.yaml in the documented folders")
	return &ffcli.Command{
		Name: "run", ShortUsage: "cmwa run [--config FILE]",
		ShortHelp: "claim jobs and run them, until a TERM or INT",
		LongHelp: "The first TERM or INT ends the claiming, and running jobs may finish until shutdown_timeout is over.\n" +
			"The second one stops running jobs in order.",
		FlagSet: flags,
		Exec: func(ctx context.Context, args []string) error {
			if len(args) > 0 {
				return usageError{fmt.Errorf("run takes no argument %q", args[0])}
			}
			return runAgent(ctx, hard, *config, s)
		},
	}
}

// runAgent is cmwa run. It returns after the first signal when all is done,
// after a single run, or when it cannot begin.
func runAgent(ctx, hurry context.Context, config string, s streams) error {
	environ := readEnvironment(s.environ)

	// the configuration
	c, warnings, err := load(config, environ)
	if err != nil {
		return usageError{err}
	}
	desired := reconcile.Want(c, 1)
	for _, spec := range desired.Pools {
		if err := supported(spec); err != nil {
			return usageError{err}
		}
	}

	// the log
	log, closeLog, err := openLog(desired.Process, s.stderr)
	if err != nil {
		return err
	}
	defer closeLog()
	for _, warning := range warnings {
		log.Warn(warning.String(), "component", "schema")
	}

	// the loop, and what tells of it
	listener, err := listen(desired.Process.HTTPPort)
	if err != nil {
		return err
	}
	loop := reconcile.New(builder(environ, runtime.NewSlots(desired.Process.MaxJobs), log), log)
	log.Info("agent starts", "version", release(), "config", c.Path, "pools", len(c.Pools))
	loop.Want(desired)

	group, groupCtx := errgroup.WithContext(ctx)
	serving, closeServer := context.WithCancel(context.WithoutCancel(groupCtx))
	group.Go(func() error {
		defer closeServer() // health is told until the last job is
		return loop.Run(groupCtx, hurry)
	})
	group.Go(func() error { return serve(serving, listener, loop.Status) })
	if err := group.Wait(); err != nil {
		return err
	}
	log.Info("agent has stopped")
	return nil
}

// load finds and reads the configuration.
func load(config string, environ environment) (*schema.Config, schema.Problems, error) {
	home, _ := os.UserHomeDir()
	executable, _ := os.Executable()
	working, err := os.Getwd()
	if err != nil {
		return nil, nil, fmt.Errorf("find the working directory: %w", err)
	}
	source, err := schema.Find(schema.Places{
		Config: config, WorkingDirectory: working, Home: home, Executable: executable, Environ: environ,
	})
	if err != nil {
		return nil, nil, err
	}
	c, problems := schema.Load(source)
	return c, problems.Warnings(), problems.Err()
}
