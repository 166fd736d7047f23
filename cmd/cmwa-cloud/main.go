// Command cmwa-cloud is a local Pulumi Cloud as far as workflow agents are
// concerned, and the client to work with it: everything runs on one machine,
// with no account.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/peterbourgon/ff/v3/ffcli"

	"github.com/cmwa-project/cmwa/cmd/cli"
)

// world is what a command works on beside its arguments.
type world struct {
	environ func(name string) (string, bool)
	stdout  io.Writer
	stderr  io.Writer
}

// variable is a variable of the environment, or nothing.
func (w world) variable(name string) string {
	value, _ := w.environ(name)
	return value
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	code := run(ctx, os.Args[1:], world{os.LookupEnv, os.Stdout, os.Stderr})
	stop()
	os.Exit(code)
}

// run runs one command line and returns its exit code. A deployment that was
// followed and has failed is a failure.
func run(ctx context.Context, args []string, w world) int {
	root := commands(w)
	err := root.Parse(args)
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		err = cli.Usage(err)
	}
	if err == nil {
		err = root.Run(ctx)
	}
	return cli.Exit(w.stderr, "cmwa-cloud", err)
}

// commands makes the tree of commands anew: it holds the state of one parse.
func commands(w world) *ffcli.Command {
	pool := group(w, "pool", "work with agent pools", poolCreate(w), poolList(w))
	return group(w, "", "a local Pulumi Cloud for workflow agents",
		serveCommand(w), pool, deployCommand(w), listCommand(w), statusCommand(w), logsCommand(w), cancelCommand(w))
}

// group is a command that only has commands.
func group(w world, name, help string, commands ...*ffcli.Command) *ffcli.Command {
	full := "cmwa-cloud"
	if name != "" {
		full += " " + name
	}
	c := &ffcli.Command{Name: name, ShortUsage: full + " COMMAND [FLAGS]", ShortHelp: help, FlagSet: flags(w, full), Subcommands: commands}
	c.Exec = func(_ context.Context, args []string) error {
		if len(args) > 0 {
			return cli.Usagef("there is no command %q; %s -h lists them", args[0], full)
		}
		fmt.Fprintln(w.stderr, ffcli.DefaultUsageFunc(c))
		return cli.Usagef("name a command")
	}
	return c
}

func flags(w world, name string) *flag.FlagSet {
	set := flag.NewFlagSet(name, flag.ContinueOnError)
	set.SetOutput(w.stderr)
	return set
}

// arguments takes the arguments of a command that may stand before, between and
// after its flags: as many as there are names, of which those in brackets may
// be missing.
func arguments(set *flag.FlagSet, args []string, names ...string) ([]string, error) {
	values := make([]string, 0, len(names))
	for len(args) > 0 {
		values = append(values, args[0])
		if err := set.Parse(args[1:]); err != nil {
			if errors.Is(err, flag.ErrHelp) {
				return nil, err
			}
			return nil, cli.Usage(err)
		}
		args = set.Args()
	}
	if len(values) > len(names) {
		return nil, cli.Usagef("%s takes no argument %q", set.Name(), values[len(names)])
	}
	for len(values) < len(names) {
		if name := names[len(values)]; name[0] != '[' {
			return nil, cli.Usagef("%s needs %s", set.Name(), name)
		}
		values = append(values, "")
	}
	return values, nil
}
