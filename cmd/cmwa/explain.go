package main

import (
	"context"
	"flag"
	"io"
	"os"
	"strings"

	"golang.org/x/term"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/cmd/cmwa/command"
	"github.com/cmwa-project/cmwa/schema"
)

func explainCommand(s streams) command.Command {
	var names bool
	return command.Command{
		Name: "explain", Help: "tell what a key of the configuration means",
		Forms: []command.Form{{
			command.Optional(command.Bool(&names, "names",
				"print only the names that can be explained, one in each line")),
			command.Argument("[KEY]", command.Key),
		}},
		Long: "KEY is a key such as polling_interval, docker or ecs.cluster, the name of a variable, or a rule that cmwa vet names.\n" +
			"Without one, all keys are listed with their defaults and what a change of them does.",
		Run: func(_ context.Context, _ *flag.FlagSet, args []string) error {
			switch {
			case names:
				return printNames(s)
			case len(args) == 0:
				text, err := schema.Overview(columns(s.stdout))
				if err != nil {
					return err
				}
				_, err = io.WriteString(s.stdout, text)
				return err
			case len(args) > 1:
				return cli.Usagef("explain takes one key, and not %d", len(args))
			}
			text, err := schema.Explain(args[0], columns(s.stdout))
			if err != nil {
				return cli.Usage(err)
			}
			_, err = io.WriteString(s.stdout, text)
			return err
		},
	}
}

func printNames(s streams) error {
	names, err := schema.Names()
	if err != nil {
		return err
	}
	_, err = io.WriteString(s.stdout, strings.Join(names, "\n")+"\n")
	return err
}

// columns is the width to which text is wrapped: that of the terminal, or 100
// where there is none.
func columns(w io.Writer) int {
	const usual, least = 100, 40
	file, ok := w.(*os.File)
	if !ok {
		return usual
	}
	width, _, err := term.GetSize(int(file.Fd()))
	if err != nil || width <= 0 {
		return usual
	}
	return max(width, least)
}
