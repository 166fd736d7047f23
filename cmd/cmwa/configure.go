package main

import (
	"context"
	"flag"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/cmd/cmwa/command"
	"github.com/cmwa-project/cmwa/cmd/cmwa/configure"
	"github.com/cmwa-project/cmwa/schema"
)

func configureCommand(s streams) command.Command {
	o := configure.Options{
		Targets: carriedOut.Targets, Environ: readEnvironment(s.environ),
		Stdin: s.stdin, Stdout: s.stdout, Stderr: s.stderr,
	}
	return command.Command{
		Name: "configure", Help: "write a configuration file, or change one",
		Forms: []command.Form{{command.AnyOf(
			command.String(&o.Config, "config", command.File,
				"file to write; otherwise the one that PULUMI_AGENT_CONFIG names, or ./"+schema.FileName),
			command.String(&o.TokenFile, "token-file", command.File,
				"file that holds the pool access token; with --token-stdin, that it is written to"),
			command.Bool(&o.TokenStdin, "token-stdin", "read the pool access token from standard input"),
			command.String(&o.OIDCTokenFile, "oidc-token-file", command.File,
				"file that holds an OIDC token to exchange, in place of a pool access token"),
			command.String(&o.Organization, "organization", command.Name, "organisation for the exchange"),
			command.String(&o.PoolID, "pool-id", command.Name, "pool to join by the exchange"),
			command.String(&o.ServiceURL, "service-url", command.URL, "URL of the service"),
			command.String(&o.Target, "target", command.OneOf(o.Targets...), "where jobs run: "+configure.Choice(o.Targets)),
			command.Bool(&o.Yes, "yes", "change files that are there already, without a question"),
		)}},
		Long: "On a terminal, asks what no flag says. Elsewhere, the flags must say how the agent authenticates.\n" +
			"There is no flag for the token itself, because every user of a machine can see its command lines: it is typed\n" +
			"without being shown, comes through --token-stdin, or lies in a file. The file is written with mode 0600, at once\n" +
			"or not at all, and only if it is a configuration that the agent can use. Of a file that is there, all comments and\n" +
			"all other keys are kept. Unlike the vendor's agent, which writes beside its program, this one writes to the current\n" +
			"directory unless --config or PULUMI_AGENT_CONFIG says otherwise.",
		Run: func(ctx context.Context, _ *flag.FlagSet, args []string) error {
			if len(args) > 0 {
				return cli.Usagef("configure takes flags only: see cmwa configure --help")
			}
			return configure.Run(ctx, o)
		},
	}
}
