package main

import (
	"context"
	"flag"
	"io"
	"slices"
	"strings"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/cmd/cmwa/command"
)

// completionCommand prints completions of all commands, of which it is one.
func completionCommand(all func() []command.Command, s streams) command.Command {
	shells := command.Shells()
	return command.Command{
		Name: "completion", Help: "print a script that lets a shell complete command lines",
		Forms: []command.Form{{command.Argument(strings.Join(shells, "|"), command.OneOf(shells...))}},
		Long: "Commands, flags, files and the keys of the configuration are completed, once the script has been read:\n\n" +
			"  bash  source <(cmwa completion bash), in ~/.bashrc\n" +
			"  zsh   source <(cmwa completion zsh), in ~/.zshrc after compinit\n" +
			"  fish  cmwa completion fish > ~/.config/fish/completions/cmwa.fish",
		Run: func(_ context.Context, _ *flag.FlagSet, args []string) error {
			switch list := strings.Join(shells, ", "); {
			case len(args) != 1:
				return cli.Usagef("name one shell: %s", list)
			case !slices.Contains(shells, args[0]):
				return cli.Usagef("there is no script for %q: the shells are %s", args[0], list)
			}
			_, err := io.WriteString(s.stdout, command.Script(args[0], all()))
			return err
		},
	}
}
