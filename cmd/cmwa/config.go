package main

import (
	"context"
	"fmt"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/cmd/cli/command"
	"github.com/cmwa-project/cmwa/schema"
	"github.com/cmwa-project/cmwa/schema/effective"
	"github.com/cmwa-project/cmwa/schema/report"
)

// maskedHelp lists what [secret.Mask] replaces.
const maskedHelp = `Tokens are masked. In a Pod template, so are commands, arguments, the values of environment
variables and HTTP headers, annotations, attributes and options of volumes, and queries of paths.
Annotations that the API server checks are shown.`

func configCommand(s stdio) command.Command {
	config, format, origin := "", "yaml", false
	return command.Command{
		Name: "config", Help: "print the settings that cmwa run would use",
		Forms: []command.Form{{
			command.Optional(command.String(&config, "config", command.File,
				"configuration file; otherwise the file that cmwa run would use")),
			command.Optional(command.Bool(&origin, "origin",
				"add the origin of each value: file and line, variable, or default")),
			command.Optional(command.String(&format, "format", command.OneOf("yaml", "json"), "format of the output")),
		}},
		Long: `Environment variables override the file, and the file overrides the defaults. Keys
without a value, and the sections of other deploy targets, are omitted. Settings that all pools
share are at the top level.

` + maskedHelp + `

Files that the configuration names, such as a token file, need not exist here. Exit code 2: the
configuration is invalid.`,
		Run: func(context.Context, []string) error {
			// Load the configuration, but not the files that it names.
			source, err := find(config, s.environ)
			if err != nil {
				return cli.Usage(err)
			}
			source.Elsewhere = true
			c, problems := schema.Load(source)
			if c == nil {
				return cli.Usage(problems.Err())
			}
			for _, warning := range problems.Warnings() {
				fmt.Fprintf(s.stderr, "cmwa: warning: %v\n", warning)
			}

			settings := effective.InUse(c)
			if format == "json" {
				return report.WriteJSON(s.stdout, effective.Data(settings, origin))
			}
			text, err := effective.YAML(settings, origin)
			if err != nil {
				return err
			}
			_, err = s.stdout.Write(text)
			return err
		},
	}
}
