package command

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/peterbourgon/ff/v3/ffcli"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/schema/position"
)

// shortGC is the target percentage of the garbage collector for commands that end
// within milliseconds. With the default of 100, collecting a heap of a few
// megabytes takes a fifth of their CPU time.
const shortGC = 400

// run is one run of a command line.
type run struct {
	program  Program
	commands []Command // of the program, and the built-in ones
	tail     []string  // arguments after --
	stdout   io.Writer
	stderr   io.Writer
	helped   *ffcli.Command // last command whose flags were wrong or included --help
	code     int            // exit code of a usage error; 0 means cli.ExitUsage
}

// Run parses a command line and runs its command. Help that was requested goes to
// stdout; the error is then nil. Help that follows from a mistake goes to stderr.
func (p Program) Run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) > 0 && args[0] == completeCommand {
		for _, line := range p.complete(args[1:]) {
			if _, err := fmt.Fprintln(stdout, line); err != nil {
				return err
			}
		}
		return nil
	}
	r := &run{program: p, commands: p.all(stdout), stdout: stdout, stderr: stderr}
	if end := slices.Index(args, "--"); end >= 0 {
		args, r.tail = args[:end], args[end+1:]
	}
	root := r.root()
	err := root.Parse(args)
	if err == nil {
		err = root.Run(ctx)
	} else {
		err = r.parseError(err)
	}

	var usage cli.UsageError
	switch {
	case errors.Is(err, flag.ErrHelp) && r.helped != nil:
		_, err = io.WriteString(stdout, r.helped.LongHelp)
	case r.code != 0 && errors.As(err, &usage):
		err = cli.UsageError{Err: err, Code: r.code}
	}
	return err
}

// root returns the program as a command of the flag library. In it, LongHelp is the
// complete help of a command, with its flags.
func (r *run) root() *ffcli.Command {
	root := r.group(Command{Name: r.program.Name, Help: r.program.Help, Commands: r.commands}, "")
	root.LongHelp = r.program.help(r.commands)
	var version bool
	root.FlagSet.BoolVar(&version, "version", false, "print the version")
	root.FlagSet.BoolVar(&version, "v", false, "print the version")
	exec := root.Exec
	root.Exec = func(ctx context.Context, args []string) error {
		if version {
			_, err := io.WriteString(r.stdout, cli.VersionText(r.program.Name))
			return err
		}
		return exec(ctx, args)
	}
	return root
}

// group returns a group of commands as a command of the flag library. Prefix is the
// program, or empty for the program itself.
func (r *run) group(c Command, prefix string) *ffcli.Command {
	full := strings.TrimSpace(prefix + " " + c.Name)
	group := &ffcli.Command{
		Name: c.Name, LongHelp: c.help(prefix), FlagSet: newFlagSet(full), UsageFunc: r.remember(c.UsageCode),
	}
	for _, sub := range c.Commands {
		if len(sub.Commands) > 0 {
			group.Subcommands = append(group.Subcommands, r.group(sub, full))
		} else {
			group.Subcommands = append(group.Subcommands, r.leaf(sub, full))
		}
	}
	group.Exec = func(_ context.Context, args []string) error {
		if len(args) > 0 {
			return cli.Usage(unknownCommand(args[0], c.Commands, full))
		}
		_, _ = io.WriteString(r.stderr, group.LongHelp+"\n")
		return cli.Usagef("missing command")
	}
	return group
}

// leaf returns a command with flags and arguments as a command of the flag library.
func (r *run) leaf(c Command, prefix string) *ffcli.Command {
	set := newFlagSet(prefix + " " + c.Name)
	for _, o := range c.Options() {
		o.define(set)
	}
	exec := func(ctx context.Context, args []string) error {
		if !c.Daemon {
			debug.SetGCPercent(shortGC)
		}
		r.code = c.UsageCode

		args, err := interspersed(set, args)
		if err != nil {
			return r.parseError(err)
		}
		args = append(args, r.tail...)
		given := map[string]bool{}
		set.Visit(func(f *flag.Flag) { given[f.Name] = true })
		if err := c.arguments(prefix, args, given); err != nil {
			return cli.Usage(err)
		}
		return c.Run(ctx, args)
	}
	return &ffcli.Command{
		Name: c.Name, LongHelp: c.help(prefix), FlagSet: set, UsageFunc: r.remember(c.UsageCode), Exec: exec,
	}
}

