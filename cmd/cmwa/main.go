// Command cmwa is a workflow agent for Pulumi Cloud and for services that speak
// like it: it claims workflow jobs and runs each in an environment of its own,
// as a configuration file says.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/cmd/cmwa/command"
)

// streams is what a command works on beside its arguments.
type streams struct {
	environ []string
	stdin   io.Reader
	stdout  io.Writer
	stderr  io.Writer
}

func main() {
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
	return cli.Exit(s.stderr, "cmwa", command.Run(soft, commands(hard, s), args, s.stderr))
}

// commands returns the descriptions of all commands. Their flags hold the state of
// one command line.
func commands(hard context.Context, s streams) (all []command.Command) {
	return []command.Command{
		runCommand(hard, s),
		statusCommand(s),
		doctorCommand(s),
		vetCommand(s),
		planCommand(s),
		podCommand(s),
		configureCommand(s),
		configCommand(s),
		explainCommand(s),
		schemaCommand(s),
		completionCommand(func() []command.Command { return all }, s),
		versionCommand(s),
	}
}

func versionCommand(s streams) command.Command {
	return command.Command{
		Name: "version", Help: "print the version", Forms: []command.Form{{}},
		Run: func(context.Context, *flag.FlagSet, []string) error {
			_, err := fmt.Fprintln(s.stdout, cli.Version())
			return err
		},
	}
}
