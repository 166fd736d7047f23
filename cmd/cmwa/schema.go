package main

import (
	"context"
	"flag"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/cmd/cmwa/command"
	"github.com/cmwa-project/cmwa/schema"
)

func schemaCommand(s streams) command.Command {
	format := "json"
	return command.Command{
		Name: "schema", Help: "print the schema of the configuration, for editors and other checks",
		Forms: []command.Form{{
			command.Optional(command.String(&format, "format", command.OneOf("json", "cue"), "json for JSON Schema, or cue")),
		}},
		Long: "JSON Schema is of draft 2020-12. An editor uses it if the configuration begins with a line such as\n\n" +
			"  # yaml-language-server: $schema=pulumi-workflow-agent.json\n\n" +
			"CUE is one file, to be used by cue vet -d '#Config' schema.cue pulumi-workflow-agent.yaml.\n" +
			"cmwa vet finds more than either: they judge values one by one.",
		Run: func(_ context.Context, _ *flag.FlagSet, args []string) error {
			if len(args) > 0 {
				return cli.Usagef("schema takes no argument %q", args[0])
			}
			write := schema.JSONSchema
			switch format {
			case "json":
			case "cue":
				write = schema.CUE
			default:
				return cli.Usagef("there is no format %q: write json or cue", format)
			}
			text, err := write()
			if err != nil {
				return err
			}
			_, err = s.stdout.Write(text)
			return err
		},
	}
}
