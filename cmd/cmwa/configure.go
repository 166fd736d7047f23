package main

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"github.com/cmwa-project/cmwa/cloud"
	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/cmd/cli/command"
	"github.com/cmwa-project/cmwa/cmd/cmwa/configure"
	"github.com/cmwa-project/cmwa/reconcile"
	"github.com/cmwa-project/cmwa/runtime/selfcheck"
	"github.com/cmwa-project/cmwa/schema"
	"github.com/cmwa-project/cmwa/schema/printable"
)

// tokenCheckTimeout limits the check of a token by its service.
const tokenCheckTimeout = 10 * time.Second

func configureCommand(s stdio) command.Command {
	// The flags set the options.
	o := configure.Options{
		Targets: carriedOut.Targets, Environ: s.environ, CheckToken: checkToken,
		Stdin: s.stdin, Stdout: s.stdout, Stderr: s.stderr,
	}
	return command.Command{
		Name: "configure", Help: "create or change a configuration file",
		Forms: []command.Form{{command.AnyOf(
			command.String(&o.Config, "config", command.File,
				"file to write; otherwise the one that PULUMI_AGENT_CONFIG names, or ./"+schema.FileName),
			command.String(&o.TokenFile, "token-file", command.File,
				"file that contains the pool access token; with --token-stdin, the file to write it to"),
			command.Bool(&o.TokenStdin, "token-stdin", "read the pool access token from standard input"),
			command.String(&o.OIDCTokenFile, "oidc-token-file", command.File,
				"file that contains an OIDC token to exchange, instead of a pool access token"),
			command.String(&o.Organization, "organization", command.Name, "organization for the exchange"),
			command.String(&o.PoolID, "pool-id", command.Name, "ID of the pool for the exchange"),
			command.String(&o.ServiceURL, "service-url", command.URL, "URL of the service"),
			command.String(&o.Target, "target", command.AnyOrOneOf(o.Targets...),
				"where jobs run: "+printable.Join(o.Targets, "or")),
			command.Bool(&o.Yes, "yes", "change existing files without a confirmation"),
		)}},
		Long: `On a terminal, prompts for each value that no flag sets. Otherwise the credentials come from the
flags, or from the existing file.

There is no flag for the token itself, because every user of a machine can read its command lines.
Type the token at the prompt, which does not show it, pass it with --token-stdin, or name a file
that contains it. A token that is typed or passed with --token-stdin is checked: if the service
rejects it, the prompt asks again, and without a terminal nothing is written. If it cannot be
checked, a note is printed, and the file is written. A token in a file is not checked.

The configuration file has mode 0600, and is replaced as a whole or not at all. An existing file keeps its
comments and other keys, and the file with .bak after its name has its previous content, which may
include a token. The vendor's agent writes next to its program; this one writes to the
current directory, unless --config or PULUMI_AGENT_CONFIG names another file.`,
		Run: func(ctx context.Context, _ []string) error { return configure.Run(ctx, o) },
	}
}

// checkToken checks a pool's token with the checks of cmwa doctor, which claim no job. It
// is the function CheckToken of [configure.Options]. Checked is false if the service neither
// accepted nor rejected the token, for example because an earlier check failed.
func checkToken(ctx context.Context, config *schema.Config, pool string) (problem string, checked bool) {
	ctx, cancel := context.WithTimeout(ctx, tokenCheckTimeout)
	defer cancel()
	for _, spec := range reconcile.Want(config, 1).Pools {
		if spec.Name != pool {
			continue
		}
		for _, check := range cloud.SelfChecks(cloud.Options{
			Identity: spec.Identity, Tuning: spec.Tuning, UserAgent: "cmwa-configure/" + cli.Version(),
			Log: slog.New(slog.DiscardHandler),
		}, false) {
			result := check.Run(ctx)
			if result.Level == selfcheck.LevelSkipped && check.Name != "service-token" {
				continue // for example the clock, if the response has no date
			}
			if result.Level == selfcheck.LevelFailed || result.Level == selfcheck.LevelSkipped {
				rejected := check.Name == "service-token" && result.Level == selfcheck.LevelFailed
				return printable.Text(strings.TrimSuffix(result.Message+": "+result.Hint, ": ")), rejected
			}
		}
	}
	return "", true
}
