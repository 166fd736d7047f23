package command

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/schema/printable"
)

// helpWidth is the number of columns to which help is wrapped.
const helpWidth = 80

// all returns the commands of the program, and the built-in ones.
func (p Program) all(stdout io.Writer) []Command {
	all := slices.Clone(p.Commands)
	write := func(text string) error {
		_, err := io.WriteString(stdout, text)
		return err
	}

	completion := Command{
		Name: "completion", Help: "print a completion script for a shell",
		Forms: []Form{{Argument(strings.Join(shells, "|"), OneOf(shells...))}},
		Long: "The script completes commands, flags, files and values. To load it:\n\n" +
			"  bash  source <(" + p.Name + " completion bash), in ~/.bashrc\n" +
			"  zsh   source <(" + p.Name + " completion zsh), in ~/.zshrc after compinit\n" +
			"  fish  " + p.Name + " completion fish > ~/.config/fish/completions/" + p.Name + ".fish",
		Run: func(_ context.Context, args []string) error {
			if !slices.Contains(shells, args[0]) {
				return cli.Usagef("no script for this shell: name one of %s", strings.Join(shells, ", "))
			}
			return write(p.Script(args[0]))
		},
	}
	version := Command{
		Name: "version", Help: "print the version, the commit and the platform of this program", Forms: []Form{{}},
		Run: func(context.Context, []string) error { return write(cli.VersionText(p.Name)) },
	}
	help := Command{
		Name: "help", Help: "print the help of a command",
		Forms: []Form{{Argument("[COMMAND...]", OneOf(append(names(all), "completion", "version")...))}},
		Run: func(_ context.Context, args []string) error { // when it runs, all has the built-in commands
			if len(args) == 0 {
				return write(p.help(all))
			}
			text, err := helpOf(all, p.Name, args)
			if err != nil {
				return cli.Usage(err)
			}
			return write(text)
		},
	}
	all = append(all, completion, version, help)
	return all
}

func helpOf(commands []Command, prefix string, args []string) (string, error) {
	for _, c := range commands {
		switch {
		case c.Name != args[0]:
		case len(args) > 1 && len(c.Commands) > 0:
			return helpOf(c.Commands, prefix+" "+c.Name, args[1:])
		default:
			return c.help(prefix), nil
		}
	}
	return "", unknownCommand(args[0], commands, prefix)
}

// help returns the help of the program with its commands.
func (p Program) help(commands []Command) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s\n\nUsage:\n  %s COMMAND [FLAGS] [ARGUMENTS]\n", p.Name, p.Help, p.Name)
	writeLong(&b, p.Long)
	writeCommands(&b, commands)
	fmt.Fprintf(&b, "\nFlags:\n  --help, -h     print this help\n  --version, -v  print the version\n")
	fmt.Fprintf(&b, "\nRun \"%s help COMMAND\" for the flags of a command.\n", p.Name)
	return b.String()
}

// help returns the help of a command. Prefix is the program, and the group if there
// is one.
func (c Command) help(prefix string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\nUsage:\n", wrap(prefix+" "+c.Name+": "+c.Help, "", ""))
	for _, line := range c.Usage(prefix) {
		b.WriteString(wrap(line, "  ", "      ") + "\n")
	}
	writeLong(&b, c.Long)
	if len(c.Commands) > 0 {
		writeCommands(&b, c.Commands)
		return b.String()
	}
	if options := c.Options(); len(options) > 0 {
		b.WriteString("\nFlags:\n")
		for _, o := range options {
			fmt.Fprintf(&b, "  %s\n%s\n", o, wrap(o.help, "      ", "      "))
		}
	}
	return b.String()
}

// wrap breaks a text into lines of at most helpWidth columns. The first line
// starts with first, the others with next.
func wrap(text, first, next string) string {
	return strings.Join(printable.Wrap(text, first, next, helpWidth), "\n")
}

// writeLong writes paragraphs, with an empty line before each.
func writeLong(b *strings.Builder, long string) {
	if long == "" {
		return
	}
	for paragraph := range strings.SplitSeq(long, "\n\n") {
		if !strings.HasPrefix(paragraph, " ") {
			paragraph = wrap(paragraph, "", "")
		}
		b.WriteString("\n" + paragraph + "\n")
	}
}

func writeCommands(b *strings.Builder, commands []Command) {
	b.WriteString("\nCommands:\n")
	table := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	for _, c := range commands {
		fmt.Fprintf(table, "  %s\t%s\n", c.Name, c.Help)
	}
	_ = table.Flush() // a strings.Builder returns no error
}
