package main

import (
	"context"
	"flag"
	"log/slog"
	"time"

	"github.com/cmwa-project/cmwa/cloud"
	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/cmd/cmwa/command"
	"github.com/cmwa-project/cmwa/cmd/cmwa/doctor"
	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/docker"
	"github.com/cmwa-project/cmwa/runtime/kube"
	"github.com/cmwa-project/cmwa/runtime/process"
	"github.com/cmwa-project/cmwa/schema"
	"github.com/cmwa-project/cmwa/schema/podtemplate"
)

func doctorCommand(s streams) command.Command {
	var config string
	var asJSON, exchange bool
	return command.Command{
		Name: "doctor", Help: "check what jobs need here: configuration, service, token, engine or cluster, disk",
		Forms: []command.Form{{
			command.Optional(command.String(&config, "config", command.File, "configuration file of the agent; "+
				"otherwise the one that cmwa run would find")),
			command.Optional(command.Bool(&asJSON, "json", "print one document in JSON")),
			command.Optional(command.Bool(&exchange, "exchange",
				"exchange the OIDC token too, for which the service issues a token that stays valid for a while")),
		}},
		Long: "Prints one line for each check, with the cure, and always in the same order. Run it where the agent\n" +
			"runs, as its user and with its variables, also while the agent runs:\n" +
			"kubectl exec deploy/NAME -- cmwa doctor.\n\n" +
			"No job is claimed, and nothing is made or changed. The token is checked by the status of a deployment\n" +
			"that does not exist, since a poll may claim a job; a Pod is created as a dry run only.\n\n" +
			"Exit code 0: no check failed, though there may be warnings; 1: the agent would not start, or no job\n" +
			"could run; 2: the command line is wrong. A check that does not end within 30 seconds has failed.",
		Run: func(ctx context.Context, _ *flag.FlagSet, args []string) error {
			if len(args) > 0 {
				return cli.Usagef("doctor takes no argument %q: name a file with --config", args[0])
			}
			environ := readEnvironment(s.environ)
			passed, err := doctor.Report(ctx, doctor.Checks(ctx, doctorParts(environ, config, exchange)), doctor.Output{
				Text: s.stdout, Progress: s.stderr, Version: cli.Version(), JSON: asJSON, Terminal: isTerminal(s.stderr),
				Colours: isTerminal(s.stdout) && environ["NO_COLOR"] == "" && environ["TERM"] != "dumb",
			})
			if err == nil && !passed {
				return cli.ExitError(cli.ExitFailure)
			}
			return err
		},
	}
}

// doctorParts returns what the checks are made with. They log nothing.
func doctorParts(environ environment, config string, exchange bool) doctor.Parts {
	log := slog.New(slog.DiscardHandler)
	cluster := podOptions()
	cluster.Environ, cluster.Log = environ.lookup, log
	return doctor.Parts{
		Find: func() (schema.Source, error) { return findForRun(placesOf(config, environ)) }, Environ: environ.lookup,
		OwnPod: func(grace time.Duration, files []string) (runtime.SelfCheck, bool) {
			return kube.SelfCheckOwnPod(cluster, grace+runtime.StopGrace, files)
		},
		Pool: func(spec runtime.PoolSpec) []runtime.SelfCheck {
			checks := cloud.SelfChecks(cloud.Options{
				Identity: spec.Identity, Tuning: spec.Tuning, UserAgent: "cmwa-doctor/" + cli.Version(), Log: log,
			}, exchange)
			switch spec.Identity.Target {
			case "docker":
				options := docker.Options{Environ: environ.lookup, Log: log, RunnerDirectory: podtemplate.RunnerDirectory}
				return append(checks, docker.SelfChecks(options, spec.Tuning, spec.Identity.Service)...)
			case "kubernetes":
				return append(checks, kube.SelfChecks(cluster, spec)...)
			case "process":
				options := process.Options{Environ: environ.list(), Log: log}
				return append(checks, process.SelfChecks(options, spec.Tuning)...)
			}
			return checks
		},
	}
}
