// Command cmwa is a workflow agent for Pulumi Cloud and compatible services. It
// claims workflow jobs and runs each in its own instance: a container, a Pod or a
// process group. Its settings are in a configuration file.
package main

import (
	"context"
	"io"
	"os"
	"slices"
	"syscall"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/cmd/cli/command"
	"github.com/cmwa-project/cmwa/cmd/cmwa/control"
	"github.com/cmwa-project/cmwa/schema"
)

// stdio is the environment and the standard streams of a command.
type stdio struct {
	environ environment
	stdin   io.Reader
	stdout  io.Writer
	stderr  io.Writer
}

func main() {
	// The third signal ends the process at once. The exit code is the one that a shell reports
	// for this signal. The next start adopts the jobs that still run.
	third := func(s os.Signal) { os.Exit(128 + int(s.(syscall.Signal))) }
	shutdown, force := cli.Signals(third, syscall.SIGTERM, syscall.SIGINT)
	s := stdio{readEnvironment(os.Environ()), os.Stdin, os.Stdout, os.Stderr}
	os.Exit(execute(shutdown, force, os.Args[1:], s))
}

// execute runs one command line and returns its exit code. The first signal cancels
// shutdown, and the second signal cancels force.
func execute(shutdown, force context.Context, args []string, s stdio) int {
	return cli.Exit(s.stderr, "cmwa", newProgram(force, s).Run(shutdown, args, s.stdout, s.stderr))
}

// newProgram returns the description of this program. Its flags hold the state of one
// command line.
func newProgram(force context.Context, s stdio) command.Program {
	return command.Program{
		Name: "cmwa", Help: "a workflow agent for Pulumi Cloud and compatible services",
		Long: `First steps: "cmwa configure" writes a configuration file, "cmwa vet" checks it, "cmwa doctor"
checks this machine, and "cmwa run" starts the agent.`,
		Keys: schema.Names,
		Commands: slices.Concat([]command.Command{
			runCommand(force, s),
			statusCommand(s),
			{
				Name: "jobs", Help: "list and stop the jobs of the running agent, and print their logs",
				Commands: []command.Command{
					jobsList(s), jobsLogs(s), jobsShell(s), control.StopJob(controlTerminal(s)),
				},
			},
		}, control.Commands(controlTerminal(s)), []command.Command{
			doctorCommand(s),
			vetCommand(s),
			planCommand(s),
			podCommand(s),
			configureCommand(s),
			configCommand(s),
			migrateCommand(s),
			explainCommand(s),
			schemaCommand(s),
		}),
	}
}
