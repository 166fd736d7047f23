package main

import (
	"context"
	"io"
	"strings"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/cmd/cli/command"
	"github.com/cmwa-project/cmwa/schema"
)

func explainCommand(s stdio) command.Command {
	var names bool
	return command.Command{
		Name: "explain", Help: "explain a key of the configuration, a variable or a rule of cmwa vet",
		Forms: []command.Form{{
			command.Optional(command.Bool(&names, "names",
				"print only the names that can be explained, one in each line")),
			command.Argument("[KEY]", command.Key),
		}},
		Long: `KEY is a key such as polling_interval, docker or ecs.cluster, the name of a variable, or the name of
a rule in the reports of cmwa vet. Without KEY, prints a table of all keys with their defaults and
the effect of a change. The table is as wide as the terminal; elsewhere nothing is shortened.`,
		Run: func(_ context.Context, args []string) error {
			var text string
			var err error
			switch {
			case names:
				text = strings.Join(schema.Names(), "\n") + "\n"
			case len(args) == 0:
				text = schema.Overview(columns(s.stdout, 0))
			default:
				const usual = 100
				text, err = schema.Explain(args[0], columns(s.stdout, usual))
			}

			if err != nil {
				return cli.Usage(err)
			}
			_, err = io.WriteString(s.stdout, text)
			return err
		},
	}
}

// columns returns the width of w if w is a terminal, and otherwise its second argument.
func columns(w io.Writer, otherwise int) int {
	const least = 40
	width, _ := sizeOf(w)
	if width == 0 {
		return otherwise
	}
	return max(width, least)
}
