package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/cmwa-project/cmwa/cloud"
	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/cmd/cli/command"
	"github.com/cmwa-project/cmwa/cmd/cmwa/doctor"
	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/docker"
	"github.com/cmwa-project/cmwa/runtime/kube"
	"github.com/cmwa-project/cmwa/runtime/process"
	"github.com/cmwa-project/cmwa/runtime/selfcheck"
	"github.com/cmwa-project/cmwa/schema"
	"github.com/cmwa-project/cmwa/schema/podtemplate"
)

func doctorCommand(s stdio) command.Command {
	var config string
	var asJSON, exchange bool
	return command.Command{
		Name: "doctor", Help: "check this machine: configuration, service, token, engine, disk",
		Forms: []command.Form{{
			command.Optional(command.String(&config, "config", command.File, "configuration file of the agent; "+
				"otherwise the one that cmwa run would find")),
			command.Optional(command.Bool(&asJSON, "json", "print one document in JSON")),
			command.Optional(command.Bool(&exchange, "exchange",
				"also exchange the OIDC token; the service then issues a pool token, which is valid until it expires")),
		}},
		Long: `Prints one line for each check, always in the same order. The line of a check that finds a problem
also names what to do. Run it on the agent's machine, as its user and with its variables, also while
the agent runs:

  kubectl exec deploy/NAME -- cmwa doctor

It claims no job and changes nothing. It checks the token by requesting the status of a deployment
that does not exist, because a poll may claim a job. It creates a Pod as a dry run only.

Exit code 0: no check failed, though there may be warnings; 1: the agent would not start, or no job
could run; 2: the command line is wrong. A check that does not end within 30 seconds has failed.`,
		Run: func(ctx context.Context, _ []string) error {
			checks := doctor.Checks(ctx, doctorParts(s.environ, config, exchange))
			passed, err := doctor.Report(ctx, checks, doctor.Output{
				Text: s.stdout, Progress: s.stderr, Version: cli.Version(), JSON: asJSON,
				Terminal: isTerminal(s.stderr),
				Colours:  s.coloured(s.stdout),
			})
			if err == nil && !passed {
				return cli.ExitError(cli.ExitFailure)
			}
			return err
		},
	}
}

// doctorParts returns the functions that find the configuration and create the checks.
func doctorParts(environ environment, config string, exchange bool) doctor.Parts {
	// The checks print their results, and log nothing.
	log := slog.New(slog.DiscardHandler)
	cluster := podOptions(environ)
	cluster.Log = log
	return doctor.Parts{
		Find: func() (schema.Source, error) { return findForRun(placesOf(config, environ)) }, Environ: environ.lookup,
		OwnPod: func(grace time.Duration, files []string) (selfcheck.Check, bool) {
			return kube.SelfCheckOwnPod(cluster, grace+stopTime, files)
		},
		Pool: func(spec runtime.PoolSpec) []selfcheck.Check {
			checks := cloud.SelfChecks(cloud.Options{
				Identity: spec.Identity, Tuning: spec.Tuning, UserAgent: "cmwa-doctor/" + cli.Version(), Log: log,
			}, exchange)
			switch spec.Identity.Target {
			case "docker":
				options := docker.Options{
					Environ: environ.lookup, Log: log, RunnerDirectory: podtemplate.RunnerDirectory,
				}
				return append(checks, docker.SelfChecks(options, spec.Tuning, spec.Identity.Service)...)
			case "kubernetes":
				return append(checks, kube.SelfChecks(cluster, spec)...)
			case "process":
				options := process.Options{Environ: environ.list()}
				return append(checks, process.SelfChecks(options, spec.Tuning)...)
			}
			return checks
		},
	}
}
