package main

import (
	"context"
	"flag"
	"fmt"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/schema/effective"
)

func configCommand(s streams) command {
	config, format, origin := "", "yaml", false
	return command{
		name: "config", help: "print the configuration as cmwa run would use it",
		forms: []form{{
			optional(stringFlag(&config, "config", aFile, "configuration file; otherwise the one that cmwa run would find")),
			optional(boolFlag(&origin, "origin", "say where each value comes from: file and line, variable, or default")),
			optional(stringFlag(&format, "format", oneOf("yaml", "json"), "yaml or json")),
		}},
		long: "The file, with the variables over it and the defaults below. Secrets are masked, and keys that are unset left out.\n" +
			"What all pools have in common stands at the top level. Wrong values are told as by cmwa run: exit code 2.",
		run: func(_ context.Context, _ *flag.FlagSet, args []string) error {
			if len(args) > 0 {
				return cli.Usagef("config takes no argument %q: name a file with --config", args[0])
			}
			if format != "yaml" && format != "json" {
				return cli.Usagef("there is no format %q: write yaml or json", format)
			}
			c, warnings, err := load(config, readEnvironment(s.environ))
			if err != nil {
				return cli.Usage(err)
			}
			for _, warning := range warnings {
				fmt.Fprintf(s.stderr, "cmwa: warning: %v\n", warning)
			}
			if format == "json" {
				return writeJSON(s.stdout, effective.Data(c.Settings(), origin))
			}
			text, err := effective.YAML(c.Settings(), origin)
			if err != nil {
				return err
			}
			_, err = s.stdout.Write(text)
			return err
		},
	}
}