// remember returns the function from which the flag library requests the usage text of a
// command. The function remembers the command and its code, and returns no text.
func (r *run) remember(code int) func(*ffcli.Command) string {
	return func(c *ffcli.Command) string {
		r.code, r.helped = code, c
		return ""
	}
}

// newFlagSet returns an empty set of flags. It prints nothing.
func newFlagSet(name string) *flag.FlagSet {
	set := flag.NewFlagSet(name, flag.ContinueOnError)
	set.SetOutput(io.Discard)
	return set
}

// interspersed parses flags that follow arguments, and returns the arguments.
func interspersed(flags *flag.FlagSet, args []string) (arguments []string, err error) {
	for len(args) > 0 {
		if args[0] == "-" || !strings.HasPrefix(args[0], "-") {
			arguments, args = append(arguments, args[0]), args[1:]
			continue
		}
		if err := flags.Parse(args); err != nil {
			return nil, err
		}
		args = flags.Args()
	}
	return arguments, nil
}

// parseErrors matches the texts of the errors of package flag, which have no types.
var parseErrors = regexp.MustCompile(
	`^(?:flag provided but not defined: -(?P<unknown>.*)` +
		`|flag needs an argument: -(?P<empty>.*)` +
		`|invalid (?:boolean )?value .* for (?:flag )?-(?P<invalid>[^\s:]+): (?P<reason>.*))$`)

// parseError returns an error of the flag library as a usage error, with flags as
// they are written and without their values. It returns flag.ErrHelp as it is.
func (r *run) parseError(err error) error {
	if errors.Is(err, flag.ErrHelp) {
		return flag.ErrHelp
	}
	for inner := err; inner != nil; inner = errors.Unwrap(inner) {
		err = inner
	}

	match := parseErrors.FindStringSubmatch(err.Error())
	if match == nil || r.helped == nil {
		return cli.Usage(err)
	}

	name, _, _ := strings.Cut(match[1], "=")
	switch set := r.helped.FlagSet; {
	case match[2] != "":
		return cli.Usagef("%s needs a value", spelling(match[2]))
	case match[3] != "" && match[4] == "parse error":
		return cli.Usagef("%s takes no value", spelling(match[3]))
	case match[3] != "":
		return cli.Usagef("%s %s", spelling(match[3]), match[4])
	case len(r.helped.Subcommands) > 0 && r.takes(name):
		return cli.Usagef("%s must follow the command: %s COMMAND %s", spelling(name), set.Name(), spelling(name))
	default:
		known := []string{"help"}
		set.VisitAll(func(f *flag.Flag) { known = append(known, f.Name) })
		best := position.Closest(name, known)
		if best == "" {
			return cli.Usagef("unknown flag %s: see %s --help", spelling(name), set.Name())
		}
		return cli.Usagef("unknown flag %s: did you mean %s?", spelling(name), spelling(best))
	}
}

// takes reports whether any command has a flag. It does not search the commands in groups.
func (r *run) takes(name string) bool {
	return slices.ContainsFunc(r.commands, func(c Command) bool {
		return slices.ContainsFunc(c.Options(), func(o Option) bool { return o.Name == name })
	})
}

// unknownCommand returns the error for a command that does not exist. Prefix is the
// program, and the group if there is one.
func unknownCommand(name string, commands []Command, prefix string) error {
	if best := position.Closest(name, names(commands)); best != "" {
		return fmt.Errorf("unknown command %q: did you mean %s?", name, best)
	}
	return fmt.Errorf("unknown command %q: see %s --help", name, prefix)
}
