// Command cmwa is a workflow agent for Pulumi Cloud and for services that speak
// like it: it claims workflow jobs and runs each in an environment of its own,
// as a configuration file says.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/peterbourgon/ff/v3/ffcli"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/schema"
)

// streams is what a command works on beside its arguments.
type streams struct {
	environ []string
	stdin   io.Reader
	stdout  io.Writer
	stderr  io.Writer
}

func main() {
	if len(os.Args) > 1 && os.Args[1] != "run" {
		// The other commands end within milliseconds. Collecting a heap of a few
		// megabytes is a fifth of their time.
		debug.SetGCPercent(400)
	}
	soft, hard, stop := cli.Signals(syscall.SIGTERM, syscall.SIGINT)
	// The third signal ends the process at once: the next start removes what is left.
	context.AfterFunc(hard, func() { signal.Reset(syscall.SIGTERM, syscall.SIGINT) })
	code := execute(soft, hard, os.Args[1:], streams{os.Environ(), os.Stdin, os.Stdout, os.Stderr})
	stop()
	os.Exit(code)
}

// execute runs one command line and returns its exit code. The first signal
// cancels soft, the second one hard.
func execute(soft, hard context.Context, args []string, s streams) int {
	root := commands(hard, s)
	err := root.Parse(args)
	switch {
	case err == nil:
		err = root.Run(soft)
	case !errors.Is(err, flag.ErrHelp):
		err = cli.Usage(err)
	}
	var usage cli.UsageError
	if len(args) > 0 && args[0] == "plan" && errors.As(err, &usage) {
		err = usage.WithCode(exitInvalid) // 2 says that there are changes
	}
	return cli.Exit(s.stderr, "cmwa", err)
}

// commands makes the tree of commands anew: it holds the state of one parse.
func commands(hard context.Context, s streams) *ffcli.Command {
	root := &ffcli.Command{
		Name: "cmwa", ShortUsage: "cmwa COMMAND [FLAGS]",
		ShortHelp: "a workflow agent for Pulumi Cloud", FlagSet: s.flags("cmwa"),
		Subcommands: []*ffcli.Command{
			runCommand(hard, s),
			statusCommand(s),
			vetCommand(s),
			planCommand(s),
			configureCommand(s),
			configCommand(s),
			explainCommand(s),
			schemaCommand(s),
			completionCommand(hard, s),
			versionCommand(s),
		},
	}
	root.Exec = func(_ context.Context, args []string) error {
		if len(args) > 0 {
			return cli.Usage(unknownCommand(args[0], root.Subcommands))
		}
		fmt.Fprintln(s.stderr, ffcli.DefaultUsageFunc(root))
		return cli.Usagef("name a command")
	}
	return root
}

func unknownCommand(word string, commands []*ffcli.Command) error {
	var names []string
	for _, c := range commands {
		names = append(names, c.Name)
	}
	if best := schema.Closest(word, names); best != "" {
		return fmt.Errorf("there is no command %q: did you mean %s?", word, best)
	}
	return fmt.Errorf("there is no command %q: the commands are %s", word, strings.Join(names, ", "))
}

// flags makes an empty set of flags for one command.
func (s streams) flags(name string) *flag.FlagSet {
	set := flag.NewFlagSet(name, flag.ContinueOnError)
	set.SetOutput(s.stderr)
	return set
}

func versionCommand(s streams) *ffcli.Command {
	return &ffcli.Command{
		Name: "version", ShortUsage: "cmwa version", ShortHelp: "print the version",
		FlagSet: s.flags("cmwa version"),
		Exec: func(context.Context, []string) error {
			_, err := fmt.Fprintln(s.stdout, cli.Version())
			return err
		},
	}
}
