package main

import (
	"context"
	"flag"
	"fmt"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/cmd/cmwa/command"
	"github.com/cmwa-project/cmwa/schema/effective"
)

func configCommand(s streams) command.Command {
	config, format, origin := "", "yaml", false
	return command.Command{
		Name: "config", Help: "print the configuration as cmwa run would use it",
		Forms: []command.Form{{
			command.Optional(command.String(&config, "config", command.File,
				"configuration file; otherwise the one that cmwa run would find")),
			command.Optional(command.Bool(&origin, "origin",
				"say where each value comes from: file and line, variable, or default")),
			command.Optional(command.String(&format, "format", command.OneOf("yaml", "json"), "yaml or json")),
		}},
		Long: "The file, with the variables over it and the defaults below. Secrets are masked, and keys that are unset left out.\n" +
			"What all pools have in common stands at the top level. Wrong values are told as by cmwa run: exit code 2.",
		Run: func(_ context.Context, _ *flag.FlagSet, args []string) error {
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
