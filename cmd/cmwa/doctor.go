package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"slices"

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
		Long: "Prints one line for each check, with the cure, and always in the same order. Run it where the agent runs, as its user\n" +
			"and with its variables, also while the agent runs: kubectl exec deploy/NAME -- cmwa doctor.\n" +
			"\n" +
			"No job is claimed, and nothing is made or changed. The token is checked by the status of a deployment that does not\n" +
			"exist, since a poll may claim a job; a Pod is created as a dry run only.\n" +
			"\n" +
			"Exit code 0: no check failed, though there may be warnings; 1: the agent would not start, or no job could run; 2: the\n" +
			"command line is wrong. A check that does not end within 30 seconds has failed.",
		Run: func(ctx context.Context, _ *flag.FlagSet, args []string) error {
			if len(args) > 0 {
				return cli.Usagef("doctor takes no argument %q: name a file with --config", args[0])
			}
			return s.doctor(ctx, doctor.Checks(ctx, s.doctorParts(config, exchange)), asJSON)
		},
	}
}

// doctor makes the checks and prints their outcomes.
func (s streams) doctor(ctx context.Context, checks []doctor.Check, asJSON bool) error {
	environ := readEnvironment(s.environ)
	printer := doctor.NewPrinter(s.stdout, checks,
		isTerminal(s.stdout) && environ["NO_COLOR"] == "" && environ["TERM"] != "dumb")
	var outcomes []doctor.Outcome
	var failed error
	passed := doctor.Run(ctx, checks, doctor.Reporter{
		Outcome: func(o doctor.Outcome) {
			outcomes = append(outcomes, o)
			if !asJSON && failed == nil {
				failed = printer.Print(o)
			}
		},
		Waiting: func(left []doctor.Check) {
			if isTerminal(s.stderr) {
				fmt.Fprintf(s.stderr, "cmwa: waiting for %s\n", doctor.Names(left))
			}
		},
	})
	if asJSON {
		failed = writeJSON(s.stdout, doctor.NewDocument(cli.Version(), outcomes, passed))
	} else if isTerminal(s.stderr) {
		fmt.Fprintln(s.stderr, doctor.Summary(outcomes))
	}
	switch {
	case failed != nil:
		return fmt.Errorf("write the outcomes: %w", failed)
	case !passed:
		return cli.ExitError(cli.ExitFailure)
	}
	return nil
}

// doctorParts returns what the checks are made with. They log nothing.
func (s streams) doctorParts(config string, exchange bool) doctor.Parts {
	environ := readEnvironment(s.environ)
	log := slog.New(slog.DiscardHandler)
	cluster := kube.Options{
		RunnerDirectory: podtemplate.RunnerDirectory, Environ: environ.lookup, Image: agentImage + cli.Version(), Log: log,
	}
	return doctor.Parts{
		Find: func() (schema.Source, error) {
			source, err := find(config, environ)
			source.Release = carriedOut
			return source, err
		},
		Environ: environ.lookup,
		Agent: func(c *schema.Config) (checks []runtime.SelfCheck, owned bool) {
			inCluster := func(p schema.Pool) bool { return p.DeployTarget == "kubernetes" }
			if !slices.ContainsFunc(c.Pools, inCluster) {
				return nil, false
			}
			check, inside := kube.SelfCheckOwnPod(cluster, c.ShutdownTimeout+runtime.StopGrace, doctor.Files(c))
			if inside {
				checks = append(checks, check)
			}
			return checks, inside && !slices.ContainsFunc(c.Pools, func(p schema.Pool) bool { return !inCluster(p) })
		},
		Pool: func(spec runtime.PoolSpec) []runtime.SelfCheck {
			checks := cloud.SelfChecks(cloud.Options{
				Identity: spec.Identity, Tuning: spec.Tuning, UserAgent: "cmwa-doctor/" + cli.Version(), Log: log,
			}, exchange)
			switch spec.Identity.Target {
			case "docker":
				return append(checks, docker.SelfChecks(docker.Options{
					Environ: environ.lookup, Log: log, RunnerDirectory: podtemplate.RunnerDirectory,
				}, spec.Tuning, spec.Identity.Service)...)
			case "kubernetes":
				return append(checks, kube.SelfChecks(cluster, spec)...)
			case "process":
				return append(checks, process.SelfChecks(process.Options{Environ: environ.list(), Log: log}, spec.Tuning)...)
			}
			return checks
		},
	}
}
