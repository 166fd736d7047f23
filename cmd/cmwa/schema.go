package main

import (
	"context"

	"github.com/cmwa-project/cmwa/cmd/cli/command"
	"github.com/cmwa-project/cmwa/schema"
)

func schemaCommand(s stdio) command.Command {
	format := "json"
	return command.Command{
		Name: "schema", Help: "print the schema of the configuration for editors and other tools",
		Forms: []command.Form{{
			command.Optional(command.String(&format, "format", command.OneOf("json", "json-standard", "cue"),
				"JSON Schema with the messages of editors, JSON Schema with standard keywords only, or CUE")),
		}},
		Long: `JSON Schema is of draft 2020-12. An editor uses it if the configuration begins with a line such as

  # yaml-language-server: $schema=pulumi-workflow-agent.json

A validator that rejects unknown keywords, such as ajv in its strict mode, needs --format
json-standard: the other form has the keywords patternErrorMessage and deprecationMessage.

CUE is one file, for a command such as

  cue vet -d '#Config' schema.cue pulumi-workflow-agent.yaml

All check single values. "cmwa vet" also checks what values mean together.`,
		Run: func(context.Context, []string) error {
			write := schema.JSONSchema
			switch format {
			case "json-standard":
				write = schema.StandardJSONSchema
			case "cue":
				write = schema.CUE
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
